package driver

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/driver/frame"
)

// ErrCollector means that the collector is out of reach, so nothing may be written.
var ErrCollector = errors.New("the collector is out of reach")

// ErrRejected means that the collector does not take this driver.
var ErrRejected = errors.New("the collector refused the driver")

// sender is the connection to the collector. Writers that have something to
// say at the same time share one write: whoever comes first writes for all.
type sender struct {
	nc      net.Conn
	timeout time.Duration
	confirm bool

	mu        sync.Mutex
	cond      sync.Cond
	buf       []byte
	spare     []byte
	writing   bool
	queued    uint64 // frames in all
	sent      uint64 // frames that the kernel has taken
	next      uint64 // id
	newest    uint64 // an acked write that no read may miss, 0 for none
	confirmed uint64 // every intent up to this id is with the collector
	over      bool   // the end of the connection is no longer an error
	err       error

	hold  time.Duration // how long an ack may wait for an intent to go along with
	timer *time.Timer   // sends what waits; nil where nothing may
	armed bool          // the timer is
}

// maxHold is the longest that an ack waits on a schedule.
const maxHold = time.Millisecond

// holdFor is how long an ack may wait, so that the next intent takes it along:
// twice the time between two intents, where that is short enough not to matter.
// Whoever waits for confirmations may lose its power at any moment, and holds
// nothing back.
func holdFor(cfg *Config) time.Duration {
	if cfg.ConfirmIntents || cfg.Rate == 0 {
		return 0
	}
	if d := time.Duration(2e9 / cfg.Rate); d <= maxHold {
		return d
	}
	return 0
}

// connect reaches the collector and is welcomed by it.
func connect(cfg *Config) (*sender, *frame.Reader, error) {
	network := "tcp"
	if strings.HasPrefix(cfg.Collector, "/") || strings.HasPrefix(cfg.Collector, "@") {
		network = "unix"
	}
	d := net.Dialer{
		Timeout:         millis(cfg.CollectorTimeoutMs),
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3},
	}
	nc, err := d.Dial(network, cfg.Collector)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrCollector, err)
	}
	s := &sender{nc: nc, timeout: millis(cfg.CollectorTimeoutMs), confirm: cfg.ConfirmIntents, next: cfg.IDBase, hold: holdFor(cfg)}
	s.cond.L = &s.mu
	if s.hold > 0 {
		s.timer = time.AfterFunc(time.Hour, s.overdue)
		s.timer.Stop()
	}
	r := frame.NewReader(nc)
	if err := s.hello(cfg, r); err != nil {
		_ = nc.Close()
		return nil, nil, err
	}
	return s, r, nil
}

func (s *sender) hello(cfg *Config, r *frame.Reader) error {
	hello := frame.Frame{
		Type: frame.Hello, Version: frame.Version, ID: cfg.IDBase, Confirm: cfg.ConfirmIntents, Reads: cfg.ReadShare > 0,
		Token: []byte(cfg.Token), Text: []byte(cfg.Name),
	}
	_ = s.nc.SetDeadline(time.Now().Add(s.timeout))
	if _, err := s.nc.Write(frame.Append(nil, &hello)); err != nil {
		return fmt.Errorf("%w: %w", ErrCollector, err)
	}
	var f frame.Frame
	if err := r.Read(&f); err != nil {
		return fmt.Errorf("%w: %w", ErrCollector, err)
	}
	switch f.Type {
	case frame.Welcome:
		return s.nc.SetDeadline(time.Time{})
	case frame.Reject:
		return fmt.Errorf("%w: %s", ErrRejected, f.Text)
	}
	return fmt.Errorf("%w: it answered with a frame of type %d", ErrRejected, f.Type)
}

