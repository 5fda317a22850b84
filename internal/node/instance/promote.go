package instance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

// replayPatience is how long replay may stand still before a promotion gives up.
const replayPatience = 30 * time.Second

// promote makes a standby the primary of timeline x.Timeline, which forks at
// x.Fork exactly, or does nothing.
func (i *Instance) promote(x cluster.Promote) task {
	return task{id: x.ID, long: true,
		files: func(ctx context.Context) error {
			if err := i.noUpstream(); err != nil {
				return err
			}
			i.closeDoor()
			return nil
		},
		rest: func(ctx context.Context) cluster.Done {
			w := i.ready(ctx) // one session for all of it: each new one costs milliseconds
			defer i.giveBack(w)
			h, err := i.promoteTo(ctx, w, x.Timeline, x.Fork)
			i.changed()
			w.calm, w.filesAt = true, time.Now() // the files that a look reads are as they were
			look := i.lookWith(ctx, w)
			d := cluster.Done{OK: err == nil, Postgres: &look}
			if err != nil {
				d.Why = err.Error()
			}
			if d.OK && !slices.Equal(d.Postgres.History, h) {
				// It could not be asked, as when all connections are in use; its files tell.
				d.Postgres.Primary, d.Postgres.History = true, h
				d.Postgres.End = max(d.Postgres.End, x.Fork)
				d.Postgres.Replayed, d.Postgres.Replayable = d.Postgres.End, d.Postgres.End
			}
			return d
		}}
}

// noUpstream clears what a walreceiver and a restore would go by.
func (i *Instance) noUpstream() error {
	return i.editPermit(func(p *permit) { p.PrimaryConninfo, p.PrimarySlot, p.RestoreCommand = "", "", "" })
}

// prepareStandby makes the files right for a start as a standby.
func (i *Instance) prepareStandby(ctx context.Context) error {
	if err := i.prepare(ctx); err != nil {
		return err
	}
	return i.signalStandby()
}

func (i *Instance) signalStandby() error {
	if err := remove(filepath.Join(i.cfg.DataDir, "recovery.signal")); err != nil {
		return err
	}
	if path := filepath.Join(i.cfg.DataDir, "standby.signal"); !exists(path) {
		return i.writeDurable(path, nil)
	}
	return nil
}

func (i *Instance) promoteTo(ctx context.Context, w *watcher, t cluster.Timeline, fork cluster.LSN) ([]cluster.Branch, error) {
	took := laps{last: time.Now()}
	defer func() { i.log.Info("promotion", took.args()...) }()
	if i.current() == nil {
		if err := i.startStandby(ctx); err != nil {
			return nil, err
		}
	} else if err := i.shutOut(ctx); err != nil {
		return nil, err
	}
	took.lap("shut_out")
	ctl, err := wal.ReadControl(i.cfg.DataDir)
	if err != nil {
		return nil, err
	}
	if ctl.State == wal.InProduction {
		return nil, errors.New("it is a primary")
	}
	rep, err := i.replayTo(ctx, w, fork)
	took.lap("replay")
	if err != nil {
		return nil, err
	}
	own := rep.History[len(rep.History)-1].Timeline
	if own >= t {
		return nil, fmt.Errorf("it is on timeline %d, and cannot begin %d", own, t)
	}
	flushed, err := i.reserve(rep.History, t)
	took.lap("reserve")
	if err != nil {
		return nil, err
	}
	if err := i.trigger(ctx, w); err != nil {
		return nil, err
	}
	took.lap("end_recovery")
	h, err := i.begun(rep.History, t, fork)
	return h, errors.Join(err, flushed())
}

// replayTo waits until all up to fork is replayed, and refuses where WAL ends
// elsewhere or cannot be replayed.
func (i *Instance) replayTo(ctx context.Context, w *watcher, fork cluster.LSN) (wal.Report, error) {
	c, err := i.sessionOf(ctx, w)
	if err != nil {
		// It may be that no connection is to be had. Postgres replays all that it has
		// before it ends recovery, so what is read in its files decides alone.
		i.log.Warn("promote without a session", "error", err)
		rep, err := i.holds(ctx, serverWAL{running: true}, confirmed)
		if err != nil {
			return rep, err
		}
		return rep, endsAt(rep, fork)
	}
	s, _, err := i.askStandby(ctx, c)
	if err != nil {
		return wal.Report{}, err
	}
	rep, err := i.holds(ctx, s, confirmed)
	if err != nil {
		return rep, err
	}
	if err := endsAt(rep, fork); err != nil {
		return rep, err
	}
	last, since := s.replayed, time.Now()
	for s.replayed < fork {
		i.wakeReplay()
		if _, err := c.Exec(ctx, "SELECT pg_wal_replay_resume() WHERE pg_is_wal_replay_paused()"); err != nil {
			return rep, fmt.Errorf("let replay go on: %w", err)
		}
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			return rep, err
		}
		if s, _, err = i.askStandby(ctx, c); err != nil {
			return rep, err
		}
		if s.replayed > last {
			last, since = s.replayed, time.Now()
		}
		if time.Since(since) > replayPatience {
			return rep, fmt.Errorf("replay stands still at %s, short of %s; the server's log says why", wal.Text(s.replayed), wal.Text(fork))
		}
	}
	if s.replayed > fork {
		return rep, fmt.Errorf("it has replayed up to %s, beyond %s", wal.Text(s.replayed), wal.Text(fork))
	}
	return rep, nil
}

