package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/lab/place/local/guest"
)

// Clean removes what labs left behind whose process is gone: processes, mounts
// and directories, also in o's work directory. Labs that are running are left
// alone. It returns a phrase for each lab of which something was there.
func Clean(_ context.Context, o Options) ([]string, error) {
	if err := checkRoot(); err != nil {
		return nil, err
	}
	all, err := lockLabs()
	if err != nil {
		return nil, err
	}
	defer func() { _ = all.Close() }()
	dirs := []string{DefaultWorkDir}
	if o.WorkDir != "" {
		dirs = append(dirs, o.WorkDir)
	}
	removed, err := cleanLocked(dirs)
	removeLabsDir()
	return removed, err
}

func cleanLocked(workDirs []string) (removed []string, err error) {
	entries, err := os.ReadDir(labsDir)
	if err != nil {
		return nil, fmt.Errorf("read the directory of labs: %w", err)
	}
	var errs []error
	note := func(id string, what remains, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("remove what lab %s left: %w", id, err))
		} else if what.dead {
			removed = append(removed, "lab "+id+what.String())
		}
	}
	for _, e := range entries {
		what, err := cleanLab(e.Name())
		note(e.Name(), what, err)
	}
	// After a restart of the machine only the work directories still tell.
	for _, dir := range workDirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("read the work directory: %w", err))
		}
		for _, e := range entries {
			if id, ours := strings.CutPrefix(e.Name(), workPrefix); ours && e.IsDir() {
				what, err := cleanWork(filepath.Join(dir, e.Name()))
				note(id, what, err)
			}
		}
		if dir == DefaultWorkDir {
			_ = os.Remove(dir)
		}
	}
	return removed, errors.Join(errs...)
}

// remains are what a dead lab left.
type remains struct {
	dead                    bool
	processes, mounts, dirs int
}

func (r remains) String() string {
	var parts []string
	for _, p := range []struct {
		n         int
		one, many string
		done      string
	}{
		{r.processes, "process", "processes", "killed"},
		{r.mounts, "disk", "disks", "unmounted"},
		{r.dirs, "directory", "directories", "removed"},
	} {
		switch {
		case p.n == 1:
			parts = append(parts, "1 "+p.one+" "+p.done)
		case p.n > 1:
			parts = append(parts, fmt.Sprintf("%d %s %s", p.n, p.many, p.done))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func cleanLab(id string) (r remains, err error) {
	dir := filepath.Join(labsDir, id)
	lock, err := tryLock(filepath.Join(dir, lockName))
	if errors.Is(err, errLocked) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	defer func() { _ = lock.Close() }()
	r.dead = true
	left, err := os.ReadFile(filepath.Join(dir, leftName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	var errs []error
	noted := map[string][]string{}
	for line := range strings.Lines(string(left)) {
		kind, what, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		noted[kind] = append(noted[kind], what)
	}
	for _, p := range noted[noteProcess] {
		killed, err := endRecorded(p)
		if killed {
			r.processes++
		}
		errs = append(errs, err)
	}
	for _, c := range noted[noteCgroup] {
		errs = append(errs, removeCgroup(c))
	}
	r.mounts, err = unmountBelow(dir)
	if err := errors.Join(append(errs, err)...); err != nil {
		return r, err // what was noted stays noted for the next try
	}
	for _, d := range append(noted[noteWork], dir) {
		if _, err := os.Stat(d); err == nil {
			r.dirs++
		}
		errs = append(errs, os.RemoveAll(d))
	}
	return r, errors.Join(errs...)
}

func cleanWork(dir string) (r remains, err error) {
	lock, err := tryLock(filepath.Join(dir, lockName))
	if errors.Is(err, errLocked) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	defer func() { _ = lock.Close() }()
	return remains{dead: true, dirs: 1}, os.RemoveAll(dir)
}

// unmountBelow unmounts the simulated disks of a lab.
func unmountBelow(dir string) (n int, err error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	points, err := guest.DiskMounts(f)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, p := range points {
		if !strings.HasPrefix(p, dir+"/") {
			continue
		}
		if err := unix.Unmount(p, unix.MNT_FORCE|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL {
			errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
			continue
		}
		n++
	}
	return n, errors.Join(errs...)
}

// killDeadline bounds how long a killed process may take to go.
const killDeadline = 10 * time.Second

// endRecorded kills the process of a "PID START" note if it is still that one.
func endRecorded(note string) (killed bool, err error) {
	number, start, _ := strings.Cut(note, " ")
	pid, err1 := strconv.Atoi(number)
	want, err2 := strconv.ParseUint(start, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return false, fmt.Errorf("note of a process %q: %w", note, err)
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open process %d: %w", pid, err)
	}
	defer func() { _ = unix.Close(pidfd) }()
	// The descriptor holds on to one process; only then is its age looked at.
	got, err := startTime(pid)
	if errors.Is(err, fs.ErrNotExist) || err == nil && got != want {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if ended, err := waitPidfd(pidfd, 0); ended || err != nil {
		return false, err
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return false, nil
		}
		return false, fmt.Errorf("kill process %d: %w", pid, err)
	}
	ended, err := waitPidfd(pidfd, killDeadline)
	if err == nil && !ended {
		err = fmt.Errorf("process %d is still there %v after it was killed", pid, killDeadline)
	}
	return true, err
}

// waitPidfd says whether the process has ended, within t.
func waitPidfd(pidfd int, t time.Duration) (ended bool, err error) {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	end := time.Now().Add(t)
	for {
		n, err := unix.Poll(poll, max(0, int(time.Until(end).Milliseconds())))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, fmt.Errorf("wait for a process: %w", err)
		}
		if err == nil && n > 0 {
			return true, nil
		}
		if !time.Now().Before(end) {
			return false, nil
		}
	}
}
