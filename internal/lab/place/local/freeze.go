package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// freezer stops and continues all programs of a machine.
type freezer interface {
	// adopt takes in the first process before it has started any other.
	adopt(pid int) error
	freeze(ctx context.Context) error
	thaw() error
	// kill kills all that are frozen, so that thawing lets none of them run.
	kill() error
	remove() error
}

// newFreezer prefers control groups, where nothing that is started in the
// middle can get away: version 2, then version 1, then plain signals.
func (l *lab) newFreezer(host string) (freezer, error) {
	name := "holdfast-" + l.state.id + "-" + host
	for _, parent := range l.groups {
		dir := filepath.Join(parent.dir, name)
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		f := &cgroupFreezer{dir: dir, v2: parent.v2}
		if _, err := os.Stat(f.file()); err != nil {
			_ = os.Remove(dir)
			continue
		}
		if err := l.state.note(noteCgroup, dir); err != nil {
			return nil, errors.Join(err, os.Remove(dir))
		}
		return f, nil
	}
	return &signalFreezer{}, nil
}

type cgroupParent struct {
	dir string
	v2  bool
}

// cgroupParents returns this process's own control groups that may freeze,
// the better ones first.
func cgroupParents() []cgroupParent {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	return freezingParents(string(own), f)
}

// freezingParents are those of a /proc/PID/cgroup and a mountinfo file.
func freezingParents(own string, mountinfo io.Reader) []cgroupParent {
	v1path, v2path := "", ""
	for line := range strings.Lines(own) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(fields) < 3:
		case fields[1] == "":
			v2path = fields[2]
		case hasWord(fields[1], "freezer"):
			v1path = fields[2]
		}
	}
	var v1, v2 []cgroupParent
	sc := bufio.NewScanner(mountinfo)
	for sc.Scan() {
		before, after, _ := strings.Cut(sc.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 5 || len(right) < 3 {
			continue
		}
		switch {
		case right[0] == "cgroup2" && v2path != "":
			v2 = append(v2, cgroupParent{below(left[4], left[3], v2path), true})
		case right[0] == "cgroup" && hasWord(right[2], "freezer") && v1path != "":
			v1 = append(v1, cgroupParent{below(left[4], left[3], v1path), false})
		}
	}
	return append(v2, v1...)
}

