package instance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// fastWithin bounds a fast stop; then it is an immediate one.
const fastWithin = 5 * time.Second

// startPrimary closes the door and starts Postgres out of recovery.
func (i *Instance) startPrimary(id uint64) task {
	return task{id: id, long: true,
		files: func(ctx context.Context) error {
			if s := i.current(); s != nil {
				return errors.New("a server already runs")
			}
			if err := i.prepare(ctx); err != nil {
				return err
			}
			if err := i.editPermit(func(p *permit) { p.PrimaryConninfo, p.PrimarySlot, p.RestoreCommand = "", "", "" }); err != nil {
				return err
			}
			for _, name := range []string{"standby.signal", "recovery.signal"} {
				if err := remove(filepath.Join(i.cfg.DataDir, name)); err != nil {
					return err
				}
			}
			return nil
		},
		rest: func(ctx context.Context) cluster.Done {
			err := i.start(ctx)
			return i.doneWithLook(ctx, err)
		}}
}

// doneWithLook answers with what the instance looks like now.
func (i *Instance) doneWithLook(ctx context.Context, err error) cluster.Done {
	i.changed()
	look := i.look(ctx)
	d := cluster.Done{OK: err == nil, Postgres: &look}
	if err != nil {
		d.Why = err.Error()
	}
	return d
}

// prepare makes the files right for a start of ours: the denial on disk, the
// door closed, TLS on tmpfs.
func (i *Instance) prepare(ctx context.Context) error {
	if !exists(filepath.Join(i.cfg.DataDir, "PG_VERSION")) {
		return fmt.Errorf("%s holds no data directory", i.cfg.DataDir)
	}
	if err := i.rotateLog(); err != nil {
		return err
	}
	i.mu.Lock()
	ssn := i.durSSN
	i.mu.Unlock()
	if err := i.writeConfig(ssn); err != nil {
		return err
	}
	if err := i.writeVolatile(i.identPath(), []byte(i.identText())); err != nil {
		return err
	}
	i.shutDoor()
	if err := i.writeServerFiles(); err != nil {
		return err
	}
	return ctx.Err()
}

// start launches Postgres and returns when it answers. If ctx ends first, or it
// fails, nothing runs that was begun here.
func (i *Instance) start(ctx context.Context) error {
	if err := i.awaitOrphans(ctx); err != nil {
		return err
	}
	s, err := i.launch(ctx)
	if err != nil {
		return err
	}
	i.changed()
	if err := i.awaitReady(ctx, s); err != nil {
		_ = signal(s.process, syscall.SIGQUIT)
		return err
	}
	return nil
}

// awaitOrphans waits until the processes of a postmaster that was killed are
// gone: until then Postgres refuses to start. Then its lock files go.
func (i *Instance) awaitOrphans(ctx context.Context) error {
	began := time.Now()
	err := poll(ctx, 5*time.Millisecond, func() bool {
		n := 0
		for _, p := range processesOn(i.cfg.DataDir) {
			if p.child() && p.ppid == 1 {
				n++
				if time.Since(began) > 2*time.Second {
					_ = signal(p, syscall.SIGKILL)
				}
			}
		}
		// A command of the former server's that goes on may hold the lock: it is no Postgres.
		return n == 0 && (!i.locked() || time.Since(began) > 4*time.Second && os.Remove(i.lockPath()) == nil)
	})
	if err != nil {
		return err
	}
	return i.dropStaleLocks()
}

// dropStaleLocks removes the lock files of a server that is gone. Postgres takes
// one for good while any process has the number that stands in it, and after a
// loss of power some process soon has.
func (i *Instance) dropStaleLocks() error {
	if len(processesOn(i.cfg.DataDir)) > 0 {
		return nil // Postgres itself refuses
	}
	return errors.Join(remove(filepath.Join(i.cfg.DataDir, "postmaster.pid")),
		remove(filepath.Join(i.cfg.RunDir, fmt.Sprintf(".s.PGSQL.%d.lock", i.cfg.Port))))
}

