package experiment

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// diskFull leaves the primary's disk no room for a while.
func diskFull() drill {
	return drill{
		name: "disk-full", about: "the primary's disk is full for a while, under load",
		groups: held, takes: lasting,
		fault: func(Params) setup.Fault { return setup.DiskFull },
		strike: func(ctx context.Context, t *trial) error {
			return t.diskFault(ctx, "the primary's disk is full", func(h place.Host) (map[string]string, error) {
				s, ok := h.(place.DiskStatser)
				if !ok {
					return nil, fmt.Errorf("the disk of %s does not say how full it is", h.Name())
				}
				stats, err := s.DiskStats(ctx)
				if err != nil {
					return nil, err
				}
				return map[string]string{"size": strconv.FormatFloat(max(stats["used_bytes"], 1), 'f', 0, 64)}, nil
			}, map[string]string{"size": "0"})
		},
		mend: rejoin,
	}
}

// diskHang keeps everything waiting that asks anything of the primary's disk.
func diskHang() drill {
	return drill{
		name: "disk-hang", about: "the primary's disk answers nothing for a while, under load",
		groups: held, takes: lasting,
		fault: func(Params) setup.Fault { return setup.DiskHang }, silent: true,
		strike: func(ctx context.Context, t *trial) error {
			return t.diskFault(ctx, "the primary's disk hangs", func(place.Host) (map[string]string, error) {
				return map[string]string{"hang": "true"}, nil
			}, map[string]string{"hang": "false"})
		},
		mend: rejoin,
	}
}

// held is one group of a fault that lasts for a set time.
func held(spec config.Experiment, _ setup.Kind) []Params { return []Params{{"hold_s": spec.Hold}} }

// diskFault changes the primary's disk for hold_s and changes it back.
func (t *trial) diskFault(ctx context.Context, what string, how func(place.Host) (map[string]string, error), back map[string]string) error {
	primary := t.cluster.Primary()
	d, ok := primary.(place.DiskController)
	if !ok {
		return fmt.Errorf("the disk of %s cannot be changed at this place", primary.Name())
	}
	change, err := how(primary)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := d.SetDisk(ctx, change); err != nil {
		return err
	}
	t.struck(began, time.Now())
	if err := t.looking(ctx, seconds(t.num("hold_s")), false); err != nil {
		return err
	}
	if err := d.SetDisk(ctx, back); err != nil {
		return err
	}
	t.now().until = time.Now()
	t.span(what, began, t.now().until)
	s, ok := t.cluster.(setup.Servers)
	if !ok {
		return fmt.Errorf("setup %s does not say where its servers are", t.env.Kind.Name)
	}
	if _, heals := t.cluster.(setup.Healing); !heals && !s.Postgres(primary).Running() {
		err = t.revived(ctx, primary) // it gave up
	} else {
		err = t.settle(ctx)
	}
	if err != nil {
		return err
	}
	return t.writeOn(ctx)
}
