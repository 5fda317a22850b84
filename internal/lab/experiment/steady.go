package experiment

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-db/holdfast/internal/disk"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/pgbench"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

const (
	warmUpSeconds  = 2
	settleDeadline = 2 * time.Minute
	settleBase     = 2.2  // seconds that settle and the warm-up take, and
	settlePerScale = 0.33 // how many more for each unit of scale
)

// settle brings a database to where a run changes nothing any more. The first
// change of each page after a checkpoint writes the whole page into the WAL:
// right after one, most transactions pay for such an image, and fewer and fewer
// do while the run goes on, a trend of a third over 20 s at scale 10. So the
// checkpoint comes first, then a row lock in every page (whose image is then
// in the WAL, while no row gets a new version), then a load that does not count.
func settle(ctx context.Context, env Env, pg *postgres.Instance) error {
	env.Live("checkpoint and first touch of every page")
	ctx, cancel := context.WithTimeoutCause(ctx, settleDeadline, fmt.Errorf("not within %s", settleDeadline))
	defer cancel()
	// Every eighth of a page's 61 rows: as updates move them about, a page without
	// any of an eighth of all accounts is one in 2,000. The eighth that fill moved
	// stands alone in pages of its own at the end of the table: an eighth of it too.
	const touch = "SELECT count(*) FROM (SELECT FROM pgbench_accounts WHERE aid % 8 = 1 OR aid % 64 = 0 FOR NO KEY UPDATE) t"
	if err := pg.Exec(ctx, "VACUUM pgbench_accounts", "CHECKPOINT", touch); err != nil {
		return fmt.Errorf("bring the database to a steady state: %w", err)
	}
	if err := pg.WaitReplayed(ctx); err != nil {
		return fmt.Errorf("bring the standbys to a steady state: %w", err)
	}
	return nil
}

// warmUp runs the load that is to be measured for a moment and forgets it.
func warmUp(ctx context.Context, env Env, h place.Host, login []string, cfg pgbench.Config) error {
	env.Live("warming up")
	cfg.Seconds, cfg.LogPrefix, cfg.Seed = warmUpSeconds, "", cfg.Seed+1
	out, err := runPgbench(ctx, env, h, login, cfg)
	if err != nil {
		return err
	}
	if out.Exit != 0 || out.HardStopped {
		return fmt.Errorf("warm up: pgbench ended with status %d: %s", out.Exit, lastLines(out.Stderr, 3))
	}
	return nil
}

// counters are what a Postgres counts since its start; nil where it does not.
type counters struct {
	FPI         *float64 `json:"fpi"`
	WALBytes    *float64 `json:"wal_bytes"`
	Checkpoints *float64 `json:"checkpoints"`
	Autovacuums *float64 `json:"autovacuums"` // of pgbench's tables, analyses too
}

func readCounters(ctx context.Context, pg *postgres.Instance) (counters, error) {
	var c counters
	// What there is depends on the major version: ask the catalog.
	views, err := pg.QueryText(ctx, `SELECT json_build_object('wal', to_regclass('pg_catalog.pg_stat_wal') IS NOT NULL,
		'checkpointer', to_regclass('pg_catalog.pg_stat_checkpointer') IS NOT NULL)::text`)
	if err != nil {
		return c, err
	}
	var have struct{ WAL, Checkpointer bool }
	if err := json.Unmarshal([]byte(views), &have); err != nil {
		return c, fmt.Errorf("read which statistics %s has: %w", pg.Name, err)
	}
	wal := "NULL::numeric AS fpi, NULL::numeric AS wal_bytes"
	if have.WAL {
		wal = "(SELECT wal_fpi FROM pg_stat_wal) AS fpi, (SELECT wal_bytes FROM pg_stat_wal) AS wal_bytes"
	}
	checkpoints := "(SELECT checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter)"
	if have.Checkpointer {
		checkpoints = "(SELECT num_timed + num_requested FROM pg_stat_checkpointer)"
	}
	text, err := pg.QueryText(ctx, "SELECT row_to_json(c)::text FROM (SELECT "+wal+", "+checkpoints+" AS checkpoints, "+
		"(SELECT sum(autovacuum_count + autoanalyze_count) FROM pg_stat_user_tables WHERE relname LIKE 'pgbench%') AS autovacuums) c")
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return c, fmt.Errorf("read the statistics of %s: %w", pg.Name, err)
	}
	return c, nil
}

// since are the metrics of a run between two readings.
func (c counters) since(before counters, transactions int64) map[string]float64 {
	m := map[string]float64{}
	add := func(name string, now, then *float64, per float64) {
		if now != nil && then != nil && *now >= *then && per > 0 { // less: the server was restarted
			m[name] = (*now - *then) / per
		}
	}
	add("fpi_per_tx", c.FPI, before.FPI, float64(transactions))
	add("wal_bytes_per_tx", c.WALBytes, before.WALBytes, float64(transactions))
	add("checkpoints", c.Checkpoints, before.Checkpoints, 1)
	add("autovacuums", c.Autovacuums, before.Autovacuums, 1)
	return m
}

// flushed are a disk's flushes and the milliseconds they took, since it was
// mounted; ok is false where the disk does not count.
func flushed(ctx context.Context, h place.Host) (n, ms float64, ok bool) {
	d, can := h.(place.DiskStatser)
	if !can {
		return 0, 0, false
	}
	stats, err := d.DiskStats(ctx)
	if err != nil {
		return 0, 0, false
	}
	return stats["flushes"], stats["flushes"] * stats["flush_mean_ms"], true
}

// slowFlush makes the flushes of h's disk take as many times as long as params
// ask for, and returns what undoes it.
func slowFlush(ctx context.Context, h place.Host, diskName string, params Params) (normal func() error, err error) {
	times, ok := params["flush_times"].(float64)
	if !ok {
		return func() error { return nil }, nil
	}
	d, can := h.(place.DiskController)
	if !can {
		return nil, fmt.Errorf("host %s has no disk whose flushes can be slowed down", h.Name())
	}
	kind, err := disk.ByName(diskName)
	if err != nil {
		return nil, err
	}
	ms := float64(kind.Timing.Flush.Median) / float64(time.Millisecond)
	set := func(ctx context.Context, ms float64) error {
		return d.SetDisk(ctx, map[string]string{"flush_ms": strconv.FormatFloat(ms, 'f', -1, 64)})
	}
	return func() error { return set(context.WithoutCancel(ctx), ms) }, set(ctx, ms*times)
}
