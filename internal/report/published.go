package report

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/holdfast-db/holdfast/internal/result"
)

// source is where a published figure comes from: title and machine.
type source struct{ Ref, Title, Machine string }

func sources() []source {
	return []source{{
		"P", "“Postgres with CloudNativePG on Hetzner Cloud and Kubernetes” (2026)",
		"three cpx32 servers (4 shared vCPUs, 8 GB, local NVMe; network volume of 10 GB), PostgreSQL 18.6, CloudNativePG 1.29.1; pgbench -N, scale 50, 60 s a cell",
	}, {
		"S", "“SQLite with Litestream on Hetzner Cloud” (2026)",
		"three cpx32 servers, Ubuntu 24.04, SQLite 3.45.1, Litestream v0.5.17, rqlite v10.6.0; one row a transaction, WAL mode",
	}, {
		"N", "“Postgres Isn’t Slow. Your Storage Is.” (POSETTE 2026, recaps)",
		"m6id.4xlarge (16 vCPUs, 64 GiB, 16 GiB of shared_buffers), instance-store NVMe against a baseline gp3 volume (3,000 IOPS); pgbench_accounts of 482 GiB, 64 clients, five minutes of random updates",
	}}
}

// publishedFigure is something that others measured on a comparable setup. The
// names are ours, the machine is not: it stands beside our figures, never among them.
type publishedFigure struct {
	setup, disk, experiment string
	clients                 float64 // 0: of no matter
	what, value, ref        string
}

func publishedFigures() []publishedFigure {
	return []publishedFigure{
		{"", "local-nvme", "flush", 0, "a flush on a local NVMe", "0.34–0.38 ms", "P"},
		{"", "cloud-volume", "flush", 0, "a flush on a network volume", "about 2.7 ms", "P"},
		{"pg-single", "local-nvme", "commit", 1, "one instance on a local disk, 1 client", "1.08–1.10 ms", "P"},
		{"pg-single", "cloud-volume", "commit", 1, "one instance on a network volume, 1 client", "3.66 ms", "P"},
		{"pg-single", "cloud-volume", "commit", 8, "one instance on a network volume, 8 clients", "1,311 TPS", "P"},
		{"pg-any1", "local-nvme", "commit", 1, "ANY 1 of two standbys on local disks, 1 client", "2.23 ms", "P"},
		{"pg-any1", "local-nvme", "commit", 8, "the same, 8 clients", "1.90 ms; 3.2 × the throughput of one instance on a volume, a quarter of its p99", "P"},
		{"pg-any1", "local-nvme", "commit", 32, "the same, 32 clients", "3.71 ms", "P"},
		{"pg-any1", "cloud-volume", "commit", 1, "three instances on network volumes, 1 client", "4.85 ms", "P"},
		{"pg-remote-write", "local-nvme", "commit", 1, "remote_write against ANY 1, 1 client", "0.35 ms less", "P"},
		{"pg-any1", "local-nvme", "power-off", 0, "CloudNativePG, three instances, ANY 1, hard power-off", "0 of 112,483 acknowledged writes lost; first acknowledged write after 68.0 s, failover included", "P"},
		{"holdfast", "local-nvme", "power-off", 0, "CloudNativePG, three instances, ANY 1, hard power-off", "0 of 112,483 acknowledged writes lost; no write for about 66 s, first acknowledged write after 68.0 s; the old primary streamed again 89 s after power-on", "P"},
		{"holdfast", "local-nvme", "lose-standbys", 0, "CloudNativePG, both standbys fenced, dataDurability preferred", "27.3 s without writes, then asynchronous; 0 of 124,223 acknowledged writes lost", "P"},
		{"pg-drbd", "", "power-off", 0, "one instance on DRBD, four hard power-offs", "0 of 246,766 acknowledged writes lost; 69.7 to 107.5 s without writes", "P"},
		{"", "instance-nvme", "storage-bound", 64, "random updates of 482 GiB on instance-store NVMe, 64 clients", "16,030 TPS, 4.0 ms: page reads 0.3, WAL fsync 1.5, lock and scheduler 0.2, CPU 2; 2,253 CPU seconds in 240 s", "N"},
		{"", "gp3-3000", "storage-bound", 64, "the same on a baseline gp3 volume", "1,734 TPS, 36.9 ms: page reads 19, WAL fsync 11, lock and scheduler 5, CPU 2; 251 CPU seconds in 240 s", "N"},
		{"", "instance-nvme", "vacuum", 0, "VACUUM of 10 GB of bloat, NVMe and gp3", "366 and 964 s", "N"},
		{"", "instance-nvme", "logical-backlog", 0, "10 GB of logical backlog, NVMe and gp3", "139 and 238 s", "N"},
		{"sqlite-litestream", "", "power-off", 0, "Litestream, sync interval 1 s, hard power-off", "22, 110 and 129 rows lost (110, 582 and 645 ms)", "S"},
		{"rqlite", "", "power-off", 0, "rqlite, three voters", "election in about 1 s", "S"},
	}
}

