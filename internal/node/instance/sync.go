package instance

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// DESIGN.md says why what is waited for here is enough.

var errSuperseded = errors.New("superseded by a later one")

// canaryWithin bounds the wait for a commit to be seen waiting.
const canaryWithin = 3 * time.Second

// setSSN writes the permit, reloads, and answers when it is in force. A later one
// ends it.
func (i *Instance) setSSN(x cluster.SetSSN, tell func(cluster.Event)) task {
	want := ssnText(i.cfg.Cluster, x.SSN)
	i.mu.Lock()
	if i.ssnEnd != nil {
		i.ssnEnd(errSuperseded)
	}
	within, end := context.WithCancelCause(i.ctx)
	i.ssnEnd = end
	i.mu.Unlock()
	var s *server
	return task{id: x.ID,
		files: func(context.Context) error {
			if within.Err() != nil {
				return context.Cause(within)
			}
			s = i.current()
			first := want
			i.mu.Lock()
			if want == "" && i.waits == s {
				i.waits = nil
			}
			if s != nil && i.waits != s && i.seen.Primary && want != "" {
				first = ssnText(i.cfg.Cluster, nobody) // its checkpointer may not have it that commits wait at all
			}
			i.mu.Unlock()
			return i.permitSSN(within, first)
		},
		rest: func(context.Context) cluster.Done {
			defer end(nil)
			if s != nil {
				ctx, cancel := untilDead(within, s)
				defer cancel()
				err := i.bringInForce(ctx, within, s, want, func() { tell(cluster.Reloaded{ID: x.ID}) })
				if err != nil && errors.Is(context.Cause(ctx), errDown) {
					err = i.permitSSN(within, want) // it starts with it
				}
				if err != nil {
					return cluster.Done{Why: err.Error()}
				}
			}
			if within.Err() != nil {
				return cluster.Done{Why: context.Cause(within).Error()}
			}
			return cluster.Done{OK: true}
		}}
}

// untilDead is ctx until the server ends.
func untilDead(ctx context.Context, s *server) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-s.dead:
			cancel(errDown)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// permitSSN writes the SSN into the permit, unless a later one has its turn.
func (i *Instance) permitSSN(within context.Context, ssn string) error {
	err := i.editPermit(func(p *permit) {
		if within.Err() == nil {
			p.HasSSN, p.SSN = true, ssn
		}
	})
	return errors.Join(err, context.Cause(within))
}

// bringInForce returns when no process of s releases a waiter by an older SSN
// than want. A primary that is not known to have its commits wait at all first
// waits for nobody, until a commit is seen to.
func (i *Instance) bringInForce(ctx, within context.Context, s *server, want string, reloaded func()) error {
	none := ssnText(i.cfg.Cluster, nobody)
	for {
		ssn := i.ssnPermitted()
		primary, err := i.reloadTo(ctx, s, ssn, reloaded)
		if err != nil {
			return err
		}
		waits := i.knownToWait(s)
		switch {
		case ssn == want && (want == "" || !primary || waits):
			return nil
		case ssn == none && primary && !waits:
			if err := i.canary(ctx); err != nil {
				return err
			}
			i.nowWaits(s)
			ssn = want
		case primary && !waits:
			ssn = none
		default:
			ssn = want
		}
		if err := i.permitSSN(within, ssn); err != nil {
			return err
		}
		if ssn == none && want == none && i.knownToWait(s) {
			return nil
		}
	}
}

func (i *Instance) nowWaits(s *server) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.waits = s
}

// knownToWait says whether s is known to have commits wait.
func (i *Instance) knownToWait(s *server) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.waits == s
}

