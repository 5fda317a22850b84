package experiment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// The ways of a partition.
const (
	bothWays    = "both"
	fromPrimary = "from-primary" // what the primary sends is lost
	toPrimary   = "to-primary"   // what is sent to the primary is lost
)

// partition cuts the primary's host off from its standbys for a while. Where a
// standby is promoted meanwhile, or there is none, it is cut off from the client
// too, and a second driver beside it goes on writing to it.
func partition() drill {
	return drill{
		name: "partition", about: "the primary's host is cut off for a while, both ways or one, under load; a standby is promoted meanwhile, or none is",
		groups: partitions, takes: lasting,
		fault: func(p Params) setup.Fault {
			if p["target"] == aStandby {
				return setup.StandbyPartition
			}
			if p["promote"] == true {
				return setup.PartitionTakeover
			}
			return setup.Partition
		},
		silent: true,
		beside: func(p Params) bool { return p["drivers"] == 2 },
		strike: strikePartition, mend: func(ctx context.Context, t *trial) (reading, error) {
			if t.lost != nil {
				return readReturned(ctx, t)
			}
			return rejoin(ctx, t)
		},
	}
}

// aStandby is the target of a partition that cuts off one.
const aStandby = "standby"

func partitions(spec config.Experiment, on setup.Kind) []Params {
	var gs []Params
	for _, target := range spec.Targets {
		if target == aStandby {
			if on.Hosts > 2 { // with one alone the primary would be as cut off as it
				gs = append(gs, Params{"hold_s": spec.Hold, "target": target, "drivers": 1})
			}
			continue
		}
		for _, w := range spec.Ways {
			for _, p := range promoting(spec, on, Params{"ways": w}) {
				p["drivers"] = 1
				if on.Hosts == 1 || p["promote"] == true {
					p["drivers"] = 2
				}
				gs = append(gs, p)
			}
		}
	}
	return gs
}

// cutStandby cuts one standby off from the other hosts of the setup: the one that
// commits wait for, where there is one such.
func (t *trial) cutStandby(ctx context.Context) error {
	standbys := t.cluster.Standbys()
	off, others := standbys[0], append([]place.Host{t.cluster.Primary()}, standbys[1:]...)
	began := time.Now()
	for _, o := range others {
		if err := cutWays(ctx, bothWays, off, o); err != nil {
			return fmt.Errorf("cut %s off from %s: %w", off.Name(), o.Name(), err)
		}
	}
	t.struck(began, time.Now())
	t.lost = off
	return t.while(ctx, "a standby is cut off", func() error { return healAll(ctx, off, others...) })
}

func strikePartition(ctx context.Context, t *trial) error {
	if t.env.Params["target"] == aStandby {
		return t.cutStandby(ctx)
	}
	primary, others := t.cluster.Primary(), t.cluster.Standbys()
	if len(t.load.clients) > 1 {
		others = append(others, t.env.Client)
	}
	began := time.Now()
	for _, o := range others {
		if err := cutWays(ctx, t.env.Params["ways"], primary, o); err != nil {
			return fmt.Errorf("cut %s off from %s: %w", primary.Name(), o.Name(), err)
		}
	}
	t.struck(began, time.Now())
	return t.while(ctx, "the primary is cut off", func() error { return healAll(ctx, primary, others...) })
}

func cutWays(ctx context.Context, ways any, primary, other place.Host) error {
	p, ok := primary.(place.Partitioner)
	o, ok2 := other.(place.Partitioner)
	if !ok || !ok2 {
		return errors.New("this place cannot partition hosts")
	}
	switch ways {
	case fromPrimary:
		return p.Cut(ctx, other)
	case toPrimary:
		return o.Cut(ctx, primary)
	}
	return errors.Join(p.Cut(ctx, other), o.Cut(ctx, primary))
}
