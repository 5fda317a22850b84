// Package resulttest makes runs for the tests of what reads them: shaped like
// real ones, drawn from a seed, with every verdict and every kind of finding in them.
package resulttest

import (
	"fmt"
	"math"
	"math/rand/v2"

	hdr "github.com/HdrHistogram/hdrhistogram-go"

	"github.com/holdfast-db/holdfast/internal/result"
)

// model is what a drawn setup costs and loses.
type model struct {
	setup, disk string
	promise     result.Promise
	commitMs    map[int]float64 // by clients
	firstAckMs  float64
	liar        bool // loses something in most cuts
	losesLag    bool // loses what the lagging standbys had not got
	recovery    string
}

func models() []model {
	nothing := result.Promise{Lose: result.LoseNothing}
	unbounded := result.Promise{Lose: result.LoseUnbounded}
	restart := "operator's script: power on, crash recovery"
	promote := "operator's script: promote the most advanced standby"
	return []model{
		{"pg-single", "local-nvme", nothing, map[int]float64{1: 0.92, 8: 1.31}, 1450, false, false, restart},
		{"pg-single", "cloud-volume", nothing, map[int]float64{1: 3.58, 8: 5.4}, 1720, false, false, restart},
		{"pg-async", "local-nvme", unbounded, map[int]float64{1: 1.02, 8: 1.5}, 690, false, true, promote},
		{"pg-remote-write", "local-nvme", nothing, map[int]float64{1: 1.42, 8: 1.74}, 700, false, false, promote},
		{"pg-any1", "local-nvme", nothing, map[int]float64{1: 1.79, 8: 2.02}, 720, false, false, promote},
		{"pg-fsync-off", "local-nvme", nothing, map[int]float64{1: 0.41, 8: 0.7}, 1600, true, false, restart},
	}
}

// Sample is a whole run: a flush ladder on two disks, round trips, commits at
// two numbers of clients, power cuts with and without lag, one setup that breaks
// its promise, one cell that failed and one that must not be used. cuts is the
// number of power cuts for each group. The same seed gives the same run.
func Sample(seed uint64, cuts int) *result.Run {
	rng := rand.New(rand.NewPCG(seed, 1))
	run := &result.Run{
		Schema: result.Schema, Study: "power-off", Seed: seed,
		Started: "2026-03-14T09:26:53Z", Finished: "2026-03-14T10:02:11Z",
		Command:   fmt.Sprintf("holdfast lab run power-off --out runs/power-off --seed %d", seed),
		Simulated: true,
		Environment: map[string]string{
			"cpu": "2 × AMD EPYC 7763", "memory": "7.7 GiB", "kernel": "Linux 6.1.0-32-amd64", "os": "Debian GNU/Linux 12",
			"filesystem": "ext4, rw,relatime", "postgres": "15.12", "holdfast": "0.1.0 (a1b2c3d)", "place": "local",
			"round_trip":    "the machine's own (no netem in this kernel)",
			"selftest":      "passed 2026-03-14 on 0.1.0: 3 of 3 liars caught",
			"disk.overlays": "local-nvme: flush 0.34 ms; cloud-volume: flush 2.7 ms",
		},
		Noise: []result.Noise{{Experiment: "commit", Metric: "latency_mean_ms", HalfWidth: 0.031}},
		Comparisons: []result.Comparison{
			{A: "pg-single on cloud-volume, 1 client", B: "pg-any1 on local-nvme, 1 client", Experiment: "commit", Metric: "latency_mean_ms", Ratio: 2.001, Lo: 1.934, Hi: 2.07},
			{A: "pg-any1 on local-nvme, 8 clients", B: "pg-single on cloud-volume, 8 clients", Experiment: "commit", Metric: "tps", Ratio: 2.66, Lo: 2.51, Hi: 2.8},
			{A: "pg-remote-write on local-nvme, 1 client", B: "pg-any1 on local-nvme, 1 client", Experiment: "commit", Metric: "latency_mean_ms", Ratio: 0.793, Lo: 0.762, Hi: 0.826},
			{A: "pg-any1 on local-nvme, 1 client", B: "pg-any1 on local-nvme, 1 client (again)", Experiment: "commit", Metric: "latency_mean_ms", Ratio: 1.006, Lo: 0.981, Hi: 1.031},
		},
		Skipped: []result.Skipped{{Cell: "pg-any1 on local-nvme, power-off, repetition 21", Why: "the run's time was up"}},
	}
	for _, disk := range []string{"local-nvme", "cloud-volume"} {
		run.Cells = append(run.Cells, flushLadder(rng, disk)...)
	}
	for _, m := range models() {
		run.Cells = append(run.Cells, roundTrip(rng, m))
		for _, clients := range []int{1, 8} {
			for rep := 1; rep <= 5; rep++ {
				run.Cells = append(run.Cells, commit(rng, m, clients, rep))
			}
		}
		for rep := 1; rep <= cuts; rep++ {
			run.Cells = append(run.Cells, powerOff(rng, m, 0, rep))
		}
		if m.setup == "pg-async" || m.setup == "pg-any1" {
			for rep := 1; rep <= min(cuts, 6); rep++ {
				run.Cells = append(run.Cells, powerOff(rng, m, 1500, rep))
			}
		}
	}
	rng.Shuffle(len(run.Cells), func(i, j int) { run.Cells[i], run.Cells[j] = run.Cells[j], run.Cells[i] })
	spoil(run)
	at := 0.0
	for i := range run.Cells {
		run.Cells[i].StartedS = math.Round(at*10) / 10
		at += 2 + 10*rng.Float64()
	}
	return run
}