// reloadTo has every process read the settings again and returns when a new
// connection shows ssn and no walsender acts by older ones.
func (i *Instance) reloadTo(ctx context.Context, s *server, ssn string, reloaded func()) (primary bool, err error) {
	before, err := i.loadedAt(ctx)
	if err != nil {
		return false, err
	}
	if err := signal(s.process, syscall.SIGHUP); err != nil {
		return false, err
	}
	reloaded()
	repaired, again := false, time.Now()
	var proof *senderProof
	err = poll(ctx, 2*time.Millisecond, func() bool {
		done := false
		_ = i.session(ctx, func(c *pgx.Conn) error {
			var at time.Time
			var shows string
			if err := c.QueryRow(ctx, "SELECT pg_conf_load_time(), current_setting($1), NOT pg_is_in_recovery()", ssnSetting).Scan(&at, &shows, &primary); err != nil {
				return err
			}
			if at.Equal(before) || shows != ssn {
				return nil
			}
			if !primary {
				done = true
				return nil
			}
			if proof == nil {
				proof = newSenderProof()
			}
			// This connection is younger than the reload: it stays while they come round.
			for ctx.Err() == nil && !done {
				var err error
				if done, err = proof.look(ctx, c); err != nil {
					return err
				}
				if !done {
					nap(ctx, time.Millisecond)
				}
			}
			return nil
		})
		if !done && time.Since(again) > 300*time.Millisecond {
			// Rejected, or overruled by another file: put ours last once more.
			again = time.Now()
			if !repaired {
				repaired = true
				if err := i.repair(); err != nil {
					i.log.Error("repair the configuration", "error", err)
				}
			}
			_ = signal(s.process, syscall.SIGHUP)
		}
		return done
	})
	return primary, err
}

// repair puts our include last again and takes our settings out of postgresql.auto.conf.
func (i *Instance) repair() error { return errors.Join(i.includeLast(), i.scrub()) }

// loadedAt is when the postmaster last applied its configuration.
func (i *Instance) loadedAt(ctx context.Context) (at time.Time, err error) {
	var last error
	err = poll(ctx, 5*time.Millisecond, func() bool {
		last = i.session(ctx, func(c *pgx.Conn) error {
			return c.QueryRow(ctx, "SELECT pg_conf_load_time()").Scan(&at)
		})
		return last == nil
	})
	if err != nil && last != nil {
		err = fmt.Errorf("%w (last: %v)", err, last)
	}
	return at, err
}

func nap(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// senderProof follows the walsenders that were there once a new connection
// showed the new settings. Each must come by its check for a reload, which lies
// before its handling of replies, or not be able to release anybody.
type senderProof struct {
	open map[int32]sent // those that may still act by older settings
}

// sent is where a walsender had sent to, and how often that was seen to change.
type sent struct {
	lsn   int64
	moved int
}

func newSenderProof() *senderProof { return &senderProof{} }

const senderSQL = `SELECT pid, coalesce(sync_priority, 0), coalesce(wait_event, ''), coalesce(sent_lsn - '0/0', 0)::bigint
	FROM pg_stat_replication JOIN pg_stat_activity USING (pid)`

func (p *senderProof) look(ctx context.Context, c *pgx.Conn) (done bool, err error) {
	r, err := c.Query(ctx, senderSQL)
	if err != nil {
		return false, err
	}
	rows, err := pgx.CollectRows(r, func(row pgx.CollectableRow) (x senderRow, err error) {
		err = row.Scan(&x.pid, &x.priority, &x.wait, &x.sent)
		return x, err
	})
	if err != nil {
		return false, err
	}
	return p.take(rows), nil
}

type senderRow struct {
	pid      int32
	priority int32
	wait     string
	sent     int64
}

// take looks at the senders once more and says whether all are proved.
func (p *senderProof) take(rows []senderRow) bool {
	first := p.open == nil
	if first {
		p.open = map[int32]sent{}
		for _, r := range rows {
			p.open[r.pid] = sent{lsn: r.sent}
		}
	}
	here := map[int32]senderRow{}
	for _, r := range rows {
		here[r.pid] = r
	}
	for pid, was := range p.open {
		r, ok := here[pid]
		if ok && r.sent != was.lsn {
			was = sent{lsn: r.sent, moved: was.moved + 1}
			p.open[pid] = was
		}
		if !ok || r.priority == 0 || r.wait == "WalSenderMain" || was.moved >= 2 {
			delete(p.open, pid)
		}
	}
	return len(p.open) == 0
}

// canary returns when a commit of ours was seen waiting for standbys; it is ended
// then. Nothing but a message in WAL comes of it.
func (i *Instance) canary(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, canaryWithin)
	defer cancel()
	return i.session(ctx, func(watch *pgx.Conn) error {
		for {
			seen, err := i.oneCanary(ctx, watch)
			if seen || err != nil {
				return err
			}
			nap(ctx, 2*time.Millisecond) // it went through: the checkpointer has not acted yet
			if ctx.Err() != nil {
				return errors.New("no commit is seen waiting: synchronous replication is not in force")
			}
		}
	})
}

