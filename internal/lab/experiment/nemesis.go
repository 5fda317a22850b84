package experiment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// nemesis strikes with faults of all kinds, drawn from the cell's seed, for
// hold_s. Then all is healed, which is the moment that times count from: how
// long until the setup takes writes again.
func nemesis() drill {
	return drill{
		name: "nemesis", about: "faults of all kinds, drawn at random from the seed, for a while, under load; then all is healed",
		groups: func(spec config.Experiment, on setup.Kind) []Params {
			if on.Heals == 0 {
				return nil
			}
			return held(spec, on)
		},
		takes: lasting,
		fault: func(Params) setup.Fault { return setup.Nemesis }, power: true, silent: true,
		strike: strikeNemesis,
		mend: func(ctx context.Context, t *trial) (reading, error) {
			return reading{again: true}, t.bring(ctx, "all members come back", t.cluster.Rejoin)
		},
	}
}

// wrath carries a plan out, one moment after the other.
type wrath struct {
	t       *trial
	setup   setup.Healing
	hosts   []place.Host
	open    map[int]*affliction // by the stroke's number in the plan
	counts  map[string]int
	skipped int
}

// affliction is a stroke that lasts.
type affliction struct {
	host  place.Host
	what  string
	began time.Time
	end   func(context.Context) error
}

// errNotNow says that a stroke cannot be dealt as things stand, which is nobody's failure.
var errNotNow = errors.New("not as things stand")

func strikeNemesis(ctx context.Context, t *trial) (err error) {
	c, ok := t.cluster.(setup.Healing)
	if !ok {
		return fmt.Errorf("setup %s does not heal itself", t.env.Kind.Name)
	}
	w := &wrath{t: t, setup: c, hosts: append([]place.Host{c.Primary()}, c.Standbys()...), open: map[int]*affliction{}, counts: map[string]int{}}
	defer func() {
		if err != nil { // what hangs or is frozen keeps others waiting
			err = errors.Join(err, w.healAll(context.WithoutCancel(ctx)))
		}
	}()
	plan := planNemesis(t.env.Seed, seconds(t.num("hold_s")), len(w.hosts), seconds(t.num("heals_s")))
	began := time.Now()
	for _, m := range moments(plan) {
		if wait := m.at - time.Since(began); wait > 0 {
			if err := t.load.run(ctx, wait); err != nil {
				return err
			}
		}
		if late := time.Since(began) - m.at; late > stoodStill {
			began = began.Add(late) // what was planned apart does not come at once
		}
		if m.begins {
			err = w.begin(ctx, m.stroke, plan[m.stroke])
		} else {
			err = w.endOf(ctx, m.stroke)
		}
		if err != nil {
			return err
		}
	}
	healing := time.Now()
	if err := w.healAll(ctx); err != nil {
		return err
	}
	t.struck(healing, time.Now())
	t.span("all is healed", healing, time.Time{})
	t.extra = w.metrics()
	err = t.recover(ctx, func(ctx context.Context) (setup.Recovery, error) {
		rec, err := c.Settle(ctx, healing)
		// Who is the primary may have become it long before all was healed.
		rec.Promoted, rec.Detected = time.Time{}, time.Time{}
		return rec, err
	})
	if err != nil {
		return err
	}
	return t.writeOn(ctx)
}

func (w *wrath) metrics() map[string]float64 {
	m := map[string]float64{"faults_skipped": float64(w.skipped)}
	for kind, n := range w.counts {
		m["faults_"+strings.ReplaceAll(kind, "-", "_")] = float64(n)
		m["faults"] += float64(n)
	}
	return m
}

// begin deals one stroke. What cannot be dealt right now is counted, not an error.
func (w *wrath) begin(ctx context.Context, number int, s stroke) error {
	h := w.target(ctx, s.role)
	if h == nil {
		w.skipped++
		return nil
	}
	began := time.Now()
	w.t.load.coll.MarkAt(began, history.MarkFault)
	end, err := w.deal(ctx, s, h)
	if errors.Is(err, errNotNow) {
		w.t.env.Trace("nemesis: no %s of %s: %v", s.kind, h.Name(), err)
		w.skipped++
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s of %s: %w", s.kind, h.Name(), err)
	}
	w.counts[s.kind]++
	what := fmt.Sprintf("%s: %s", s.kind, h.Name())
	if s.kind == strokeSwitch {
		what = s.kind // the setup chooses
	}
	w.t.env.Trace("nemesis: %s for %s", what, s.hold)
	if end == nil {
		w.t.span(what, began, time.Time{})
		return nil
	}
	w.open[number] = &affliction{host: h, what: what, began: began, end: end}
	return nil
}

