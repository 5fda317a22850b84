package experiment

import (
	"context"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// theSuccessor is the target of a second failure that strikes the one who has
// just taken over.
const theSuccessor = "successor"

// doubleFailure takes two of three hosts away: more than a quorum of one can
// bear without standing still, and nothing may be lost when they are back.
func doubleFailure() drill {
	return drill{
		name: "double-failure", about: "the primary's host and another one lose their power: a standby's with it, or the new primary's after the failover",
		groups: func(spec config.Experiment, on setup.Kind) []Params {
			if on.Hosts < 3 {
				return nil
			}
			var gs []Params
			for _, target := range spec.Targets {
				gs = append(gs, Params{"hold_s": spec.Hold, "target": target})
			}
			return gs
		},
		takes: func(p Params) float64 { return lasting(p) + 10 },
		fault: func(Params) setup.Fault { return setup.DoubleFailure }, power: true, silent: true,
		strike: func(ctx context.Context, t *trial) error {
			if t.env.Params["target"] == theSuccessor {
				return t.successorOff(ctx)
			}
			return t.twoOff(ctx)
		},
		mend: func(ctx context.Context, t *trial) (reading, error) {
			return reading{again: true}, t.bring(ctx, "all come back", t.cluster.Rejoin)
		},
	}
}

func (t *trial) twoOff(ctx context.Context) error {
	two := []place.Host{t.cluster.Primary(), t.cluster.Standbys()[0]}
	began, confirmed, err := cutAll(ctx, two)
	if err != nil {
		return err
	}
	t.struck(began, confirmed)
	t.span("power of the primary's and a standby's host cut", began, confirmed)
	return t.twoReturn(ctx, two)
}

func (t *trial) successorOff(ctx context.Context) error {
	first := t.cluster.Primary()
	began, confirmed, err := cutPower(ctx, first)
	if err != nil {
		return err
	}
	t.load.coll.MarkAt(began, history.MarkFault)
	rec, err := t.cluster.Recover(ctx)
	if err != nil {
		return err
	}
	second := t.cluster.Primary()
	began2, confirmed2, err := cutPower(ctx, second)
	if err != nil {
		return err
	}
	t.struck(began2, confirmed2)
	t.span("power of the primary's host cut", began, confirmed)
	t.span("a standby was promoted", rec.Promoted, time.Time{})
	t.span("power of the new primary's host cut", began2, confirmed2)
	if _, heals := t.cluster.(setup.Healing); !heals {
		return t.twoReturn(ctx, []place.Host{second}) // the script knows who was the primary last
	}
	return t.twoReturn(ctx, []place.Host{first, second}) // the stale one first
}

// twoReturn leaves hosts away for a while, brings them back in that order and
// sees the setup write again.
func (t *trial) twoReturn(ctx context.Context, order []place.Host) error {
	o, err := t.operated()
	if err != nil {
		return err
	}
	if err := t.load.run(ctx, seconds(t.num("hold_s"))); err != nil {
		return err
	}
	t.now().until = time.Now()
	t.span("two hosts are away", t.now().confirmed, t.now().until)
	err = t.recover(ctx, func(ctx context.Context) (setup.Recovery, error) { return o.RecoverAll(ctx, order) })
	if err != nil {
		return err
	}
	return t.writeOn(ctx)
}
