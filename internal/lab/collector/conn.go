package collector

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/driver/frame"
)

const (
	helloTimeout = 5 * time.Second // for the first frame
	sendTimeout  = 2 * time.Second // for a frame to a driver
	maxStale     = 100             // marks of stale reads, of each driver
	wakeAt       = 512             // pending events that wake the writer before its tick
)

// span is the range of ids that belongs to one driver: from base up to the
// next base of another.
type span struct {
	base, last uint64        // last is 0 before the first intent
	latestSent time.Duration // of an acked write, when it was sent; -1 before the first
}

// conn is the connection of one driver.
type conn struct {
	c       *Collector
	nc      net.Conn
	r       *frame.Reader
	driver  *Driver
	span    *span
	open    map[uint64]time.Duration // writes in flight, and when they were sent
	codes   map[string]string
	bye     bool
	confirm uint64 // the last id to be confirmed, 0 for none
	reads   bool   // it wants to know the newest ack

	sendMu sync.Mutex
	out    []byte

	dropMu  sync.Mutex
	dropped error
}

func (c *Collector) acceptLoop() {
	for {
		nc, err := c.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || c.isStopped() {
				return
			}
			// Out of file descriptors, say: what is connected goes on.
			select {
			case <-c.stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			continue
		}
		c.wg.Go(func() { c.serve(nc) })
	}
}

func (c *Collector) isStopped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopped
}

// serve runs one connection to its end.
func (c *Collector) serve(nc net.Conn) {
	defer func() { _ = nc.Close() }()
	if t, ok := nc.(*net.TCPConn); ok {
		noticeSilence(t)
	}
	cn := &conn{c: c, nc: nc, r: frame.NewReader(nc), open: map[uint64]time.Duration{}, codes: map[string]string{}}
	if !cn.hello() {
		return
	}
	done := make(chan struct{})
	var pings sync.WaitGroup
	pings.Go(func() { cn.pingLoop(done) })
	err := cn.readLoop()
	close(done)
	_ = nc.Close()
	pings.Wait()
	cn.finish(err)
}

// noticeSilence makes a driver whose host lost power end its connection within
// seconds: by keepalives, and while a ping is not acknowledged by the timeout.
func noticeSilence(t *net.TCPConn) {
	const limit = 4 * time.Second
	_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3})
	if rc, err := t.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(limit.Milliseconds()))
		})
	}
}

// hello authenticates the driver and reserves its ids.
func (cn *conn) hello() bool {
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { // a stop does not wait for one who says nothing
		select {
		case <-cn.c.stop:
			_ = cn.nc.SetReadDeadline(time.Now())
		case <-over:
		}
	})
	defer watch.Wait()
	defer close(over)
	_ = cn.nc.SetReadDeadline(time.Now().Add(helloTimeout))
	var f frame.Frame
	if err := cn.r.Read(&f); err != nil {
		return false
	}
	sum := sha256.Sum256(f.Token)
	var why string
	switch {
	case f.Type != frame.Hello || subtle.ConstantTimeCompare(sum[:], cn.c.token[:]) != 1:
		why = "the token is not the collector's"
	case f.Version != frame.Version:
		why = fmt.Sprintf("the driver speaks version %d and the collector %d", f.Version, frame.Version)
	default:
		why = cn.admit(&f)
	}
	if why != "" {
		_ = cn.send(&frame.Frame{Type: frame.Reject, Text: []byte(why)})
		return false
	}
	_ = cn.send(&frame.Frame{Type: frame.Welcome})
	return true
}

// admit takes the driver in, or says why not.
func (cn *conn) admit(f *frame.Frame) string {
	c := cn.c
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.stop:
		return "the run is over"
	default:
	}
	if f.ID == 0 {
		return "id 0 is not for writes"
	}
	for _, s := range c.spans {
		if f.ID == s.base || f.ID > s.base && f.ID <= s.last {
			return fmt.Sprintf("ids from %d on were used by another driver; ids are never reused", f.ID)
		}
	}
	cn.span = &span{base: f.ID, latestSent: -1}
	c.spans = append(c.spans, cn.span)
	cn.reads = f.Reads
	cn.driver = &Driver{Name: string(f.Text), State: Connected, Confirm: f.Confirm}
	c.drivers = append(c.drivers, cn.driver)
	c.conns[cn] = struct{}{}
	c.mark(c.Since(time.Now()), fmt.Sprintf("driver %s connected", cn.driver.Name))
	return ""
}

