package fuse_test

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDetachAndAttachElsewhere(t *testing.T) {
	d := mount(t, "null", "lose-all")
	d.write("clean", "not flushed by the program")
	busy, err := os.Open(d.path("clean"))
	must(t, err)
	if err := d.Detach(d.ctx()); err == nil {
		t.Fatal("a disk in use was detached")
	}
	busy.Close()
	must(t, d.Detach(d.ctx()))
	if mounted(d.mnt) {
		t.Fatal("still mounted")
	}
	first, second := d.mnt, d.mnt+"2"
	must(t, os.Mkdir(second, 0o755))
	t.Cleanup(func() {
		d.kill()
		_ = unix.Unmount(second, unix.MNT_FORCE|unix.MNT_DETACH)
		d.mnt = first
	})
	began := time.Now()
	const delay = 300 * time.Millisecond
	_, err = d.Attach(d.ctx(), second, delay)
	must(t, err)
	if took := time.Since(began); took < delay || mounted(first) || !mounted(second) {
		t.Errorf("attached after %v; mounted at the old place: %v, at the new one: %v", took, mounted(first), mounted(second))
	}
	d.mnt = second
	d.reads("clean", "not flushed by the program")

	// A host that loses its power gives its volume up as the cut left it.
	d.write("flushed", "data")
	d.fsync("flushed")
	d.write("volatile", "data")
	if _, err := d.Attach(d.ctx(), first, 0); err == nil {
		t.Error("a disk was attached twice")
	}
	_, err = d.Cut(d.ctx())
	must(t, err)
	must(t, d.Detach(d.ctx()))
	if _, err := d.Attach(d.ctx(), first+"-missing", 0); err == nil {
		t.Error("attached to a directory that is not there")
	}
	lost, err := d.Attach(d.ctx(), first, 0)
	must(t, err)
	d.mnt = first
	d.reads("flushed", "data")
	d.reads("volatile", "-")
	if lost.Operations == 0 {
		t.Errorf("nothing was dropped: %+v", lost)
	}
	must(t, d.Stop(d.ctx()))
	d.wait()
}
