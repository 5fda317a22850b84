package quorum

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

// alone starts a cluster of one in dir.
func alone(t *testing.T, dir string, fresh bool, spare int64) *Node {
	t.Helper()
	ca, err := NewAuthority("t", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	id, err := ca.Issue("n", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	config, err := id.TLS()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Dir: dir, ID: 1, Fresh: fresh, Address: l.Addr().String(), Listener: l, TLS: config,
		Timers: FastTimers(), Flush: time.Microsecond, Reserve: spare,
	}
	if fresh {
		o.Founders = []Voter{{ID: 1, Address: o.Address}}
	}
	n, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func set(t *testing.T, n *Node, data []byte) Value {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	v, err := n.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r := n.Propose(ctx, Proposal{Epoch: v.Epoch, Version: v.Version, NextEpoch: v.Epoch, Data: data})
	if r.Outcome != Applied {
		t.Fatalf("write of %d bytes: %v (%v)", len(data), r.Outcome, r.Err)
	}
	return r.Value
}

// TestFullDisk: on a disk that somebody else filled the register can still be
// written, in the space it reserved, and takes that again when there is room.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a small disk")
	}
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=16m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	n := alone(t, filepath.Join(disk, "register"), true, 4<<20)
	set(t, n, []byte("before"))
	if !n.Status().Reserved {
		t.Fatal("no space is reserved on an empty disk")
	}
	filler := filepath.Join(disk, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	if err := errors.Join(f.Close(), map[bool]error{false: err}[errors.Is(err, unix.ENOSPC)]); err != nil {
		t.Fatal(err)
	}
	var last Value
	for i := range 60 { // more than the file has room for already
		last = set(t, n, bytes.Repeat([]byte{byte(i)}, 8<<10))
	}
	if n.Status().Reserved {
		t.Error("the disk is full and the reserved space still there: the test shows nothing")
	}
	if err := n.spare.fill(); err == nil {
		t.Error("space was reserved again on a full disk")
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := n.spare.fill(); err != nil || !n.Status().Reserved {
		t.Errorf("with room again, reserved: %v (%v)", n.Status().Reserved, err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	again := alone(t, filepath.Join(disk, "register"), false, 4<<20)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	v, err := again.Read(ctx)
	if err != nil || v.Version != last.Version || !bytes.Equal(v.Data, last.Data) {
		t.Errorf("after a restart: version %d (%v), want %d", v.Version, err, last.Version)
	}
}

// TestSnapshots: the log stays short, and a restart from a snapshot and what
// follows it shows the last write.
func TestSnapshots(t *testing.T) {
	dir := t.TempDir()
	n := alone(t, dir, true, 0)
	set(t, n, []byte("a"))
	for range 200 {
		set(t, n, []byte("b"))
	}
	if err := n.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	first, err := n.log.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	if first < 50 {
		t.Errorf("the log still begins at %d after a snapshot", first)
	}
	want := set(t, n, []byte("after"))
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	again := alone(t, dir, false, 0)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	v, err := again.Read(ctx)
	if err != nil || v.Version != want.Version || string(v.Data) != "after" {
		t.Errorf("after a restart: %+v (%v), want %+v", v, err, want)
	}
}

func TestMachine(t *testing.T) {
	m := newMachine()
	entry := func(index uint64, p Proposal) Result {
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		r, ok := m.Apply(&raft.Log{Index: index, Data: b}).(Result)
		if !ok {
			t.Fatal("not a Result")
		}
		return r
	}
	if r := entry(3, Proposal{NextEpoch: 1, Data: []byte("x")}); r.Outcome != Applied {
		t.Fatalf("first write: %+v", r)
	}
	if r := entry(5, Proposal{NextEpoch: 1, Data: []byte("y")}); r.Outcome != Conflict || string(r.Value.Data) != "x" {
		t.Fatalf("the same proposal, delivered twice: %+v", r)
	}
	if r, ok := m.Apply(&raft.Log{Index: 6, Data: []byte("{")}).(Result); !ok || r.Outcome != Conflict || r.Err == nil {
		t.Errorf("an entry that cannot be read: %+v", r)
	}
	snap, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(snap)
	if err != nil {
		t.Fatal(err)
	}
	o := newMachine()
	if err := o.Restore(io.NopCloser(bytes.NewReader(b))); err != nil {
		t.Fatal(err)
	}
	v, index := o.now()
	if index != 6 || v.Version != 1 || v.Epoch != 1 || string(v.Data) != "x" {
		t.Errorf("restored %+v at %d", v, index)
	}
	if err := o.Restore(io.NopCloser(bytes.NewReader([]byte(`{"Format":2}`)))); err == nil {
		t.Error("a snapshot of a newer format was taken")
	}
}

// TestReadAwaitsCopy: what is committed but not yet in the local copy is waited for.
func TestReadAwaitsCopy(t *testing.T) {
	n := alone(t, t.TempDir(), true, 0)
	want := set(t, n, []byte("x"))
	behind := func(index uint64) (was uint64) {
		n.fsm.mu.Lock()
		defer n.fsm.mu.Unlock()
		was = n.fsm.index
		n.fsm.index = index
		return was
	}
	index := behind(0)
	if got, err := n.lastWrite(n.raft.CommitIndex()); err != nil || got != index {
		t.Errorf("the last write is entry %d (%v), want %d", got, err, index)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if v, err := n.readHere(ctx); err == nil {
		t.Errorf("read %+v from a copy that lacks what is committed", v)
	}
	behind(index)
	ctx, cancel = context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if v, err := n.readHere(ctx); err != nil || v.Version != want.Version {
		t.Errorf("read %+v (%v), want %+v", v, err, want)
	}
}
