package report

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"

	"github.com/holdfast-db/holdfast/internal/result"
)

// storageSection is what the studies of storage found: one chart for each load,
// its disks below each other.
type storageSection struct {
	Legend []legendEntry
	Charts []storageChart
	Upkeep []upkeepRow
	Ratios []storageRatio
	WhatIf []whatIfRow
	Notes  []string
}

type storageChart struct {
	Title   string
	Looks   string
	Single  bool
	Readers bool
	Axis    template.HTML
	Rows    []storageRow
}

type storageRow struct {
	Setup, Disk, Mark  string
	N                  int
	Track              template.HTML
	TPS, Whole         cellValue
	Parts              []cellValue // in the order of storageParts
	Explained, Reading cellValue
	ReadP50, ReadP95   cellValue
}

// upkeepRow is a VACUUM or a backlog.
type upkeepRow struct {
	What, Setup, Disk, Mark string
	N                       int
	Size                    string
	Took                    cellValue
}

// storageRatio sets two disks beside each other, and what was published of such.
type storageRatio struct{ What, Ours, Published, Ref string }

type whatIfRow struct{ Load, From, To, Predicted, Measured, Off, Mark string }

// storageParts are the parts in the order of the tables.
func storageParts() []string {
	return []string{result.PartReads, result.PartFlush, result.PartWrites, result.PartLocks, result.PartCPU, result.PartClient}
}

const (
	boundExperiment   = "storage-bound"
	vacuumExperiment  = "vacuum"
	backlogExperiment = "logical-backlog"
)

func isStorage(experiment string) bool {
	return slices.Contains([]string{boundExperiment, vacuumExperiment, backlogExperiment}, experiment)
}

func newStorageSection(run *result.Run, groups []result.Group) *storageSection {
	s := &storageSection{}
	byLoad := map[string][]*result.Group{}
	var loads []string
	for i := range groups {
		g := &groups[i]
		if !isStorage(g.Experiment) {
			continue
		}
		k := g.Experiment + "\x00" + loadOf(g)
		if byLoad[k] == nil {
			loads = append(loads, k)
		}
		byLoad[k] = append(byLoad[k], g)
	}
	for _, k := range loads {
		gs := byLoad[k]
		if gs[0].Experiment == boundExperiment {
			if c, ok := newStorageChart(gs); ok {
				s.Charts = append(s.Charts, c)
			}
			s.WhatIf = append(s.WhatIf, whatIfRows(gs)...)
		} else {
			s.Upkeep = append(s.Upkeep, upkeepRows(gs)...)
		}
		s.Ratios = append(s.Ratios, storageRatios(gs, run.Seed)...)
		s.Notes = append(s.Notes, storageNotes(run, gs)...)
	}
	if len(s.Charts)+len(s.Upkeep) == 0 {
		return nil
	}
	slices.Sort(s.Notes)
	s.Notes = slices.Compact(s.Notes)
	if len(s.Charts) > 0 {
		s.Legend = storageLegend()
	}
	return s
}

// loadOf names what groups of different disks have in common.
func loadOf(g *result.Group) string {
	var parts []string
	for _, p := range []struct{ param, format string }{
		{"clients", "%s clients"}, {"readers", "%s readers beside"}, {"megabytes", "%s MB"},
		{"data_to_ram", "data %s × memory"}, {"memory_mb", "memory %s MB"},
	} {
		if v := result.ParamText(g.Params[p.param]); v != "" {
			parts = append(parts, fmt.Sprintf(p.format, v))
		}
	}
	return strings.Join(parts, ", ")
}

func newStorageChart(groups []*result.Group) (storageChart, bool) {
	c := storageChart{Title: loadOf(groups[0]), Single: true}
	var shown []*result.Group
	var made []result.Composition
	top, looks := 0.0, 0.0
	for _, g := range groups {
		m, ok := result.ComposeStorage(g)
		if !ok {
			continue
		}
		shown, made = append(shown, g), append(made, m)
		top, looks = max(top, m.Whole.Ms, reachOf(m)), looks+m.Samples
		c.Single = c.Single && m.N == 1
	}
	if len(made) == 0 || top <= 0 {
		return c, false
	}
	c.Looks = result.Count(looks)
	axis := scale{hi: top * 1.05}
	ticks := niceTicks(0, axis.hi, 5)
	c.Axis = dotAxis(axis, ticks)
	for i, m := range made {
		g := shown[i]
		r := storageRow{
			Setup: g.Setup, Disk: result.DiskLabel(g.Params), Mark: mark(g.Simulated), N: m.N, Track: partsTrack(axis, ticks, m),
			TPS: figure(g, "tps"), Whole: partValue(m.Whole), Explained: figure(g, "explained_pct"), Reading: figure(g, "page_read_sessions_pct"),
			ReadP50: figure(g, "read_latency_p50_ms"), ReadP95: figure(g, "read_latency_p95_ms"),
		}
		for _, name := range storageParts() {
			v := cellValue{Main: "–"}
			for _, p := range m.Parts {
				if p.Name == name {
					v = partValue(p)
				}
			}
			r.Parts = append(r.Parts, v)
		}
		_, beside := g.Spread("read_latency_p95_ms")
		c.Readers = c.Readers || beside
		c.Rows = append(c.Rows, r)
	}
	return c, true
}

