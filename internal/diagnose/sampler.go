package diagnose

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-db/holdfast/internal/stats"
)

// sampleQuery counts sessions that do the same, without our own. The function
// below pg_stat_activity spares two joins.
const sampleQuery = `SELECT coalesce(backend_type, ''), coalesce(state, ''), coalesce(wait_event_type, ''), coalesce(wait_event, ''),
 CASE WHEN coalesce(state, '') NOT LIKE 'idle%' OR state_change < now() - interval '10 s' THEN 0 WHEN state_change < now() - interval '10 ms' THEN 1 ELSE 2 END,
 count(*)::int4
FROM pg_catalog.pg_stat_get_activity(NULL) WHERE pid <> pg_backend_pid() GROUP BY 1, 2, 3, 4, 5`

const tickQuery = `SELECT sum(xact_commit + xact_rollback)::float8, sum(blks_read)::float8, sum(blks_hit)::float8, sum(blk_read_time)::float8,
 CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8 END
FROM pg_catalog.pg_stat_database`

// errPromoted ends the evidence: what comes is another role's.
var errPromoted = errors.New("the standby was promoted")

// tickEvery is how often the cheap counters are read.
const tickEvery = time.Second

// loop samples until the time is over. It returns the error that ended it
// early; c.ev.Lost then says what happened.
func (c *collector) loop(ctx context.Context) error {
	if c.m != nil {
		c.ev.Host.Begin = c.m.counters(0)
	}
	queries := c.s.spent
	err := c.tick(ctx)
	if cpu, ok := c.m.ownCPU(); ok && c.cpuKnown {
		c.cpuLoop, c.upfront = cpu, cpu-c.cpuBefore
	}
	if err == nil {
		err = c.samples(ctx)
	}
	for err != nil {
		if ctx.Err() != nil {
			c.ev.Lost = &Interrupted{What: "stopped", AtS: c.at().Seconds(), Alive: true, Text: "the diagnosis was stopped before its time"}
			c.finish(context.WithoutCancel(ctx), queries)
			return ctx.Err()
		}
		if errors.Is(err, errPromoted) {
			c.ev.Lost = &Interrupted{What: "failed over", AtS: c.at().Seconds(), Alive: true,
				Text: "this standby was promoted and is the primary now; sessions stayed connected"}
			break
		}
		if !c.recover(ctx, err) {
			return err
		}
		err = c.samples(ctx)
	}
	c.finish(ctx, queries)
	return nil
}

// finish reads the counters at the end, if the server still answers.
func (c *collector) finish(ctx context.Context, queries time.Duration) {
	if c.m != nil {
		c.ev.Host.End = c.m.counters(c.at())
	}
	if err := c.tick(ctx); err != nil && !errors.Is(err, errPromoted) {
		return
	}
	// Twice what was spent before the loop comes to what both ends cost.
	at := c.at()
	c.ev.OwnXacts += c.s.xacts
	end, _, err := c.s.read(ctx, c.cat, at, false)
	if err != nil {
		return
	}
	c.ev.End = end
	c.addTexts(ctx)
	if now, ok := c.m.ownCPU(); ok && c.cpuKnown && now > c.cpuLoop {
		c.ev.OwnCPU = c.upfront + now - c.cpuLoop
	}
	c.ev.OwnQuery = c.s.spent - queries
}

func (c *collector) at() time.Duration { return time.Since(c.start) }

