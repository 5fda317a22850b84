package local

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// labsDir holds a directory for each lab of this machine, with what a later
// lab needs to know to clean up: which processes were started, and where.
const labsDir = "/run/holdfast/labs"

// Files within a lab's directories. The lock is held by the lab's process as
// long as it lives; the kernel lets go of it whatever way the process ends.
const (
	lockName = "lock"
	leftName = "leftovers"
)

// state is what a lab has outside its own process.
type state struct {
	id       string
	dir      string // in labsDir: leftovers, mount points, control sockets
	work     string // in the work directory: backing images
	workDir  string
	madeWork bool
	locks    []*os.File

	mu   sync.Mutex
	left *os.File // one line for each thing that must not stay
}

// newState removes dead labs, and makes and locks the directories of a new one.
func newState(workDir string, log *slog.Logger) (_ *state, err error) {
	if !filepath.IsAbs(workDir) {
		return nil, fmt.Errorf("work directory %q: want an absolute path", workDir)
	}
	all, err := lockLabs()
	if err != nil {
		return nil, err
	}
	defer all.Close()
	defer func() {
		if err != nil {
			removeLabsDir()
		}
	}()
	removed, err := cleanLocked([]string{workDir, DefaultWorkDir})
	if err != nil {
		// What cannot be removed does not harm a new lab.
		log.Warn("remove what dead labs left", "error", err)
		err = nil
	}
	for _, r := range removed {
		log.Info("removed what a dead lab left", "lab", r)
	}
	var random [4]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, err
	}
	s := &state{id: hex.EncodeToString(random[:]), workDir: workDir}
	s.dir = filepath.Join(labsDir, s.id)
	s.work = filepath.Join(workDir, workPrefix+s.id)
	if _, err := os.Stat(workDir); errors.Is(err, fs.ErrNotExist) {
		s.madeWork = true
	}
	if err := os.MkdirAll(workDir, 0o755); err != nil {
		return nil, fmt.Errorf("make the work directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.removeLocked())
		}
	}()
	for _, dir := range []string{s.dir, s.work} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make a directory of the lab: %w", err)
		}
		lock, err := tryLock(filepath.Join(dir, lockName))
		if err != nil {
			return nil, fmt.Errorf("lock the lab: %w", err)
		}
		s.locks = append(s.locks, lock)
	}
	s.left, err = os.OpenFile(filepath.Join(s.dir, leftName), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return s, s.note(noteWork, s.work)
}

// workPrefix marks a lab's directory in a work directory, which may hold
// other people's files too.
const workPrefix = "holdfast-lab-"

// Kinds of notes on what a lab made.
const (
	noteProcess = "process" // number and start time
	noteCgroup  = "cgroup"  // directory
	noteWork    = "work"    // directory
)

func (s *state) note(kind, what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := fmt.Fprintf(s.left, "%s %s\n", kind, what); err != nil {
		return fmt.Errorf("note what the lab made: %w", err)
	}
	return nil
}

// record notes a process of the lab. Its start time tells it from a later one
// of the same number.
func (s *state) record(pid int) error {
	start, err := startTime(pid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has ended already
	}
	if err != nil {
		return err
	}
	return s.note(noteProcess, fmt.Sprintf("%d %d", pid, start))
}

// startTime is when a process started, in clock ticks after the machine's boot.
func startTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	start, err := parseStartTime(string(stat))
	if err != nil {
		return 0, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
	}
	return start, nil
}

// parseStartTime finds field 22, counted from 1, of a /proc/PID/stat. The name,
// in parentheses, may hold anything.
func parseStartTime(stat string) (uint64, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("%d fields after the name", len(fields))
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("when it began: %w", err)
	}
	return start, nil
}

// remove deletes the lab's directories, and those above them that are empty.
func (s *state) remove() error {
	all, err := lockLabs()
	if err != nil {
		return err
	}
	defer all.Close()
	return s.removeLocked()
}

func (s *state) removeLocked() error {
	if s.left != nil {
		_ = s.left.Close()
	}
	err := errors.Join(os.RemoveAll(s.work), os.RemoveAll(s.dir))
	for _, l := range s.locks {
		_ = l.Close()
	}
	if s.madeWork || s.workDir == DefaultWorkDir {
		_ = os.Remove(s.workDir) // unless another lab uses it
	}
	removeLabsDir()
	return err
}

func removeLabsDir() {
	_ = os.Remove(labsDir)
	_ = os.Remove(filepath.Dir(labsDir))
}

// lockLabs takes the lock under which labs are made and removed.
func lockLabs() (*os.File, error) {
	for {
		if err := os.MkdirAll(labsDir, 0o755); err != nil {
			return nil, fmt.Errorf("make the directory of labs: %w", err)
		}
		f, err := os.Open(labsDir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed in between by one that held the lock
		}
		if err != nil {
			return nil, fmt.Errorf("open the directory of labs: %w", err)
		}
		if err := retryInterrupted(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) }); err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("lock the directory of labs: %w", err)
		}
		mine, err1 := f.Stat()
		there, err2 := os.Stat(labsDir)
		if err1 == nil && err2 == nil && os.SameFile(mine, there) {
			return f, nil
		}
		_ = f.Close()
	}
}

// tryLock returns errLocked when another process holds the lock.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = retryInterrupted(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errLocked
	}
	return nil, &os.PathError{Op: "lock", Path: path, Err: err}
}

var errLocked = errors.New("in use by a lab that is running")

func retryInterrupted(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// firstFreeID is where the search for the unprivileged user's number begins: in
// a range that no distribution hands out.
const firstFreeID = 60770

// freeUserID returns a number that neither a user nor a group of the machine has.
func freeUserID() (int, error) {
	taken := map[int]bool{}
	for _, path := range []string{"/etc/passwd", "/etc/group"} {
		f, err := os.Open(path)
		if err != nil {
			return 0, err
		}
		sc := bufio.NewScanner(f)
		for sc.Scan() {
			if fields := strings.Split(sc.Text(), ":"); len(fields) > 2 {
				if id, err := strconv.Atoi(fields[2]); err == nil {
					taken[id] = true
				}
			}
		}
		_ = f.Close()
		if err := sc.Err(); err != nil {
			return 0, fmt.Errorf("read %s: %w", path, err)
		}
	}
	for id := firstFreeID; id < firstFreeID+200; id++ {
		if !taken[id] {
			return id, nil
		}
	}
	return 0, fmt.Errorf("no free user number from %d on", firstFreeID)
}
