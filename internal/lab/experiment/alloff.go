package experiment

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

const (
	stalestFirst = "stalest-first"
	seeded       = "seeded"

	// staleFor is how long the stalest standby hears nothing before the power
	// of all is cut.
	staleFor = time.Second
)

// allOff cuts the power of every host of the setup at once.
func allOff() drill {
	return drill{
		name: "all-off", about: "every host of the setup loses its power at once; they come back one by one",
		groups: func(spec config.Experiment, on setup.Kind) []Params {
			if on.Hosts == 1 {
				return []Params{{}}
			}
			var gs []Params
			for _, o := range spec.Order {
				gs = append(gs, Params{"order": o})
			}
			return gs
		},
		takes: func(p Params) float64 { return staleFor.Seconds() + 3 },
		fault: func(Params) setup.Fault { return setup.AllPower }, power: true, silent: true,
		strike: strikeAll, mend: readReturned,
	}
}

func strikeAll(ctx context.Context, t *trial) error {
	o, err := t.operated()
	if err != nil {
		return err
	}
	primary, standbys := t.cluster.Primary(), t.cluster.Standbys()
	var stalest place.Host
	var staleBegan time.Time
	if n := len(standbys); n > 0 {
		stalest = standbys[n-1]
	}
	if len(standbys) > 1 { // a single one that hears nothing would only hold the writes up
		if staleBegan, err = t.cutOff(ctx, staleFor, primary, stalest); err != nil {
			return err
		}
	}
	all := append([]place.Host{primary}, standbys...)
	began, confirmed, err := cutAll(ctx, all)
	if err != nil {
		return err
	}
	t.struck(began, confirmed)
	t.span("one standby cut off from the primary", staleBegan, began)
	t.span("power of all hosts cut", began, confirmed)
	if !staleBegan.IsZero() {
		if err := healAll(ctx, primary, stalest); err != nil {
			return err
		}
	}
	order := returning(t.env.Params["order"], t.env.Seed+uint64(len(t.strikes)), all, stalest)
	t.env.Trace("they come back in the order %s", hostNames(order))
	err = t.recover(ctx, func(ctx context.Context) (setup.Recovery, error) { return o.RecoverAll(ctx, order) })
	if err != nil {
		return err
	}
	t.lost = stalest
	return t.writeOn(ctx)
}

// cutAll cuts the power of all hosts at the same time.
func cutAll(ctx context.Context, all []place.Host) (began, confirmed time.Time, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, h := range all {
		wg.Go(func() {
			b, c, e := cutPower(ctx, h)
			mu.Lock()
			defer mu.Unlock()
			if e != nil {
				err = e
				return
			}
			if began.IsZero() || b.Before(began) {
				began = b
			}
			if c.After(confirmed) {
				confirmed = c
			}
		})
	}
	wg.Wait()
	return began, confirmed, err
}

// returning is the order in which hosts get their power back: drawn by the seed,
// and with the stalest one before all others where that is asked for.
func returning(order any, seed uint64, all []place.Host, stalest place.Host) []place.Host {
	var out, rest []place.Host
	for _, h := range all {
		if order == stalestFirst && h == stalest {
			out = append(out, h)
			continue
		}
		rest = append(rest, h)
	}
	rnd := rand.New(rand.NewPCG(seed, 0x616c6c2d6f6666))
	rnd.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	return append(out, rest...)
}

func hostNames(hs []place.Host) string {
	var names []string
	for _, h := range hs {
		names = append(names, h.Name())
	}
	return strings.Join(names, ", ")
}
