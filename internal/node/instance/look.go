package instance

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

// lookWithin bounds a look at a running server. It needs nothing but shared
// memory there, so a hung disk does not hold it up once it has its session.
const lookWithin = time.Second

// watcher keeps what one look leaves to the next.
type watcher struct {
	conn    *pgx.Conn
	of      *server // whose session conn is
	calm    bool    // nothing has happened lately
	filesAt time.Time
	slowAt  time.Time
	slow    slowView
	history historyCache
}

// slowView is what need not be looked at each time.
type slowView struct {
	of       *server
	slots    []cluster.Slot
	rejected bool
}

// look is a fresh look at the instance, on a session of its own.
func (i *Instance) look(ctx context.Context) cluster.Postgres {
	w := &watcher{}
	defer w.drop()
	return i.lookWith(ctx, w)
}

// filesDue says whether files are to be looked at again: each time, but at rest
// only now and then.
func (w *watcher) filesDue(now time.Time) bool {
	if w.calm && now.Sub(w.filesAt) < filesEvery {
		return false
	}
	w.filesAt = now
	return true
}

// filesEvery is how often files are looked at while nothing happens.
const filesEvery = 500 * time.Millisecond

func (w *watcher) drop() {
	if w.conn != nil {
		closeConn(w.conn)
		w.conn = nil
	}
}

