package experiment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-db/holdfast/internal/check"
	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/result"
)

const (
	loadSeconds     = 5
	afterSeconds    = 5
	writableAgain   = 60 * time.Second
	lookEvery       = 5 * time.Second
	sustainedWindow = 10 * time.Second
)

// ErrSpent accompanies cells whose setup must not be used for another one.
var ErrSpent = errors.New("the setup is spent")

// drill is an experiment in which a fault strikes a setup under load.
type drill struct {
	name, about string
	// groups lists what tells the drill's groups apart; none if it does not fit.
	groups func(spec config.Experiment, on setup.Kind) []Params
	takes  func(p Params) float64 // seconds of one strike, without the load before and after
	fault  func(p Params) setup.Fault
	power  bool // hosts lose their power
	silent bool // nobody is told: the network goes first
	// beside says whether a second driver runs on the primary's host.
	beside func(p Params) bool
	// strike does it, brings the setup back to taking writes and lets it write on.
	strike func(ctx context.Context, t *trial) error
	// mend brings the setup back to full strength and says what is to be read
	// then. It runs under the load before a further strike, and after the load
	// when the survivors have been read once.
	mend func(ctx context.Context, t *trial) (reading, error)
}

// reading is what is read a second time.
type reading struct {
	again bool
	on    place.Host // the primary if nil
}

func (d drill) Name() string        { return d.name }
func (d drill) About() string       { return d.about }
func (d drill) NeedsDatabase() bool { return true }

func (d drill) Groups(spec config.Experiment, on setup.Kind) []Params {
	if on.Publishes {
		return nil // its second server is no standby
	}
	gs := d.groups(spec, on)
	for _, p := range gs {
		p["seconds"], p["after_s"] = orDefault(spec.Seconds, loadSeconds), orDefault(spec.After, afterSeconds)
		p["writers"], p["rate"], p["payload_bytes"] = spec.Writers, spec.Rate, spec.Payload
		if spec.RepeatInLoad > 1 && !d.fault(p).TakesOverLiving() {
			p["repeat_in_load"] = spec.RepeatInLoad
		}
		if spec.Reads > 0 {
			p["reads"] = spec.Reads
		}
		if on.Heals > 0 {
			p["heals_s"] = on.Heals.Seconds()
		}
	}
	return gs
}

func (d drill) Estimate(spec config.Experiment, p Params) time.Duration {
	around := 5.0 // starting the load, recovery, reading, the former primary's return
	if heals, ok := p["heals_s"].(float64); ok {
		around += heals + 5 // it comes back by itself, which takes its time
	}
	strikes := float64(repeats(p))
	return seconds(orDefault(spec.Seconds, loadSeconds) + strikes*(orDefault(spec.After, afterSeconds)+around+d.takes(p)))
}

func repeats(p Params) int {
	if n, ok := p["repeat_in_load"].(int); ok {
		return n
	}
	return 1
}

func (d drill) Run(ctx context.Context, env Env) ([]result.Cell, error) {
	cl, ok := env.System.(setup.Cluster)
	if !ok {
		return nil, fmt.Errorf("setup %s has no primary to which a fault could be done", env.Kind.Name)
	}
	t := &trial{drill: d, env: env, cluster: cl}
	err := t.meet(ctx)
	if err == nil {
		err = t.survivors(ctx)
	}
	if t.load != nil {
		err = errors.Join(err, t.load.stop(ctx))
	}
	if err != nil {
		return nil, err
	}
	cell, err := t.judge()
	if err != nil {
		return nil, err
	}
	if t.noStart != nil || t.notWhole != nil || env.Kind.Liar {
		return []result.Cell{*cell}, ErrSpent
	}
	return []result.Cell{*cell}, nil
}

// trial is one load and the strikes that it meets.
type trial struct {
	drill    drill
	env      Env
	cluster  setup.Cluster
	load     *load
	strikes  []*strike
	noStart  error // why the setup did not come back
	mute     bool  // no write came back
	notWhole error // who did not come back, though writes are taken
	found    Survivors
	spans    []span
	extra    map[string]float64 // metrics of the drill's own
	early    setup.Recovery     // that another member took over while a fault lasted
	lost     place.Host         // whose copy is to be read when it is back
}

