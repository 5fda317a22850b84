package instance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// writeDurable replaces a file, flushed, and its name with it. The owner is the
// user that Postgres runs as.
func (i *Instance) writeDurable(path string, data []byte) error {
	if err := i.replace(path, data, true); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// writeVolatile replaces a file on tmpfs.
func (i *Instance) writeVolatile(path string, data []byte) error {
	return i.replace(path, data, false)
}

// replace renames a complete new file over the old one, so that a reader (a
// reload at any moment) sees one or the other.
func (i *Instance) replace(path string, data []byte, sync bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	tmp := f.Name()
	err = func() error {
		if _, err := f.Write(data); err != nil {
			return err
		}
		if err := f.Chmod(0o600); err != nil {
			return err
		}
		if u := i.user; u.switches {
			if err := f.Chown(int(u.uid), int(u.gid)); err != nil {
				return err
			}
		}
		if sync {
			return f.Sync()
		}
		return nil
	}()
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// makeDir makes a directory for Postgres's user, with exactly these permissions.
// Directories above it that are missing can be passed through by everybody.
func (i *Instance) makeDir(path string, perm fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(path, perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if u := i.user; u.switches {
		if err := os.Chown(path, int(u.uid), int(u.gid)); err != nil {
			return err
		}
	}
	return os.Chmod(path, perm)
}

// remove removes a file that may not be there, durably.
func remove(path string) error {
	if err := os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
