package experiment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// powerOff cuts the power of the primary's host while a driver writes.
func powerOff() drill {
	return drill{
		name: "power-off", about: "the primary's host loses its power, silently, under load",
		groups: lagging, takes: func(p Params) float64 { return float64(p["lag_ms"].(int)) / 1000 },
		fault: func(Params) setup.Fault { return setup.HostPower }, power: true, silent: true,
		strike: func(ctx context.Context, t *trial) error { return t.primaryOff(ctx, nil) },
		mend:   rejoin,
	}
}

// lagging has a group for each time that standbys are cut off before.
func lagging(spec config.Experiment, on setup.Kind) []Params {
	var gs []Params
	for _, lag := range spec.LagMs {
		if lag > 0 && on.Hosts == 1 {
			continue // nobody lags behind a single host
		}
		gs = append(gs, Params{"lag_ms": lag})
	}
	return gs
}

// primaryOff cuts the primary's power, does with its host what is to be done
// then, and brings the setup back.
func (t *trial) primaryOff(ctx context.Context, then func(place.Host) error) error {
	primary := t.cluster.Primary()
	lag := time.Duration(t.num("lag_ms")) * time.Millisecond
	lagBegan, err := t.cutOff(ctx, lag, primary, t.cluster.Standbys()...)
	if err != nil {
		return err
	}
	began, confirmed, err := cutPower(ctx, primary)
	if err != nil {
		return err
	}
	t.struck(began, confirmed)
	t.span("standbys cut off from the primary", lagBegan, began)
	t.span("power of the primary's host cut", began, confirmed)
	if then != nil {
		if err := then(primary); err != nil {
			return err
		}
	}
	if lag > 0 {
		if err := healAll(ctx, primary, t.cluster.Standbys()...); err != nil {
			return err
		}
	}
	if err := t.recover(ctx, t.cluster.Recover); err != nil {
		return err
	}
	return t.writeOn(ctx)
}

// cutOff makes standbys lag: for as long as lag nothing reaches them from the
// primary, or it from them. began is zero when there is no lag.
func (t *trial) cutOff(ctx context.Context, lag time.Duration, primary place.Host, standbys ...place.Host) (began time.Time, err error) {
	if lag == 0 {
		return began, nil
	}
	began = time.Now()
	t.load.coll.Mark(history.MarkFault)
	for _, s := range standbys {
		if err := eachWay(primary, s, func(p place.Partitioner, to place.Host) error { return p.Cut(ctx, to) }); err != nil {
			return began, fmt.Errorf("cut %s off: %w", s.Name(), err)
		}
	}
	return began, t.load.run(ctx, lag-time.Since(began))
}

// healAll undoes every cut between a host and others.
func healAll(ctx context.Context, h place.Host, others ...place.Host) error {
	for _, o := range others {
		if err := eachWay(h, o, func(p place.Partitioner, to place.Host) error { return p.Heal(ctx, to) }); err != nil {
			return fmt.Errorf("heal the partition of %s: %w", o.Name(), err)
		}
	}
	return nil
}

func eachWay(a, b place.Host, do func(place.Partitioner, place.Host) error) error {
	pa, ok := a.(place.Partitioner)
	pb, ok2 := b.(place.Partitioner)
	if !ok || !ok2 {
		return errors.New("this place cannot partition hosts")
	}
	return errors.Join(do(pa, b), do(pb, a))
}
