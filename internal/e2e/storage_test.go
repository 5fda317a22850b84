package e2e

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-db/holdfast/internal/lab/experiment"
	"github.com/holdfast-db/holdfast/internal/result"
)

// storageStudy is all three at a scale of seconds. Only a capped disk is used: on
// it figures do not depend on how busy the machine is.
const storageStudy = `
study: storage
setups:
  - {setup: pg-single, disk: gp3-3000}
  - {setup: pg-logical, disk: gp3-3000}
experiments:
  - {experiment: storage-bound, setups: [pg-single], clients: [16], readers: [2], seconds: 6, memory: 160, data_to_ram: 1.2}
  - {experiment: vacuum, setups: [pg-single], data_to_ram: 0.5}
  - {experiment: logical-backlog, data_to_ram: 0.5, megabytes: 4}
`

// TestStorageStudies: reads reach the simulated disk, its cap holds them up, and
// diagnose finds them; a backlog is drained and a vacuum timed.
func TestStorageStudies(t *testing.T) {
	needLab(t)
	if os.Getenv("HOLDFAST_LONG") == "" {
		t.Skip("set HOLDFAST_LONG=1 for the studies of storage, which fill tables for a minute or two")
	}
	b := newBench(t)
	b.labRun(b.study(storageStudy)).want(t, 0)
	run := b.result()
	if len(run.Cells) != 3 {
		t.Fatalf("%d cells, want 3: %+v", len(run.Cells), run.Skipped)
	}
	for _, c := range run.Cells {
		m := c.Metrics
		if c.Verdict != result.Held {
			t.Errorf("%s: %s: %s", c.Experiment, c.Verdict, c.Why)
			continue
		}
		t.Logf("%s: %v", c.Experiment, m)
		switch c.Experiment {
		case "storage-bound":
			parts := m["page_read_ms"] + m["commit_flush_ms"] + m["replication_ms"] + m["lock_ms"] + m["cpu_ms"] + m["data_write_ms"] + m["client_ms"] + m["other_ms"]
			whole := (m["latency_mean_ms"]*m["tps"] + m["read_latency_mean_ms"]*m["read_tps"]) / (m["tps"] + m["read_tps"])
			if e := m["explained_pct"]; math.Abs(100*parts/whole-e) > 5 || e < 80 || e > 120 {
				t.Errorf("%.1f %% of %.2f ms are explained, the parts come to %.2f", e, whole, parts)
			}
			if m["disk_reads_per_tx"] <= 0.05 || m["page_read_ms"] <= 0 || m["disk_iops_max"] > 1.1*m["disk_iops_cap"] {
				t.Errorf("%.2f reads of the disk a transaction, %.2f ms of them; up to %.0f operations a second, the cap is %.0f",
					m["disk_reads_per_tx"], m["page_read_ms"], m["disk_iops_max"], m["disk_iops_cap"])
			}
			if m["read_latency_p95_ms"] <= m["read_latency_p50_ms"] {
				t.Errorf("readers: p95 %.2f, p50 %.2f ms", m["read_latency_p95_ms"], m["read_latency_p50_ms"])
			}
		case "vacuum":
			if m["vacuum_s"] <= 0 || m["dead_rows"] < 1000 || m["wal_mb"] <= 0 {
				t.Errorf("vacuum: %v", m)
			}
		case "logical-backlog":
			if m["drain_s"] <= 0 || m["backlog_mb"] < 4 || m["backlog_transactions"] < 50 {
				t.Errorf("logical-backlog: %v", m)
			}
		}
		if _, err := os.Stat(filepath.Join(b.dir, "out", experiment.DiagnosisFile(fmt.Sprintf("%04d", c.Planned)))); err != nil && c.Experiment == "storage-bound" {
			t.Error(err)
		}
	}
	b.clean()
}

// TestWhatIf: what a diagnosis on a network volume predicts for a local disk is
// within a fifth of what the lab then measures there, for a load of flushes and
// for one of page reads.
func TestWhatIf(t *testing.T) {
	needLab(t)
	if os.Getenv("HOLDFAST_LONG") == "" {
		t.Skip("takes some minutes and wants a quiet machine: set HOLDFAST_LONG=1")
	}
	b := newBench(t)
	b.labRun("what-if").want(t, 0)
	type load struct{ clients, ratio float64 }
	predicted, measured := map[load]float64{}, map[load]float64{}
	for _, c := range b.result().Cells {
		clients, _ := result.Number(c.Params["clients"])
		ratio, _ := result.Number(c.Params["data_to_ram"])
		switch c.Params["disk"] {
		case "cloud-volume":
			predicted[load{clients, ratio}] = c.Metrics[experiment.WhatIfMetric("local-nvme")]
		case "local-nvme":
			measured[load{clients, ratio}] = c.Metrics["latency_mean_ms"]
		}
	}
	if len(predicted) < 2 {
		t.Fatalf("%d loads were predicted", len(predicted))
	}
	for l, p := range predicted {
		m := measured[l]
		t.Logf("%.0f clients, data %.1f times the memory: predicted %.2f ms, measured %.2f", l.clients, l.ratio, p, m)
		if off := math.Abs(p/m - 1); !(off <= 0.2) {
			t.Errorf("%.0f clients, data %.1f times the memory: predicted %.2f ms, measured %.2f: %.0f %% off", l.clients, l.ratio, p, m, 100*off)
		}
	}
	b.clean()
}