// awaitReady waits until Postgres answers. What it says meanwhile ("starting
// up") is no failure; its end is.
func (i *Instance) awaitReady(ctx context.Context, s *server) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-s.dead:
			cancel(fmt.Errorf("it ended at its start: %s", i.complaint(s)))
		case <-ctx.Done():
		}
	}()
	return poll(ctx, 4*time.Millisecond, func() bool {
		c, err := i.connect(ctx)
		if err == nil {
			closeConn(c)
			return true
		}
		var pg *pgconn.PgError
		// 57P03: it is starting up. Anything else that it says is an answer too.
		return errors.As(err, &pg) && pg.Code != "57P03"
	})
}

// stopPostgres stops it, fast and then immediately, or immediately. What a start
// or rebuild under way had begun is ended first; a SIGQUIT does not wait for that.
func (i *Instance) stopPostgres(x cluster.StopPostgres, old *generation) task {
	if x.Immediate {
		i.quit()
	}
	return task{id: x.ID, rest: func(ctx context.Context) cluster.Done {
		err := i.stop(ctx, x.Immediate, old)
		return i.doneWithLook(ctx, err)
	}}
}

// quit sends SIGQUIT to whatever runs.
func (i *Instance) quit() {
	if s := i.current(); s != nil {
		i.quitAll(s, syscall.SIGQUIT)
	}
}

// quitAll signals the postmaster and each of its children: before a postmaster
// passes the signal on, it writes to postmaster.pid, and a hung disk keeps it there.
func (i *Instance) quitAll(s *server, sig syscall.Signal) {
	if err := signal(s.process, sig); err != nil {
		i.log.Error("end Postgres", "signal", sig, "error", err)
	}
	for _, p := range childrenOf(i.cfg.DataDir, s.pid) {
		_ = signal(p, sig)
	}
}

// killAfter is when an immediate stop turns to SIGKILL: a little later than
// Postgres itself does so with its children.
const killAfter = 6 * time.Second

func (i *Instance) stop(ctx context.Context, immediate bool, old *generation) error {
	ended := make(chan struct{})
	go func() { old.busy.Wait(); close(ended) }()
	within := fastWithin
	if immediate {
		within = 0
	}
	if err := i.endServer(ctx, within); err != nil {
		return err
	}
	select {
	case <-ended:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	// What the last of them may have left running, and what a killed postmaster left.
	return errors.Join(i.endServer(ctx, 0), i.awaitOrphans(ctx))
}

// endServer ends the server: fast within a time, then immediately, until it is gone.
func (i *Instance) endServer(ctx context.Context, fast time.Duration) error {
	s := i.current()
	if s == nil {
		return nil
	}
	defer i.setBlocked("")
	if fast > 0 {
		if err := signal(s.process, syscall.SIGINT); err != nil {
			return fmt.Errorf("stop Postgres: %w", err)
		}
		i.awaitEnd(ctx, s, fast)
	}
	began, sig := time.Now(), syscall.SIGQUIT
	for ctx.Err() == nil {
		select {
		case <-s.dead:
			return nil
		default:
		}
		if time.Since(began) > killAfter {
			sig = syscall.SIGKILL
		}
		i.quitAll(s, sig)
		i.awaitEnd(ctx, s, time.Second)
	}
	return context.Cause(ctx)
}

// awaitEnd waits for the server's end for at most a time; meanwhile it says who
// holds the stop up.
func (i *Instance) awaitEnd(ctx context.Context, s *server, within time.Duration) bool {
	deadline, tick := time.NewTimer(within), time.NewTicker(250*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for {
		select {
		case <-s.dead:
			return true
		case <-deadline.C:
			return false
		case <-ctx.Done():
			return false
		case <-tick.C:
			i.setBlocked(holders(childrenOf(i.cfg.DataDir, s.pid)))
		}
	}
}

// holders names the processes that a stop still waits for.
func holders(left []process) string {
	var names []string
	for _, p := range left {
		if what, ok := strings.CutPrefix(p.title, "postgres: "); ok {
			names = append(names, fmt.Sprintf("%s (pid %d)", what, p.pid))
		}
	}
	if len(names) == 0 {
		return "Postgres itself"
	}
	return strings.Join(names[:min(len(names), 5)], ", ")
}

func (i *Instance) setBlocked(by string) {
	i.mu.Lock()
	changed := (i.blocked == "") != (by == "")
	i.blocked = by
	i.mu.Unlock()
	if changed {
		i.changed()
	}
}
