package experiment

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// postgresAlone is the target of a loss of standbys whose servers die, their
// hosts and agents alive.
const postgresAlone = "postgres"

// postgresKill kills the primary's postmaster: its host lives, and so does an
// agent where there is one. Of a plain setup the operator's script starts it again.
func postgresKill() drill {
	return drill{
		name: "postgres-kill", about: "the primary's server process is killed (SIGKILL), under load",
		groups: once, takes: func(Params) float64 { return 3 },
		fault: func(Params) setup.Fault { return setup.PostgresKill },
		strike: func(ctx context.Context, t *trial) error {
			primary := t.cluster.Primary()
			began := time.Now()
			if err := t.killServer(ctx, primary); err != nil {
				return err
			}
			t.struck(began, time.Now())
			t.span("the primary's server process is killed", began, t.now().confirmed)
			if err := t.revived(ctx, primary); err != nil {
				return err
			}
			return t.writeOn(ctx)
		},
		mend: rejoin,
	}
}

// killScript kills the postmaster whose data directory is the first argument and
// waits until it is gone. With more arguments it goes on until it is killed.
const killScript = `kill_it() { read -r p < "$1/postmaster.pid" && kill -9 "$p" || return 1; while kill -0 "$p" && ! grep -q "^State:.Z" "/proc/$p/status"; do sleep 0.005; done; }
[ -z "$2" ] && { kill_it "$1"; exit; }
while :; do kill_it "$1"; sleep 0.05; done`

func (t *trial) server(h place.Host) (dataDir string, err error) {
	s, ok := t.cluster.(setup.Servers)
	if !ok {
		return "", fmt.Errorf("setup %s does not say where its servers are", t.env.Kind.Name)
	}
	pg := s.Postgres(h)
	if pg == nil {
		return "", fmt.Errorf("%s is no host of setup %s", h.Name(), t.env.Kind.Name)
	}
	return pg.DataDir, nil
}

func (t *trial) killServer(ctx context.Context, h place.Host) error {
	dir, err := t.server(h)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	_, err = h.Run(ctx, place.Cmd{Path: "/bin/sh", Args: []string{"-c", killScript, "kill", dir}})
	if err != nil {
		return fmt.Errorf("kill the server on %s: %w", h.Name(), err)
	}
	return nil
}

// revived sees the setup take writes again whose server on h died.
func (t *trial) revived(ctx context.Context, h place.Host) error {
	if _, ok := t.cluster.(setup.Healing); ok {
		return t.settle(ctx)
	}
	o, err := t.operated()
	if err != nil {
		return err
	}
	return t.recover(ctx, func(ctx context.Context) (setup.Recovery, error) {
		// What the dead server had started keeps its memory until it has ended.
		const gone = `while pgrep -x postgres >/dev/null; do sleep 0.01; done`
		if _, err := h.Run(ctx, place.Cmd{Path: "/bin/sh", Args: []string{"-c", gone}}); err != nil {
			return setup.Recovery{}, err
		}
		_, rec, err := o.Restart(ctx)
		rec.How = "the dead server was started again (crash recovery)"
		return rec, err
	})
}

// standbysKilled keeps the servers of the first n standbys dead for hold, whoever
// starts them again.
func (t *trial) standbysKilled(ctx context.Context, n int, hold time.Duration) (err error) {
	began := time.Now()
	var killers []place.Process
	end := func() error {
		var errs []error
		for _, k := range killers {
			const sigkill = 9
			errs = append(errs, k.Signal(sigkill))
			<-k.Done()
		}
		killers = nil
		return errors.Join(errs...)
	}
	defer func() { err = errors.Join(err, end()) }()
	away := t.cluster.Standbys()[:n]
	for _, h := range away {
		dir, err := t.server(h)
		if err != nil {
			return err
		}
		k, err := h.Start(ctx, place.Cmd{Path: "/bin/sh", Args: []string{"-c", killScript, "kill", dir, "on"}, Dir: path.Dir(dir)})
		if err != nil {
			return fmt.Errorf("kill the server on %s: %w", h.Name(), err)
		}
		killers = append(killers, k)
	}
	t.struck(began, time.Now())
	if err := t.looking(ctx, hold, false); err != nil {
		return err
	}
	if err := end(); err != nil {
		return err
	}
	t.now().until = time.Now()
	t.span(fmt.Sprintf("the servers of %s are kept dead", counted(n)), began, t.now().until)
	if err := t.settle(ctx); err != nil {
		return err
	}
	if err := t.writeOn(ctx); err != nil || t.gone() {
		return err
	}
	t.lost = away[n-1]
	return t.bring(ctx, "the standbys come back", t.cluster.Rejoin)
}

// healingOnly is one group where the setup heals itself.
func healingOnly(_ config.Experiment, on setup.Kind) []Params {
	if on.Heals == 0 {
		return nil
	}
	return []Params{{}}
}
