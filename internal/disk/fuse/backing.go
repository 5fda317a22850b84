package fuse

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Backing is a disk.Image in a directory: objects/XX/INODE (hexadecimal) and
// journal. Nothing is synced to the machine's own disk: only simulated power
// cuts are survived.
type Backing struct {
	dir  string
	lock *os.File

	mu      sync.Mutex
	open    map[uint64]*object
	journal *os.File
}

// object is an open object file. It is closed when it is not in use and too
// many are open.
type object struct {
	fd      int
	uses    int
	removed bool
}

// maxOpen bounds the open object files.
const maxOpen = 2048

// Errors that protect what is there are wrapped by those of Mount and OpenBacking.
var (
	// ErrInUse: another daemon has the backing directory.
	ErrInUse = errors.New("in use by another simulated disk")
	// ErrForeign: the backing directory holds something else.
	ErrForeign = errors.New("is not part of a simulated disk")
	// ErrBelow: the backing directory would lie on the disk itself.
	ErrBelow = errors.New("lies below the mount point")
)

// OpenBacking opens a backing directory, which is created if it is missing. It
// must be empty or have been one before.
func OpenBacking(dir string) (*Backing, error) {
	b := &Backing{dir: dir, open: map[uint64]*object{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the backing directory: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the backing directory: %w", err)
	}
	for _, e := range entries {
		switch e.Name() {
		case "objects", "journal", "journal.new", "lock":
		default:
			return nil, fmt.Errorf("backing directory %s holds %q, which %w: use an empty one", dir, e.Name(), ErrForeign)
		}
	}
	if b.lock, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("lock the backing directory: %w", err)
	}
	if err := unix.Flock(int(b.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		b.lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrInUse
		}
		return nil, fmt.Errorf("lock backing directory %s: %w", dir, err)
	}
	if err := b.prepare(); err != nil {
		b.lock.Close()
		return nil, err
	}
	return b, nil
}

func (b *Backing) prepare() error {
	for i := range 256 {
		if err := os.MkdirAll(filepath.Join(b.dir, "objects", fmt.Sprintf("%02x", i)), 0o700); err != nil {
			return fmt.Errorf("create the object directories: %w", err)
		}
	}
	_ = os.Remove(filepath.Join(b.dir, "journal.new"))
	return b.openJournal()
}

func (b *Backing) openJournal() error {
	f, err := os.OpenFile(filepath.Join(b.dir, "journal"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the metadata journal: %w", err)
	}
	if b.journal != nil {
		b.journal.Close()
	}
	b.journal = f
	return nil
}

// Close closes all files. The backing directory can be opened again.
func (b *Backing) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ino, o := range b.open {
		_ = syscall.Close(o.fd)
		delete(b.open, ino)
	}
	return errors.Join(b.journal.Close(), b.lock.Close())
}

func (b *Backing) path(ino uint64) string {
	return filepath.Join(b.dir, "objects", fmt.Sprintf("%02x", ino&0xff), strconv.FormatUint(ino, 16))
}

// use returns an object's file, or nil if it does not exist and create is false.
func (b *Backing) use(ino uint64, create bool) (*object, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o := b.open[ino]; o != nil {
		o.uses++
		return o, nil
	}
	if len(b.open) >= maxOpen {
		for i, o := range b.open {
			if o.uses == 0 {
				_ = syscall.Close(o.fd)
				delete(b.open, i)
				if len(b.open) < maxOpen*7/8 {
					break
				}
			}
		}
	}
	flags := unix.O_RDWR | unix.O_CLOEXEC
	if create {
		flags |= unix.O_CREAT
	}
	fd, err := unix.Open(b.path(ino), flags, 0o600)
	if err == unix.ENOENT && !create {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	o := &object{fd: fd, uses: 1}
	b.open[ino] = o
	return o, nil
}

func (b *Backing) done(o *object) {
	b.mu.Lock()
	o.uses--
	if o.removed && o.uses == 0 {
		_ = syscall.Close(o.fd)
	}
	b.mu.Unlock()
}

// ReadAt implements disk.Image.
func (b *Backing) ReadAt(ino uint64, p []byte, off int64) error {
	o, err := b.use(ino, false)
	if err != nil {
		return err
	}
	if o == nil {
		clear(p)
		return nil
	}
	defer b.done(o)
	for len(p) > 0 {
		n, err := unix.Pread(o.fd, p, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			clear(p)
			return nil
		}
		p = p[n:]
		off += int64(n)
	}
	return nil
}

// WriteAt implements disk.Image.
func (b *Backing) WriteAt(ino uint64, bufs [][]byte, off int64) error {
	o, err := b.use(ino, true)
	if err != nil {
		return err
	}
	defer b.done(o)
	for len(bufs) > 0 {
		n, err := unix.Pwritev(o.fd, bufs, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		off += int64(n)
		for n > 0 && n >= len(bufs[0]) {
			n -= len(bufs[0])
			bufs = bufs[1:]
		}
		if n > 0 {
			bufs = append([][]byte{bufs[0][n:]}, bufs[1:]...)
		}
	}
	return nil
}

// Discard implements disk.Image.
func (b *Backing) Discard(ino uint64, off, n int64) error {
	o, err := b.use(ino, false)
	if err != nil || o == nil {
		return err
	}
	defer b.done(o)
	err = unix.Fallocate(o.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // only the space is not given back
	}
	return err
}

// Remove implements disk.Image.
func (b *Backing) Remove(ino uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if o := b.open[ino]; o != nil {
		if o.removed = true; o.uses == 0 {
			_ = syscall.Close(o.fd)
		}
		delete(b.open, ino)
	}
	if err := unix.Unlink(b.path(ino)); err != nil && err != unix.ENOENT {
		return err
	}
	return nil
}

// Objects implements disk.Image.
func (b *Backing) Objects() ([]uint64, error) {
	var all []uint64
	err := filepath.WalkDir(filepath.Join(b.dir, "objects"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		ino, err := strconv.ParseUint(e.Name(), 16, 64)
		if err != nil {
			return fmt.Errorf("object %s: no inode number", strings.TrimPrefix(path, b.dir))
		}
		all = append(all, ino)
		return nil
	})
	return all, err
}

// Append implements disk.Image. A frame that could not be written whole is
// taken back.
func (b *Backing) Append(frame []byte) error {
	st, err := b.journal.Stat()
	if err != nil {
		return err
	}
	if _, err := b.journal.Write(frame); err != nil {
		return errors.Join(err, b.journal.Truncate(st.Size()))
	}
	return nil
}

// Replace implements disk.Image.
func (b *Backing) Replace(journal []byte) error {
	name := filepath.Join(b.dir, "journal")
	if err := os.WriteFile(name+".new", journal, 0o600); err != nil {
		return err
	}
	if err := os.Rename(name+".new", name); err != nil {
		return err
	}
	return b.openJournal()
}

// Journal implements disk.Image.
func (b *Backing) Journal() ([]byte, error) {
	st, err := b.journal.Stat()
	if err != nil {
		return nil, err
	}
	p := make([]byte, st.Size())
	if _, err := b.journal.ReadAt(p, 0); err != nil && err != io.EOF {
		return nil, err
	}
	return p, nil
}

// Free returns the space of the file system that holds the backing directory.
func (b *Backing) Free() (st unix.Statfs_t, err error) {
	return st, unix.Statfs(b.dir, &st)
}