// lookWith looks, and remembers what was seen for when a server does not answer.
func (i *Instance) lookWith(ctx context.Context, w *watcher) cluster.Postgres {
	i.find()
	s := i.current()
	v := i.disk.view(s == nil || w.filesDue(time.Now()))
	if s == nil {
		w.drop()
		v = i.lookStopped(ctx, v)
	} else {
		v = i.lookRunning(ctx, w, s, v)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	v.ShutdownBlocked, v.WaitsCancelled = i.blocked, i.cancelled
	v.DoorOpen = v.Running && v.Primary && i.door == doorOpen && !v.Foreign
	i.seen, i.seenOf = v, s
	return v
}

// lookRunning asks a server that runs. Where it does not answer, what was last
// seen of it holds.
func (i *Instance) lookRunning(ctx context.Context, w *watcher, s *server, v cluster.Postgres) cluster.Postgres {
	v.Running, v.Foreign, v.Exists = true, !s.ours, true
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	err := i.askServer(ctx, w, s, &v)
	if err == nil {
		return v
	}
	w.drop()
	i.mu.Lock()
	last, of := i.seen, i.seenOf
	i.mu.Unlock()
	if of == s {
		last.Running, last.Foreign, last.Incarnation, last.Headroom = true, v.Foreign, v.Incarnation, v.Headroom
		last.Senders = nil // nobody is known to confirm
		return last
	}
	// Nothing is known of this run yet: it is what the directory says.
	return i.lastKnown(i.disk.stopped(v))
}

// lastKnown fills in what was last seen of the WAL of the same directory: a server
// that does not answer yet holds no less than it did.
func (i *Instance) lastKnown(v cluster.Postgres) cluster.Postgres {
	i.mu.Lock()
	defer i.mu.Unlock()
	if last := i.seen; len(v.History) == 0 && last.Exists && last.Incarnation == v.Incarnation {
		v.History, v.End, v.Replayed, v.Replayable, v.ControlTimeline = last.History, last.End, last.Replayed, last.Replayable, last.ControlTimeline
		v.NeedsClone = v.NeedsClone || last.NeedsClone
	}
	return v
}

const lookSQL = `SELECT NOT pg_is_in_recovery(),
	CASE WHEN pg_is_in_recovery() THEN 0 ELSE (pg_current_wal_flush_lsn() - '0/0')::bigint END,
	CASE WHEN pg_is_in_recovery() THEN '' ELSE pg_walfile_name(pg_current_wal_insert_lsn()) END,
	current_setting('synchronous_standby_names'),
	(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND usename NOT IN ('holdfast', 'holdfast_rewind'))`

func (i *Instance) askServer(ctx context.Context, w *watcher, s *server, v *cluster.Postgres) error {
	if w.of != s {
		w.drop()
		w.of = s
	}
	if w.conn == nil {
		c, err := i.connect(ctx)
		if err != nil {
			return err
		}
		w.conn = c
	}
	var flushed int64
	var file, ssn string
	var clients int
	if err := w.conn.QueryRow(ctx, lookSQL).Scan(&v.Primary, &flushed, &file, &ssn, &clients); err != nil {
		return err
	}
	if time.Since(w.slowAt) > time.Second || w.slow.of != s {
		if err := i.lookSlowly(ctx, w, s, v.Primary); err != nil {
			return err
		}
	}
	v.Slots, v.ReloadRejected = w.slow.slots, w.slow.rejected
	i.keepShut(s, v.Primary, clients)
	if !v.Primary {
		return i.lookStandby(ctx, w.conn, v)
	}
	i.keepSSN(s, ssn)
	var err error
	if v.Senders, err = i.lookSenders(ctx, w.conn); err != nil {
		return err
	}
	v.End = i.whole.end(s, cluster.LSN(flushed), v.Senders)
	v.Replayed, v.Replayable = v.End, v.End
	if v.History, err = w.history.of(i.cfg.DataDir, file); err != nil {
		return err
	}
	v.ControlTimeline = v.History[len(v.History)-1].Timeline
	return nil
}

// keepShut ends sessions that got in beside a closed door.
func (i *Instance) keepShut(s *server, primary bool, clients int) {
	d := i.doorState()
	if clients == 0 || !s.ours || d == doorOpen && primary || d == doorReaders && !primary {
		return
	}
	for _, p := range childrenOf(i.cfg.DataDir, s.pid) {
		if p.client() {
			_ = signal(p, syscall.SIGTERM)
		}
	}
}

// keepSSN repairs what overrules the permit: a line below our include, or ALTER SYSTEM.
func (i *Instance) keepSSN(s *server, shown string) {
	i.mu.Lock()
	calm := shown == i.ssnWanted() || !s.ours
	if calm {
		i.ssnOffAt = time.Time{}
	} else if i.ssnOffAt.IsZero() {
		i.ssnOffAt = time.Now()
	}
	late := !calm && time.Since(i.ssnOffAt) > time.Second
	if late {
		i.ssnOffAt = time.Now()
	}
	i.mu.Unlock()
	if !late {
		return
	}
	i.log.Error("synchronous_standby_names is not what the cluster has set: put right", "shown", shown)
	i.work.add(task{files: func(context.Context) error {
		err := i.repair()
		if err != nil {
			i.log.Error("repair the configuration", "error", err)
		}
		return errors.Join(err, signal(s.process, syscall.SIGHUP))
	}})
}

// lookSlowly looks at what changes seldom: slots, errors in the settings, the log.
func (i *Instance) lookSlowly(ctx context.Context, w *watcher, s *server, primary bool) error {
	lost := "wal_status = 'lost'"
	if i.major >= 16 {
		lost += " OR coalesce(conflicting, false)"
	}
	if i.major >= 17 {
		lost += " OR invalidation_reason IS NOT NULL"
	}
	at := "pg_last_wal_replay_lsn()"
	if primary {
		at = "pg_current_wal_lsn()"
	}
	rows, err := w.conn.Query(ctx, `SELECT slot_name::text, slot_type = 'logical', greatest(coalesce(`+at+` - restart_lsn, 0), 0)::bigint,
		coalesce(`+lost+`, false) FROM pg_replication_slots ORDER BY 1`)
	if err != nil {
		return err
	}
	slots, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (x cluster.Slot, err error) {
		err = r.Scan(&x.Name, &x.Logical, &x.Kept, &x.Lost)
		return x, err
	})
	if err != nil {
		return err
	}
	for n := range slots {
		if m, ok := ParseSlot(slots[n].Name); ok && !slots[n].Logical {
			slots[n].Member = m
		}
	}
	if !primary {
		i.letGo(ctx, w.conn, slots)
	}
	// "could not be applied" is said of what waits for a restart; it rejects nothing.
	var rejected bool
	err = w.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_file_settings WHERE error IS NOT NULL AND error <> 'setting could not be applied')
		OR EXISTS (SELECT FROM pg_hba_file_rules WHERE error IS NOT NULL)`).Scan(&rejected)
	if err != nil {
		return err
	}
	w.slow, w.slowAt = slowView{s, slots, rejected}, time.Now()
	i.spare.know(w)
	return nil
}

// letGo lets slots on a standby advance: nobody streams through them, so by
// themselves they would hold back WAL up to their cap. What they keep is for whoever
// has to follow this standby once it is promoted; who is further behind is cloned.
func (i *Instance) letGo(ctx context.Context, c *pgx.Conn, slots []cluster.Slot) {
	keep := i.standbyKeep()
	for _, s := range slots {
		if s.Member.Incarnation == 0 || s.Lost || s.Kept <= keep {
			continue
		}
		var replayed int64
		err := c.QueryRow(ctx, "SELECT (pg_last_wal_replay_lsn() - '0/0')::bigint").Scan(&replayed)
		if err == nil {
			_, err = c.Exec(ctx, "SELECT pg_replication_slot_advance(slot_name, $2::text::pg_lsn) FROM pg_replication_slots WHERE slot_name = $1 AND active_pid IS NULL",
				s.Name, postgres.LSN(replayed-keep/2).String())
		}
		if err != nil {
			i.log.Warn("advance a slot", "slot", s.Name, "error", err)
			return
		}
	}
}

// standbyKeep is how much WAL a standby keeps for another member, bytes.
func (i *Instance) standbyKeep() int64 {
	const most = 512 << 20
	if i.cfg.SlotCap > 0 {
		return min(most, i.cfg.SlotCap/4)
	}
	return most
}

const sendersSQL = `SELECT pid, application_name, usename = 'holdfast_replication', state = 'streaming', coalesce(flush_lsn - '0/0', 0)::bigint
	FROM pg_stat_replication WHERE usename IS NOT NULL`

// lookSenders lists the walsenders. One that uses a member's name under another
// role is no member of ours: it is ended, since Postgres would count it.
func (i *Instance) lookSenders(ctx context.Context, c *pgx.Conn) ([]cluster.Sender, error) {
	type seen struct {
		cluster.Sender
		pid  int32
		ours bool
		name string
	}
	rows, err := c.Query(ctx, sendersSQL)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (x seen, err error) {
		var flush int64
		err = r.Scan(&x.pid, &x.name, &x.ours, &x.Streaming, &flush)
		x.Flush = cluster.LSN(flush)
		return x, err
	})
	if err != nil {
		return nil, err
	}
	var out []cluster.Sender
	for _, x := range all {
		if x.Member, x.Named = ParseMember(i.cfg.Cluster, x.name); x.Named && !x.ours {
			i.log.Error("a stranger streams under a member's name: ended", "name", x.name, "pid", x.pid)
			if _, err := c.Exec(ctx, "SELECT pg_terminate_backend($1)", x.pid); err != nil {
				return nil, err
			}
		}
		out = append(out, x.Sender)
	}
	return out, nil
}

// historyCache keeps the histories of timelines: a history file never changes.
type historyCache map[cluster.Timeline][]cluster.Branch

// of is the history of the timeline in a WAL file's name.
func (h *historyCache) of(dir, walFile string) ([]cluster.Branch, error) {
	n, err := strconv.ParseUint(walFile[:min(8, len(walFile))], 16, 32)
	if err != nil {
		return nil, err
	}
	tl := cluster.Timeline(n)
	if b, ok := (*h)[tl]; ok {
		return b, nil
	}
	b, err := readHistory(filepath.Join(dir, "pg_wal"), tl)
	if err != nil {
		return nil, err
	}
	if *h == nil {
		*h = historyCache{}
	}
	(*h)[tl] = b
	return b, nil
}

// readHistory reads a timeline's history file; the first timeline has none.
func readHistory(walDir string, tl cluster.Timeline) ([]cluster.Branch, error) {
	if tl == 1 {
		return []cluster.Branch{{Timeline: 1}}, nil
	}
	data, err := os.ReadFile(filepath.Join(walDir, wal.HistoryName(tl)))
	if err != nil {
		return nil, err
	}
	h, _, err := wal.ParseHistory(tl, data)
	return h, err
}