// laps notes how long the parts of something took.
type laps struct {
	last time.Time
	all  []any
}

func (l *laps) lap(what string) {
	now := time.Now()
	l.all = append(l.all, what, now.Sub(l.last).Round(100*time.Microsecond))
	l.last = now
}

func (l *laps) args() []any { return l.all }

func endsAt(rep wal.Report, fork cluster.LSN) error {
	switch {
	case rep.Replayable < rep.End:
		return fmt.Errorf("its WAL cannot be replayed beyond %s: %s", wal.Text(rep.Replayable), rep.Why)
	case rep.End != fork:
		return fmt.Errorf("its WAL ends at %s, not at %s", wal.Text(rep.End), wal.Text(fork))
	}
	return nil
}

// trigger tells the server to end recovery, as pg_ctl does, and waits until it has.
func (i *Instance) trigger(ctx context.Context, w *watcher) error {
	s := i.current()
	if s == nil {
		return errDown
	}
	f, err := os.OpenFile(filepath.Join(i.cfg.DataDir, "promote"), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	if err := signal(s.process, syscall.SIGUSR1); err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	for {
		select {
		case <-s.dead:
			return fmt.Errorf("it ended while it was promoted: %s", i.complaint(s))
		default:
		}
		ctl, err := wal.ReadControl(i.cfg.DataDir)
		if err == nil && ctl.State == wal.InProduction {
			return i.inProduction(ctx, w)
		}
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
}

// inProduction waits for the moment between pg_control and the sessions' view.
func (i *Instance) inProduction(ctx context.Context, w *watcher) error {
	c, err := i.sessionOf(ctx, w)
	if err != nil {
		i.log.Warn("promoted, and not asked", "error", err)
		return nil
	}
	for {
		s, _, err := i.askStandby(ctx, c)
		if err != nil || !s.recovering {
			return err
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// sessionOf is w's session with the server that runs now, opened if there is none.
func (i *Instance) sessionOf(ctx context.Context, w *watcher) (*pgx.Conn, error) {
	s := i.current()
	if s == nil {
		return nil, errDown
	}
	if w.conn == nil || w.of != s {
		w.drop()
		c, err := i.connect(ctx)
		if err != nil {
			return nil, err
		}
		w.conn, w.of = c, s
	}
	return w.conn, nil
}

// begun checks that the new timeline is the one that was asked for, and returns
// the history.
func (i *Instance) begun(was []cluster.Branch, t cluster.Timeline, fork cluster.LSN) ([]cluster.Branch, error) {
	b, err := os.ReadFile(filepath.Join(i.cfg.DataDir, "pg_wal", wal.HistoryName(t)))
	if err != nil {
		return nil, fmt.Errorf("promoted, but not to timeline %d: %w", t, err)
	}
	h, _, err := wal.ParseHistory(t, b)
	if err != nil {
		return nil, err
	}
	if want := append(slices.Clone(was), cluster.Branch{Timeline: t, Fork: fork}); !slices.Equal(h, want) {
		return nil, fmt.Errorf("promoted to timelines %s; want %s", timelines(h), timelines(want))
	}
	return h, nil
}

// passing is how long a connection that the door turns away is there at most.
const passing = 15 * time.Millisecond

// wakeReplay has the process that replays look for more: without an upstream it
// does so now and then only. A SIGHUP to the postmaster would have every process
// read the configuration.
func (i *Instance) wakeReplay() {
	s := i.current()
	if s == nil {
		return
	}
	for _, p := range childrenOf(i.cfg.DataDir, s.pid) {
		if p.startup(i.cfg.Cluster) {
			_ = signal(p, syscall.SIGHUP)
		}
	}
}

// shutOut ends the sessions of clients on a standby: none of them may find
// itself on a primary. Who only comes to be turned away is not waited for. The
// door was closed before.
func (i *Instance) shutOut(ctx context.Context) error {
	seen := map[process]time.Time{}
	first := true
	return poll(ctx, time.Millisecond, func() bool {
		s := i.current()
		if s == nil {
			return true
		}
		left := 0
		for _, p := range childrenOf(i.cfg.DataDir, s.pid) {
			if !p.client() {
				continue
			}
			_ = signal(p, syscall.SIGTERM)
			p.title = ""
			if _, known := seen[p]; !known && !first {
				seen[p] = time.Now()
			} else if first {
				seen[p] = time.Time{} // it may have been let in
			}
			if time.Since(seen[p]) > passing {
				left++
			}
		}
		first = false
		return left == 0
	})
}
