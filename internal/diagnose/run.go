package diagnose

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options say what to look at and for how long.
type Options struct {
	DSN      string              // as psql takes it; "" for the environment's
	For      time.Duration       // 30 s if 0
	Interval time.Duration       // from sample to sample, 50 ms if 0; widened where it would cost too much
	Seed     uint64              // of the pauses, which vary so that they cannot run in step with the load
	Getenv   func(string) string // for what pgx does not look up itself
	Progress func(done, total time.Duration, samples int)

	// Others in tests only:
	share    float64       // of one core that sampling may cost
	deadline time.Duration // of one statement
}

// costShare is what sampling may cost of one core.
const costShare = 0.0095

// fewestSamples make a diagnosis; with fewer nothing is said.
const fewestSamples = 10

// ErrLost says that the server was lost before enough was seen.
var ErrLost = errors.New("the server was lost before enough was seen for a diagnosis")

// Run samples a server and judges what it saw. When ctx ends first, or the
// server is lost, the diagnosis is of what was seen until then, and its
// Interrupted says so; with too few samples the error is ErrLost, or ctx's. A
// login that does not come about is a *ConnectError, a bad DSN is ErrDSN.
func Run(ctx context.Context, opts Options) (Diagnosis, error) {
	ev, err := Collect(ctx, opts)
	if err != nil {
		return Diagnosis{}, err
	}
	return Assess(ev), nil
}

// Collect samples a server. Its errors are Run's.
func Collect(ctx context.Context, opts Options) (Evidence, error) {
	if opts.For <= 0 {
		opts.For = 30 * time.Second
	}
	if opts.Interval <= 0 {
		opts.Interval = 50 * time.Millisecond
	}
	if opts.share == 0 {
		opts.share = costShare
	}
	if opts.deadline == 0 {
		opts.deadline = queryDeadline
	}
	if opts.Getenv == nil {
		opts.Getenv = func(string) string { return "" }
	}
	cfg, warnings, err := parseDSN(opts.DSN, opts.Getenv)
	if err != nil {
		return Evidence{}, err
	}
	s, err := open(ctx, cfg, opts.deadline)
	switch {
	case err != nil && ctx.Err() != nil:
		return Evidence{}, ctx.Err()
	case err != nil:
		return Evidence{}, connectError(cfg, err)
	}
	c := &collector{cfg: cfg, opts: opts, s: s, rng: rand.New(rand.NewPCG(opts.Seed, 0x646961676e6f7365)), pause: opts.Interval}
	c.ev.Missing = warnings
	defer func() { c.s.close() }()
	if err := c.collect(ctx); err != nil {
		return Evidence{}, err
	}
	return c.ev, nil
}

// collector is one run of the sampler.
type collector struct {
	cfg   *pgx.ConnConfig
	opts  Options
	s     *session
	m     *machine
	cat   catalog
	rng   *rand.Rand
	ev    Evidence
	start time.Time

	pause     time.Duration
	sampleSQL string
	tickSQL   string
	cpuBefore time.Duration // ownCPU before everything
	cpuLoop   time.Duration // and when the loop began
	cpuKnown  bool
	upfront   time.Duration // what the reading at the beginning cost
	nextTick  time.Duration
	names     map[string]string
}

func (c *collector) collect(ctx context.Context) error {
	id := c.s.id
	c.ev.Server = id.server(c.cfg)
	c.ev.Asked = c.opts.Interval
	c.ev.Partial = !id.allStats
	if c.m = findMachine(c.s.conn.PgConn().Conn().RemoteAddr(), id); c.m != nil {
		c.ev.Server.OnHost = true
		c.ev.Host = c.m.evidence()
	}
	if err := c.prepare(ctx); err != nil {
		return c.failure(ctx, err)
	}
	c.ev.Started = time.Now()
	c.start = c.ev.Started
	err := c.loop(ctx)
	switch {
	case err != nil && len(c.ev.Samples) < fewestSamples && ctx.Err() != nil:
		return ctx.Err()
	case err != nil && len(c.ev.Samples) < fewestSamples:
		return fmt.Errorf("%w (%d samples): %s", ErrLost, len(c.ev.Samples), c.ev.Lost.Text)
	}
	return nil
}

// failure is an error before the first sample.
func (c *collector) failure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return connectError(c.cfg, err)
}

