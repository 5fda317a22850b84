package measure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// needFree is what the ladder asks for: two files at once, and some air.
const needFree = 64 << 20

const scratchPrefix = ".holdfast-measure-"

// scratch is the ladder's own directory. Its lock tells a live run's from one
// that a killed run left.
type scratch struct {
	dir  string
	lock *os.File
}

func openScratch(path string) (*scratch, error) {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrPath, err)
	case !st.IsDir():
		return nil, fmt.Errorf("%w: %s is a file or a device; give a directory on the disk to be measured", ErrPath, path)
	}
	var fsst unix.Statfs_t
	if err := unix.Statfs(path, &fsst); err != nil {
		return nil, fmt.Errorf("ask %s for its free space: %w", path, err)
	}
	removeStale(path)
	// Bavail is 0 on file systems that do not count (some FUSE and network
	// ones), which then also say that they have no blocks at all.
	if free := fsst.Bavail * uint64(fsst.Bsize); fsst.Blocks > 0 && free < needFree {
		return nil, fmt.Errorf("%w: %s has %d MiB free, the ladder needs %d; free some, or measure another directory of the same disk",
			ErrSpace, path, free>>20, needFree>>20)
	}
	for range 5 {
		s, err := lockedDir(path)
		if s != nil || err != nil {
			return s, err
		}
	}
	return nil, fmt.Errorf("another run keeps removing our directory in %s; try again when it has ended", path)
}

// lockedDir makes and locks a directory. Both are nil when another run, which
// cleans up, took it between the two for a dead one.
func lockedDir(path string) (*scratch, error) {
	dir, err := os.MkdirTemp(path, scratchPrefix)
	if err != nil {
		return nil, fmt.Errorf("%w: %w; give a directory that you may write to", ErrPath, err)
	}
	lock, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		_ = os.Remove(dir)
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	_, gone := os.Lstat(dir)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(gone, fs.ErrNotExist) {
		_ = lock.Close()
		return nil, nil
	}
	return &scratch{dir: dir, lock: lock}, nil // without locks, the name alone has to do
}

func (s *scratch) remove() error {
	err := os.RemoveAll(s.dir)
	_ = s.lock.Close()
	return err
}

// removeStale removes the directories of runs that were killed: ours by name,
// by owner, and by nobody holding their lock.
func removeStale(path string) {
	old, _ := filepath.Glob(filepath.Join(escapeGlob(path), scratchPrefix+"*"))
	for _, dir := range old {
		var st unix.Stat_t
		if unix.Lstat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
			continue
		}
		f, err := os.Open(dir)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = f.Close()
	}
}

func escapeGlob(path string) string {
	var out []rune
	for _, r := range path {
		switch r {
		case '*', '?', '[', '\\':
			out = append(out, '\\')
		}
		out = append(out, r)
	}
	return string(out)
}
