package experiment

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/postgres"
	"github.com/holdfast-db/holdfast/internal/result"
)

const (
	backlogMB       = 100
	backlogSeconds  = 30 // for the estimate
	backlogDeadline = 15 * time.Minute
	publication     = "holdfast_backlog"
)

// logicalBacklog lets a subscriber fall behind by a set amount of WAL, and takes
// the time until it has caught up.
type logicalBacklog struct{}

func (logicalBacklog) Name() string { return "logical-backlog" }
func (logicalBacklog) About() string {
	return "a set amount of WAL drained by a logical subscriber on a host of its own"
}
func (logicalBacklog) NeedsDatabase() bool { return true }

func (logicalBacklog) Groups(spec config.Experiment, on setup.Kind) []Params {
	if !on.Publishes {
		return nil
	}
	return []Params{{"memory_mb": upkeepMemory(spec), "data_to_ram": spec.DataToRAM, "scale": upkeepScale(spec), "megabytes": walMB(spec)}}
}

func walMB(spec config.Experiment) int { return int(orDefault(float64(spec.Megabytes), backlogMB)) }

func (logicalBacklog) Estimate(spec config.Experiment, _ Params) time.Duration {
	fill := 2 * float64(upkeepScale(spec)) / scalePerSec / float64(max(spec.Repeat, 1))
	return seconds(backlogSeconds + 2*stageSeconds + 15 + fill)
}

func (logicalBacklog) Run(ctx context.Context, env Env) (cells []result.Cell, err error) {
	pub, ok := env.System.(setup.Publishing)
	if !ok {
		return nil, fmt.Errorf("setup %s has no second server that could subscribe", env.Kind.Name)
	}
	from, err := newStage(env, upkeepMemory(env.Spec))
	if err != nil && !errors.Is(err, errNoStage) {
		return nil, err
	}
	h, pg := pub.Subscriber()
	to, err2 := stageOn(env, h, pg, pub.RestartSubscriber, upkeepMemory(env.Spec))
	if err := errors.Join(err, err2); err != nil {
		return []result.Cell{{Verdict: Skipped, Why: err.Error()}}, nil
	}
	b := &backlog{from: from, to: to}
	for _, s := range []*stage{from, to} {
		if err := s.fill(ctx, upkeepScale(env.Spec)); err != nil {
			return nil, err
		}
		end, err := s.begin(ctx, postgres.Settings{"max_slot_wal_keep_size": "-1"})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, end()) }() //nolint:gocritic // two stages, both ended here
	}
	cell, err := b.run(ctx)
	if err != nil {
		return nil, err
	}
	return []result.Cell{cell}, nil
}

// backlog is a publisher and its subscriber.
type backlog struct {
	from, to *stage
	slot     string
}

func (b *backlog) run(ctx context.Context) (_ result.Cell, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, backlogDeadline, fmt.Errorf("not within %s", backlogDeadline))
	defer cancel()
	b.slot = publication
	defer func() { err = errors.Join(err, b.unsubscribe(ctx)) }()
	if err := b.subscribe(ctx); err != nil {
		return result.Cell{}, err
	}
	n, mb, err := b.fallBehind(ctx)
	if err != nil {
		return result.Cell{}, err
	}
	return b.drain(ctx, n, mb)
}

// subscribe makes a subscription that has caught up and then is disabled. Both
// tables hold the same rows already.
func (b *backlog) subscribe(ctx context.Context) error {
	b.from.env.Live("subscribing")
	if err := b.from.pg.Exec(ctx, "CREATE PUBLICATION "+publication+" FOR TABLE pgbench_accounts"); err != nil {
		return err
	}
	conn := fmt.Sprintf("host=%s port=%d user=%s dbname=postgres passfile=%s", b.from.pg.Addr, b.from.pg.Port, b.from.pg.User, b.to.pg.PassFile)
	// The password of the publisher is not the subscriber's own.
	if err := b.to.host.Put(ctx, b.to.pg.PassFile, []byte(b.from.pg.PassLine()+b.to.pg.PassLine()), 0o600); err != nil {
		return err
	}
	err := b.to.pg.Exec(ctx, fmt.Sprintf("CREATE SUBSCRIPTION %s CONNECTION '%s' PUBLICATION %s WITH (copy_data = false, slot_name = '%s')", publication, conn, publication, b.slot))
	if err != nil {
		return err
	}
	if err := b.caughtUp(ctx); err != nil {
		return err
	}
	return b.to.pg.Exec(ctx, "ALTER SUBSCRIPTION "+publication+" DISABLE")
}