func upkeepRows(groups []*result.Group) []upkeepRow {
	var rows []upkeepRow
	for _, g := range groups {
		what, took, size := "VACUUM", "vacuum_s", ""
		if g.Experiment == backlogExperiment {
			what, took = "logical backlog", "drain_s"
			if s, ok := g.Spread("backlog_mb"); ok {
				size = result.Figure(s.Median) + " MB of WAL"
			}
		} else if s, ok := g.Spread("dead_rows"); ok {
			size = result.Count(s.Median) + " dead rows"
			if mb, ok := g.Spread("data_mb"); ok {
				size += " in " + result.Figure(mb.Median) + " MB"
			}
		}
		s, ok := g.Spread(took)
		if !ok {
			continue
		}
		rows = append(rows, upkeepRow{What: what, Setup: g.Setup, Disk: result.DiskLabel(g.Params), Mark: mark(g.Simulated), N: s.N, Size: size, Took: figure(g, took)})
	}
	return rows
}

// publishedStorage are the published ratios, by experiment.
func publishedStorage(experiment string) string {
	switch experiment {
	case boundExperiment:
		return "16,030 : 1,734 TPS = 9.24"
	case vacuumExperiment:
		return fmt.Sprintf("366 : 964 s = %.2f", 366.0/964)
	}
	return fmt.Sprintf("139 : 238 s = %.2f", 139.0/238)
}

// storageRatios set the instance store beside the network volume.
func storageRatios(groups []*result.Group, seed uint64) []storageRatio {
	fast, slow := onNamed(groups, "instance-nvme"), onNamed(groups, "gp3-3000")
	if fast == nil || slow == nil {
		return nil
	}
	metric, what, unit := "tps", "throughput", "TPS"
	switch fast.Experiment {
	case vacuumExperiment:
		metric, what, unit = "vacuum_s", "VACUUM", "s"
	case backlogExperiment:
		metric, what, unit = "drain_s", "time to drain the backlog", "s"
	}
	r, ok := result.RatioOf(fast, slow, metric, seed)
	a, _ := fast.Spread(metric)
	b, _ := slow.Spread(metric)
	if !ok {
		return nil
	}
	text := fmt.Sprintf("%s : %s %s = %s", result.Figure(a.Median), result.Figure(b.Median), unit, result.Figure(r.Point))
	if math.IsNaN(r.Lo) {
		text += " (one repetition: no interval)"
	} else {
		text += fmt.Sprintf(" (95 %%: %s–%s, %d blocks)", result.Figure(r.Lo), result.Figure(r.Hi), r.N)
	}
	out := []storageRatio{{fmt.Sprintf("%s, instance-nvme : gp3-3000, %s", what, loadOf(fast)), text, publishedStorage(fast.Experiment), "N"}}
	if fast.Experiment != boundExperiment {
		return out
	}
	ra, okA := fast.Spread("page_read_sessions_pct")
	rb, okB := slow.Spread("page_read_sessions_pct")
	if okA && okB {
		out = append(out, storageRatio{"sessions that read a page, instance-nvme and gp3-3000, " + loadOf(fast),
			fmt.Sprintf("%s %% and %s %%", result.Figure(ra.Median), result.Figure(rb.Median)), "14 % (9 of 64) and 45 % (29 of 64)", "N"})
	}
	return out
}

func onNamed(groups []*result.Group, disk string) *result.Group {
	for _, g := range groups {
		if g.Disk() == disk {
			return g
		}
	}
	return nil
}

