package experiment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/pgbench"
	"github.com/holdfast-db/holdfast/internal/postgres"
	"github.com/holdfast-db/holdfast/internal/result"
)

const (
	boundSeconds = 20
	boundWarmUp  = 55 // seconds until write-back is in its stride: pages are written out when they are half a minute old
	boundStall   = 3 * time.Second
	scalePerSec  = 1.2 // units of scale filled in a second, for the estimate
	stageSeconds = 5   // that two restarts take
)

// storageBound updates random rows of a table that is several times larger than
// memory, while `holdfast diagnose` looks on: where does the time go?
type storageBound struct{}

func (storageBound) Name() string { return "storage-bound" }
func (storageBound) About() string {
	return "random updates of a table several times larger than memory, taken apart by diagnose"
}
func (storageBound) NeedsDatabase() bool { return true }

func (storageBound) Groups(spec config.Experiment, _ setup.Kind) []Params {
	var gs []Params
	for _, c := range spec.Clients {
		for _, r := range spec.Readers {
			p := Params{
				"clients": c, "seconds": orDefault(spec.Seconds, boundSeconds), "workload": "random-update", "protocol": "prepared",
				"mode": "closed-loop", "memory_mb": boundMemory(spec), "data_to_ram": spec.DataToRAM, "scale": boundScale(spec),
			}
			if r > 0 {
				p["readers"] = r
			}
			gs = append(gs, p)
		}
	}
	return gs
}

func boundMemory(spec config.Experiment) int { return int(orDefault(float64(spec.Memory), memoryMB)) }

func boundScale(spec config.Experiment) int { return scaleFor(boundMemory(spec), spec.DataToRAM) }

// Estimate counts filling as if each cell did; the first of each deployment does.
func (storageBound) Estimate(spec config.Experiment, _ Params) time.Duration {
	fill := float64(boundScale(spec)) / scalePerSec / float64(max(spec.Repeat, 1)*len(spec.Clients)*len(spec.Readers))
	return seconds(orDefault(spec.Seconds, boundSeconds) + boundWarmUp + stageSeconds + fill)
}

func (storageBound) Run(ctx context.Context, env Env) (cells []result.Cell, err error) {
	s, err := newStage(env, boundMemory(env.Spec))
	if errors.Is(err, errNoStage) {
		return []result.Cell{{Verdict: Skipped, Why: err.Error()}}, nil
	}
	if err != nil {
		return nil, err
	}
	clients := env.Params["clients"].(int)
	readers, _ := env.Params["readers"].(int)
	if least := leastMemoryMB(clients + readers); boundMemory(env.Spec) < least {
		why := fmt.Sprintf("%d MB of memory do not hold a server with %d sessions: give `memory: %d` or more", boundMemory(env.Spec), clients+readers, least)
		return []result.Cell{{Verdict: Skipped, Why: why}}, nil
	}
	if err := s.fill(ctx, boundScale(env.Spec)); err != nil {
		return nil, err
	}
	end, err := s.begin(ctx, postgres.Settings{"max_connections": fmt.Sprint(clients + readers + 20)})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end()) }()
	b := &boundRun{stage: s, clients: clients, readers: readers}
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	cell, err := b.run(ctx)
	if err != nil {
		return nil, err
	}
	return []result.Cell{cell}, nil
}

// leastMemoryMB is what a server with so many sessions takes with a quarter of it
// as buffers; with 64 sessions and 192 MB the kernel killed it.
func leastMemoryMB(sessions int) int { return 96 + 2*sessions }

// boundRun is one load with its diagnosis.
type boundRun struct {
	*stage
	clients, readers int

	update, read pgbench.Config
	mb           float64 // of the table with its index
}

// scripts of pgbench; rows are those of its accounts.
const (
	updateScript = "\\set aid random(1, %d)\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n"
	readScript   = "\\set aid random(1, %d)\nSELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
)

func (b *boundRun) prepare(ctx context.Context) error {
	const perScale = 100_000
	rows := boundScale(b.env.Spec) * perScale
	config := func(name, script string, clients int) (pgbench.Config, error) {
		file := path.Join(b.host.RunDir(), name+".sql")
		cfg := pgbench.Config{
			File: file, Clients: clients, Jobs: min(clients, pgbenchJobs), Protocol: "prepared", NoVacuum: true,
			Seconds: int(max(1, orDefault(b.env.Spec.Seconds, boundSeconds))), Seed: b.env.Seed, StallLimit: boundStall,
			LogPrefix: path.Join(b.host.RunDir(), name+"-"+b.env.Key), Host: b.pg.SockDir, Port: b.pg.Port, User: b.pg.User, Database: "postgres",
		}
		if err := b.host.Put(ctx, file, fmt.Appendf(nil, script, rows), 0o644); err != nil {
			return cfg, err
		}
		return cfg, cfg.Validate()
	}
	var err error
	if b.update, err = config("update", updateScript, b.clients); err != nil {
		return err
	}
	if b.read, err = config("read", readScript, max(b.readers, 1)); err != nil {
		return err
	}
	b.read.MinTransactions = 1 // a reader that hardly gets anything is a result
	if b.mb, err = tableMB(ctx, b.pg); err != nil {
		return err
	}
	return b.pg.Exec(ctx, "CHECKPOINT")
}

