// Package fuse mounts a simulated disk: it carries the kernel's requests to the
// model of package disk, lets each take the time that the disk takes, and keeps
// the durable image in a directory.
package fuse

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-db/holdfast/internal/disk"
	"github.com/holdfast-db/holdfast/internal/disk/control"
)

// Config describes a disk to be mounted.
type Config struct {
	Backing    string // directory of the durable image; created if missing
	Mountpoint string // an existing directory
	Kind       disk.Named
	Policy     disk.Policy
	Profile    disk.Profile
	Size       int64 // bytes that files may take; 0: as the backing directory has
	Seed       uint64
	DirtyLimit int64 // bytes; disk.DefaultDirtyLimit if 0
	Log        *slog.Logger
}

// Drive is a disk with its mount. It implements control.Disk.
type Drive struct {
	cfg     Config
	root    bool
	backing *Backing
	disk    *disk.Disk
	timing  atomic.Pointer[disk.Timing]
	limits  atomic.Pointer[limits]
	rngMu   sync.Mutex
	rng     *rand.Rand
	flushes disk.Hist // of fsync and fdatasync, milliseconds as programs see them
	batches atomic.Int64
	cutTook disk.Hist

	power     sync.Mutex // one of on, wipe, set, stop, mount at a time
	stopping  atomic.Bool
	fs        atomic.Pointer[fileSystem]
	transport *transport
	abort     string // see abortPath

	done    chan struct{}
	doneErr error
}

// tickInterval is how often the model is told the time.
const tickInterval = 250 * time.Millisecond

// Mount opens the backing directory and mounts the disk. The caller ends it
// with Stop and waits for Done.
func Mount(cfg Config) (*Drive, error) {
	d := &Drive{
		cfg: cfg, root: os.Geteuid() == 0, done: make(chan struct{}),
		rng: rand.New(rand.NewPCG(cfg.Seed, 0x5851f42d4c957f2d)),
	}
	if d.cfg.Log == nil {
		d.cfg.Log = slog.New(slog.DiscardHandler)
	}
	t := cfg.Kind.Timing
	d.timing.Store(&t)
	d.limit(nil, &t, false)
	st, err := d.checkPaths()
	if err != nil {
		return nil, err
	}
	if d.backing, err = OpenBacking(d.cfg.Backing); err != nil {
		return nil, err
	}
	var seed [8]byte
	crand.Read(seed[:])
	d.disk, err = disk.Open(d.backing, disk.Options{
		Policy: cfg.Policy, Seed: cfg.Seed, DirtyLimit: cfg.DirtyLimit,
		Profile: cfg.Profile, Space: cfg.Size,
		// Programs derive System V keys from inode numbers, which therefore must
		// differ from disk to disk.
		InodeBase: 1<<20 + uint64(binary.LittleEndian.Uint32(seed[:])>>1),
		RootMode:  st.Mode & 0o7777, RootUID: st.Uid, RootGID: st.Gid, Now: now(),
	})
	if err == nil {
		_, err = d.mount()
	}
	if err != nil {
		_ = d.backing.Close()
		return nil, err
	}
	go d.tick()
	return d, nil
}

// resolve makes a path absolute and follows the links in what exists of it.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for dir, rest := path, ""; ; dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest) {
		real, err := filepath.EvalSymlinks(dir)
		switch {
		case err == nil:
			return filepath.Join(real, rest), nil
		case !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir):
			return path, nil // whoever uses it says what is wrong with it
		}
	}
}

// checkPaths resolves the paths and finds out whose the mount point is. A disk
// whose backing directory lies on itself would wait for itself for ever.
func (d *Drive) checkPaths() (st syscall.Stat_t, err error) {
	for _, p := range []*string{&d.cfg.Backing, &d.cfg.Mountpoint} {
		if *p, err = resolve(*p); err != nil {
			return st, err
		}
	}
	if err := syscall.Stat(d.cfg.Mountpoint, &st); errors.Is(err, syscall.ENOTCONN) {
		return st, fmt.Errorf("mount point %[1]s: the simulated disk that was mounted there was killed: `umount %[1]s`, then start again", d.cfg.Mountpoint)
	} else if err != nil {
		return st, fmt.Errorf("mount point %s: %w", d.cfg.Mountpoint, err)
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return st, fmt.Errorf("mount point %s: not a directory", d.cfg.Mountpoint)
	}
	if err := mountable(d.cfg.Mountpoint, d.root); err != nil {
		return st, err
	}
	if rel, err := filepath.Rel(d.cfg.Mountpoint, d.cfg.Backing); err == nil && filepath.IsLocal(rel) {
		return st, fmt.Errorf("backing directory %s %w: choose another one", d.cfg.Backing, ErrBelow)
	}
	return st, nil
}

// mount powers the disk on and mounts it; power is held, or nobody else there.
func (d *Drive) mount() (disk.Dropped, error) {
	s, lost, err := d.disk.PowerOn(now())
	if err != nil {
		return lost, fmt.Errorf("power on: %w", err)
	}
	f := newFileSystem(d, s)
	fd, err := mountFD(d.cfg.Mountpoint, d.cfg.Kind.Name, d.root)
	if err != nil {
		f.cut()
		return lost, err
	}
	d.transport = serve(fd, f, func() { d.unmounted(f) })
	d.fs.Store(f)
	// The first call goes through once the kernel and we agree on the protocol.
	var st syscall.Statfs_t
	if err := syscall.Statfs(d.cfg.Mountpoint, &st); err != nil || st.Type != SuperMagic {
		f.cut()
		return lost, errors.Join(fmt.Errorf("mount %s: it does not answer: %w", d.cfg.Mountpoint, err), d.letGo())
	}
	d.abort = abortPath(d.cfg.Mountpoint)
	return lost, nil
}