// prepare reads what must be known before the first sample. With a direct
// connection the two statements of the loop are prepared: that halves their
// cost. A pooler would lose them.
func (c *collector) prepare(ctx context.Context) error {
	c.cpuBefore, c.cpuKnown = c.m.ownCPU()
	spent := c.s.spent
	var err error
	if c.cat, err = c.s.catalog(ctx); err != nil {
		return err
	}
	if c.ev.PingMs, err = c.ping(ctx); err != nil {
		return err
	}
	if c.ev.ClockNs, err = c.clock(ctx); err != nil {
		return err
	}
	c.sampleSQL, c.tickSQL = sampleQuery, tickQuery
	if !c.s.id.pooler {
		if err := c.prepareStatements(ctx); err != nil {
			return err
		}
	}
	begin, missing, err := c.s.read(ctx, c.cat, 0, true)
	if err != nil {
		return err
	}
	c.ev.Begin = begin
	c.ev.Missing = append(c.ev.Missing, missing...)
	c.ev.Missing = append(c.ev.Missing, c.lacks()...)
	c.ev.OwnXacts -= c.s.xacts // counted from here on
	c.upfront = c.s.spent - spent
	return nil
}

func (c *collector) prepareStatements(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.deadline)
	defer cancel()
	for name, sql := range map[string]string{"hf_sample": sampleQuery, "hf_tick": tickQuery} {
		if _, err := c.s.conn.Prepare(ctx, name, sql); err != nil {
			return err
		}
		c.s.xacts++
	}
	c.sampleSQL, c.tickSQL = "hf_sample", "hf_tick"
	return nil
}

// ping is the least of a few round trips: what the network and the protocol take.
func (c *collector) ping(ctx context.Context) (*float64, error) {
	best := time.Hour
	for range 5 {
		begin := time.Now()
		if err := c.s.exec(ctx, "SELECT 1"); err != nil {
			return nil, err
		}
		best = min(best, time.Since(begin))
	}
	ms := best.Seconds() * 1000
	return &ms, nil
}

// clock asks the server how long reading its clock takes, in ns: the
// difference between two loops that differ in that alone.
func (c *collector) clock(ctx context.Context) (*float64, error) {
	const query = `WITH a AS MATERIALIZED (SELECT clock_timestamp() AS t), b AS MATERIALIZED (SELECT count(clock_timestamp()) AS n FROM generate_series(1, 10000), a WHERE a.t IS NOT NULL),
 c AS MATERIALIZED (SELECT clock_timestamp() AS t FROM b WHERE n > 0), d AS MATERIALIZED (SELECT count(now()) AS n FROM generate_series(1, 10000), c WHERE c.t IS NOT NULL),
 e AS MATERIALIZED (SELECT clock_timestamp() AS t FROM d WHERE n > 0)
 SELECT extract(epoch FROM (c.t - a.t) - (e.t - c.t))::float8 * 1e9 / 10000 FROM a, c, e`
	ctx, cancel := context.WithTimeout(ctx, c.opts.deadline)
	defer cancel()
	defer c.s.count(time.Now())
	var ns float64
	if err := c.s.conn.QueryRow(ctx, query).Scan(&ns); err != nil {
		return nil, ignoreRefusal(err)
	}
	ns = max(ns, 0)
	return &ns, nil
}

// lacks says what this role may not see, and what would help.
func (c *collector) lacks() []string {
	var out []string
	id := c.s.id
	if !id.allStats {
		out = append(out, fmt.Sprintf("the sessions of other users: the role %s sees its own only. GRANT pg_monitor TO %s", id.user, id.user))
	}
	if c.cat.statements == "" {
		out = append(out, fmt.Sprintf("statements: pg_stat_statements is not installed in the database %s", id.db))
	} else if len(c.cat.columns) == 0 {
		out = append(out, "statements: pg_stat_statements is there but cannot be read (is it in shared_preload_libraries?)")
	}
	switch {
	case c.m == nil && id.pooler:
		out = append(out, "the server's machine: a pooler stands in between, and no server process is to be seen here")
	case c.m == nil:
		out = append(out, "the server's machine: it is not this one, or its processes are in a container; run this there for processors and devices")
	case c.m.data.Path == "":
		out = append(out, "devices: where the data lies is not to be seen; grant pg_monitor, or run as the server's user")
	case c.m.same == nil:
		out = append(out, "the WAL's device: the data directory may not be looked into; run as the server's user or root")
	}
	if id.pooler {
		out = append(out, "clients that wait for the pooler: only sessions on the server are to be seen, so clients may wait longer than said here")
	}
	return out
}
