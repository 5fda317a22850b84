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

// CleanReport says what Clean found.
type CleanReport struct {
	Labs      []string // dead labs whose remains were removed
	Alive     []string // labs that are running, left alone
	Processes int      // processes that were killed
	Mounts    int      // simulated disks that were unmounted
}

// Clean removes what labs left behind whose process is gone: processes, mounts,
// and directories, also in the given work directories besides the usual one.
// Labs that are running are left alone.
func Clean(_ context.Context, workDirs ...string) (CleanReport, error) {
	if err := checkRoot(); err != nil {
		return CleanReport{}, err
	}
	all, err := lockLabs()
	if err != nil {
		return CleanReport{}, err
	}
	defer all.Close()
	report, err := cleanLocked(append(workDirs, DefaultWorkDir))
	removeLabsDir()
	return report, err
}

func cleanLocked(workDirs []string) (CleanReport, error) {
	var report CleanReport
	entries, err := os.ReadDir(labsDir)
	if err != nil {
		return report, fmt.Errorf("read the directory of labs: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if err := report.cleanLab(e.Name()); err != nil {
			errs = append(errs, fmt.Errorf("remove what lab %s left: %w", e.Name(), err))
		}
	}
	// After a restart of the machine only the work directories still tell.
	for _, dir := range workDirs {
		if err := report.cleanWork(dir); err != nil {
			errs = append(errs, fmt.Errorf("remove what labs left in %s: %w", dir, err))
		}
	}
	return report, errors.Join(errs...)
}

func (r *CleanReport) cleanLab(id string) error {
	dir := filepath.Join(labsDir, id)
	lock, err := tryLock(filepath.Join(dir, lockName))
	if errors.Is(err, errLocked) {
		r.Alive = append(r.Alive, id)
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	left, err := os.ReadFile(filepath.Join(dir, leftName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	var cgroups, works []string
	for line := range strings.Lines(string(left)) {
		kind, what, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch kind {
		case "process":
			killed, err := endRecorded(what)
			if killed {
				r.Processes++
			}
			errs = append(errs, err)
		case "cgroup":
			cgroups = append(cgroups, what)
		case "work":
			works = append(works, what)
		}
	}
	for _, c := range cgroups {
		errs = append(errs, removeCgroup(c))
	}
	errs = append(errs, r.unmountBelow(dir))
	if err := errors.Join(errs...); err != nil {
		return err // what was noted stays noted for the next try
	}
	for _, w := range works {
		errs = append(errs, os.RemoveAll(w))
	}
	r.Labs = append(r.Labs, id)
	return errors.Join(append(errs, os.RemoveAll(dir))...)
}

func (r *CleanReport) cleanWork(workDir string) error {
	entries, err := os.ReadDir(workDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		id, ours := strings.CutPrefix(e.Name(), workPrefix)
		if !ours || !e.IsDir() {
			continue
		}
		dir := filepath.Join(workDir, e.Name())
		lock, err := tryLock(filepath.Join(dir, lockName))
		if errors.Is(err, errLocked) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.Labs = append(r.Labs, id)
		errs = append(errs, os.RemoveAll(dir), lock.Close())
	}
	if workDir == DefaultWorkDir {
		_ = os.Remove(workDir)
	}
	return errors.Join(errs...)
}

// unmountBelow unmounts the simulated disks of a lab.
func (r *CleanReport) unmountBelow(dir string) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	points, err := guest.DiskMounts(f)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range points {
		if !strings.HasPrefix(p, dir+"/") {
			continue
		}
		if err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL {
			errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
			continue
		}
		r.Mounts++
	}
	return errors.Join(errs...)
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
	defer unix.Close(pidfd)
	// The descriptor holds on to one process; only then is its age looked at.
	got, err := startTime(pid)
	if errors.Is(err, fs.ErrNotExist) || err == nil && got != want {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return false, nil
		}
		return false, fmt.Errorf("kill process %d: %w", pid, err)
	}
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for end := time.Now().Add(killDeadline); ; {
		n, err := unix.Poll(poll, int(time.Until(end).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return true, fmt.Errorf("wait for process %d: %w", pid, err)
		case n > 0:
			return true, nil
		}
		if !time.Now().Before(end) {
			return true, fmt.Errorf("process %d is still there %v after it was killed", pid, killDeadline)
		}
	}
}