// storageNotes say why a ratio differs from the published one.
func storageNotes(run *result.Run, groups []*result.Group) []string {
	var notes []string
	for _, g := range groups {
		busy, ok := g.Spread("busy_pct")
		if g.Experiment == boundExperiment && ok && busy.Median >= 85 {
			notes = append(notes, fmt.Sprintf("On %s, %s, this machine’s %s processors were %s %% busy, with server, clients and the simulated disk on them: there they are the limit, not the disk. The published machines had 16 for the server and its clients alone.",
				result.DiskLabel(g.Params), loadOf(g), cmp.Or(run.Environment["cores"], "few"), result.Figure(busy.Median)))
		}
		limit, capped := g.Spread("disk_iops_cap")
		iops, have := g.Spread("disk_iops")
		if g.Experiment == boundExperiment && capped && have && iops.Median >= 0.85*limit.Median {
			notes = append(notes, fmt.Sprintf("On %s, %s, the disk did %s operations a second of the %s that it is sold with: it is the limit.",
				result.DiskLabel(g.Params), loadOf(g), result.Count(iops.Median), result.Count(limit.Median)))
		}
	}
	return notes
}

// whatIfRows hold what was predicted on one disk against what was measured on
// another, where both ran.
func whatIfRows(groups []*result.Group) []whatIfRow {
	var rows []whatIfRow
	for _, from := range groups {
		for _, to := range groups {
			p, ok := from.Spread("whatif_" + strings.ReplaceAll(to.Disk(), "-", "_") + "_ms")
			m, measured := to.Spread("latency_mean_ms")
			if from == to || !ok || !measured || m.Median <= 0 {
				continue
			}
			rows = append(rows, whatIfRow{
				Load: loadOf(from), From: result.DiskLabel(from.Params), To: result.DiskLabel(to.Params), Mark: mark(to.Simulated),
				Predicted: result.Figure(p.Median), Measured: result.Figure(m.Median), Off: signedPercent(p.Median/m.Median - 1),
			})
		}
	}
	return rows
}

func signedPercent(v float64) string {
	return strings.Replace(fmt.Sprintf("%+.0f %%", 100*v), "-", "−", 1)
}

func storageLegend() []legendEntry {
	words := map[string]string{
		result.PartReads:  "page reads: waiting for pages that neither PostgreSQL nor the kernel had",
		result.PartFlush:  "flush: waiting for WAL to be on the disk, for one’s turn in a group too",
		result.PartWrites: "data writes: sessions that wrote pages themselves to make room",
		result.PartLocks:  "locks, of rows and within the server",
		result.PartCPU:    "processor: on one, or waiting for one",
		result.PartClient: "client, round trips, and what was not named",
	}
	var out []legendEntry
	for _, p := range storageParts() {
		out = append(out, legendEntry{svg(fmt.Sprintf(`<svg class="key" width="22" height="12" aria-hidden="true"><rect class="%s" width="22" height="12"/></svg>`, partClass(p))), words[p]})
	}
	return out
}

// storage is the section for a terminal.
func (t *text) storage(s *storageSection) {
	if s == nil {
		return
	}
	for _, c := range s.Charts {
		rows := [][]string{}
		headers := []string{"disk", "tps", "whole", "reads", "flush", "writes", "locks", "cpu", "client", "named", "reading"}
		if c.Readers {
			headers = append(headers, "p95")
		}
		for _, r := range c.Rows {
			row := []string{r.Disk + tilde(r.Mark), r.TPS.Main, r.Whole.Main}
			for _, p := range r.Parts {
				row = append(row, p.Main)
			}
			row = append(row, r.Explained.Main+" %", r.Reading.Main+" %")
			if c.Readers {
				row = append(row, r.ReadP95.Main)
			}
			rows = append(rows, row)
		}
		t.table("Storage-bound, "+c.Title+": what a transaction is made of (ms; named: the share of the latency that diagnose explained; reading: sessions that read a page; p95: of the readers)", headers, rows, 1)
	}
	rows := [][]string{}
	for _, r := range s.Upkeep {
		rows = append(rows, []string{r.What, r.Disk + tilde(r.Mark), r.Size, both(r.Took), fmt.Sprint(r.N)})
	}
	t.table("VACUUM and logical backlog (medians and ranges)", []string{"what", "disk", "of", "seconds", "runs"}, rows, 3)
	rows = rows[:0]
	for _, r := range s.WhatIf {
		rows = append(rows, []string{r.From + " → " + r.To + tilde(r.Mark), r.Load, r.Predicted, r.Measured, r.Off})
	}
	t.table("What-if: predicted by a diagnosis on the first disk, and measured on the second (ms)", []string{"disks", "load", "predicted", "measured", "off"}, rows, 2)
	if len(s.Ratios) > 0 {
		t.heading("Disks beside each other, and what was published of such (other machines, real disks)")
		for _, r := range s.Ratios {
			t.wrapped("  ", "    ", r.What+": "+r.Ours+"; published: "+r.Published+" ["+r.Ref+"]")
		}
	}
	for _, n := range s.Notes {
		t.wrapped("  ", "    ", n)
	}
}