// below is where the control group path is, with the hierarchy mounted at
// point from root on.
func below(point, root, path string) string {
	if rel, err := filepath.Rel(root, path); err == nil && !strings.HasPrefix(rel, "..") {
		path = rel
	}
	return filepath.Join(point, path)
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

type cgroupFreezer struct {
	dir    string
	v2     bool
	frozen bool
}

func (f *cgroupFreezer) file() string {
	if f.v2 {
		return filepath.Join(f.dir, "cgroup.freeze")
	}
	return filepath.Join(f.dir, "freezer.state")
}

func (f *cgroupFreezer) adopt(pid int) error {
	err := os.WriteFile(filepath.Join(f.dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	if errors.Is(err, unix.ESRCH) {
		return nil // it has ended already, and that will be noticed
	}
	return err
}

func (f *cgroupFreezer) freeze(ctx context.Context) error {
	f.frozen = true
	if f.v2 {
		if err := os.WriteFile(f.file(), []byte("1"), 0); err != nil {
			return err
		}
		return waitFrozen(ctx, func() (bool, error) {
			events, err := os.ReadFile(filepath.Join(f.dir, "cgroup.events"))
			return strings.Contains(string(events), "frozen 1"), err
		})
	}
	looks := 0
	return waitFrozen(ctx, func() (bool, error) {
		// Version 1 can get stuck half way when programs start others at that
		// moment; asking again helps, and after a thaw all the more.
		if looks++; looks%100 == 0 {
			if err := thawCgroup(f.dir, false); err != nil {
				return false, err
			}
		}
		if err := os.WriteFile(f.file(), []byte("FROZEN"), 0); err != nil {
			return false, err
		}
		word, err := os.ReadFile(f.file())
		return strings.TrimSpace(string(word)) == "FROZEN", err
	})
}

// freezeDeadline bounds how long a program may be in the middle of something
// that cannot be stopped, such as an access to its disk.
const freezeDeadline = 5 * time.Second

func waitFrozen(ctx context.Context, frozen func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, freezeDeadline)
	defer cancel()
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for {
		if done, err := frozen(); done || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait until all programs have stopped: %w", ctx.Err())
		}
	}
}

func (f *cgroupFreezer) thaw() error {
	if !f.frozen {
		return nil
	}
	f.frozen = false
	return thawCgroup(f.dir, f.v2)
}

func thawCgroup(dir string, v2 bool) error {
	file, word := "freezer.state", "THAWED"
	if v2 {
		file, word = "cgroup.freeze", "0"
	}
	return os.WriteFile(filepath.Join(dir, file), []byte(word), 0)
}

// kill leaves nobody to run on between the thaw, without which programs do not
// see a signal under version 1, and the first process's death.
func (f *cgroupFreezer) kill() error {
	if !f.frozen {
		return nil
	}
	return killCgroup(f.dir)
}

func killCgroup(dir string) error {
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, word := range strings.Fields(string(procs)) {
		if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	return nil
}

func (f *cgroupFreezer) remove() error { return removeEmptyCgroup(f.dir) }

// removeEmptyCgroup waits a moment for the kernel to notice that it is empty.
func removeEmptyCgroup(dir string) error {
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

// removeCgroup removes a dead lab's control group and what still is in it.
func removeCgroup(dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := killCgroup(dir); err != nil {
		return err
	}
	for _, g := range []cgroupFreezer{{dir: dir, v2: true}, {dir: dir}} {
		if _, err := os.Stat(g.file()); err != nil {
			continue // it bounds memory only
		}
		if err := thawCgroup(dir, g.v2); err != nil {
			return err
		}
		break
	}
	return removeEmptyCgroup(dir)
}

// signalFreezer stops every process of the first one's PID namespace, and the
// first one before all others: it would start more.
type signalFreezer struct {
	pid    int
	frozen bool
}

func (f *signalFreezer) adopt(pid int) error { f.pid = pid; return nil }
func (f *signalFreezer) remove() error       { return nil }

func (f *signalFreezer) freeze(ctx context.Context) error {
	f.frozen = true
	looks, still := 0, 0
	return waitFrozen(ctx, func() (bool, error) {
		// One that waits for a child of its that has stopped between vfork and
		// exec does not stop: all have to go on, and be stopped anew.
		if looks++; looks%50 == 0 {
			if err := f.signal(unix.SIGCONT); err != nil {
				return false, err
			}
		}
		if looks%50 <= 1 {
			if err := unix.Kill(f.pid, unix.SIGSTOP); err != nil {
				return false, err
			}
		}
		all := true
		err := f.each(func(pid int, state byte) {
			if !strings.ContainsRune("TtZXx", rune(state)) {
				all = false
				_ = unix.Kill(pid, unix.SIGSTOP)
			}
		})
		// The first look at which all have stopped may miss a child that one
		// of them started just before it stopped; a second one does not.
		if still++; !all {
			still = 0
		}
		return still == 2, err
	})
}

func (f *signalFreezer) signal(sig unix.Signal) error {
	return f.each(func(pid int, _ byte) { _ = unix.Kill(pid, sig) })
}

// kill leaves nobody to continue when the first process is killed.
func (f *signalFreezer) kill() error {
	if !f.frozen {
		return nil
	}
	f.frozen = false
	return f.signal(unix.SIGKILL)
}

func (f *signalFreezer) thaw() error {
	if !f.frozen {
		return nil
	}
	f.frozen = false
	return f.signal(unix.SIGCONT)
}

// each calls do for all processes of the namespace, with their state.
func (f *signalFreezer) each(do func(pid int, state byte)) error {
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", f.pid))
	if err != nil {
		return err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err != nil || ns != own {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		if i := strings.LastIndex(string(stat), ") "); i >= 0 && len(stat) > i+2 {
			do(pid, stat[i+2])
		}
	}
	return nil
}

// Freeze stops all programs of the host. Its network stays up: the kernel goes
// on acknowledging what arrives, as it does on a machine whose programs hang.
func (h *host) Freeze(ctx context.Context) error {
	return h.withFreezer("freeze", func(f freezer) error {
		if err := f.freeze(ctx); err != nil {
			return errors.Join(err, f.thaw())
		}
		return nil
	})
}

// Thaw undoes Freeze; so does a power cycle.
func (h *host) Thaw(context.Context) error {
	return h.withFreezer("thaw", func(f freezer) error { return f.thaw() })
}

func (h *host) withFreezer(what string, do func(freezer) error) error {
	h.power.Lock()
	defer h.power.Unlock()
	m, err := h.running()
	if err == nil {
		err = do(m.freezer)
	}
	if err != nil {
		return fmt.Errorf("%s host %s: %w", what, h.spec.Name, err)
	}
	return nil
}
