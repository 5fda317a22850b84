// Package collector receives what drivers report, stamps it with its own
// monotonic clock, and alone writes the history. It runs where no power is cut.
package collector

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/history"
)

// Options tune a collector; zero values stand for the defaults.
type Options struct {
	FlushEvery time.Duration // how long an event may stay in memory (200 ms)
	PingEvery  time.Duration // how often a driver hears from the collector (500 ms)
	NewsEvery  time.Duration // how often one that reads hears of the newest ack (50 ms)
}

// maxPending events may wait for the disk; about 400 MB.
const maxPending = 4 << 20

var (
	// ErrHistory: the history could not be written, so the evidence is incomplete
	// and its cell unknown.
	ErrHistory = errors.New("the history could not be written")
	// ErrNoDriver: every driver has ended, so what was waited for cannot come.
	ErrNoDriver = errors.New("no driver is left")
	// ErrStopped: the collector was stopped.
	ErrStopped = errors.New("the collector is stopped")
)

// Collector is safe for concurrent use.
type Collector struct {
	ln    net.Listener
	token [sha256.Size]byte
	opts  Options
	start time.Time
	w     *history.Writer // used by writeLoop alone

	stop   chan struct{} // closed by Stop, and on a history error: drivers are told to stop
	quit   chan struct{} // closed when no more events come
	wake   chan struct{}
	wg     sync.WaitGroup // accept loop and connections
	writer sync.WaitGroup
	ended  chan struct{} // closed at the end of the first Stop

	mu       sync.Mutex
	stopped  bool
	err      error
	last     time.Duration // of the last intent or outcome
	pending  []history.Event
	conns    map[*conn]struct{}
	drivers  []*Driver
	spans    []*span
	changed  chan struct{}
	waiting  int
	counts   counts
	stopOnce sync.Once
}

type counts struct {
	acked, refused, unknown, inFlight int
	lastAck                           time.Duration
	lastAckedID                       uint64
	latestSent                        time.Duration // of an acked write, when it was sent
	recent                            window
}

// DriverState says how a driver stands.
type DriverState string

// A driver is connected, or finished (every write of it has its outcome), or
// gone: it vanished, and its open writes are unknown.
const (
	Connected DriverState = "connected"
	Finished  DriverState = "finished"
	Gone      DriverState = "gone"
)

// Driver is what the collector knows of one driver.
type Driver struct {
	Name    string
	State   DriverState
	Why     string // of the end
	Note    string // the last that it reported
	Confirm bool   // it waits until its intents are confirmed
	Reads   Reads
}

// Reads count what a driver got that asked for acked writes.
type Reads struct {
	Fresh, Stale, Failed  int
	FirstStale, LastStale time.Duration // since the history was created; 0 without any
}

// New creates the history at path and serves drivers on ln, which it closes at
// Stop. token authenticates them and must not be empty.
func New(ln net.Listener, token, path string, o Options) (*Collector, error) {
	if token == "" {
		return nil, errors.New("start collector: the token is empty")
	}
	if o.FlushEvery <= 0 {
		o.FlushEvery = 200 * time.Millisecond
	}
	if o.PingEvery <= 0 {
		o.PingEvery = 500 * time.Millisecond
	}
	if o.NewsEvery <= 0 {
		o.NewsEvery = 50 * time.Millisecond
	}
	start := time.Now()
	w, err := history.Create(path, start)
	if err != nil {
		return nil, fmt.Errorf("start collector: %w", err)
	}
	c := &Collector{
		ln: ln, token: sha256.Sum256([]byte(token)), opts: o, start: start, w: w,
		stop: make(chan struct{}), quit: make(chan struct{}), wake: make(chan struct{}, 1),
		ended: make(chan struct{}), changed: make(chan struct{}), conns: map[*conn]struct{}{},
	}
	c.counts.lastAck = -1
	c.counts.latestSent = -1
	c.wg.Go(c.acceptLoop)
	c.writer.Go(c.writeLoop)
	return c, nil
}

