package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// afterThaw is how long a former primary may do what it can once it is thawed,
// or once its partition has healed, while another one takes the writes.
const afterThaw = 2 * time.Second

// freeze stops every program of the primary's host for a while. Where a standby
// is promoted meanwhile, a driver beside the former primary is frozen with it:
// whatever that one is told afterwards must be true.
func freeze() drill {
	return drill{
		name: "freeze", about: "the primary's host freezes for a while, under load; a standby is promoted meanwhile, or none is",
		groups: func(spec config.Experiment, hosts int) []Params {
			return promoting(spec, hosts, Params{})
		},
		takes: func(p Params) float64 { return p["hold_s"].(float64) + afterThaw.Seconds() },
		fault: func(p Params) setup.Fault {
			if p["promote"] == true {
				return setup.FreezeTakeover
			}
			return setup.Freeze
		},
		silent: true, // it says nothing to anybody, no goodbye either
		beside: func(p Params) bool { return p["promote"] == true },
		strike: strikeFreeze, mend: rejoin,
	}
}

// promoting adds to params whether a standby is promoted, which takes one.
func promoting(spec config.Experiment, hosts int, p Params) []Params {
	var gs []Params
	for _, promote := range spec.Promote {
		if promote && hosts == 1 {
			continue
		}
		g := Params{"hold_s": spec.Hold, "promote": promote}
		for k, v := range p {
			g[k] = v
		}
		gs = append(gs, g)
	}
	return gs
}

func strikeFreeze(ctx context.Context, t *trial) error {
	primary := t.cluster.Primary()
	f, ok := primary.(place.Freezer)
	if !ok {
		return fmt.Errorf("%s cannot be frozen at this place", primary.Name())
	}
	began := time.Now()
	if err := f.Freeze(ctx); err != nil {
		return err
	}
	t.struck(began, time.Now())
	return t.while(ctx, "the primary's host is frozen", func() error { return f.Thaw(ctx) })
}

// while lets a fault last that was just begun, with or without a promotion, and
// ends it.
func (t *trial) while(ctx context.Context, what string, end func() error) error {
	s, hold := t.now(), seconds(t.num("hold_s"))
	promote := t.env.Params["promote"] == true
	if promote {
		o, err := t.operated()
		if err != nil {
			return err
		}
		if err := t.recover(ctx, o.TakeOver); err != nil {
			return err
		}
		if err := t.writeOn(ctx); err != nil {
			return err
		}
	}
	if left := hold - time.Since(s.began); left > 0 {
		if err := t.load.run(ctx, left); err != nil {
			return err
		}
	}
	if err := end(); err != nil {
		return err
	}
	s.until = time.Now()
	t.span(what, s.began, s.until)
	if promote {
		return t.load.run(ctx, afterThaw)
	}
	s.recovered.How = "automatic: it went on by itself when the fault was over"
	return t.writeOn(ctx)
}
