package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// finder knows which target can be written to. While none is known, and while
// a write is in flight for suspiciously long, it probes the targets, each every
// probe interval with a connection of its own, and one that turned the last away
// before the login four times as often; otherwise it leaves them alone.
type finder struct {
	targets []string
	dial    func(ctx context.Context, target int) (*session, error)
	now     func() time.Duration
	every   time.Duration // between probes of a target
	timeout time.Duration // of a probe, and of a connection
	suspect time.Duration
	tell    func(text string)
	kick    chan struct{} // wakes the search before its next tick
	probes  sync.WaitGroup

	mu       sync.Mutex
	current  int    // target, -1 while none is known
	previous int    // the last one that was known, -1 for none
	gen      uint64 // grows with every find
	spare    *session
	live     map[*session]struct{} // with the writers
	changed  chan struct{}         // closed and replaced with every find
	running  []int                 // probes under way, by target
	begun    []time.Duration       // when the last probe of each target began
	errs     []error               // the last of each target
	told     time.Duration         // when the errors were last told
}

func newFinder(cfg *Config, d *dialer, tell func(string)) *finder {
	return &finder{
		targets: cfg.Targets, dial: d.dial, now: d.now, tell: tell,
		every: millis(cfg.ProbeEveryMs), timeout: millis(cfg.ProbeTimeoutMs), suspect: millis(cfg.SuspectAfterMs),
		kick: make(chan struct{}, 1), current: -1, previous: -1, live: map[*session]struct{}{},
		changed: make(chan struct{}), running: make([]int, len(cfg.Targets)), begun: make([]time.Duration, len(cfg.Targets)),
		errs: make([]error, len(cfg.Targets)),
	}
}

// acquire returns a session with the writable target, or an error when none
// has been found for as long as patience.
func (f *finder) acquire(ctx context.Context, patience time.Duration) (*session, error) {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for waiting.Err() == nil {
		f.mu.Lock()
		target, gen, changed, s := f.current, f.gen, f.changed, f.spare
		if s != nil {
			f.spare = nil
			f.live[s] = struct{}{}
		}
		f.mu.Unlock()
		switch {
		case s != nil:
			return s, nil
		case target >= 0:
			if s, err := f.open(ctx, target, gen); s != nil || err != nil {
				return s, err
			}
		default:
			select {
			case <-changed:
			case <-waiting.Done():
			}
		}
	}
	return nil, waiting.Err()
}