// listen takes what the collector says until the connection ends; stop is
// called when it says so.
func (s *sender) listen(r *frame.Reader, stop func()) {
	var f frame.Frame
	for {
		ok, err := r.Next(&f)
		if err == nil && !ok {
			_ = s.nc.SetReadDeadline(time.Now().Add(s.timeout))
			err = r.Fill()
		}
		if err != nil {
			s.fail(err)
			return
		}
		if !ok {
			continue
		}
		switch f.Type {
		case frame.Confirm:
			s.mu.Lock()
			s.confirmed = max(s.confirmed, f.ID)
			s.cond.Broadcast()
			s.mu.Unlock()
		case frame.Newest:
			s.mu.Lock()
			s.newest = f.ID
			s.mu.Unlock()
		case frame.Stop:
			stop()
		}
	}
}

func (s *sender) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && !s.over {
		s.err = fmt.Errorf("%w: %w", ErrCollector, err)
	}
	s.cond.Broadcast()
}

// intent reports that a write is about to be sent and returns its id. When it
// returns, the frame is with the kernel, or, where intents are confirmed, with
// the collector.
func (s *sender) intent(writer uint32, retryOf uint64) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	id := s.next
	s.next++
	s.append(&frame.Frame{Type: frame.Intent, ID: id, RetryOf: retryOf, Writer: writer})
	s.flush(s.queued)
	for s.confirm && s.err == nil && s.confirmed < id {
		s.cond.Wait()
	}
	return id, s.err
}

// outcome reports what became of a write. With more, an intent follows at
// once and takes the frame along; where acks may wait, one of another writer.
func (s *sender) outcome(id uint64, r *result, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.append(&frame.Frame{
		Type: frame.Outcome, ID: id, Outcome: uint8(r.outcome),
		Micros: uint64(max(r.latency, 0) / time.Microsecond), Code: []byte(r.code),
	})
	if r.outcome == history.Acked {
		s.newest = id
	}
	switch {
	case more:
	case s.hold > 0 && r.outcome == history.Acked:
		if !s.armed {
			s.armed = true
			s.timer.Reset(s.hold)
		}
	default:
		s.flush(s.queued)
	}
}

// overdue sends the acks that no intent has taken along. The timer is not
// stopped when one has: that costs more than letting it run out.
func (s *sender) overdue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	s.flush(s.queued)
}

// latest is a write that was acked before now, to this driver or to another
// one, and about the newest of those; 0 when there is none.
func (s *sender) latest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest
}

// read reports what a read of an acked write gave.
func (s *sender) read(id uint64, r *readResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.append(&frame.Frame{Type: frame.Read, ID: id, Outcome: r.answer, Micros: uint64(max(r.latency, 0) / time.Microsecond)})
	s.flush(s.queued)
}

// say reports something for people.
func (s *sender) say(t frame.Type, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.append(&frame.Frame{Type: t, Text: []byte(text)})
	s.flush(s.queued)
}

// bye says the last word. The error is that of everything before.
func (s *sender) bye(why string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.over = true
		s.append(&frame.Frame{Type: frame.Bye, Text: []byte(why)})
		s.flush(s.queued)
	}
	return s.err
}

func (s *sender) append(f *frame.Frame) {
	s.buf = frame.Append(s.buf, f)
	s.queued++
}

// flush returns when the kernel has the first upTo frames; s.mu is held, but
// let go of while somebody writes.
func (s *sender) flush(upTo uint64) {
	for s.sent < upTo && s.err == nil {
		if s.writing {
			s.cond.Wait()
			continue
		}
		s.writing = true
		out, end := s.buf, s.queued
		s.buf = s.spare[:0]
		s.mu.Unlock()
		_ = s.nc.SetWriteDeadline(time.Now().Add(s.timeout))
		_, err := s.nc.Write(out)
		s.mu.Lock()
		s.spare, s.writing, s.sent = out, false, end
		if err != nil && s.err == nil {
			s.err = fmt.Errorf("%w: %w", ErrCollector, err)
		}
		s.cond.Broadcast()
	}
}
