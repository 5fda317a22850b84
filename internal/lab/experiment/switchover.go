package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// switchover asks the setup for another primary, by its own command.
func switchover() drill {
	return drill{
		name: "switchover", about: "the setup's own command hands the primary's role over, under load",
		groups: healingOnly, takes: func(Params) float64 { return 5 },
		fault: func(Params) setup.Fault { return setup.Switchover },
		strike: func(ctx context.Context, t *trial) error {
			s, ok := t.cluster.(setup.Switcher)
			if !ok {
				return fmt.Errorf("setup %s cannot switch over", t.env.Kind.Name)
			}
			now := time.Now()
			t.struck(now, now)
			t.span("a switchover is asked for", now, time.Time{})
			if err := t.recover(ctx, s.Switchover); err != nil {
				return err
			}
			return t.writeOn(ctx)
		},
		mend: rejoin,
	}
}
