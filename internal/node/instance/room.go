package instance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

func (i *Instance) checkRoom(path string) error {
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

// checkPort refuses an address or a port that Postgres could not use.
func (i *Instance) checkPort(ctx context.Context) error {
	addr := net.JoinHostPort(i.cfg.Address, strconv.Itoa(i.cfg.Port))
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s is in use by another program: stop that (ss -ltnp shows it; the distribution's own Postgres with systemctl disable --now postgresql), or set another port", addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s is no address of this host: set the node's address to one that it has (ip addr)", i.cfg.Address)
	case err != nil:
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
	return l.Close()
}

// checkOwn refuses a data directory of another major, or one that was not made by
// this agent and so may be another cluster's.
func (i *Instance) checkOwn(ctx context.Context) error {
	dir := i.cfg.DataDir
	if !exists(filepath.Join(dir, "PG_VERSION")) {
		return i.checkRoom(dir)
	}
	version, err := os.ReadFile(filepath.Join(dir, "PG_VERSION"))
	if err != nil {
		return err
	}
	if v := strings.TrimSpace(string(version)); v != strconv.Itoa(i.major) {
		return fmt.Errorf("%s is of PostgreSQL %s, the programs in %s are of %d: name those of %s (bin_dir)", dir, v, i.cfg.BinDir, i.major, v)
	}
	n, err := readIncarnation(filepath.Join(dir, incarnationName))
	if err != nil {
		return err
	}
	if mine := i.Incarnation(); n == 0 || n != mine {
		id, err := i.SystemIdentifier(ctx)
		if err != nil {
			return err
		}
		return fmt.Errorf("%s (system identifier %s) was not made by this node: adopt it if it is to begin a cluster, else move it away or name another place (data_dir)", dir, id)
	}
	return nil
}
