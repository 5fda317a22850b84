package instance

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// minRoom is what must be free on the data directory's and the WAL's disk to go
// on as a primary: eight segments of WAL.
const minRoom = 128 << 20

// minCreate is what a new directory needs beside that.
const minCreate = 128 << 20

// room is what an unprivileged user may still write on a file system.
func room(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("ask for the room on %s: %w", path, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

func checkRoom(path string) error {
	for ; !exists(path); path = filepath.Dir(path) {
		if path == filepath.Dir(path) {
			break
		}
	}
	free, err := room(path)
	if err != nil {
		return err
	}
	if free < minRoom+minCreate {
		return fmt.Errorf("the disk of %s is nearly full (%d MB are free): free at least %d MB first", path, free>>20, (minRoom+minCreate)>>20)
	}
	return nil
}

// headroom says whether there is room to go on as a primary.
func (i *Instance) headroom() bool {
	for _, path := range []string{i.cfg.DataDir, filepath.Join(i.cfg.DataDir, "pg_wal")} {
		if free, err := room(path); err == nil && free < minRoom {
			return false
		}
	}
	return true
}

func owner(info fs.FileInfo) uint32 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Uid
	}
	return 0
}
