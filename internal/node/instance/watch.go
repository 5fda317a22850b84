package instance

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

const (
	restEvery  = 100 * time.Millisecond // looks and reports while nothing happens
	busyEvery  = 25 * time.Millisecond  // looks after an effect or a change, for
	busyFor    = 1500 * time.Millisecond
	eagerEvery = 6 * time.Millisecond // looks while somebody waits for a position, for
	eagerFor   = 400 * time.Millisecond
	probeEvery = 500 * time.Millisecond
	probeSlow  = 5 * time.Second // between probes of a server that lets them hang
	probeTime  = time.Second
)

// Watch tells what is seen of the instance: a PostgresSeen at once after a
// change and otherwise about every 100 ms, a Probed about every 500 ms. It
// returns when ctx ends.
func (i *Instance) Watch(ctx context.Context, tell func(cluster.Event)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(i.ctx, cancel)
	defer stop()
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		i.probeLoop(ctx, tell)
	}()
	i.lookLoop(ctx, tell)
	wg.Wait()
}

func (i *Instance) lookLoop(ctx context.Context, tell func(cluster.Event)) {
	w := &watcher{}
	defer w.drop()
	logs := &logTail{path: i.logPath()}
	logs.lines() // what an earlier life has seen
	var told cluster.Postgres
	var toldAt, busyTill, logsAt time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-i.kick:
			busyTill = time.Now().Add(busyFor)
		case <-timer.C:
		}
		w.calm = time.Now().After(busyTill)
		if w.filesAt != logsAt {
			logsAt = w.filesAt
			i.countCancelled(logs)
		}
		ticket := i.order.begin()
		v := i.lookWith(ctx, w)
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		fresh := changed(told, v)
		if fresh {
			busyTill = now.Add(busyFor)
		}
		every := restEvery
		if now.Before(busyTill) {
			every = busyEvery
			fresh = fresh || moved(told, v)
		}
		if now.UnixNano() < i.eagerTill.Load() {
			every = eagerEvery
		}
		if fresh || now.Sub(toldAt) >= restEvery-busyEvery {
			if !i.order.told(ticket, func() { tell(cluster.PostgresSeen{Postgres: v}) }) {
				timer.Reset(0)
				continue
			}
			told, toldAt = v, now
		}
		timer.Reset(every)
	}
}

// eager has Watch look all the time for a moment: what comes next waits for what
// the standbys, or this one, hold.
func (i *Instance) eager() {
	i.eagerTill.Store(time.Now().Add(eagerFor).UnixNano())
	i.changed()
}

// countCancelled counts the commits that the server's log says were shown
// without being confirmed. The agent's own canaries are not logged.
func (i *Instance) countCancelled(t *logTail) {
	for _, line := range t.lines() {
		if waitCancelled(line) {
			i.mu.Lock()
			i.cancelled++
			i.mu.Unlock()
		}
	}
}

// changed says whether anything but positions differs.
func changed(a, b cluster.Postgres) bool {
	if a.Exists != b.Exists || a.Incarnation != b.Incarnation || a.Running != b.Running || a.Primary != b.Primary || a.Foreign != b.Foreign ||
		a.DoorOpen != b.DoorOpen || a.Upstream != b.Upstream || a.Headroom != b.Headroom || a.ReloadRejected != b.ReloadRejected ||
		a.NeedsClone != b.NeedsClone || a.ShutdownBlocked != b.ShutdownBlocked || a.WaitsCancelled != b.WaitsCancelled ||
		(a.Replayable < a.End) != (b.Replayable < b.End) {
		return true
	}
	sender := func(x, y cluster.Sender) bool {
		return x.Member == y.Member && x.Named == y.Named && x.Streaming == y.Streaming
	}
	slot := func(x, y cluster.Slot) bool { return x.Name == y.Name && x.Lost == y.Lost }
	return !slices.Equal(a.History, b.History) || !slices.EqualFunc(a.Senders, b.Senders, sender) || !slices.EqualFunc(a.Slots, b.Slots, slot)
}

// moved says whether a position differs.
func moved(a, b cluster.Postgres) bool {
	flush := func(x, y cluster.Sender) bool { return x.Flush == y.Flush }
	return a.End != b.End || a.Replayed != b.Replayed || !slices.EqualFunc(a.Senders, b.Senders, flush)
}

// probeLoop probes. A server that lets probes hang is asked less often, so that
// they do not use up its connections.
func (i *Instance) probeLoop(ctx context.Context, tell func(cluster.Event)) {
	hung := 0
	for {
		began := time.Now()
		ok := i.probe(ctx)
		if ctx.Err() != nil {
			return
		}
		tell(cluster.Probed{OK: ok})
		every := probeEvery
		if ok || time.Since(began) < probeTime {
			hung = 0
		} else if hung++; hung > 3 {
			every = probeSlow
		}
		nap(ctx, time.Until(began.Add(every)))
	}
}

// probeDir is where a probe writes while no server runs: beside the data, or where
// the agent keeps its own until there are any.
func (i *Instance) probeDir() string {
	if exists(filepath.Join(i.cfg.DataDir, "PG_VERSION")) { // an empty one must stay empty
		return i.cfg.DataDir
	}
	return i.cfg.StateDir
}

// probe is a write on a fresh connection that waits for no standby; where writes
// are not taken, a session, and a file that is flushed on the data's disk. A
// connection that ends says nothing of the disk: then it is tried again, on
// whatever runs by then.
func (i *Instance) probe(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	for {
		ok, err := i.probeOnce(ctx)
		if err == nil || ok {
			return ok
		}
		i.log.Debug("probe", "error", err)
		if c := code(err); c != "" && !strings.HasPrefix(c, "57") || ctx.Err() != nil {
			return false
		}
		nap(ctx, 30*time.Millisecond)
	}
}

func (i *Instance) probeOnce(ctx context.Context) (ok bool, err error) {
	s := i.current()
	if s == nil {
		return i.flush.within(ctx, i.probeDir(), i.user), nil
	}
	c, err := i.connect(ctx)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
		return i.flush.within(ctx, i.probeDir(), i.user), nil // it does not listen yet, or no longer
	}
	if err != nil {
		return i.starting(err), err
	}
	wrote := false
	err = c.QueryRow(ctx, `SELECT CASE WHEN pg_is_in_recovery() THEN false
		ELSE pg_logical_emit_message(true, 'holdfast', 'probe') IS NOT NULL END`).Scan(&wrote)
	i.leave(ctx, c, s)
	if err != nil {
		return i.starting(err), err
	}
	return wrote || i.flush.within(ctx, i.cfg.DataDir, i.user), nil
}
