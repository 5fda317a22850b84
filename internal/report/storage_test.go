package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/result"
)

// storageRun is one of each study of storage on both disks, with figures that can
// be told apart.
func storageRun() *result.Run {
	bound := func(disk string, rep int, m map[string]float64) result.Cell {
		return result.Cell{Setup: "pg-single", Experiment: "storage-bound", Repetition: rep, Verdict: result.Held, Simulated: true, Metrics: m,
			Params: map[string]any{"disk": disk, "clients": 64.0, "memory_mb": 256.0, "data_to_ram": 7.5, "seconds": 20.0}}
	}
	upkeep := func(experiment, setup, disk string, rep int, m map[string]float64) result.Cell {
		return result.Cell{Setup: setup, Experiment: experiment, Repetition: rep, Verdict: result.Held, Simulated: true, Metrics: m,
			Params: map[string]any{"disk": disk, "memory_mb": 128.0, "data_to_ram": 7.5, "megabytes": 20.0}}
	}
	fast := map[string]float64{"tps": 4000, "latency_mean_ms": 16, "page_read_ms": 2.25, "commit_flush_ms": 3.5, "data_write_ms": 8.125, "lock_ms": 0.25, "cpu_ms": 1.5,
		"replication_ms": 0, "explained_pct": 97.7, "page_read_sessions_pct": 14.1, "wait_samples": 100, "busy_pct": 97}
	slow := map[string]float64{"tps": 1000, "latency_mean_ms": 64, "page_read_ms": 31.5, "commit_flush_ms": 29.25, "data_write_ms": 0.5, "lock_ms": 0.125, "cpu_ms": 0.375,
		"replication_ms": 0, "explained_pct": 96.5, "page_read_sessions_pct": 49.2, "wait_samples": 100, "busy_pct": 40, "disk_iops": 2950, "disk_iops_cap": 3000, "whatif_instance_nvme_ms": 17.6}
	return &result.Run{Schema: result.Schema, Study: "storage", Seed: 1, Started: "2026-11-30T20:00:00Z", Simulated: true, Environment: map[string]string{"cores": "2"}, Cells: []result.Cell{
		bound("instance-nvme", 1, fast), bound("gp3-3000", 1, slow),
		upkeep("vacuum", "pg-single", "instance-nvme", 1, map[string]float64{"vacuum_s": 10, "dead_rows": 150000, "data_mb": 960}),
		upkeep("vacuum", "pg-single", "gp3-3000", 1, map[string]float64{"vacuum_s": 25, "dead_rows": 150000, "data_mb": 960}),
		upkeep("logical-backlog", "pg-logical", "instance-nvme", 1, map[string]float64{"drain_s": 6, "backlog_mb": 100}),
		upkeep("logical-backlog", "pg-logical", "instance-nvme", 2, map[string]float64{"drain_s": 6.5, "backlog_mb": 100}),
		upkeep("logical-backlog", "pg-logical", "gp3-3000", 1, map[string]float64{"drain_s": 12, "backlog_mb": 100}),
		upkeep("logical-backlog", "pg-logical", "gp3-3000", 2, map[string]float64{"drain_s": 13, "backlog_mb": 100}),
	}}
}

// TestStorage: each disk's parts, the ratios with what was published beside, the
// reason for a difference, and what was predicted.
func TestStorage(t *testing.T) {
	run := storageRun()
	for i, want := range []string{"4,000 random updates a second, 16.0 ms each, at 64 clients", "1,000 random updates"} {
		if s := result.Summarise(&result.Run{Cells: run.Cells[i : i+1]})[0].Sentence; !strings.Contains(s, want) {
			t.Errorf("the sentence lacks %q: %s", want, s)
		}
	}
	var text, page bytes.Buffer
	if err := Text(&text, run, TextOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := HTML(&page, run); err != nil {
		t.Fatal(err)
	}
	flat := strings.Join(strings.Fields(text.String()), " ")
	for _, want := range []string{
		"instance-nvme ~ 4,000 16.0 2.25 3.50 8.12 0.25 1.50 0.38 97.7 % 14.1 %",
		"gp3-3000 ~ 1,000 64.0 31.5 29.2 0.50 0.12 0.38 2.25 96.5 % 49.2 %",
		"4,000 : 1,000 TPS = 4.00 (one repetition: no interval); published: 16,030 : 1,734 TPS = 9.24 [N]",
		"14.1 % and 49.2 %; published: 14 % (9 of 64) and 45 % (29 of 64) [N]",
		"published: 366 : 964 s = 0.38 [N]", "published: 139 : 238 s = 0.58 [N]", "2 blocks)",
		"2 processors were 97", "2,950 operations a second of the 3,000",
		"gp3-3000 → instance-nvme ~", "17.6 16.0 +10 %",
		"[N] “Postgres Isn’t Slow. Your Storage Is.”",
	} {
		if !strings.Contains(flat, want) {
			t.Errorf("the text lacks %q", want)
		}
	}
	for _, want := range []string{`id="storage"`, `class="p4"`, "9.24 [N]", "m6id.4xlarge"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(text.String())
	}
}

// TestStorageAbsent: other runs have no such section.
func TestStorageAbsent(t *testing.T) {
	run := storageRun()
	for i := range run.Cells {
		run.Cells[i].Verdict, run.Cells[i].Metrics = result.Invalid, map[string]float64{}
	}
	if s := newStorageSection(run, result.Groups(run)); s != nil {
		t.Errorf("a run without figures has a section: %+v", s)
	}
}