// spoil makes one power cut a failure of the lab and one commit cell unusable.
func spoil(run *result.Run) {
	for i := range run.Cells {
		c := &run.Cells[i]
		if c.Setup == "pg-remote-write" && c.Experiment == "power-off" && c.Repetition == 2 {
			c.Verdict, c.Why = result.Unknown, "the collector's disk was full (write history: no space left on device)"
			c.Metrics, c.IDs, c.Series = map[string]float64{}, nil, nil
		}
		if c.Setup == "pg-single" && c.Experiment == "commit" && c.Params["clients"] == 8 && c.Repetition == 3 && c.Params["disk"] == "cloud-volume" {
			c.Verdict, c.Why = result.Invalid, "latency changed regime at 11 s (2.1 to 9.8 ms): throttled, so one average would mislead"
		}
	}
}

func flushLadder(rng *rand.Rand, disk string) []result.Cell {
	base := map[string]float64{"local-nvme": 0.34, "cloud-volume": 2.71}[disk]
	var cells []result.Cell
	for i, pattern := range []string{"append", "fallocated", "zero-filled", "same-block"} {
		for j, call := range []string{"fdatasync", "fsync", "O_DSYNC"} {
			for _, direct := range []bool{false, true} {
				mean := base * (1 + 0.9*float64Of(i == 0 || i == 1 && j > 0 || direct && j == 1) + 0.05*rng.Float64())
				cells = append(cells, result.Cell{
					Setup: "disk", Experiment: "flush", Repetition: 1, Simulated: true, Verdict: result.Held,
					Params:  map[string]any{"disk": disk, "pattern": pattern, "call": call, "direct": direct, "seconds": 2},
					Metrics: map[string]float64{"p50_ms": round(mean), "mean_ms": round(mean * 1.05), "p99_ms": round(mean * 1.6)},
				})
			}
		}
	}
	return cells
}

func float64Of(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func roundTrip(rng *rand.Rand, m model) result.Cell {
	return result.Cell{
		Setup: m.setup, Experiment: "round-trip", Repetition: 1, Simulated: true, Verdict: result.Held,
		Params:  map[string]any{"disk": m.disk},
		Metrics: map[string]float64{"tcp_p50_ms": round(0.04 + 0.01*rng.Float64()), "select1_p50_ms": round(0.11 + 0.02*rng.Float64())},
	}
}

func commit(rng *rand.Rand, m model, clients, rep int) result.Cell {
	mean := m.commitMs[clients] * (1 + 0.04*rng.NormFloat64())
	text, h := drawHistogram(rng, mean, 4000)
	mean = h.Mean() / 1000
	c := result.Cell{
		Setup: m.setup, Experiment: "commit", Repetition: rep, Simulated: true, Verdict: result.Held,
		Params:    map[string]any{"disk": m.disk, "clients": clients, "seconds": 20, "workload": "simple-update"},
		Histogram: text,
		Versions:  map[string]string{"postgres": "15.12", "pgbench": "15.12"},
		Metrics: map[string]float64{
			"latency_mean_ms": round(mean), "latency_p50_ms": ms(h, 50), "latency_p99_ms": ms(h, 99), "latency_p999_ms": ms(h, 99.9),
			"tps": round(float64(clients) / mean * 1000), "failed": 0, "rss_mb": round(190 + 20*rng.Float64()), "cpu_s_per_1000": round(0.4 + 0.1*rng.Float64()),
			"disk_bytes": 4e8,
		},
	}
	takeApart(&c, m, rep)
	return c
}

// takeApart adds what a commit waited for and what its disk did. It draws
// nothing, so that what was drawn before there was any of it stays as it was.
func takeApart(c *result.Cell, m model, rep int) {
	flush := map[string]float64{"local-nvme": 0.36, "cloud-volume": 2.8}[m.disk]
	mean, tps := c.Metrics["latency_mean_ms"], c.Metrics["tps"]
	replication := 0.0
	if m.setup == "pg-remote-write" || m.setup == "pg-any1" {
		replication = 0.45 * mean
	}
	wobble := 1 + 0.02*float64(rep-3)
	c.Metrics["commit_flush_ms"], c.Metrics["replication_ms"] = round(min(flush*wobble, 0.8*mean)), round(replication*wobble)
	c.Metrics["lock_ms"], c.Metrics["page_read_ms"], c.Metrics["wait_samples"] = 0, 0, 960
	c.Metrics["disk_flush_mean_ms"] = round(flush * wobble)
	ops := min(2*tps, 2000)
	c.Metrics["disk_iops"], c.Metrics["disk_iops_max"], c.Metrics["disk_iops_cap"] = round(ops), round(1.1*ops), 3000
	for s := range 20 {
		c.DiskSeries = append(c.DiskSeries, result.DiskSecond{T: float64(s) + 0.4, Ops: round(ops * (0.9 + 0.01*float64((s*7+rep)%20))), Flushes: round(ops / 2), Bytes: round(ops * 8192)})
	}
}

// drawHistogram draws n latencies: most around the mean, a few far above it.
func drawHistogram(rng *rand.Rand, meanMs float64, n int) (string, *hdr.Histogram) {
	h := hdr.New(1, 60_000_000, 3)
	for range n {
		v := meanMs * 1000 * math.Exp(0.22*rng.NormFloat64()-0.024)
		if rng.Float64() < 0.006 {
			v *= 3 + 6*rng.Float64()
		}
		_ = h.RecordValue(int64(v)) // within the range by construction
	}
	text, err := h.Encode(hdr.V2CompressedEncodingCookieBase)
	if err != nil {
		panic(fmt.Sprintf("encode a drawn histogram: %v", err))
	}
	return string(text), h
}

func ms(h *hdr.Histogram, p float64) float64 { return round(float64(h.ValueAtPercentile(p)) / 1000) }

func round(v float64) float64 { return math.Round(v*1000) / 1000 }
