package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrHoldsRun is returned for a folder that already holds a run.
var ErrHoldsRun = errors.New("holds a run")

// Vacant returns an error when dir holds a run: evidence is never overwritten.
func Vacant(dir string) error {
	_, err := os.Stat(filepath.Join(dir, "run.json"))
	switch {
	case err == nil:
		return fmt.Errorf("%s %w already: give --out another folder, or see it with `holdfast lab report %s`", dir, ErrHoldsRun, dir)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	default:
		return fmt.Errorf("look into the run folder: %w", err)
	}
}

// Create makes the run folder and its parts.
func Create(dir string) error {
	if err := Vacant(dir); err != nil {
		return err
	}
	for _, d := range []string{dir, filepath.Join(dir, "histories"), filepath.Join(dir, "logs")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make the run folder: %w", err)
		}
	}
	return nil
}

// ErrRunning is returned for a folder in which a run is going on.
var ErrRunning = errors.New("is being run")

// Lock makes the folder this process's own until unlock, or until it ends.
func Lock(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the run folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s %w by another process: wait for it, or interrupt it and then resume", dir, ErrRunning)
		}
		return nil, fmt.Errorf("lock the run folder: %w", err)
	}
	return func() { _ = f.Close() }, nil
}
