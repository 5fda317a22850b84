package experiment

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// hostLost cuts the power of the primary's host, which comes back with an empty
// disk.
func hostLost() drill {
	return drill{
		name: "host-lost", about: "the primary's host loses its power and its disk with it, under load",
		groups: once, takes: func(Params) float64 { return 3 },
		fault: func(Params) setup.Fault { return setup.HostLost }, power: true, silent: true,
		strike: func(ctx context.Context, t *trial) error {
			err := t.primaryOff(ctx, func(h place.Host) error { return t.wipe(ctx, h) })
			if err != nil || t.noStart == nil {
				return err
			}
			return t.load.run(ctx, seconds(t.num("after_s"))) // the record shows that nothing is taken any more
		},
		mend: func(ctx context.Context, t *trial) (reading, error) {
			// The copy is what is to be trusted next: it is read, not the primary again.
			former := t.lost
			r, err := rejoin(ctx, t)
			if r.again {
				r.on = former
			}
			return r, err
		},
	}
}

// wipe empties the disk of a host that is off.
func (t *trial) wipe(ctx context.Context, h place.Host) error {
	w, ok := h.(place.Wiper)
	if !ok {
		return fmt.Errorf("the disk of %s cannot be wiped at this place", h.Name())
	}
	began := time.Now()
	if err := w.Wipe(ctx); err != nil {
		return err
	}
	t.lost = h
	t.span("the disk of the primary's host is wiped", began, time.Now())
	return nil
}
