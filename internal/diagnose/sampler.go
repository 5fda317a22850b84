package diagnose

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// sampleQuery counts sessions that do the same, without our own. The function
// below pg_stat_activity spares two joins.
const sampleQuery = `SELECT coalesce(backend_type, ''), coalesce(state, ''), coalesce(wait_event_type, ''), coalesce(wait_event, ''),
 CASE WHEN state IS DISTINCT FROM 'idle' OR state_change < now() - interval '10 s' THEN 0 WHEN state_change < now() - interval '10 ms' THEN 1 ELSE 2 END,
 count(*)::int4
FROM pg_catalog.pg_stat_get_activity(NULL) WHERE pid <> pg_backend_pid() GROUP BY 1, 2, 3, 4, 5`

const tickQuery = `SELECT sum(xact_commit + xact_rollback)::float8, sum(blks_read)::float8, sum(blks_hit)::float8, sum(blk_read_time)::float8,
 CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8 END
FROM pg_catalog.pg_stat_database`

// tickEvery is how often the cheap counters are read.
const tickEvery = time.Second

// loop samples until the time is over. It returns the error that ended it
// early; c.ev.Lost then says what happened.
func (c *collector) loop(ctx context.Context) error {
	if c.m != nil {
		c.ev.Host.Begin = c.m.counters(0)
	}
	cpu, _ := c.m.ownCPU()
	queries := c.s.spent
	err := c.samples(ctx)
	for err != nil {
		if ctx.Err() != nil {
			c.ev.Lost = &Interrupted{What: "stopped", AtS: c.at().Seconds(), Alive: true, Text: "the diagnosis was stopped before its time"}
			c.finish(context.WithoutCancel(ctx), cpu, queries)
			return ctx.Err()
		}
		if !c.recover(ctx, err) {
			return err
		}
		err = c.samples(ctx)
	}
	c.finish(ctx, cpu, queries)
	return nil
}

// finish reads the counters at the end, if the server still answers.
func (c *collector) finish(ctx context.Context, cpu, queries time.Duration) {
	if c.m != nil {
		c.ev.Host.End = c.m.counters(c.at())
	}
	if err := c.tick(ctx); err != nil {
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
	if now, ok := c.m.ownCPU(); ok && c.cpuKnown && now > cpu {
		c.ev.OwnCPU = c.upfront + now - cpu
	}
	c.ev.OwnQuery = c.upfront + c.s.spent - queries
}

func (c *collector) at() time.Duration { return time.Since(c.start) }

// samples is the loop proper, on one connection.
func (c *collector) samples(ctx context.Context) error {
	if err := c.tick(ctx); err != nil {
		return err
	}
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
	ctx, cancel := context.WithTimeout(ctx, queryDeadline)
	defer cancel()
	begin := time.Now()
	rows, err := c.s.conn.Query(ctx, c.sampleSQL)
	if err != nil {
		return err
	}
	s := Sample{}
	var g Group
	_, err = pgx.ForEachRow(rows, []any{&g.Backend, &g.State, &g.Type, &g.Event, &g.Idle, &g.N}, func() error {
		s.Groups = append(s.Groups, g)
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

func (c *collector) tick(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, queryDeadline)
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
	return nil
}

// adapt widens the pause so that all of it together stays below costShare of
// one core. Where the server's processor time is not to be seen, the duration
// of the queries beyond a round trip stands for it: an upper bound.
func (c *collector) adapt() {
	at, n := c.at(), len(c.ev.Samples)
	if n == 0 || at <= 0 {
		return
	}
	spent := c.s.spent - c.upfront - time.Duration(float64(c.s.xacts)*float64(time.Millisecond)*deref(c.ev.PingMs))
	if cpu, ok := c.m.ownCPU(); ok && c.cpuKnown {
		spent = cpu - c.cpuBefore - c.upfront
	}
	each := max(spent, 0) / time.Duration(n)
	// The readings at both ends have their share of the budget, but never all of it.
	budget := max(costShare*c.opts.For.Seconds()-2.2*c.upfront.Seconds(), 0.3*costShare*c.opts.For.Seconds())
	need := time.Duration(each.Seconds() / budget * float64(c.opts.For))
	c.pause = min(max(c.opts.Interval, need), max(c.opts.For/(2*fewestSamples), c.opts.Interval))
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
