package fuse

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-db/holdfast/internal/disk/control"
)

// Detach takes the disk away from its mount point, as a network volume is from a
// host: cleanly if the power is on, and after a cut with what that left. It stays
// off, and durable, until On or Attach.
func (d *Drive) Detach() error {
	d.power.Lock()
	defer d.power.Unlock()
	if d.ended() {
		return errors.New("the disk is being stopped")
	}
	f := d.fs.Load()
	if f.s.Dead() {
		return d.letGo()
	}
	if d.hangs() {
		return errors.New("the disk hangs: set hang=false, or cut its power")
	}
	d.stopping.Store(true) // the end of this mount is not the disk's
	defer d.stopping.Store(false)
	if err := release(d.cfg.Mountpoint, d.root); err != nil {
		return fmt.Errorf("unmount %s: %w (end the programs that use it, or cut the power first)", d.cfg.Mountpoint, err)
	}
	select {
	case <-d.transport.ended:
	case <-time.After(10 * time.Second):
	}
	err := f.s.Sync()
	f.cut()
	return errors.Join(err, d.letGo())
}

// Attach mounts a disk that was detached, or whose power is cut, at another
// mount point, after the delay that it takes to get there.
func (d *Drive) Attach(mountpoint string, delay time.Duration) (control.Dropped, error) {
	if !d.fs.Load().s.Dead() {
		return control.Dropped{}, errors.New("the disk is attached: detach it, or cut its power first")
	}
	select {
	case <-time.After(delay):
	case <-d.done:
		return control.Dropped{}, errors.New("the disk is being stopped")
	}
	d.power.Lock()
	defer d.power.Unlock()
	if d.ended() {
		return control.Dropped{}, errors.New("the disk is being stopped")
	}
	if !d.fs.Load().s.Dead() {
		return control.Dropped{}, errors.New("the disk was attached meanwhile")
	}
	if err := d.letGo(); err != nil {
		return control.Dropped{}, err
	}
	old := d.cfg.Mountpoint
	d.cfg.Mountpoint = mountpoint
	if _, err := d.checkPaths(); err != nil {
		d.cfg.Mountpoint = old
		return control.Dropped{}, err
	}
	lost, err := d.mount()
	return control.Dropped{Bytes: lost.Bytes - lost.Kept, Operations: lost.Operations, Kept: lost.Kept}, err
}
