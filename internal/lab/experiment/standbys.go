package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// betweenLosses is the time from one standby's loss to the next one's.
const betweenLosses = time.Second

// loseStandbys cuts the power of one or both standbys and leaves it off for a
// while: what writes do then, and when the standbys count again.
func loseStandbys() drill {
	return drill{
		name: "lose-standbys", about: "standbys lose their power, one after the other, and stay away for a while, under load",
		groups: func(spec config.Experiment, on setup.Kind) []Params {
			var gs []Params
			for _, target := range spec.Targets {
				for _, n := range spec.Standbys {
					switch {
					case n >= on.Hosts:
					case target != postgresAlone:
						gs = append(gs, Params{"standbys": n, "hold_s": spec.Hold})
					case on.Heals > 0:
						gs = append(gs, Params{"standbys": n, "hold_s": spec.Hold, "target": target})
					}
				}
			}
			return gs
		},
		takes: func(p Params) float64 { return p["hold_s"].(float64) + 2 },
		fault: func(p Params) setup.Fault {
			if p["target"] == postgresAlone {
				return setup.StandbyPostgres
			}
			return setup.StandbyPower
		},
		power: true, silent: true,
		strike: func(ctx context.Context, t *trial) error {
			if t.env.Params["target"] == postgresAlone {
				return t.standbysKilled(ctx, int(t.num("standbys")), seconds(t.num("hold_s")))
			}
			return t.standbysOff(ctx, int(t.num("standbys")), seconds(t.num("hold_s")))
		},
		mend: readReturned,
	}
}

// standbyPowerOff cuts the power of one standby and gives it back at once.
func standbyPowerOff() drill {
	return drill{
		name: "standby-power-off", about: "a standby's host loses its power and returns at once, under load",
		groups: func(_ config.Experiment, on setup.Kind) []Params {
			if on.Hosts < 2 {
				return nil
			}
			return []Params{{}}
		},
		takes: func(Params) float64 { return 2 },
		fault: func(Params) setup.Fault { return setup.StandbyPower }, power: true, silent: true,
		strike: func(ctx context.Context, t *trial) error { return t.standbysOff(ctx, 1, 0) },
		mend:   readReturned,
	}
}

// readReturned has the standby read that was away: that it streams again says
// nothing of what it holds.
func readReturned(_ context.Context, t *trial) (reading, error) {
	return reading{again: t.lost != nil, on: t.lost}, nil
}

// standbysOff cuts the power of the first n standbys, leaves it off for hold
// after the last one's, and brings them back. The last loss is the fault.
func (t *trial) standbysOff(ctx context.Context, n int, hold time.Duration) error {
	o, err := t.operated()
	if err != nil {
		return err
	}
	away := t.cluster.Standbys()[:n]
	for i, h := range away {
		if i > 0 {
			if err := t.load.run(ctx, betweenLosses); err != nil {
				return err
			}
		}
		began, confirmed, err := cutPower(ctx, h)
		if err != nil {
			return err
		}
		if i < n-1 {
			t.load.coll.MarkAt(began, history.MarkFault)
		} else {
			t.struck(began, confirmed)
		}
		t.span(fmt.Sprintf("power of standby %d cut", i+1), began, confirmed)
	}
	if hold > 0 {
		if err := t.load.run(ctx, hold); err != nil {
			return err
		}
		t.now().until = time.Now()
		t.span(fmt.Sprintf("without %s", counted(n)), t.now().confirmed, t.now().until)
	}
	for i, h := range away {
		what := fmt.Sprintf("standby %d comes back", i+1)
		err := t.bring(ctx, what, func(ctx context.Context) (setup.Recovery, error) { return o.Return(ctx, h) })
		if err != nil {
			return err
		}
	}
	t.lost = away[n-1]
	return t.writeOn(ctx)
}

func counted(standbys int) string {
	if standbys == 1 {
		return "one standby"
	}
	return fmt.Sprintf("%d standbys", standbys)
}