// caughtUp waits until the subscriber has confirmed all that the publisher has
// written so far.
func (b *backlog) caughtUp(ctx context.Context) error {
	end, err := b.from.pg.QueryText(ctx, "SELECT pg_current_wal_lsn()::text")
	if err != nil {
		return err
	}
	c, err := b.from.pg.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	for {
		var done bool
		err := c.QueryRow(ctx, "SELECT coalesce((SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2 AND active), false)", end, b.slot).Scan(&done)
		if err != nil {
			return fmt.Errorf("look at the subscription's slot: %w", err)
		}
		if done {
			return nil
		}
		if !wait(ctx, 20*time.Millisecond) {
			return fmt.Errorf("wait for the subscriber: %w", context.Cause(ctx))
		}
	}
}

// fallBehind updates random rows, one a transaction, until so much WAL was
// written, on a disk that takes no time; it returns how many and how much.
func (b *backlog) fallBehind(ctx context.Context) (transactions int, mb float64, err error) {
	b.from.env.Live("writing the backlog")
	const perScale = 100_000
	do := fmt.Sprintf(`DO $$
DECLARE start pg_lsn := pg_current_wal_insert_lsn(); n int := 0; one int;
BEGIN
  PERFORM setseed(%g);
  WHILE pg_current_wal_insert_lsn() - start < %d LOOP
    one := 1 + floor(random() * %d)::int;
    UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = one;
    COMMIT;
    n := n + 1;
  END LOOP;
  EXECUTE format('COMMENT ON TABLE pgbench_accounts IS %%L', n);
END $$`, float64(b.from.env.Seed%1000)/1000, walMB(b.from.env.Spec)<<20, upkeepScale(b.from.env.Spec)*perScale)
	before, err := b.from.pg.QueryText(ctx, "SELECT pg_current_wal_insert_lsn()::text")
	if err != nil {
		return 0, 0, err
	}
	if err := b.from.quick(ctx, func() error { return b.from.pg.Exec(ctx, "CHECKPOINT", do, "CHECKPOINT") }); err != nil {
		return 0, 0, err
	}
	counted, err := b.from.pg.QueryText(ctx, "SELECT obj_description('pgbench_accounts'::regclass)")
	if err != nil {
		return 0, 0, err
	}
	size, err := b.from.pg.QueryText(ctx, "SELECT ((pg_current_wal_insert_lsn() - $1::text::pg_lsn) / 1048576.0)::text", before)
	if err != nil {
		return 0, 0, err
	}
	if transactions, err = strconv.Atoi(counted); err == nil {
		mb, err = strconv.ParseFloat(size, 64)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read how much was written: %w", err)
	}
	return transactions, mb, b.to.pg.Exec(ctx, "CHECKPOINT")
}

func (b *backlog) drain(ctx context.Context, transactions int, mb float64) (result.Cell, error) {
	b.from.env.Live(fmt.Sprintf("draining %.0f MB", mb))
	o := diskCounts(ctx, b.to.host)
	d, err := startDiagnosis(ctx, b.from.env, b.from.host, b.from.pg, untilStopped)
	if err != nil {
		return result.Cell{}, errors.Join(err, o.stop())
	}
	began := time.Now()
	if err = b.to.pg.Exec(ctx, "ALTER SUBSCRIPTION "+publication+" ENABLE"); err == nil {
		err = b.caughtUp(ctx)
	}
	took := time.Since(began).Seconds()
	found, derr := d.stop(ctx)
	if err := errors.Join(err, o.stop(), derr); err != nil {
		return result.Cell{}, err
	}
	if err := b.same(ctx); err != nil {
		return result.Cell{}, err
	}
	c := result.Cell{Verdict: result.Held, Metrics: map[string]float64{
		"drain_s": took, "backlog_mb": mb, "backlog_transactions": float64(transactions),
		"drain_mb_per_s": mb / took, "drain_tps": float64(transactions) / took,
	}}
	o.addTo(&c)
	if found != nil {
		c.Metrics["wait_samples"] = float64(found.Sampling.Samples)
	}
	return c, nil
}

// same holds both tables against each other: a drained backlog was applied.
func (b *backlog) same(ctx context.Context) error {
	const q = "SELECT sum(abalance)::text || ' in ' || count(*)::text FROM pgbench_accounts"
	var sums [2]string
	for i, s := range []*stage{b.from, b.to} {
		err := s.quick(ctx, func() (err error) {
			sums[i], err = s.pg.QueryText(ctx, q)
			return err
		})
		if err != nil {
			return err
		}
	}
	if sums[0] != sums[1] {
		return fmt.Errorf("the subscriber holds other rows than the publisher: %s, not %s", sums[1], sums[0])
	}
	return nil
}

// unsubscribe leaves nothing that would hold WAL.
func (b *backlog) unsubscribe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return errors.Join(
		b.to.pg.Exec(ctx, "DROP SUBSCRIPTION IF EXISTS "+publication),
		b.from.pg.Exec(ctx, "DROP PUBLICATION IF EXISTS "+publication))
}
