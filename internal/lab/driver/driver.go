package driver

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/driver/frame"
)

// pauseRefused is how long a writer waits after a server refused a write:
// asking again at once would only fill the history.
const pauseRefused = 100 * time.Millisecond

// driver is one run of the load.
type driver struct {
	cfg    *Config
	sender *sender
	finder *finder
	start  time.Time
}

// Run writes until the collector says stop, the duration is over or ctx ends;
// then the writes in flight are finished and nil is returned. It returns
// ErrCollector when the collector is out of reach: a driver that nobody listens
// to must not write on.
func Run(ctx context.Context, cfg *Config) error {
	c := *cfg
	if err := c.complete(); err != nil {
		return err
	}
	s, r, err := connect(&c)
	if err != nil {
		return err
	}
	defer func() { _ = s.nc.Close() }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if c.DurationMs > 0 {
		t := time.AfterFunc(millis(c.DurationMs), func() { cancel(errors.New("its time is over")) })
		defer t.Stop()
	}
	var listening sync.WaitGroup
	listening.Go(func() {
		s.listen(r, func() { cancel(errors.New("the collector said stop")) })
		cancel(ErrCollector)
	})

	dl := newDialer(&c)
	d := &driver{cfg: &c, sender: s, start: time.Now()}
	d.finder = newFinder(&c, dl, func(text string) { s.say(frame.Note, text) })
	searching, endSearch := context.WithCancel(context.Background())
	var search, writers sync.WaitGroup
	search.Go(func() { d.finder.search(searching) })
	for w := range c.Writers {
		writers.Go(func() { d.write(ctx, w) })
	}
	writers.Wait()
	endSearch()
	search.Wait()
	d.finder.close()

	why := "it was interrupted"
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		why = cause.Error()
	}
	err = s.bye(why)
	if s.timer != nil {
		s.timer.Stop()
	}
	// The collector closes the connection: were it closed here with something
	// unread, the last frames might be lost.
	limit := time.AfterFunc(s.timeout, func() { _ = s.nc.Close() })
	defer limit.Stop()
	listening.Wait()
	return err
}

// write is one writer: one write in flight, and the next when it is due.
func (d *driver) write(ctx context.Context, writer int) {
	var s *session
	defer func() {
		if s != nil {
			d.finder.done(s)
		}
	}()
	w := write{writer: uint32(writer), payload: make([]byte, d.cfg.PayloadBytes)}
	timeout := millis(d.cfg.WriteTimeoutMs)
	turns := turns{share: d.cfg.ReadShare}
	pace := pacer{rate: d.cfg.Rate, writers: d.cfg.Writers, writer: writer}
	for d.sleep(ctx, pace.next(time.Since(d.start))) {
		if s == nil {
			s = d.session(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if id := d.sender.latest(); s != nil && id != 0 && turns.read() {
			r := s.read(id, timeout)
			d.sender.read(id, &r)
			if !r.usable {
				d.finder.release(s, codeError(r.code))
				s = nil
			}
			continue
		}
		var err error
		if w.id, err = d.sender.intent(w.writer, w.retryOf); err != nil {
			return
		}
		r := result{outcome: history.Refused}
		if s == nil {
			r.code = d.finder.code()
		} else {
			fill(w.payload, d.cfg.Seed, w.id)
			r = s.insert(&w, timeout)
		}
		// Only a writer whose next intent follows at once may leave the frame to it.
		d.sender.outcome(w.id, &r, d.cfg.Rate == 0 && r.outcome == history.Acked && ctx.Err() == nil)
		w.retryOf = w.id
		if r.outcome == history.Acked {
			w.retryOf = 0
		}
		refused := s != nil && r.outcome == history.Refused && r.usable
		if s != nil && !r.usable {
			d.finder.release(s, codeError(r.code))
			s = nil
		}
		if refused && !d.sleep(ctx, pauseRefused) {
			return
		}
	}
}

// session waits for one for as long as a connection may take; nil if there is none.
func (d *driver) session(ctx context.Context) *session {
	s, err := d.finder.acquire(ctx, millis(d.cfg.ConnectTimeoutMs))
	if err != nil {
		return nil
	}
	return s
}

// sleep returns false when ctx has ended.
func (d *driver) sleep(ctx context.Context, t time.Duration) bool {
	if t <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// maxLag is how far a writer may fall behind its schedule and still catch up;
// what an outage made it miss beyond that is not made up for.
const maxLag = 100 * time.Millisecond

// pacer spreads the writes of all writers evenly over time.
type pacer struct {
	rate    float64
	writers int
	writer  int
	slot    float64
}

// next returns how long after elapsed the next write is due.
func (p *pacer) next(elapsed time.Duration) time.Duration {
	if p.rate == 0 {
		return 0
	}
	due := func() float64 { return (p.slot*float64(p.writers) + float64(p.writer)) / p.rate }
	if late := elapsed.Seconds() - due(); late > maxLag.Seconds() {
		p.slot += math.Ceil(late * p.rate / float64(p.writers))
	}
	wait := time.Duration(due()*1e9) - elapsed
	p.slot++
	return wait
}
