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
		groups: func(spec config.Experiment, on setup.Kind) []Params {
			var gs []Params
			for _, target := range spec.Targets {
				if target == agentAlone && on.Heals > 0 {
					gs = append(gs, promoting(spec, on, Params{"target": target})...)
				} else if target != agentAlone {
					gs = append(gs, promoting(spec, on, Params{})...)
				}
			}
			return gs
		},
		takes: lasting,
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

// agentAlone is the target of a freeze of the agent, its Postgres alive.
const agentAlone = "agent"

// lasting is how long a fault takes that lasts.
func lasting(p Params) float64 { return p["hold_s"].(float64) + afterThaw.Seconds() }

// promoting adds to params whether a standby is promoted, which takes one. A
// setup that heals itself promotes one when it sees fit: the fault then lasts
// until it has.
func promoting(spec config.Experiment, on setup.Kind, p Params) []Params {
	var gs []Params
	for _, promote := range spec.Promote {
		if promote && on.Hosts == 1 {
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
	if t.env.Params["target"] == agentAlone {
		return t.freezeAgent(ctx, primary)
	}
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

// freezeAgent stops the program that watches over Postgres, and it alone.
func (t *trial) freezeAgent(ctx context.Context, h place.Host) error {
	c, ok := t.cluster.(setup.Healing)
	if !ok {
		return fmt.Errorf("setup %s has no agent", t.env.Kind.Name)
	}
	const sigstop, sigcont = 19, 18
	began := time.Now()
	if err := c.SignalAgent(h, sigstop); err != nil {
		return err
	}
	t.struck(began, time.Now())
	return t.while(ctx, "the primary's agent is frozen", func() error { return c.SignalAgent(h, sigcont) })
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
		if err := t.looking(ctx, left, promote); err != nil {
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
	if err := t.settle(ctx); err != nil {
		return err
	}
	return t.writeOn(ctx)
}

// looking lets the load go on for d. Meanwhile it looks whether a setup that heals
// itself has another member take over: looked for afterwards, it would seem to
// have come as late. known says that this was seen already.
func (t *trial) looking(ctx context.Context, d time.Duration, known bool) error {
	c, ok := t.cluster.(setup.Healing)
	if !ok || known {
		return t.load.run(ctx, d)
	}
	watching, stop := context.WithCancel(ctx)
	seen := make(chan setup.Recovery, 1)
	go func() {
		rec, err := c.TakeOver(watching)
		if err != nil {
			rec = setup.Recovery{} // nobody did
		}
		seen <- rec
	}()
	err := t.load.run(ctx, d)
	stop()
	t.early = <-seen
	return err
}

// settle sees what a setup has made of a fault that is over: a plain one goes on,
// one that heals itself may have another primary.
func (t *trial) settle(ctx context.Context) error {
	c, ok := t.cluster.(setup.Healing)
	if !ok {
		t.now().recovered.How = "automatic: it went on by itself when the fault was over"
		return nil
	}
	began := t.now().began
	return t.recover(ctx, func(ctx context.Context) (setup.Recovery, error) {
		rec, err := c.Settle(ctx, began)
		if err == nil && !t.early.Promoted.IsZero() {
			rec.Promoted, rec.Detected, rec.How = t.early.Promoted, t.early.Detected, t.early.How
			t.early = setup.Recovery{}
		}
		return rec, err
	})
}