// samples is the loop proper, on one connection.
func (c *collector) samples(ctx context.Context) error {
	for c.at() < c.opts.For {
		if err := c.sample(ctx); err != nil {
			return err
		}
		if c.opts.Progress != nil {
			c.opts.Progress(c.at(), c.opts.For, len(c.ev.Samples))
		}
		if c.at() >= c.nextTick {
			if err := c.tick(ctx); err != nil {
				return err
			}
		}
		c.adapt()
		pause := time.Duration((0.5 + c.rng.Float64()) * float64(c.pause))
		if err := sleep(ctx, min(pause, c.opts.For-c.at())); err != nil {
			return err
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *collector) sample(ctx context.Context) error {
	begin := time.Now()
	s := Sample{}
	err := c.s.each(ctx, c.sampleSQL, func(v [][]byte) error {
		idle, err1 := strconv.Atoi(string(v[4]))
		n, err2 := strconv.Atoi(string(v[5]))
		if err1 != nil || err2 != nil {
			return fmt.Errorf("read a sample: %q", v)
		}
		s.Groups = append(s.Groups, Group{
			Backend: c.intern(v[0]), State: c.intern(v[1]), Type: c.intern(v[2]), Event: c.intern(v[3]), Idle: Idle(idle), N: n,
		})
		return nil
	})
	if err != nil {
		return err
	}
	c.s.count(begin)
	s.Took = time.Since(begin)
	s.At = begin.Add(s.Took / 2).Sub(c.start)
	c.ev.Samples = append(c.ev.Samples, s)
	return nil
}

// intern keeps one copy of each name: samples are many, names are few.
func (c *collector) intern(b []byte) string {
	if s, ok := c.names[string(b)]; ok {
		return s
	}
	if c.names == nil {
		c.names = map[string]string{}
	}
	s := string(b)
	c.names[s] = s
	return s
}

// each runs a prepared statement, or any through a pooler, for the values of
// its rows as text. It is called every few ms: a deadline of the connection
// costs a tenth of what a context with a watcher of its own does.
func (s *session) each(ctx context.Context, sql string, row func([][]byte) error) error {
	pg := s.conn.PgConn()
	if err := pg.Conn().SetDeadline(time.Now().Add(s.deadline)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = pg.Conn().SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var r *pgconn.ResultReader
	if s.id.pooler {
		m := pg.Exec(context.Background(), sql)
		defer func() { _ = m.Close() }()
		if !m.NextResult() {
			return m.Close()
		}
		r = m.ResultReader()
	} else {
		r = pg.ExecPrepared(context.Background(), sql, nil, nil, nil)
	}
	var bad error
	for r.NextRow() {
		if bad == nil {
			bad = row(r.Values())
		}
	}
	if _, err := r.Close(); err != nil {
		return err
	}
	if err := pg.Conn().SetDeadline(time.Time{}); err != nil {
		return err
	}
	return bad
}

func (c *collector) tick(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.deadline)
	defer cancel()
	begin := time.Now()
	t := Tick{OwnXacts: c.s.xacts}
	var readMs *float64
	if err := c.s.conn.QueryRow(ctx, c.tickSQL).Scan(&t.Xacts, &t.Reads, &t.Hits, &readMs, &t.LSN); err != nil {
		return err
	}
	c.s.count(begin)
	if readMs != nil {
		t.ReadMs = *readMs
	}
	t.At = begin.Add(time.Since(begin) / 2).Sub(c.start)
	if c.m != nil {
		t.Device = deviceCounters(c.m.dataStat, t.At)
	}
	c.ev.Ticks = append(c.ev.Ticks, t)
	c.nextTick = t.At + tickEvery
	if c.s.id.recovery && t.LSN != nil {
		return errPromoted
	}
	return nil
}

// adapt widens the pause so that all of it together stays below its share of
// one core. Where the server's processor time is not to be seen, what the
// quicker samples took beyond a round trip stands for it: the slower ones
// waited for something, for a processor or in a pooler's queue.
func (c *collector) adapt() {
	at, n := c.at(), len(c.ev.Samples)
	if n < warmUp || at <= 0 {
		return
	}
	var each time.Duration
	if cpu, ok := c.m.ownCPU(); ok && c.cpuKnown {
		each = max(cpu-c.cpuLoop, 0) / time.Duration(n)
	} else {
		each = quick(c.ev.Samples, c.ev.PingMs)
	}
	// The readings at both ends have their share of the budget, but never all of it.
	budget := max(c.opts.share*c.opts.For.Seconds()-1.7*c.upfront.Seconds(), 0.3*c.opts.share*c.opts.For.Seconds())
	need := time.Duration(each.Seconds() / budget * float64(c.opts.For))
	c.pause = min(max(c.opts.Interval, need), max(c.opts.For/(2*fewestSamples), c.opts.Interval))
}

// warmUp are samples from which it is not told yet what one costs: the first
// finds nothing in any cache.
const warmUp = 5

// quick is what the quicker quarter of the latest samples took at most, without a round trip.
func quick(samples []Sample, pingMs *float64) time.Duration {
	const latest = 40
	took := make([]float64, 0, latest)
	for _, s := range samples[max(0, len(samples)-latest):] {
		took = append(took, float64(s.Took))
	}
	return max(time.Duration(stats.Quantile(took, 0.25)-deref(pingMs)*float64(time.Millisecond)), 0)
}

func deref(p *float64) float64 {
	if p == nil {
		return 0
	}
	return *p
}

// addTexts looks up the texts of the statements that will be shown.
func (c *collector) addTexts(ctx context.Context) {
	var ids []string
	for _, s := range statementDeltas(&c.ev, statementsShown) {
		ids = append(ids, s.id)
	}
	texts, err := c.s.texts(ctx, c.cat, ids)
	if err != nil {
		return
	}
	for _, r := range c.ev.End.Views["pg_stat_statements"] {
		if t, ok := texts[r.Text("queryid")]; ok {
			r["query"] = t
		}
	}
}
