package experiment

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// cutOffFor is how long the standbys hear nothing at the end of a storm: what is
// cancelled then is on the primary alone, whose power goes next.
const cutOffFor = time.Second

// cancelStorm cancels commits that wait for their standbys. Postgres then says
// that the transaction is committed, with a warning: what is counted as
// acknowledged all the same is lost with the primary.
func cancelStorm() drill {
	return drill{
		name: "cancel-storm", about: "waits of commits for standbys are cancelled (pg_cancel_backend), then the primary's host loses its power",
		groups: func(spec config.Experiment, on setup.Kind) []Params {
			if on.Hosts < 2 {
				return nil
			}
			return held(spec, on)
		},
		takes: func(p Params) float64 { return lasting(p) + cutOffFor.Seconds() },
		fault: func(Params) setup.Fault { return setup.CancelStorm }, power: true, silent: true,
		strike: strikeStorm, mend: rejoin,
	}
}

func strikeStorm(ctx context.Context, t *trial) error {
	primary, standbys := t.cluster.Primary(), t.cluster.Standbys()
	began := time.Now()
	storm, err := t.startStorm(ctx, primary)
	if err != nil {
		return err
	}
	err = t.load.run(ctx, seconds(t.num("hold_s")))
	if err == nil {
		_, err = t.cutOff(ctx, cutOffFor, primary, standbys...)
	}
	n, stormErr := storm()
	if err := errors.Join(err, stormErr); err != nil {
		return err
	}
	t.span("waits for standbys are cancelled", began, time.Now())
	t.extra = map[string]float64{"cancelled": float64(n)}
	cut, confirmed, err := cutPower(ctx, primary)
	if err != nil {
		return err
	}
	t.struck(cut, confirmed)
	t.span("power of the primary's host cut", cut, confirmed)
	if err := healAll(ctx, primary, standbys...); err != nil {
		return err
	}
	if err := t.recover(ctx, t.cluster.Recover); err != nil {
		return err
	}
	return t.writeOn(ctx)
}

// stormQuery cancels whoever waits for a standby right now, and counts them. Who
// waits is settled first: in one condition the cancelling might come before it,
// and strike whoever is there.
const stormQuery = `WITH waiting AS MATERIALIZED (SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend')
SELECT count(*) FROM waiting WHERE pg_cancel_backend(pid)`

// startStorm cancels waits on a host until end is called, which says how many.
func (t *trial) startStorm(ctx context.Context, h place.Host) (end func() (int, error), err error) {
	s, ok := t.cluster.(setup.Servers)
	if !ok || s.Postgres(h) == nil {
		return nil, fmt.Errorf("setup %s does not say where its servers are", t.env.Kind.Name)
	}
	conn, err := s.Postgres(h).Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("log in to cancel waits: %w", err)
	}
	var n int
	var failed error
	blowing, calm := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		n, failed = blow(blowing, conn)
	}()
	return func() (int, error) {
		calm()
		<-done
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
		return n, failed
	}, nil
}

// blow cancels until ctx ends, or its session does: a setup may take the
// primary's role away meanwhile.
func blow(ctx context.Context, conn *pgx.Conn) (total int, err error) {
	pause := time.NewTicker(2 * time.Millisecond)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return total, nil
		case <-pause.C:
		}
		var n int
		err := conn.QueryRow(ctx, stormQuery).Scan(&n)
		var pe *pgconn.PgError
		switch {
		case ctx.Err() != nil:
			return total, nil
		case errors.As(err, &pe) && !strings.HasPrefix(pe.Code, "57P"): // and not the server's end
			return total, fmt.Errorf("cancel waits: %w", err)
		case err != nil:
			return total, nil
		}
		total += n
	}
}
