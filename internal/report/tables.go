package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-db/holdfast/internal/result"
)

// cellValue is a figure and its spread across repetitions ("" for one).
type cellValue struct{ Main, Spread string }

func valueOf(s result.Spread, ok bool, format func(float64) string) cellValue {
	if !ok {
		return cellValue{Main: "–"}
	}
	v := cellValue{Main: format(s.Median)}
	if lo, hi := format(s.Min), format(s.Max); s.N > 1 && lo != hi {
		v.Spread = lo + "–" + hi
	}
	return v
}

func figure(g *result.Group, metric string) cellValue {
	s, ok := g.Spread(metric)
	return valueOf(s, ok, result.Figure)
}

// overview is the comparison table: a setup on a disk is a row.
type overview struct {
	HasCommit, HasFault bool
	Clients             string // that the commit columns are for: "1 client"
	Fault, Faults       string // "Power cut", "power cuts"
	Rows                []overviewRow
}

type overviewRow struct {
	badge
	Setup, Disk, Mark   string
	Mean, P50, P99, TPS cellValue
	CommitRuns          int
	Cuts                string
	Acked, Lost         string
	LostClass           string
	LostMs              string
	FirstAck            cellValue
	Promise             string
}

type baseKey struct {
	setup, disk string
	simulated   bool
}

func keyOf(g *result.Group) baseKey {
	return baseKey{g.Setup, result.DiskLabel(g.Params), g.Simulated}
}

// bases sorts the groups by setup and disk, in the order of the groups.
func bases(groups []result.Group) (keys []baseKey, byBase map[baseKey][]*result.Group) {
	byBase = map[baseKey][]*result.Group{}
	for i := range groups {
		k := keyOf(&groups[i])
		if byBase[k] == nil {
			keys = append(keys, k)
		}
		byBase[k] = append(byBase[k], &groups[i])
	}
	return keys, byBase
}

// fewestClients is the smallest number of clients that commits ran with: the
// one that shows what a single commit costs. ok is false without any commit.
func fewestClients(groups []result.Group) (n float64, ok bool) {
	for i := range groups {
		if groups[i].Experiment != "commit" {
			continue
		}
		c, _ := result.Number(groups[i].Params["clients"])
		if !ok || c < n {
			n, ok = c, true
		}
	}
	return n, ok
}

func newOverview(groups []result.Group) overview {
	clients, hasCommit := fewestClients(groups)
	o := overview{HasCommit: hasCommit, Clients: clientsText(clients)}
	keys, byBase := bases(groups)
	for _, k := range keys {
		row := overviewRow{Setup: k.setup, Disk: k.disk, Mark: mark(k.simulated)}
		none := cellValue{Main: "–"}
		row.Mean, row.P50, row.P99, row.TPS, row.FirstAck = none, none, none, none, none
		row.Cuts, row.Acked, row.Lost, row.LostMs, row.Promise = "–", "–", "–", "–", "–"
		var faults []*result.Group
		worst, any := result.Held, false
		for _, g := range byBase[k] {
			n, _ := result.Number(g.Params["clients"])
			switch {
			case g.IsFault():
				faults = append(faults, g)
			case g.Experiment == "commit" && n == clients:
				any = true
				worst = result.Worse(worst, g.Verdict())
				row.Mean, row.P50, row.P99 = figure(g, "latency_mean_ms"), figure(g, "latency_p50_ms"), figure(g, "latency_p99_ms")
				row.TPS = figure(g, "tps")
				row.CommitRuns = len(g.Usable())
			}
		}
		if len(faults) > 0 {
			o.HasFault, any = true, true
			o.nameFaults(faults)
			worst = row.addFaults(faults)
		}
		if !any {
			continue
		}
		row.badge = newBadge(worst, len(faults) > 0)
		if len(faults) > 0 {
			lost, _ := pool(faults).Spread("lost")
			row.badge = lossyBadge(worst, lost.Sum)
		}
		o.Rows = append(o.Rows, row)
	}
	return o
}

func clientsText(n float64) string {
	if n == 1 {
		return "1 client"
	}
	return result.Count(n) + " clients"
}

// nameFaults calls the overview's faults by their name, if all have one name.
func (o *overview) nameFaults(faults []*result.Group) {
	for _, g := range faults {
		one, many := result.FaultNoun(g.Fault(), g.Experiment)
		if o.Fault != "" && o.Faults != many {
			o.Fault, o.Faults = "Faults", "faults"
			return
		}
		o.Fault, o.Faults = upperFirst(one), many
	}
}

// addFaults pools the fault groups of one setup on one disk and returns their worst verdict.
func (r *overviewRow) addFaults(faults []*result.Group) string {
	pooled := pool(faults)
	f := newFaultRow(pooled)
	r.Cuts, r.Acked, r.Lost, r.LostClass, r.LostMs, r.FirstAck, r.Promise = f.Cuts, f.Acked, f.Lost, f.LostClass, f.LostMs, f.FirstAck, f.Promise
	for _, g := range faults {
		if g.Promise().Words() != f.Promise && len(g.Usable()) > 0 {
			r.Promise = "by fault"
		}
	}
	return pooled.Verdict()
}

func pool(groups []*result.Group) *result.Group {
	out := *groups[0]
	out.Cells = nil
	for _, g := range groups {
		out.Cells = append(out.Cells, g.Cells...)
	}
	return &out
}

// faultRow is one fault group in figures.
type faultRow struct {
	badge
	Setup, Disk, Mark, Fault, Conditions string
	Cuts                                 string // judged, of how many if not all
	Acked, Lost, LostMs                  string
	LostClass                            string // "", "some" when allowed, "some bad" when not
	FirstAck, Gap                        cellValue
	Unknown, Refused                     string
	Recovered, Ghost, Phantom, Twice     string
	Promise                              string
}

