package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