// open connects to target, which was writable as of gen. Without a session or
// an error it is worth another look at what is writable.
func (f *finder) open(ctx context.Context, target int, gen uint64) (*session, error) {
	dialing, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	s, err := f.dial(dialing, target)
	if ctx.Err() != nil {
		if s != nil {
			s.close()
		}
		return nil, ctx.Err()
	}
	if err != nil {
		f.lost(target, gen, err)
		return nil, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if gen != f.gen && target != f.current {
		s.close()
		return nil, nil
	}
	s.gen = f.gen
	f.live[s] = struct{}{}
	return s, nil
}

// release takes a session back that is no longer usable.
func (f *finder) release(s *session, why error) {
	s.close()
	f.mu.Lock()
	delete(f.live, s)
	f.mu.Unlock()
	if !s.switched.Load() {
		f.lost(s.target, s.gen, why)
	}
}

// done takes a session back that is no longer needed.
func (f *finder) done(s *session) {
	s.close()
	f.mu.Lock()
	delete(f.live, s)
	f.mu.Unlock()
}

// lost starts the search, unless something was found since gen.
func (f *finder) lost(target int, gen uint64, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs[target] = why
	if f.current < 0 || gen != f.gen {
		return
	}
	f.previous, f.current = f.current, -1
	if f.spare != nil {
		f.spare.close()
		f.spare = nil
	}
	f.told = f.now()
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// search probes as long as ctx lasts, whenever there is a need.
func (f *finder) search(ctx context.Context) {
	tick := time.NewTicker(f.every / 4)
	defer tick.Stop()
	round, cancel := context.WithCancel(ctx)
	found := uint64(0)
	now := true // whoever was just probed too
	for {
		f.mu.Lock()
		if f.gen != found { // what is still under way is no longer needed
			found = f.gen
			cancel()
			round, cancel = context.WithCancel(ctx)
		}
		for t := range f.targets {
			if f.needed(t) && (now || f.due(t)) && time.Duration(f.running[t])*f.every < f.timeout {
				f.running[t]++
				f.begun[t] = f.now()
				probe := round
				f.probes.Go(func() { f.probe(probe, t) })
			}
		}
		complaint := f.complaint()
		f.mu.Unlock()
		if complaint != "" {
			f.tell(complaint)
		}
		select {
		case <-ctx.Done():
			cancel()
			f.probes.Wait()
			return
		case <-tick.C:
			now = false
		case <-f.kick:
			now = true
			tick.Reset(f.every / 4)
		}
	}
}

// due says whether it is target t's turn; f.mu is held. A login at a server that
// takes no writes costs it something; a rejection costs next to nothing, and ends
// when the server is open.
func (f *finder) due(t int) bool {
	every := f.every
	var pe *pgconn.PgError
	if err := f.errs[t]; errors.As(err, &pe) && (pe.Code == "57P03" || strings.HasPrefix(pe.Code, "28")) || errors.Is(err, syscall.ECONNREFUSED) {
		every /= 4
	}
	return f.now()-f.begun[t] >= every-every/8 // a tick may come a little early
}

// needed says whether target t is to be probed; f.mu is held.
func (f *finder) needed(t int) bool {
	if f.current < 0 {
		return true
	}
	if t == f.current {
		return false
	}
	now := f.now()
	for s := range f.live {
		if since := s.inFlight.Load(); since != 0 && now-time.Duration(since) >= f.suspect {
			return true
		}
	}
	return false
}

// complaint is what the targets say, every two seconds in which none is
// writable; f.mu is held.
func (f *finder) complaint() string {
	if f.current >= 0 || f.now()-f.told < 2*time.Second {
		return ""
	}
	f.told = f.now()
	var all []string
	for t, err := range f.errs {
		if err != nil {
			all = append(all, f.targets[t]+": "+describe(err))
		}
	}
	return "no server is writable: " + strings.Join(all, "; ")
}

func (f *finder) probe(ctx context.Context, target int) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	s, err := f.dial(ctx, target)
	f.mu.Lock()
	f.running[target]--
	if err != nil {
		if !errors.Is(ctx.Err(), context.Canceled) {
			f.errs[target] = err
		}
		f.mu.Unlock()
		return
	}
	if f.current >= 0 && !f.needed(target) {
		f.mu.Unlock()
		s.close()
		return
	}
	before := f.current
	if before < 0 {
		before = f.previous
	}
	f.current = target
	f.gen++
	s.gen = f.gen
	if f.spare != nil {
		f.spare.close()
	}
	f.spare = s
	clear(f.errs)
	// Whoever still waits for another server waits in vain.
	for s := range f.live {
		if s.target != target {
			s.interrupt()
		}
	}
	close(f.changed)
	f.changed = make(chan struct{})
	f.mu.Unlock()
	select {
	case f.kick <- struct{}{}:
	default:
	}
	text := "writable: " + f.targets[target]
	if before >= 0 && before != target {
		text += fmt.Sprintf(" (before: %s)", f.targets[before])
	}
	f.tell(text)
}

// close ends what is left; no writer holds a session any more.
func (f *finder) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.spare != nil {
		f.spare.close()
		f.spare = nil
	}
}

// code is a short name for why target could not be connected to.
func (f *finder) code() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	code := "no-server"
	for _, err := range f.errs {
		switch {
		case err == nil:
			continue
		case errors.Is(err, errStandby), errors.Is(err, errReadOnly):
			return "25006"
		}
		code = connectCode(err)
	}
	return code
}

// codeError is how a session ended: the code of its last write.
type codeError string

func (e codeError) Error() string { return "the last write ended with " + string(e) }

func connectCode(err error) string {
	var pe *pgconn.PgError
	var ce codeError
	switch {
	case errors.As(err, &pe):
		return pe.Code
	case errors.As(err, &ce):
		return string(ce)
	}
	return netCode(err)
}

// describe is one line for people, with what to do where that is known.
func describe(err error) string {
	var pe *pgconn.PgError
	switch {
	case !errors.As(err, &pe):
		return strings.Join(strings.Fields(err.Error()), " ")
	case pe.Code == "42501" && strings.Contains(pe.Message, "lc_messages"):
		return pe.Message + " (let the user set it: GRANT SET ON PARAMETER lc_messages, or a superuser)"
	}
	return pe.Message + " (SQLSTATE " + pe.Code + ")"
}