// strike is one fault of a trial.
type strike struct {
	began, confirmed time.Time
	until            time.Time      // when what lasted ended, zero where nothing does
	recovered        setup.Recovery // to taking writes
	back             setup.Recovery // of who was away
	backBegan        time.Time
}

// span is what happened, for the timeline; until is zero for a moment.
type span struct {
	what        string
	from, until time.Time
	firstAck    bool // the first ack after the strike comes here
	strike      int
}

func (t *trial) now() *strike { return t.strikes[len(t.strikes)-1] }

// span adds to the timeline what did happen.
func (t *trial) span(what string, from, until time.Time) {
	if !from.IsZero() {
		t.spans = append(t.spans, span{what: what, from: from, until: until, strike: len(t.strikes)})
	}
}

func (t *trial) num(param string) float64 {
	v, _ := result.Number(t.env.Params[param])
	return v
}

func (t *trial) operated() (setup.Operated, error) {
	o, ok := t.cluster.(setup.Operated)
	if !ok {
		return nil, fmt.Errorf("setup %s cannot be operated by the lab beyond a power cut", t.env.Kind.Name)
	}
	return o, nil
}

// meet loads the setup, and lets it be struck as often as asked for.
func (t *trial) meet(ctx context.Context) (err error) {
	primary := t.cluster.Primary()
	var beside place.Host
	if t.drill.beside != nil && t.drill.beside(t.env.Params) {
		beside = primary
	}
	if t.load, err = startLoad(ctx, t.env, beside); err != nil {
		return err
	}
	t.env.Trace("the load runs on %s", primary.Name())
	if err := t.load.run(ctx, seconds(t.num("seconds"))); err != nil {
		return err
	}
	for n := repeats(t.env.Params); ; n-- {
		t.strikes = append(t.strikes, &strike{})
		if err := t.drill.strike(ctx, t); err != nil {
			return err
		}
		if n == 1 || t.gone() || t.mute {
			return nil
		}
		if _, err := t.mend(ctx); err != nil || t.notWhole != nil {
			return err
		}
	}
}

// fault is what is done to the setup: a host whose disk is wiped with its power
// is lost when it loses it.
func (t *trial) fault() setup.Fault {
	f := t.drill.fault(t.env.Params)
	if f == setup.HostPower && t.env.Volume == place.Instance {
		return setup.HostLost
	}
	return f
}

// gone says that the setup did not come back, which is a finding, no error.
func (t *trial) gone() bool { return t.noStart != nil }

// struck notes when the fault began and when it was complete.
func (t *trial) struck(began, confirmed time.Time) {
	t.now().began, t.now().confirmed = began, confirmed
	t.load.coll.MarkAt(began, history.MarkCut)
	t.load.coll.MarkAt(confirmed, history.MarkDead)
}

// cutPower cuts the power of a host.
func cutPower(ctx context.Context, h place.Host) (began, confirmed time.Time, err error) {
	power, ok := h.(place.PowerCycler)
	if !ok {
		return began, confirmed, fmt.Errorf("the power of %s cannot be cut at this place", h.Name())
	}
	if began, confirmed, err = power.Off(ctx); err != nil {
		err = fmt.Errorf("cut the power of %s: %w", h.Name(), err)
	}
	return began, confirmed, err
}

// recover brings the setup back to taking writes. That it does not come back is
// a finding, no error.
func (t *trial) recover(ctx context.Context, how func(context.Context) (setup.Recovery, error)) error {
	s := t.now()
	var err error
	s.recovered, err = how(ctx)
	if errors.Is(err, setup.ErrNoStart) {
		t.noStart = err
		t.env.Trace("%v", err)
		return nil
	} else if err != nil {
		return fmt.Errorf("bring the setup back: %w", err)
	}
	t.load.coll.MarkAt(s.recovered.Done, "setup is back")
	t.env.Trace("%s, %s after the cut", s.recovered.How, s.recovered.Done.Sub(s.began).Round(time.Millisecond))
	t.span("a standby was promoted", s.recovered.Promoted, time.Time{})
	t.span("the setup is back", s.recovered.Done, time.Time{})
	return nil
}