type publishedRow struct{ What, Value, Ref string }

// publishedFor picks the published figures that have a counterpart in this run,
// puts those that are ratios beside the run's comparisons, and lists their sources.
func publishedFor(groups []result.Group, comparisons []comparisonRow) (rows []publishedRow, used []source) {
	refs := map[string]bool{}
	for _, f := range publishedFigures() {
		for i := range groups {
			if f.matches(&groups[i]) {
				rows = append(rows, publishedRow{f.what, f.value, f.ref})
				refs[f.ref] = true
				break
			}
		}
	}
	for i := range comparisons {
		c := &comparisons[i]
		if text, ref := publishedRatio(c.ratio); text != "" {
			refs[ref] = true
			c.Ref, c.Published = ref, text // in place of what the run brought along, which names its source in full
		}
	}
	for _, s := range sources() {
		if refs[s.Ref] {
			used = append(used, s)
		}
	}
	return rows, used
}

func (f *publishedFigure) matches(g *result.Group) bool {
	if f.experiment != g.Experiment || f.setup != "" && f.setup != g.Setup || f.disk != "" && f.disk != g.Disk() {
		return false
	}
	clients, ok := result.Number(g.Params["clients"])
	return f.clients == 0 || ok && clients == f.clients
}

// side is one side of a published ratio.
type side struct {
	setup, disk string
	clients     int
}

// publishedRatio is the published figure for the same two setups, "" if there is none.
func publishedRatio(c result.Comparison) (text, ref string) {
	volume1, volume8 := side{"pg-single", "cloud-volume", 1}, side{"pg-single", "cloud-volume", 8}
	any1, any8 := side{"pg-any1", "local-nvme", 1}, side{"pg-any1", "local-nvme", 8}
	isLatency := c.Metric == "latency_mean_ms" || c.Metric == "latency_p50_ms"
	switch {
	case isLatency && volume1.is(c.A) && any1.is(c.B):
		return fmt.Sprintf("3.66 : 2.23 ms = %.2f", 3.66/2.23), "P"
	case isLatency && any1.is(c.A) && volume1.is(c.B):
		return fmt.Sprintf("2.23 : 3.66 ms = %.2f", 2.23/3.66), "P"
	case c.Metric == "tps" && any8.is(c.A) && volume8.is(c.B):
		return "3.2", "P"
	case c.Metric == "tps" && volume8.is(c.A) && any8.is(c.B):
		return fmt.Sprintf("1 : 3.2 = %.2f", 1/3.2), "P"
	}
	return "", ""
}

// is tells whether a comparison's side, in whatever words, names this setup,
// disk and number of clients. One that names no clients is taken as one client.
func (s side) is(text string) bool {
	tokens := strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' })
	setup, disk, clients := false, false, 1
	for i, t := range tokens {
		switch t {
		case s.setup:
			setup = true
		case s.disk:
			disk = true
		case "client", "clients", "c":
			for _, j := range []int{i - 1, i + 1} {
				if j >= 0 && j < len(tokens) {
					if n, err := strconv.Atoi(tokens[j]); err == nil {
						clients = n
					}
				}
			}
		}
	}
	return setup && disk && clients == s.clients
}
