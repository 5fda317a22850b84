package disk

import (
	"math"
	"sync"
	"time"
)

// Limit is what a disk is sold with: Rate units per second (0: no limit) and
// Credit units that may be taken beyond it, at Burst units per second at most
// (0: as fast as it goes). Credit comes back at Rate while it is not used.
type Limit struct{ Rate, Burst, Credit float64 }

// slack is how much of a second's units may be taken at once without credit.
const slack = 0.01

// bucket holds tokens. It may be overdrawn: whoever took them waits until the
// debt is paid.
type bucket struct {
	rate, size float64
	level      float64
	at         int64
}

func newBucket(rate, size float64, now int64) bucket {
	return bucket{rate: rate, size: size, level: size, at: now}
}

func (b *bucket) fill(now int64) {
	if d := now - b.at; d > 0 {
		b.level = min(b.size, b.level+b.rate*float64(d)/1e9)
		b.at = now
	}
}

// take takes n tokens and returns how long to wait for them, in ns.
func (b *bucket) take(n float64, now int64) int64 {
	if b.rate <= 0 {
		return 0
	}
	b.fill(now)
	if b.level -= n; b.level >= 0 {
		return 0
	}
	return int64(-b.level / b.rate * 1e9)
}

// meter enforces one Limit.
type meter struct {
	base, peak bucket
	credit     float64
}

func newMeter(l Limit, now int64) meter {
	m := meter{base: newBucket(l.Rate, l.Credit+l.Rate*slack, now), credit: l.Credit}
	if l.Credit > 0 {
		m.peak = newBucket(l.Burst, l.Burst*slack, now)
	}
	return m
}

func (m *meter) take(n float64, now int64) int64 {
	return max(m.base.take(n, now), m.peak.take(n, now))
}

// balance is the credit that is left.
func (m *meter) balance(now int64) float64 {
	m.base.fill(now)
	return min(max(m.base.level-m.base.rate*slack, 0), m.credit)
}

// MaxIO is the largest transfer that counts as one operation, as with AWS's
// volumes: https://docs.aws.amazon.com/ebs/latest/userguide/ebs-io-characteristics.html
const MaxIO = 256 << 10

// Throttle enforces the limits of a Timing. Time comes in as Unix ns.
type Throttle struct {
	mu           sync.Mutex
	ops, bytes   meter
	took         float64 // operations
	tookBytes    float64
	throttled    int64 // how often somebody had to wait
	throttledFor time.Duration
	owed         float64 // operations of the disk's own write-back, not taken yet
	owedBytes    float64
}

// NewThrottle returns nil if t has no limits of the kind. Credit is full.
func NewThrottle(t *Timing, now int64) *Throttle {
	if t.IOPS.Rate <= 0 && t.Bytes.Rate <= 0 {
		return nil
	}
	return &Throttle{ops: newMeter(t.IOPS, now), bytes: newMeter(t.Bytes, now)}
}

// Take counts one transfer and returns how long it has to wait.
func (t *Throttle) Take(ops, bytes, now int64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	wait := time.Duration(max(t.ops.take(float64(ops), now), t.bytes.take(float64(bytes), now)))
	t.took += float64(ops)
	t.tookBytes += float64(bytes)
	if wait > 0 {
		t.throttled++
		t.throttledFor += wait
	}
	return wait
}

// writeBackDepth and writeBackBytes are how much the disk's own write-back has at
// the device at once: who reads or flushes meanwhile waits behind that, not behind
// all. (Linux holds its own back in the same way, blk-wbt.)
const (
	writeBackDepth = 32
	writeBackBytes = 4 * MaxIO
)

// owedFor is how many seconds of operations write-back may be behind before
// writers have to wait for it.
const owedFor = 1

// Owe notes write-back that no fsync asked for.
func (t *Throttle) Owe(ops, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.owed += float64(ops)
	t.owedBytes += float64(bytes)
}

// PayBack takes the next of what is owed and returns how long to wait before
// the one after it; done, when nothing is left.
func (t *Throttle) PayBack(now int64) (wait time.Duration, done bool) {
	t.mu.Lock()
	n := min(t.owed, writeBackDepth)
	if n <= 0 {
		t.owed, t.owedBytes = 0, 0
		t.mu.Unlock()
		return 0, true
	}
	bytes := t.owedBytes * n / t.owed
	if bytes > writeBackBytes {
		n = max(1, math.Floor(n*writeBackBytes/bytes))
		bytes = t.owedBytes * min(n/t.owed, 1)
	}
	t.owed -= n
	t.owedBytes -= bytes
	t.mu.Unlock()
	return t.Take(int64(n), int64(bytes), now), false
}

// Behind says whether so much write-back is owed that writers must wait.
func (t *Throttle) Behind() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return over(t.owed, t.ops.base.rate) || over(t.owedBytes, t.bytes.base.rate)
}

func over(owed, rate float64) bool { return rate > 0 && owed > owedFor*rate }

// Stats returns the throttle's counters, by the names of Disk.Stats.
func (t *Throttle) Stats(now int64) map[string]float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return map[string]float64{
		"io_operations": t.took, "io_bytes": t.tookBytes,
		"throttled": float64(t.throttled), "throttled_ms": float64(t.throttledFor) / 1e6,
		"owed_operations": t.owed,
		"iops_credit":     t.ops.balance(now), "credit_bytes": t.bytes.balance(now),
	}
}

// FlushWork is how many transfers, and bytes, an fsync of the inode asks of the
// device: one for each run of dirty pages, and one for the journal if it has
// something to commit; at least one.
func (s *Session) FlushWork(ino uint64) (ops, bytes int64) {
	n, err := s.node(ino)
	if err != nil {
		return 1, 0
	}
	n.live.mu.RLock()
	defer n.live.mu.RUnlock()
	var dirty extents
	journal := s.pending(n.live, max(n.live.dataSeq.Load(), n.live.syncSeq.Load())) || n.size != n.live.logged
	for idx := range n.live.pages {
		dirty.add(run{idx, idx + 1})
		journal = journal || !n.ext.has(run{idx, idx + 1})
	}
	for _, r := range dirty {
		size := (r.to - r.from) * PageSize
		ops += (size + MaxIO - 1) / MaxIO
		bytes += size
	}
	if journal {
		ops, bytes = ops+1, bytes+PageSize
	}
	return max(ops, 1), bytes
}

// Background returns, and forgets, how much was written back since the last call
// that no fsync asked for.
func (d *Disk) Background() (ops, bytes int64) {
	return d.stats.backOps.Swap(0), d.stats.backBytes.Swap(0)
}