// writeOn waits for the first write after the fault and lets the load go on.
func (t *trial) writeOn(ctx context.Context) error {
	if t.gone() {
		return nil
	}
	t.spans = append(t.spans, span{firstAck: true, strike: len(t.strikes)})
	for waited := time.Duration(0); waited < writableAgain; waited += lookEvery {
		first, cancel := context.WithTimeout(ctx, lookEvery)
		err := t.load.waitAck(first, t.now().confirmed)
		timeout := first.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			return t.load.run(ctx, seconds(t.num("after_s")))
		case !timeout:
			return fmt.Errorf("wait for the first write after the cut: %w", err)
		}
		// A server that came back without its ledger will never take a write.
		if pe, _ := t.readable(ctx); pe != nil {
			t.env.Trace("the ledger is gone: %v", pe)
			t.mute = true
			return nil
		}
	}
	t.env.Trace("no write came back within %s of the recovery", writableAgain)
	t.mute = true
	return nil
}

// readable returns the server's own error when it cannot give out the ledger,
// and in err what else is in the way.
func (t *trial) readable(ctx context.Context) (pe *pgconn.PgError, err error) {
	err = t.env.System.(setup.Ledger).Survivors(ctx, ledgerTable, func(setup.Scan, uint64) {})
	if errors.As(err, &pe) {
		return pe, nil
	}
	return nil, err
}

// bring brings somebody back who was away.
func (t *trial) bring(ctx context.Context, what string, how func(context.Context) (setup.Recovery, error)) error {
	s := t.now()
	s.backBegan = time.Now()
	rec, err := how(ctx)
	if (errors.Is(err, setup.ErrNotWhole) || errors.Is(err, setup.ErrNoStart)) && ctx.Err() == nil {
		// It takes writes, and somebody stays away: a finding, no error.
		t.notWhole = err
		t.env.Trace("%s: %v", what, err)
		t.span(what+", in vain", s.backBegan, time.Now())
		return nil
	} else if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	s.back = rec
	t.span(what, s.backBegan, rec.Done)
	return nil
}

func (t *trial) mend(ctx context.Context) (reading, error) {
	if t.drill.mend == nil {
		return reading{}, nil
	}
	return t.drill.mend(ctx, t)
}

// rejoin is the mending of a drill after which a standby may have been promoted.
func rejoin(ctx context.Context, t *trial) (reading, error) {
	if t.now().recovered.Promoted.IsZero() {
		return reading{}, nil
	}
	return reading{again: true}, t.bring(ctx, "the former primary comes back", t.cluster.Rejoin)
}

// survivors ends the load and reads what is there, before and after the setup
// is at full strength again.
func (t *trial) survivors(ctx context.Context) error {
	t.found.WindowMs = min(sustainedWindow, seconds(t.num("after_s"))).Milliseconds()
	if err := t.load.stop(ctx); err != nil {
		return err
	}
	if t.noStart == nil {
		if err := t.read(ctx, nil, check.FirstScan, check.FirstIndex); err != nil {
			return err
		}
	} else {
		t.found.Why = t.noStart.Error()
		t.found.Add(check.FirstScan, nil)
		t.found.Add(check.FirstIndex, nil)
	}
	if t.found.Why == "" {
		r, err := t.mend(ctx)
		if err != nil {
			return err
		}
		if t.notWhole != nil {
			r.on = nil // who did not come back cannot be read
		}
		if r.again {
			if err := t.read(ctx, r.on, check.SecondScan, check.SecondIndex); err != nil {
				return err
			}
		}
	}
	return t.found.write(t.env.Dir, HistoryFile(t.env.Key))
}

// read reads the ids by scan and by index. A server that cannot give them out
// has none; a connection that the lab itself cannot make is the lab's failure.
func (t *trial) read(ctx context.Context, on place.Host, scan, index check.Source) error {
	by := map[setup.Scan][]uint64{}
	sink := func(s setup.Scan, id uint64) { by[s] = append(by[s], id) }
	var err error
	if on == nil {
		err = t.env.System.(setup.Ledger).Survivors(ctx, ledgerTable, sink)
	} else {
		var o setup.Operated
		if o, err = t.operated(); err == nil {
			err = o.SurvivorsOn(ctx, on, ledgerTable, sink)
		}
	}
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		t.found.Why = "the survivors cannot be read: " + err.Error()
		t.noStart = err
	} else if err != nil {
		return fmt.Errorf("read the survivors: %w", err)
	}
	t.found.Add(scan, by[setup.BySequence])
	t.found.Add(index, by[setup.ByIndex])
	return nil
}
