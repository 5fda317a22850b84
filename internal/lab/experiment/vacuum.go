package experiment

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/diagnose"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/postgres"
	"github.com/holdfast-db/holdfast/internal/result"
)

const (
	upkeepMemoryMB = 128 // nothing but one session needs any
	// dataToBloat is the published benchmark's: 10 GB of 482.
	dataToBloat    = 48.2
	vacuumSeconds  = 25 // for the estimate
	vacuumDeadline = 15 * time.Minute
)

// vacuum takes the time of a VACUUM of a set amount of dead rows, all over a table
// that is several times larger than memory.
type vacuum struct{}

func (vacuum) Name() string { return "vacuum" }
func (vacuum) About() string {
	return "VACUUM of a set amount of dead rows in a table several times larger than memory"
}
func (vacuum) NeedsDatabase() bool { return true }

func (vacuum) Groups(spec config.Experiment, _ setup.Kind) []Params {
	return []Params{{"memory_mb": upkeepMemory(spec), "data_to_ram": spec.DataToRAM, "scale": upkeepScale(spec), "megabytes": bloatMB(spec)}}
}

func upkeepMemory(spec config.Experiment) int {
	return int(orDefault(float64(spec.Memory), upkeepMemoryMB))
}

func upkeepScale(spec config.Experiment) int { return scaleFor(upkeepMemory(spec), spec.DataToRAM) }

// bloatMB is how much of the table is to be dead rows.
func bloatMB(spec config.Experiment) int {
	return int(orDefault(float64(spec.Megabytes), math.Ceil(float64(upkeepScale(spec))*mbPerScale/dataToBloat)))
}

func (vacuum) Estimate(spec config.Experiment, _ Params) time.Duration {
	fill := float64(upkeepScale(spec)) / scalePerSec / float64(max(spec.Repeat, 1))
	return seconds(vacuumSeconds + stageSeconds + 5 + fill)
}

func (vacuum) Run(ctx context.Context, env Env) (cells []result.Cell, err error) {
	s, err := newStage(env, upkeepMemory(env.Spec))
	if errors.Is(err, errNoStage) {
		return []result.Cell{{Verdict: Skipped, Why: err.Error()}}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.fill(ctx, upkeepScale(env.Spec)); err != nil {
		return nil, err
	}
	end, err := s.begin(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	dead, err := s.bloat(ctx)
	if err != nil {
		return nil, err
	}
	cell, err := s.vacuum(ctx)
	if err != nil {
		return nil, err
	}
	cell.Metrics["dead_rows"] = dead
	return []result.Cell{cell}, nil
}

// bloat leaves a dead version of every n-th row, in nearly every page, and no
// other: what was dead before is vacuumed away first.
func (s *stage) bloat(ctx context.Context) (dead float64, err error) {
	s.env.Live("making dead rows")
	every := max(2, int(math.Round(float64(upkeepScale(s.env.Spec))*mbPerScale/float64(bloatMB(s.env.Spec)))))
	err = s.quick(ctx, func() error {
		return s.pg.Exec(ctx, "VACUUM pgbench_accounts",
			fmt.Sprintf("UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid %% %d = %d", every, s.env.Seed%uint64(every)),
			// The first change of a page after it writes the whole page into the WAL, as
			// it does in a table so large that few pages change twice between two.
			"CHECKPOINT")
	})
	const perScale = 100_000
	return math.Floor(float64(upkeepScale(s.env.Spec)) * perScale / float64(every)), err
}

// vacuum runs it on the disk as it is, with a diagnosis beside.
func (s *stage) vacuum(ctx context.Context) (result.Cell, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, vacuumDeadline, fmt.Errorf("not within %s", vacuumDeadline))
	defer cancel()
	s.env.Live("VACUUM")
	before, err := readCounters(ctx, s.pg)
	if err != nil {
		return result.Cell{}, err
	}
	o := diskCounts(ctx, s.host)
	d, err := startDiagnosis(ctx, s.env, s.host, s.pg, untilStopped)
	if err != nil {
		return result.Cell{}, errors.Join(err, o.stop())
	}
	began := time.Now()
	err = s.pg.Exec(ctx, "VACUUM pgbench_accounts")
	took := time.Since(began)
	found, derr := d.stop(ctx)
	if err := errors.Join(err, o.stop(), derr); err != nil {
		return result.Cell{}, err
	}
	after, err := readCounters(ctx, s.pg)
	if err != nil {
		return result.Cell{}, err
	}
	mb, err := tableMB(ctx, s.pg)
	if err != nil {
		return result.Cell{}, err
	}
	c := result.Cell{Verdict: result.Held, Metrics: map[string]float64{"vacuum_s": took.Seconds(), "data_mb": mb}}
	if before.WALBytes != nil && after.WALBytes != nil {
		c.Metrics["wal_mb"] = (*after.WALBytes - *before.WALBytes) / (1 << 20)
	}
	o.addTo(&c)
	found.shares(c.Metrics)
	return c, nil
}

// shares are what the time that was seen went to, in percent.
func (d *diagnosis) shares(m map[string]float64) {
	if d == nil || len(d.Breakdown) == 0 {
		return
	}
	m["page_read_pct"] = d.share(diagnose.PageReads)
	m["data_write_pct"] = d.share(diagnose.DataWrites)
	m["wal_pct"] = d.share(diagnose.CommitFlush, diagnose.OtherWAL)
	m["cpu_pct"] = d.share(diagnose.CPU)
	m["wait_samples"] = float64(d.Sampling.Samples)
}

// tableMB is the size of pgbench's accounts with their index.
func tableMB(ctx context.Context, pg *postgres.Instance) (mb float64, err error) {
	size, err := pg.QueryText(ctx, "SELECT (pg_total_relation_size('pgbench_accounts') / 1048576.0)::text")
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscan(size, &mb); err != nil {
		return 0, fmt.Errorf("read the table's size %q: %w", size, err)
	}
	return mb, nil
}