// Addr is where drivers connect.
func (c *Collector) Addr() net.Addr { return c.ln.Addr() }

// Since is the time in the history that t stands for.
func (c *Collector) Since(t time.Time) time.Duration { return t.Sub(c.start) }

// Mark records that something happened now.
func (c *Collector) Mark(text string) { c.MarkAt(time.Now(), text) }

// MarkAt records that something happened at t, which has a monotonic reading
// (from time.Now in this process).
func (c *Collector) MarkAt(t time.Time, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mark(max(c.Since(t), 0), text)
}

func (c *Collector) mark(at time.Duration, text string) {
	c.queue(history.Event{Kind: history.KindMark, At: at, Text: text})
	c.notify()
}

// queue hands an event to the writer; c.mu is held.
func (c *Collector) queue(e history.Event) {
	if len(c.pending) >= maxPending {
		c.fail(errors.New("the disk does not keep up"))
		return
	}
	c.pending = append(c.pending, e)
}

// fail makes err the collector's; c.mu is held.
func (c *Collector) fail(err error) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %w", ErrHistory, err)
		c.tellStop()
		c.notify()
	}
}

func (c *Collector) tellStop() { c.stopOnce.Do(func() { close(c.stop) }) }

// Err is the error that makes the history incomplete, or nil.
func (c *Collector) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// writeLoop alone touches the file, so that a slow disk delays no stamp.
func (c *Collector) writeLoop() {
	tick := time.NewTicker(c.opts.FlushEvery)
	defer tick.Stop()
	var batch []history.Event
	for {
		flush, quit := true, false
		select {
		case <-c.wake:
			flush = false
		case <-tick.C:
		case <-c.quit:
			quit = true
		}
		c.mu.Lock()
		batch, c.pending = c.pending, batch[:0]
		c.mu.Unlock()
		err := c.write(batch, flush)
		clear(batch) // let go of the texts
		if err != nil {
			c.mu.Lock()
			c.fail(err)
			c.mu.Unlock()
		}
		if quit {
			return
		}
	}
}

func (c *Collector) write(batch []history.Event, flush bool) error {
	for i := range batch {
		if err := c.w.Append(&batch[i]); err != nil {
			return err
		}
	}
	if flush {
		return c.w.Flush()
	}
	return nil
}

// notify wakes those who wait for something; c.mu is held.
func (c *Collector) notify() {
	if c.waiting > 0 {
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// wait returns once ok says so; ok is called with c.mu held. Where it takes a
// driver to bring that about, the wait ends when none is left.
func (c *Collector) wait(ctx context.Context, what string, takesDriver bool, ok func() bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.err != nil:
			return c.err
		case ok():
			return nil
		case c.stopped:
			return fmt.Errorf("wait for %s: %w", what, ErrStopped)
		case takesDriver && len(c.conns) == 0 && len(c.drivers) > 0:
			d := c.drivers[len(c.drivers)-1]
			return fmt.Errorf("wait for %s: %w: driver %s: %s", what, ErrNoDriver, d.Name, d.Why)
		}
		changed := c.changed
		c.waiting++
		c.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		c.mu.Lock()
		c.waiting--
		if err != nil {
			return fmt.Errorf("wait for %s: %w%s", what, err, c.lastNote())
		}
	}
}

// lastNote is the latest that a driver complained of; c.mu is held.
func (c *Collector) lastNote() string {
	for i := len(c.drivers) - 1; i >= 0; i-- {
		if d := c.drivers[i]; d.Note != "" {
			return fmt.Sprintf(" (driver %s last reported: %s)", d.Name, d.Note)
		}
	}
	return ""
}

// WaitDrivers waits until n drivers have connected in all.
func (c *Collector) WaitDrivers(ctx context.Context, n int) error {
	return c.wait(ctx, fmt.Sprintf("%d drivers", n), false, func() bool { return len(c.drivers) >= n })
}