// loads runs the updates, and the readers beside them.
func (b *boundRun) loads(ctx context.Context, update, read pgbench.Config) (u, r pgbench.Output, err error) {
	h := prompt{b.host}
	if b.readers == 0 {
		u, err = runPgbench(ctx, b.env, h, b.pg.ClientEnv(), update)
		return u, r, err
	}
	done := make(chan error, 1)
	go func() {
		var err error
		r, err = runPgbench(ctx, b.env, h, b.pg.ClientEnv(), read)
		done <- err
	}()
	u, err = runPgbench(ctx, b.env, h, b.pg.ClientEnv(), update)
	return u, r, errors.Join(err, <-done)
}

func (b *boundRun) warmUp(ctx context.Context) error {
	b.env.Live("warming up")
	u, r := b.update, b.read
	for _, c := range []*pgbench.Config{&u, &r} {
		c.Seconds, c.LogPrefix, c.Seed = boundWarmUp, "", c.Seed+1
	}
	out, _, err := b.loads(ctx, u, r)
	if err != nil {
		return err
	}
	if out.Exit != 0 || out.HardStopped {
		return fmt.Errorf("warm up: pgbench ended with status %d: %s", out.Exit, lastLines(out.Stderr, 3))
	}
	return nil
}

func (b *boundRun) run(ctx context.Context) (result.Cell, error) {
	if err := b.warmUp(ctx); err != nil {
		return result.Cell{}, err
	}
	length := time.Duration(b.update.Seconds) * time.Second
	b.env.Live(fmt.Sprintf("updates, %d clients, %v", b.clients, length))
	m, err := startMeter(ctx, b.env, b.pg, length)
	if err != nil {
		return result.Cell{}, err
	}
	defer m.stop()
	o := diskCounts(ctx, b.host)
	d, err := startDiagnosis(ctx, b.env, b.host, b.pg, length)
	if err != nil {
		return result.Cell{}, errors.Join(err, o.stop())
	}
	u, r, err := b.loads(ctx, b.update, b.read)
	err = errors.Join(err, o.stop())
	diagnosis, derr := d.wait(ctx)
	if err := errors.Join(err, derr); err != nil {
		return result.Cell{}, err
	}
	res, err := pgbench.Read(b.update, u)
	if err != nil {
		return result.Cell{}, err
	}
	cell, err := commitCell(res, u)
	if err != nil || cell.Verdict != result.Held {
		return cell, err
	}
	mean, err := b.readTail(&cell, r)
	if err != nil || cell.Verdict != result.Held {
		return cell, err
	}
	costs, err := m.metrics(ctx, res.Done)
	if err != nil {
		return result.Cell{}, err
	}
	maps.Copy(cell.Metrics, costs)
	o.addTo(&cell)
	diagnosis.into(cell.Metrics, mean, b.clients+b.readers)
	cell.Metrics["data_mb"] = b.mb
	if n, ok := o.perSecond("device_reads"); ok && cell.Metrics["tps"] > 0 {
		cell.Metrics["disk_reads_per_tx"] = n / cell.Metrics["tps"]
	}
	return cell, nil
}

// readTail puts what the readers met into the cell, and returns the mean latency
// of all transactions, which the diagnosis is held against.
func (b *boundRun) readTail(cell *result.Cell, out pgbench.Output) (mean float64, err error) {
	mean = cell.Metrics["latency_mean_ms"]
	if b.readers == 0 {
		return mean, nil
	}
	res, err := pgbench.Read(b.read, out)
	if err != nil {
		return 0, err
	}
	if !res.Valid() && res.NotSteady == "" || res.Latency == nil || res.TPS == nil {
		cell.Verdict, cell.Why = result.Invalid, "the readers: "+res.Why()
		return 0, nil
	}
	m := cell.Metrics
	ms := func(q float64) float64 { return float64(res.Latency.ValueAtQuantile(q)) / 1000 }
	m["read_tps"], m["read_latency_mean_ms"] = *res.TPS, res.Latency.Mean()/1000
	m["read_latency_p50_ms"], m["read_latency_p95_ms"], m["read_latency_p99_ms"] = ms(50), ms(95), ms(99)
	return (mean*m["tps"] + m["read_latency_mean_ms"]*m["read_tps"]) / (m["tps"] + m["read_tps"]), nil
}

var _ place.Host = prompt{}
