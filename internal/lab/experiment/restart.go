package experiment

import (
	"context"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// restart restarts the primary cleanly: what a minor upgrade costs at least.
func restart() drill {
	return drill{
		name: "restart", about: "the primary is stopped cleanly and started again, under load",
		groups: operated, takes: func(Params) float64 { return 1 },
		fault: func(Params) setup.Fault { return setup.Restart },
		strike: func(ctx context.Context, t *trial) error {
			o, err := t.operated()
			if err != nil {
				return err
			}
			began := time.Now()
			err = t.recover(ctx, func(ctx context.Context) (setup.Recovery, error) {
				stopped, rec, err := o.Restart(ctx)
				if !stopped.IsZero() {
					t.struck(began, stopped)
					t.span("the primary shuts down", began, stopped)
					t.span("the primary starts", stopped, rec.Done)
				}
				return rec, err
			})
			if err != nil {
				return err
			}
			return t.writeOn(ctx)
		},
	}
}

// once is one group without params of its own.
func once(config.Experiment, setup.Kind) []Params { return []Params{{}} }

// operated is once where the lab's script is who runs the servers.
func operated(_ config.Experiment, on setup.Kind) []Params {
	if on.Heals > 0 {
		return nil
	}
	return []Params{{}}
}