// WaitAcks waits until n writes have been acked in all.
func (c *Collector) WaitAcks(ctx context.Context, n int) error {
	return c.wait(ctx, fmt.Sprintf("%d acks", n), true, func() bool { return c.counts.acked >= n })
}

// WaitFirstAckSentAfter waits until a write that was sent after t is acked.
func (c *Collector) WaitFirstAckSentAfter(ctx context.Context, t time.Time) error {
	after := c.Since(t)
	return c.wait(ctx, "an ack", true, func() bool { return c.counts.latestSent >= after })
}

// WaitAckSentBy waits until a write of the driver whose ids begin at base, sent
// after t, is acked.
func (c *Collector) WaitAckSentBy(ctx context.Context, base uint64, t time.Time) error {
	after := c.Since(t)
	return c.wait(ctx, "an ack", true, func() bool {
		for _, s := range c.spans {
			if s.base == base {
				return s.latestSent >= 0 && s.latestSent >= after
			}
		}
		return false
	})
}

// Live are the counters of a run in progress.
type Live struct {
	Acked, Refused, Unknown int
	InFlight                int           // intents without an outcome yet
	LastSecond              int           // acks in the last second, to a tenth
	SinceLastAck            time.Duration // -1 before the first
	LastAckedID             uint64        // of the latest ack
	Elapsed                 time.Duration // since the history was created
}

// Live returns the counters as they are now.
func (c *Collector) Live() Live {
	now := c.Since(time.Now())
	c.mu.Lock()
	defer c.mu.Unlock()
	l := Live{
		Acked: c.counts.acked, Refused: c.counts.refused, Unknown: c.counts.unknown, InFlight: c.counts.inFlight,
		LastSecond: c.counts.recent.sum(now), SinceLastAck: -1, LastAckedID: c.counts.lastAckedID, Elapsed: now,
	}
	if c.counts.lastAck >= 0 {
		l.SinceLastAck = max(now-c.counts.lastAck, 0)
	}
	return l
}

// Drivers returns every driver that has connected, in that order.
func (c *Collector) Drivers() []Driver {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Driver, len(c.drivers))
	for i, d := range c.drivers {
		out[i] = *d
	}
	return out
}

// Stop tells the drivers to finish the writes in flight and waits until they
// have; those that have not when ctx ends are gone. Then it closes the history.
// The error is about the history (ErrHistory): how each driver ended is in
// Drivers. Calling it again returns the same.
func (c *Collector) Stop(ctx context.Context) error {
	c.mu.Lock()
	if c.stopped {
		c.mu.Unlock()
		<-c.ended
		return c.Err()
	}
	c.stopped = true
	c.tellStop()
	c.notify()
	c.mu.Unlock()
	_ = c.ln.Close()

	done := make(chan struct{})
	go func() { c.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		c.mu.Lock()
		for cn := range c.conns {
			cn.drop(fmt.Errorf("it did not finish in time: %w", ctx.Err()))
		}
		c.mu.Unlock()
		<-done
	}
	close(c.quit)
	c.writer.Wait()
	if err := c.w.Close(); err != nil {
		c.mu.Lock()
		c.fail(err)
		c.mu.Unlock()
	}
	close(c.ended)
	return c.Err()
}

// window counts events over the last second in tenths.
type window struct {
	tenth  int64
	counts [10]int
}

func (w *window) advance(now time.Duration) {
	t := int64(now / (100 * time.Millisecond))
	for i := max(w.tenth+1, t-9); i <= t; i++ {
		w.counts[i%10] = 0
	}
	w.tenth = max(w.tenth, t)
}

func (w *window) add(now time.Duration) {
	w.advance(now)
	w.counts[w.tenth%10]++
}

func (w *window) sum(now time.Duration) int {
	w.advance(now)
	n := 0
	for _, c := range w.counts {
		n += c
	}
	return n
}
