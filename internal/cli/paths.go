package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/disk/fuse"
)

// Paths are looked at before anything is made. One that cannot be used as given
// is wrong usage; one that holds what must not be touched is refused; a machine
// that fails is found out later, and is its own failure.

// usableDir returns an error unless path is a directory that can be written to,
// or one that can be made. what names the path in messages.
func usableDir(what, path string) error {
	if path == "" {
		return fmt.Errorf("%s: the path is empty: name a folder", what)
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return infraError(fmt.Errorf("%s %s: %w", what, path, err))
	}
	for name := range strings.SplitSeq(full, "/") {
		if len(name) > unix.NAME_MAX {
			return fmt.Errorf("%s %s: a name in it is longer than a file system allows: choose a shorter one", what, path)
		}
	}
	at := full
	var st os.FileInfo
	for {
		st, err = os.Stat(at)
		if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) || at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	switch {
	case errors.Is(err, syscall.ENOTCONN):
		return withCode(exitRefused, fmt.Errorf("%s %s: at %s is the mount of a disk that was killed: `umount %[3]s`, then start again", what, path, at))
	case err != nil:
		return fmt.Errorf("%s %s: %w: choose another folder", what, path, err)
	case !st.IsDir() && at == full:
		return fmt.Errorf("%s %s is a file: name a folder", what, path)
	case !st.IsDir():
		return fmt.Errorf("%s %s: %s is a file, so no folder can be in it: choose another path", what, path, at)
	}
	return writable(what, path, at)
}

// writable looks at dir, which is path or the nearest above it that exists.
func writable(what, path, dir string) error {
	var sf unix.Statfs_t
	if err := unix.Statfs(dir, &sf); err == nil && (sf.Type == unix.PROC_SUPER_MAGIC || sf.Type == unix.SYSFS_MAGIC) {
		return fmt.Errorf("%s %s: %s is the kernel's own and keeps no files: choose another folder", what, path, dir)
	}
	switch err := unix.Access(dir, unix.W_OK|unix.X_OK); {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%s %s: %s lies on a read-only file system: choose another folder", what, path, dir)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s %s: this user may not write to %s: choose another folder, or run it with sudo", what, path, dir)
	case err != nil:
		return fmt.Errorf("%s %s: %w: choose another folder", what, path, err)
	}
	return nil
}

// usableMountpoint returns an error unless dir is an empty directory that
// nothing is mounted on: what is below a mount is out of sight, and programs
// that are started too early write there without a word.
func usableMountpoint(dir string, nonempty bool) error {
	if dir == "" {
		return errors.New("mount point: the path is empty: name an existing directory")
	}
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("mount point %s does not exist: `mkdir -p %[1]s` makes it", dir)
	case errors.Is(err, syscall.ENOTCONN):
		return withCode(exitRefused, fmt.Errorf("mount point %s: the simulated disk that was mounted there was killed: `umount %[1]s`, then start again", dir))
	case errors.Is(err, syscall.ENAMETOOLONG):
		return fmt.Errorf("mount point %s: a name in it is longer than the file system allows", dir)
	case err != nil:
		return fmt.Errorf("mount point %s: %w: choose another directory", dir, err)
	case !st.IsDir():
		return fmt.Errorf("mount point %s is not a directory: name one, or make one with mkdir", dir)
	}
	if mountedOn(dir, st) {
		return withCode(exitRefused, fmt.Errorf("mount point %s: a FUSE file system is mounted there already: `umount %[1]s` first, or choose another directory", dir))
	}
	if nonempty {
		return nil
	}
	name, err := firstEntry(dir)
	switch {
	case err != nil:
		return fmt.Errorf("mount point %s: %w: choose a directory that this user may read", dir, err)
	case name != "":
		return withCode(exitRefused, fmt.Errorf("mount point %s is not empty: it holds %q, which would be out of sight below the disk: choose an empty directory, or give --nonempty", dir, name))
	}
	return nil
}

// mountedOn says whether dir is where a FUSE file system is mounted.
func mountedOn(dir string, st os.FileInfo) bool {
	var sf unix.Statfs_t
	if unix.Statfs(dir, &sf) != nil || sf.Type != fuse.SuperMagic {
		return false
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	above, err := os.Stat(filepath.Join(real, ".."))
	if err != nil {
		return false
	}
	a, ok := st.Sys().(*syscall.Stat_t)
	b, ok2 := above.Sys().(*syscall.Stat_t)
	return ok && ok2 && a.Dev != b.Dev
}

// firstEntry is the name of something in dir, "" if there is nothing.
func firstEntry(dir string) (string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	defer f.Close()
	names, err := f.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return names[0], nil
}

// maxSocketPath is what fits into a unix socket's address, less the final 0.
const maxSocketPath = 107

// usableSocket returns an error unless a control socket can be made at path.
// Beside the backing directory, which is made with those above it, it needs no
// directory to be there.
func usableSocket(path, backing string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("control socket %s: its path has %d bytes and a socket's has %d at most: give a shorter one with --control", path, len(path), maxSocketPath)
	}
	switch st, err := os.Lstat(path); {
	case err == nil && st.Mode()&os.ModeSocket == 0:
		return withCode(exitRefused, fmt.Errorf("control socket %s: something else is there, and is left alone: give another path with --control", path))
	case err == nil:
		return nil
	}
	dir := filepath.Dir(path)
	if dir == filepath.Dir(filepath.Clean(backing)) {
		return nil
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return fmt.Errorf("control socket %s: %s is not a directory: make it, or give another path with --control", path, dir)
	}
	return writable("control socket", path, dir)
}

// refused gives those errors of a disk their code that protect what is there.
func refused(err error) error {
	if errors.Is(err, fuse.ErrForeign) || errors.Is(err, fuse.ErrInUse) || errors.Is(err, fuse.ErrBelow) {
		return withCode(exitRefused, err)
	}
	return infraError(err)
}