func (i *Instance) oneCanary(ctx context.Context, watch *pgx.Conn) (seen bool, err error) {
	c, err := i.connect(ctx, "synchronous_commit", "on", "log_min_messages", "fatal")
	if err != nil {
		return false, err
	}
	returned := make(chan struct{})
	pid := c.PgConn().PID()
	commit, giveUp := context.WithCancel(ctx)
	go func() {
		defer close(returned)
		_, _ = c.Exec(commit, "SELECT pg_logical_emit_message(true, 'holdfast', 'canary')")
	}()
	defer func() {
		if seen {
			_, _ = watch.Exec(ctx, "SELECT pg_terminate_backend($1)", int32(pid))
		}
		giveUp()
		<-returned
		closeConn(c)
	}()
	err = poll(ctx, time.Millisecond, func() bool {
		select {
		case <-returned:
			return true
		default:
		}
		var event string
		if err := watch.QueryRow(ctx, "SELECT coalesce(wait_event, '') FROM pg_stat_activity WHERE pid = $1", int32(pid)).Scan(&event); err != nil {
			return false
		}
		seen = event == "SyncRep"
		return seen
	})
	return seen, err
}

func (i *Instance) canaryTask(id uint64) task {
	return task{id: id, rest: func(ctx context.Context) cluster.Done {
		if err := i.canary(ctx); err != nil {
			return cluster.Done{Why: err.Error()}
		}
		if s := i.current(); s != nil {
			i.nowWaits(s)
		}
		return cluster.Done{OK: true}
	}}
}

const sqlWithin = 5 * time.Second

// sampleLSN answers with the insert position, and then has something written
// behind it: it may stand behind a page header that nothing follows, and nobody
// could ever have flushed that.
func (i *Instance) sampleLSN(id uint64) task {
	return task{id: id, rest: func(ctx context.Context) cluster.Done {
		ctx, cancel := context.WithTimeout(ctx, sqlWithin)
		defer cancel()
		var at int64
		err := i.quickly(ctx, func(c *pgx.Conn) error {
			if err := c.QueryRow(ctx, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&at); err != nil {
				return err
			}
			_, err := c.Exec(ctx, "SELECT pg_logical_emit_message(true, 'holdfast', 'behind')")
			return err
		})
		if err != nil {
			return cluster.Done{Why: err.Error()}
		}
		i.eager()
		return cluster.Done{OK: true, LSN: cluster.LSN(at)}
	}}
}

// writeRow writes the epoch row, durable here, and answers with a position that
// is not below its commit.
func (i *Instance) writeRow(x cluster.WriteRow) task {
	return task{id: x.ID, rest: func(ctx context.Context) cluster.Done {
		ctx, cancel := context.WithTimeout(ctx, sqlWithin)
		defer cancel()
		var at int64
		err := i.quickly(ctx, func(c *pgx.Conn) error {
			if _, err := c.Exec(ctx, rowSQL, int64(x.Epoch), string(i.cfg.Self)); err != nil {
				if _, err2 := c.Exec(ctx, epochsSQL); err2 != nil {
					return errors.Join(err, err2)
				}
				if _, err := c.Exec(ctx, rowSQL, int64(x.Epoch), string(i.cfg.Self)); err != nil {
					return err
				}
			}
			return c.QueryRow(ctx, flushedSQL).Scan(&at)
		})
		if err != nil {
			return cluster.Done{Why: fmt.Sprintf("write the epoch row: %v", err)}
		}
		i.eager()
		return cluster.Done{OK: true, LSN: cluster.LSN(at)}
	}}
}

const (
	rowSQL = `INSERT INTO holdfast.epochs (epoch, node) VALUES ($1, $2)
	ON CONFLICT (epoch) DO UPDATE SET node = excluded.node, at = clock_timestamp()`
	flushedSQL = "SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint"
)

// epochsSQL makes the table of epochs, one statement a line: single-user mode reads lines.
const epochsSQL = `CREATE SCHEMA IF NOT EXISTS holdfast AUTHORIZATION holdfast;
CREATE TABLE IF NOT EXISTS holdfast.epochs (epoch bigint PRIMARY KEY, node text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
`