// target is the host in a role as things stand, or the next one that is well;
// nil if none is.
func (w *wrath) target(ctx context.Context, role int) place.Host {
	looking, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	_, _ = w.setup.Settle(looking, time.Now()) // where nobody is the primary, the last one counts as it
	all := append([]place.Host{w.setup.Primary()}, w.setup.Standbys()...)
	for i := range all {
		h := all[(role+i)%len(all)]
		if !w.afflicted(h) {
			return h
		}
	}
	return nil
}

func (w *wrath) afflicted(h place.Host) bool {
	for _, a := range w.open {
		if a.host == h {
			return true
		}
	}
	return false
}

// deal does it to h; end undoes what lasts.
func (w *wrath) deal(ctx context.Context, s stroke, h place.Host) (end func(context.Context) error, err error) {
	switch s.kind {
	case strokePower:
		_, _, err := cutPower(ctx, h)
		return func(ctx context.Context) error { return w.setup.PowerOn(ctx, h) }, err
	case strokeFreeze:
		f, ok := h.(place.Freezer)
		if !ok {
			return nil, fmt.Errorf("%s cannot be frozen at this place", h.Name())
		}
		return f.Thaw, f.Freeze(ctx)
	case strokeAgent:
		const sigstop, sigcont = 19, 18
		if err := w.setup.SignalAgent(h, sigstop); err != nil {
			return nil, errors.Join(errNotNow, err)
		}
		return func(context.Context) error {
			_ = w.setup.SignalAgent(h, sigcont) // it may have ended: killed by what watches it
			return nil
		}, nil
	case strokeAgentKill:
		const sigkill = 9
		if err := w.setup.SignalAgent(h, sigkill); err != nil {
			return nil, errors.Join(errNotNow, err)
		}
		return nil, nil
	case strokeServer:
		if err := w.t.killServer(ctx, h); err != nil {
			return nil, errors.Join(errNotNow, err)
		}
		return nil, nil
	case strokePartition:
		return w.cutOff(ctx, s.ways, h)
	case strokeHang:
		d, ok := h.(place.DiskController)
		if !ok {
			return nil, fmt.Errorf("the disk of %s cannot be changed at this place", h.Name())
		}
		return func(ctx context.Context) error { return d.SetDisk(ctx, map[string]string{"hang": "false"}) },
			d.SetDisk(ctx, map[string]string{"hang": "true"})
	case strokeSwitch:
		return nil, w.switchOver(ctx)
	}
	return nil, fmt.Errorf("no fault is called %q", s.kind)
}

func (w *wrath) cutOff(ctx context.Context, ways string, h place.Host) (func(context.Context) error, error) {
	others := slices.DeleteFunc(slices.Clone(w.hosts), func(o place.Host) bool { return o == h })
	for _, o := range others {
		if err := cutWays(ctx, ways, h, o); err != nil {
			return nil, errors.Join(err, healAll(ctx, h, others...))
		}
	}
	return func(ctx context.Context) error { return healAll(ctx, h, others...) }, nil
}

// switchOver asks for another primary, which a setup that is not whole may refuse.
func (w *wrath) switchOver(ctx context.Context) error {
	sw, ok := w.setup.(setup.Switcher)
	if !ok || len(w.open) > 0 {
		return errNotNow
	}
	asking, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	if _, err := sw.Switchover(asking); err != nil {
		return errors.Join(errNotNow, err)
	}
	return nil
}

// endOf undoes a stroke that was dealt.
func (w *wrath) endOf(ctx context.Context, number int) error {
	a := w.open[number]
	if a == nil {
		return nil
	}
	delete(w.open, number)
	if err := a.end(ctx); err != nil {
		return fmt.Errorf("end of %s: %w", a.what, err)
	}
	w.t.span(a.what, a.began, time.Now())
	return nil
}

func (w *wrath) healAll(ctx context.Context) error {
	var errs []error
	for n := range w.open {
		errs = append(errs, w.endOf(ctx, n))
	}
	return errors.Join(errs...)
}