// unmounted is called when the kernel has let go of a mount. Unless a cut or
// Stop was the cause, somebody ran umount: that is a clean end.
func (d *Drive) unmounted(f *fileSystem) {
	if !f.s.Dead() && d.fs.Load() == f && !d.stopping.Load() {
		d.cfg.Log.Info("unmounted from outside, ending")
		_ = d.Stop()
	}
}

// tick tells the model the time until the drive ends.
func (d *Drive) tick() {
	t := time.NewTicker(tickInterval)
	defer t.Stop()
	failed := false
	for {
		select {
		case <-d.done:
			return
		case <-t.C:
		}
		f := d.fs.Load()
		if f.s.Dead() || d.hangs() {
			continue
		}
		err := f.s.Tick(now())
		f.background(false)
		if err != nil && !f.s.Dead() && !failed {
			d.cfg.Log.Error("background write-back", "err", err)
		}
		failed = err != nil
	}
}

// sample draws how long one operation takes.
func (d *Drive) sample(which func(*disk.Timing) disk.Latency) time.Duration {
	l := which(d.timing.Load())
	if l.Median <= 0 {
		return 0
	}
	d.rngMu.Lock()
	defer d.rngMu.Unlock()
	return l.Sample(d.rng)
}

// Cut cuts the power. When it returns, every pending and later call on the
// mount fails with EIO.
func (d *Drive) Cut() error {
	f := d.fs.Load()
	if f.s.Dead() {
		return errors.New("the power is cut already")
	}
	began := time.Now()
	f.cut()
	d.cutTook.Add(time.Since(began))
	return nil
}

// On brings the disk back after a cut: what was not durable is dropped by the
// crash policy, and a fresh mount takes the place of the dead one.
func (d *Drive) On() (control.Dropped, error) {
	d.power.Lock()
	defer d.power.Unlock()
	if !d.fs.Load().s.Dead() {
		return control.Dropped{}, errors.New("the power is on: cut it first")
	}
	if d.ended() {
		return control.Dropped{}, errors.New("the disk is being stopped")
	}
	if err := d.letGo(); err != nil {
		return control.Dropped{}, err
	}
	lost, err := d.mount()
	return control.Dropped{Bytes: lost.Bytes - lost.Kept, Operations: lost.Operations, Kept: lost.Kept}, err
}

// letGo takes a dead mount away; power is held.
func (d *Drive) letGo() error {
	if d.transport == nil {
		return nil
	}
	select {
	case <-d.transport.ended:
	default:
		if err := detach(d.cfg.Mountpoint, d.abort, d.root); err != nil {
			return err
		}
		// Where the connection could not be aborted it goes on answering EIO,
		// until the last program that uses it has ended.
		if d.root || d.abort != "" {
			select {
			case <-d.transport.ended:
			case <-time.After(2 * time.Second):
			}
		}
	}
	d.transport = nil
	return nil
}

// Wipe empties a disk whose power is cut.
func (d *Drive) Wipe() error {
	d.power.Lock()
	defer d.power.Unlock()
	if !d.fs.Load().s.Dead() {
		return errors.New("the power is on: cut it first")
	}
	return d.disk.Wipe(now())
}

// Sync makes everything durable that was done before.
func (d *Drive) Sync() error {
	f := d.fs.Load()
	if f.s.Dead() {
		return errors.New("the power is cut")
	}
	if d.hangs() {
		return errors.New("the disk hangs: set hang=false, or cut its power")
	}
	return f.s.Sync()
}

func (d *Drive) ended() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// Done is closed when the disk has been stopped.
func (d *Drive) Done() <-chan struct{} { return d.done }

// Stop shuts the disk down cleanly: unmounted, everything durable. A mount that
// is in use is taken away all the same. After a cut nothing more becomes durable.
func (d *Drive) Stop() error {
	d.power.Lock()
	defer d.power.Unlock()
	if d.ended() {
		return d.doneErr
	}
	d.stopping.Store(true)
	d.limit(d.timing.Load(), d.timing.Load(), false)
	f := d.fs.Load()
	if f.s.Dead() {
		d.doneErr = d.letGo()
	} else {
		d.doneErr = d.shutDown(f)
	}
	close(d.done)
	d.doneErr = errors.Join(d.doneErr, d.backing.Close())
	return d.doneErr
}

// shutDown unmounts first, so that the kernel hands over what it holds of
// memory maps, then syncs.
func (d *Drive) shutDown(f *fileSystem) error {
	busy := false
	select {
	case <-d.transport.ended:
	default:
		if err := release(d.cfg.Mountpoint, d.root); err == nil {
			select {
			case <-d.transport.ended:
			case <-time.After(10 * time.Second):
				busy = true
			}
		} else {
			busy = true
		}
	}
	err := f.s.Sync()
	f.cut()
	if busy {
		err = errors.Join(err, d.letGo())
	}
	return err
}

// Lose ends the disk without a clean shutdown: as if its power went for good.
func (d *Drive) Lose() error {
	d.fs.Load().cut()
	return d.Stop()
}

// Run mounts a disk, serves its control socket, calls ready and waits for the
// end: ctx cancelled or a stop request (clean), or lifeline closed (a cut). It
// leaves no mount and no socket.
func Run(ctx context.Context, cfg Config, socket string, lifeline <-chan struct{}, ready func()) error {
	d, err := Mount(cfg)
	if err != nil {
		return err
	}
	srv, err := control.Listen(socket, d)
	if err != nil {
		return errors.Join(err, d.Stop())
	}
	ready()
	select {
	case <-ctx.Done():
		err = d.Stop()
	case <-lifeline:
		err = d.Lose()
	case <-d.Done():
		err = d.Stop() // only its result
	}
	return errors.Join(err, srv.Close())
}
