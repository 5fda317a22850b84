package fuse

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/holdfast-db/holdfast/internal/disk"
)

// limits hold requests up besides the disk's latencies. A drive without any has
// none, and its requests look once whether that is so.
type limits struct {
	throttle *disk.Throttle // may be nil
	slots    *slots         // may be nil
	hung     chan struct{}  // closed when the disk goes on; nil if it does not hang
}

// slots let only so many transfers be at the device at once, in their order.
type slots struct {
	cap    int
	queued atomic.Int64 // ns that transfers waited

	mu    sync.Mutex
	used  int
	queue []chan struct{}
}

// acquire waits for a slot; it returns false if stop was closed first.
func (s *slots) acquire(stop <-chan struct{}) bool {
	s.mu.Lock()
	if s.used < s.cap {
		s.used++
		s.mu.Unlock()
		return true
	}
	turn := make(chan struct{})
	s.queue = append(s.queue, turn)
	s.mu.Unlock()
	began := time.Now()
	defer func() { s.queued.Add(int64(time.Since(began))) }()
	select {
	case <-turn:
		return true
	case <-stop:
	}
	s.mu.Lock()
	i := slices.Index(s.queue, turn)
	if i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
	}
	s.mu.Unlock()
	if i < 0 {
		s.release() // it was given meanwhile
	}
	return false
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) > 0 {
		close(s.queue[0])
		s.queue = s.queue[1:]
		return
	}
	s.used--
}

// setLimits puts limits in force, or none; power is held. Who waits because the
// disk hangs looks again.
func (d *Drive) setLimits(l limits) {
	old := d.limits.Load()
	if l == (limits{}) {
		d.limits.Store(nil)
	} else {
		d.limits.Store(&l)
	}
	if old != nil && old.hung != nil && old.hung != l.hung {
		close(old.hung)
	}
}

// limit makes the limits that a timing asks for, and keeps those of before that
// are the same, with their credit.
func (d *Drive) limit(old, t *disk.Timing, hang bool) {
	var l limits
	if now := d.limits.Load(); now != nil {
		l = *now
	}
	if old == nil || old.IOPS != t.IOPS || old.Bytes != t.Bytes {
		l.throttle = disk.NewThrottle(t, now())
		if d.disk != nil {
			_, _ = d.disk.Background() // was written back under other limits
		}
	}
	switch {
	case t.Parallel == 0:
		l.slots = nil
	case old == nil || old.Parallel != t.Parallel:
		l.slots = &slots{cap: t.Parallel}
	}
	switch {
	case !hang:
		l.hung = nil
	case l.hung == nil:
		l.hung = make(chan struct{})
	}
	d.setLimits(l)
}

func (d *Drive) hangs() bool {
	l := d.limits.Load()
	return l != nil && l.hung != nil
}

// awake waits while the disk hangs. It returns false after a cut.
func (f *fileSystem) awake() bool {
	for {
		l := f.d.limits.Load()
		if l == nil || l.hung == nil {
			return !f.s.Dead()
		}
		select {
		case <-l.hung:
		case <-f.dead:
			return false
		}
	}
}

// throttled waits until the limits allow a transfer. It returns false after a cut.
func (f *fileSystem) throttled(l *limits, ops, bytes int64) bool {
	if l.throttle != nil {
		if wait := l.throttle.Take(ops, bytes, now()); wait > 0 && !f.sleeper.sleep(wait, f.dead) {
			return false
		}
	}
	return f.awake()
}

// transfers is how many operations n bytes are.
func transfers(n int) int64 { return int64(n+disk.MaxIO-1) / disk.MaxIO }

// admitFlush waits until the limits allow what a flush has to write.
func (f *fileSystem) admitFlush(l *limits, ino uint64) bool {
	if l.throttle == nil {
		return f.awake()
	}
	ops, bytes := f.s.FlushWork(ino)
	return f.throttled(l, ops, bytes)
}

// background lets the disk's own write-back count. It is paid for by and by, so
// that reads get their share meanwhile; with wait, and when too much is owed, the
// writer waits. It returns false after a cut.
func (f *fileSystem) background(wait bool) bool {
	l := f.d.limits.Load()
	if l == nil || l.throttle == nil {
		return true
	}
	if ops, bytes := f.d.disk.Background(); ops > 0 {
		l.throttle.Owe(ops, bytes)
		if f.paying.CompareAndSwap(false, true) {
			go f.payBack()
		}
	}
	if !wait || !l.throttle.Behind() {
		return true
	}
	f.payMu.Lock() // one writer at a time; the others wait for it
	defer f.payMu.Unlock()
	for l.throttle.Behind() {
		due, _ := l.throttle.PayBack(now())
		if due > 0 && !f.sleeper.sleep(due, f.dead) {
			return false
		}
		if f.d.limits.Load() != l {
			break // other limits are in force
		}
	}
	return f.awake()
}

// payBack takes what is owed until nothing is left, or other limits are in force.
func (f *fileSystem) payBack() {
	defer f.paying.Store(false)
	first := f.d.limits.Load()
	for l := first; l != nil && l == first && l.throttle != nil; l = f.d.limits.Load() {
		due, done := l.throttle.PayBack(now())
		if done || due > 0 && !f.sleeper.sleep(due, f.dead) {
			return
		}
	}
}

// atDevice carries out a delay of one transfer in one of the disk's slots.
func (f *fileSystem) atDevice(l *limits, delay func() bool) bool {
	if l == nil || l.slots == nil {
		return delay()
	}
	if !l.slots.acquire(f.dead) {
		return false
	}
	defer l.slots.release()
	return delay()
}

// waits says whether limits make a request slow; changes and reads all wait for
// a disk that hangs.
func (l *limits) waits(opcode uint32) bool {
	const forget, batchForget = 2, 42
	switch opcode {
	case forget, batchForget:
		return false
	case opRead, opFsync, opFsyncDir, opWrite:
		return l.hung != nil || l.throttle != nil || l.slots != nil
	}
	return l.hung != nil
}

// limitStats adds the limits, which are the ground truth for who wants to find
// out by measuring.
func (d *Drive) limitStats(m map[string]float64) {
	t := d.timing.Load()
	m["iops_set"], m["bytes_per_second_set"], m["parallel_set"] = t.IOPS.Rate, t.Bytes.Rate, float64(t.Parallel)
	m["hangs"] = 0
	l := d.limits.Load()
	if l == nil {
		return
	}
	if l.hung != nil {
		m["hangs"] = 1
	}
	if l.slots != nil {
		m["queued_ms"] = float64(l.slots.queued.Load()) / 1e6
	}
	if l.throttle != nil {
		for k, v := range l.throttle.Stats(now()) {
			m[k] = v
		}
	}
}

// size fills in the space of a disk that has a bound.
func (f *fileSystem) size(out *gofuse.StatfsOut) {
	bound, taken := f.d.disk.Space()
	if bound == 0 {
		return
	}
	out.Bsize, out.Frsize = disk.PageSize, disk.PageSize
	out.Blocks = uint64(bound / disk.PageSize)
	out.Bfree = uint64(max(bound-taken, 0) / disk.PageSize)
	out.Bavail = out.Bfree
}