func newFaultRow(g *result.Group) faultRow {
	usable := g.Usable()
	one, _ := result.FaultNoun(g.Fault(), g.Experiment)
	row := faultRow{
		badge: groupBadge(g), Setup: g.Setup, Disk: result.DiskLabel(g.Params), Mark: mark(g.Simulated),
		Fault: one, Conditions: g.Conditions(), Cuts: result.Count(float64(len(usable))), Promise: cmp.Or(g.Promise().Words(), "–"),
	}
	if len(usable) < len(g.Cells) {
		row.Cuts += " of " + result.Count(float64(len(g.Cells)))
	}
	total := func(metric string) string {
		if s, ok := g.Spread(metric); ok {
			return result.Count(s.Sum)
		}
		return "–"
	}
	row.Acked, row.Lost, row.Unknown, row.Refused = total("acked"), total("lost"), total("unknown"), total("refused")
	row.Recovered, row.Ghost, row.Phantom, row.Twice = total("recovered"), total("ghost"), total("phantom"), total("duplicated")
	row.LostMs = "–"
	if s, ok := g.Spread("lost"); ok && s.Sum > 0 {
		row.LostClass = "some"
		if g.Verdict() == result.Broken {
			row.LostClass = "some bad"
		}
	}
	if s, ok := g.Spread("lost_ms"); ok && row.LostClass != "" {
		row.LostMs = result.Count(s.Max)
	}
	s, ok := g.Spread("first_ack_ms")
	row.FirstAck = valueOf(s, ok, result.Count)
	s, ok = g.Spread("longest_gap_ms")
	row.Gap = valueOf(s, ok, result.Count)
	return row
}

// faultRows lists every fault group.
func faultRows(groups []result.Group) []faultRow {
	var rows []faultRow
	for i := range groups {
		if groups[i].IsFault() {
			rows = append(rows, newFaultRow(&groups[i]))
		}
	}
	return rows
}

// commitRow is one commit group in figures.
type commitRow struct {
	badge
	Setup, Disk, Mark, Clients string
	Mean, P50, P99, P999, TPS  cellValue
	RSS, CPU                   cellValue
	Runs                       string
	clients                    float64
}

// commitRows lists every commit group, by number of clients.
func commitRows(groups []result.Group) []commitRow {
	var rows []commitRow
	for i := range groups {
		g := &groups[i]
		if g.Experiment != "commit" {
			continue
		}
		runs := result.Count(float64(len(g.Usable())))
		if len(g.Usable()) < len(g.Cells) {
			runs += " of " + result.Count(float64(len(g.Cells)))
		}
		clients, _ := result.Number(g.Params["clients"])
		rows = append(rows, commitRow{clients: clients,
			badge: newBadge(g.Verdict(), false), Setup: g.Setup, Disk: result.DiskLabel(g.Params), Mark: mark(g.Simulated),
			Clients: result.ParamText(g.Params["clients"]), Runs: runs,
			Mean: figure(g, "latency_mean_ms"), P50: figure(g, "latency_p50_ms"), P99: figure(g, "latency_p99_ms"), P999: figure(g, "latency_p999_ms"),
			TPS: figure(g, "tps"), RSS: figure(g, "rss_mb"), CPU: figure(g, "cpu_s_per_1000"),
		})
	}
	slices.SortStableFunc(rows, func(a, b commitRow) int { return cmp.Compare(a.clients, b.clients) })
	return rows
}

type roundTripRow struct {
	IDs          []string
	Title, Mark  string
	TCP, Select1 cellValue
}

func roundTripRows(groups []result.Group, ids cellIDs) []roundTripRow {
	var rows []roundTripRow
	for i := range groups {
		if g := &groups[i]; g.Experiment == "round-trip" {
			rows = append(rows, roundTripRow{ids.of(g), result.On(g.Setup, g.Params), mark(g.Simulated), figure(g, "tcp_p50_ms"), figure(g, "select1_p50_ms")})
		}
	}
	return rows
}

// otherRow is a group of an experiment that this report has no table for: its
// metrics as they are.
type otherRow struct {
	badge
	IDs                     []string
	Title, Experiment, Mark string
	Metrics                 []pair
}

func otherRows(groups []result.Group, ids cellIDs) []otherRow {
	var rows []otherRow
	for i := range groups {
		g := &groups[i]
		if g.IsFault() || slices.Contains([]string{"commit", "flush", "round-trip"}, g.Experiment) {
			continue
		}
		title := result.On(g.Setup, g.Params)
		if c := g.Conditions(); c != "" {
			title += ", " + c
		}
		row := otherRow{badge: newBadge(g.Verdict(), false), IDs: ids.of(g), Title: title, Experiment: g.Experiment, Mark: mark(g.Simulated)}
		names := map[string]bool{}
		for _, c := range g.Usable() {
			for name := range c.Metrics {
				names[name] = true
			}
		}
		for _, name := range sorted(names) {
			v := figure(g, name)
			text := v.Main
			if v.Spread != "" {
				text += " (" + v.Spread + ")"
			}
			row.Metrics = append(row.Metrics, pair{metricName(name), text})
		}
		rows = append(rows, row)
	}
	return rows
}

// metricName writes a metric's name for people, its unit in brackets.
func metricName(name string) string {
	for _, u := range []struct{ suffix, unit string }{
		{"_ms", "ms"}, {"_pct", "%"}, {"_mb", "MB"}, {"_bytes", "bytes"}, {"_s", "s"},
	} {
		if base, ok := strings.CutSuffix(name, u.suffix); ok {
			return fmt.Sprintf("%s (%s)", strings.ReplaceAll(base, "_", " "), u.unit)
		}
	}
	return strings.ReplaceAll(name, "_", " ")
}