// readLoop records frames until the driver says bye (nil) or vanishes.
func (cn *conn) readLoop() error {
	_ = cn.nc.SetReadDeadline(time.Time{})
	for {
		if err := cn.batch(); err != nil {
			return err
		}
		if cn.bye {
			return nil
		}
		if cn.confirm != 0 {
			// A driver that does not listen is found out by what it no longer
			// says; what it has said already is still read.
			_ = cn.send(&frame.Frame{Type: frame.Confirm, ID: cn.confirm})
			cn.confirm = 0
		}
		if err := cn.r.Fill(); err != nil {
			if errors.Is(err, io.EOF) {
				return errors.New("its connection was closed")
			}
			return err
		}
	}
}

// batch records what one read brought, all with one stamp.
func (cn *conn) batch() error {
	now := cn.c.Since(time.Now())
	c := cn.c
	c.mu.Lock()
	defer c.mu.Unlock()
	// Another connection may have stamped later and locked earlier.
	now = max(now, c.last)
	c.last = now
	var f frame.Frame
	n := 0
	for !cn.bye {
		ok, err := cn.r.Next(&f)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		n++
		if err := cn.record(&f, now); err != nil {
			return err
		}
	}
	if n > 0 {
		c.notify()
	}
	if len(c.pending) >= wakeAt {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

// record takes one frame in; c.mu is held.
func (cn *conn) record(f *frame.Frame, now time.Duration) error {
	switch f.Type {
	case frame.Intent:
		return cn.intent(f, now)
	case frame.Outcome:
		return cn.outcome(f, now)
	case frame.Note:
		cn.driver.Note = string(f.Text)
		cn.c.queue(history.Event{Kind: history.KindMark, At: now, Text: "driver " + cn.driver.Name + ": " + cn.driver.Note})
	case frame.Read:
		return cn.read(f, now)
	case frame.Bye:
		if len(cn.open) > 0 {
			return fmt.Errorf("it said bye with %d writes in flight", len(cn.open))
		}
		cn.bye = true
		cn.driver.Why = string(f.Text)
	case frame.Ping:
	default:
		return fmt.Errorf("it sent a frame of type %d", f.Type)
	}
	return nil
}

func (cn *conn) intent(f *frame.Frame, now time.Duration) error {
	if f.ID < cn.span.base || f.ID <= cn.span.last || f.ID >= cn.ceiling() {
		return fmt.Errorf("it attempted write %d, which is not its to use", f.ID)
	}
	cn.span.last = f.ID
	cn.open[f.ID] = now
	cn.c.counts.inFlight++
	cn.c.queue(history.Event{Kind: history.KindIntent, At: now, ID: f.ID, RetryOf: f.RetryOf, Writer: f.Writer})
	if cn.driver.Confirm {
		cn.confirm = f.ID
	}
	return nil
}

// ceiling is the first id above this driver's that belongs to another.
func (cn *conn) ceiling() uint64 {
	top := uint64(math.MaxUint64)
	for _, s := range cn.c.spans {
		if s.base > cn.span.base {
			top = min(top, s.base)
		}
	}
	return top
}

func (cn *conn) outcome(f *frame.Frame, now time.Duration) error {
	sent, ok := cn.open[f.ID]
	if !ok {
		return fmt.Errorf("it reported an outcome of write %d, which is not in flight", f.ID)
	}
	delete(cn.open, f.ID)
	n := &cn.c.counts
	n.inFlight--
	switch o := history.Outcome(f.Outcome); o {
	case history.Acked:
		n.acked++
		n.lastAck, n.lastAckedID = now, f.ID
		n.latestSent = max(n.latestSent, sent)
		cn.span.latestSent = max(cn.span.latestSent, sent)
		n.recent.add(now)
	case history.Refused:
		n.refused++
	default:
		n.unknown++
	}
	cn.c.queue(history.Event{
		Kind: history.KindOutcome, At: now, ID: f.ID, Outcome: history.Outcome(f.Outcome),
		Latency: time.Duration(min(f.Micros, math.MaxInt64/1000/2)) * time.Microsecond, Code: cn.code(f.Code),
	})
	return nil
}

// read counts a read; c.mu is held.
func (cn *conn) read(f *frame.Frame, now time.Duration) error {
	n := &cn.driver.Reads
	switch {
	case !cn.reads:
		return fmt.Errorf("it read write %d without having said that it would read", f.ID)
	case f.Outcome == frame.Fresh:
		n.Fresh++
	case f.Outcome == frame.Stale:
		if n.Stale++; n.Stale == 1 {
			n.FirstStale = now
		}
		n.LastStale = now
		if n.Stale <= maxStale {
			cn.c.queue(history.Event{Kind: history.KindMark, At: now, Text: fmt.Sprintf("driver %s read write %d, which was acknowledged, and it is not there", cn.driver.Name, f.ID)})
		}
	default:
		n.Failed++
	}
	return nil
}

// code returns the text of a code without allocating it each time.
func (cn *conn) code(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	s, ok := cn.codes[string(b)]
	if !ok {
		s = string(b)
		if len(cn.codes) < 1024 {
			cn.codes[s] = s
		}
	}
	return s
}

// pingLoop lets the driver hear from the collector, tells one that reads what
// is to be found, and each to stop.
func (cn *conn) pingLoop(done <-chan struct{}) {
	tick := time.NewTicker(cn.c.opts.PingEvery)
	defer tick.Stop()
	stop := cn.c.stop
	var news <-chan time.Time
	if cn.reads {
		t := time.NewTicker(cn.c.opts.NewsEvery)
		defer t.Stop()
		news = t.C
	}
	told := uint64(0)
	for {
		f := frame.Frame{Type: frame.Ping}
		select {
		case <-news:
			newest := cn.c.Live().LastAckedID
			if newest == told {
				continue
			}
			told = newest
			f.Type, f.ID = frame.Newest, newest
		case <-done:
			return
		case <-stop:
			f.Type, stop = frame.Stop, nil
		case <-tick.C:
		}
		if cn.send(&f) != nil {
			return
		}
	}
}

func (cn *conn) send(f *frame.Frame) error {
	cn.sendMu.Lock()
	defer cn.sendMu.Unlock()
	cn.out = frame.Append(cn.out[:0], f)
	_ = cn.nc.SetWriteDeadline(time.Now().Add(sendTimeout))
	_, err := cn.nc.Write(cn.out)
	return err
}

// drop ends the connection for a reason of the collector's.
func (cn *conn) drop(why error) {
	cn.dropMu.Lock()
	if cn.dropped == nil {
		cn.dropped = why
	}
	cn.dropMu.Unlock()
	_ = cn.nc.Close()
}

// finish books how the driver ended.
func (cn *conn) finish(err error) {
	cn.dropMu.Lock()
	if cn.dropped != nil {
		err = cn.dropped
	}
	cn.dropMu.Unlock()
	c := cn.c
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Since(time.Now())
	if cn.bye {
		cn.driver.State = Finished
		c.mark(now, fmt.Sprintf("driver %s finished: %s", cn.driver.Name, cn.driver.Why))
		if cn.reads {
			r := cn.driver.Reads
			c.mark(now, fmt.Sprintf("driver %s read %d times: %d answers were fresh, %d stale, and %d reads failed", cn.driver.Name, r.Fresh+r.Stale+r.Failed, r.Fresh, r.Stale, r.Failed))
		}
	} else {
		cn.driver.State, cn.driver.Why = Gone, fmt.Sprintf("gone with %d writes in flight: %v", len(cn.open), err)
		c.counts.unknown += len(cn.open)
		c.counts.inFlight -= len(cn.open)
		c.mark(now, fmt.Sprintf("driver %s %s", cn.driver.Name, cn.driver.Why))
		if !cn.driver.Confirm {
			c.mark(now, history.MarkIncomplete)
		}
	}
	delete(c.conns, cn)
	c.notify()
}
