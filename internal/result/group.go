package result

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Group is the repetitions of one setup × experiment × params. Simulated and
// real cells are never in one group.
type Group struct {
	Setup      string
	Experiment string
	Params     map[string]any
	Simulated  bool
	Cells      []*Cell // by repetition
	Extra      string  // params beyond Conditions that tell it from its like: "rate 500"
}

// Key names the group that a cell belongs to. Equal params have equal keys,
// whether they come from a study or from a run.json.
func Key(c *Cell) string {
	params, err := json.Marshal(c.Params)
	if err != nil { // Validate refuses such params
		params = fmt.Append(nil, c.Params)
	}
	kind := "real"
	if c.Simulated {
		kind = "simulated"
	}
	return strings.Join([]string{c.Setup, c.Experiment, kind, string(params)}, "\x00")
}

// Groups sorts the cells of a run into groups: by setup (single instance first,
// then by how much replication costs), disk, experiment and params. The order
// does not depend on the random order in which cells ran.
func Groups(run *Run) []Group {
	byKey := map[string]*Group{}
	var keys []string
	for i := range run.Cells {
		c := &run.Cells[i]
		k := Key(c)
		g := byKey[k]
		if g == nil {
			g = &Group{Setup: c.Setup, Experiment: c.Experiment, Params: c.Params, Simulated: c.Simulated}
			byKey[k] = g
			keys = append(keys, k)
		}
		g.Cells = append(g.Cells, c)
	}
	groups := make([]Group, 0, len(keys))
	for _, k := range keys {
		g := byKey[k]
		slices.SortStableFunc(g.Cells, func(a, b *Cell) int { return cmp.Compare(a.Repetition, b.Repetition) })
		groups = append(groups, *g)
	}
	slices.SortStableFunc(groups, func(a, b Group) int {
		return cmp.Or(CompareSetups(a.Setup, b.Setup), compareDisks(a.Params, b.Params),
			cmp.Compare(a.Experiment, b.Experiment), compareParams(a.Params, b.Params),
			cmp.Compare(strconv.FormatBool(a.Simulated), strconv.FormatBool(b.Simulated)))
	})
	tellApart(groups)
	return groups
}

// tellApart fills Extra where setup, disk, experiment and conditions are the
// same: with the params that differ.
func tellApart(groups []Group) {
	alike := map[string][]*Group{}
	for i := range groups {
		g := &groups[i]
		k := strings.Join([]string{g.Setup, DiskLabel(g.Params), g.Experiment, Conditions(g.Params), strconv.FormatBool(g.Simulated)}, "\x00")
		alike[k] = append(alike[k], g)
	}
	for _, same := range alike {
		values := map[string]map[string]bool{}
		for _, g := range same {
			for k := range g.Params {
				values[k] = map[string]bool{}
			}
		}
		for k, seen := range values {
			for _, g := range same {
				seen[ParamText(g.Params[k])] = true
			}
		}
		for _, g := range same {
			var parts []string
			for _, k := range sortedKeys(values) {
				if v := ParamText(g.Params[k]); len(values[k]) > 1 && v != "" {
					parts = append(parts, strings.ReplaceAll(k, "_", " ")+" "+v)
				}
			}
			g.Extra = strings.Join(parts, ", ")
		}
	}
}

// Conditions says what distinguishes the group beyond setup and disk, "" if nothing does.
func (g *Group) Conditions() string {
	c := Conditions(g.Params)
	if c == "" || g.Extra == "" {
		return c + g.Extra
	}
	return c + ", " + g.Extra
}

// Fault is what was done to the group's setup, "" for a measurement.
func (g *Group) Fault() string {
	for _, c := range g.Cells {
		if c.Fault != "" {
			return c.Fault
		}
	}
	return ""
}

// faultExperiments inject a fault even in cells that failed before they could say so.
var faultExperiments = []string{"power-off", "host-lost", "two-hosts", "site-loss", "lose-standbys", "standby-power-off", "all-off", "partition", "freeze", "restart", "failover",
	"postgres-kill", "double-failure", "disk-full", "disk-hang", "switchover", "cancel-storm", "nemesis"}

// setupOrder is the order in which readers expect the known setups.
var setupOrder = []string{"", "disk", "host", "pg-single", "pg-async", "pg-remote-write", "pg-sync", "pg-any1", "pg-remote-apply",
	"holdfast", "holdfast-fast", "patroni", "patroni-fast", "pg-drbd", "cnpg", "pg-logical"}

// CompareSetups orders setups for tables: the known ones from the single
// instance upwards, then the others by name, the liars of the self-test last.
func CompareSetups(a, b string) int {
	rank := func(s string) int {
		if i := slices.Index(setupOrder, s); i >= 0 {
			return i
		}
		if slices.Contains(Liars(), s) {
			return len(setupOrder) + 1
		}
		return len(setupOrder)
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
}

// diskOrder is from the fastest flush to the slowest.
var diskOrder = []string{"instance-nvme", "local-nvme", "gp3-3000", "cloud-volume"}

func compareDisks(a, b map[string]any) int {
	rank := func(params map[string]any) int {
		if i := slices.Index(diskOrder, ParamText(params["disk"])); i >= 0 {
			return i
		}
		return len(diskOrder)
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(DiskLabel(a), DiskLabel(b)))
}

func compareParams(a, b map[string]any) int {
	names := sortedKeys(a)
	for _, k := range sortedKeys(b) {
		if _, ok := a[k]; !ok {
			names = append(names, k)
		}
	}
	slices.Sort(names)
	for _, k := range names {
		if c := compareValues(a[k], b[k]); c != 0 {
			return c
		}
	}
	return 0
}

// compareValues compares numbers as numbers and everything else as text;
// what is absent comes first.
func compareValues(a, b any) int {
	x, okX := Number(a)
	y, okY := Number(b)
	if okX && okY {
		return cmp.Compare(x, y)
	}
	return cmp.Compare(ParamText(a), ParamText(b))
}

// Number returns the numeric value of a param, whatever its Go type is.
func Number(v any) (float64, bool) {
	switch n := v.(type) {
	case float64:
		return n, true
	case float32:
		return float64(n), true
	case int:
		return float64(n), true
	case int8:
		return float64(n), true
	case int16:
		return float64(n), true
	case int32:
		return float64(n), true
	case int64:
		return float64(n), true
	case uint:
		return float64(n), true
	case uint8:
		return float64(n), true
	case uint16:
		return float64(n), true
	case uint32:
		return float64(n), true
	case uint64:
		return float64(n), true
	default:
		return 0, false
	}
}

// ParamText writes a param as people write it: 8, local-nvme, true.
func ParamText(v any) string {
	switch t := v.(type) {
	case nil:
		return ""
	case string:
		return t
	case bool:
		return strconv.FormatBool(t)
	}
	if n, ok := Number(v); ok {
		return strconv.FormatFloat(n, 'f', -1, 64)
	}
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

// Disk returns the name of the disk that the group ran on, "" if it has none.
func (g *Group) Disk() string { return ParamText(g.Params["disk"]) }

// IsFault tells a group that injected a fault from one that only measured.
func (g *Group) IsFault() bool {
	if slices.Contains(faultExperiments, g.Experiment) {
		return true
	}
	for _, c := range g.Cells {
		if c.Fault != "" || c.Promise != nil {
			return true
		}
		if _, ok := c.Metrics["lost"]; ok {
			return true
		}
	}
	return false
}

// Usable returns the cells whose numbers count: judged ones. The others failed
// (unknown) or must not be used (invalid).
func (g *Group) Usable() []*Cell {
	var out []*Cell
	for _, c := range g.Cells {
		if c.Verdict == Held || c.Verdict == Broken {
			out = append(out, c)
		}
	}
	return out
}

// Values returns a metric of every usable cell that has it, by repetition.
func (g *Group) Values(metric string) []float64 {
	var out []float64
	for _, c := range g.Usable() {
		if v, ok := c.Metrics[metric]; ok {
			out = append(out, v)
		}
	}
	return out
}

// Spread is a metric across repetitions, in the metric's unit.
type Spread struct {
	N                int
	Median, Min, Max float64
	Sum              float64
}

// Spread returns the metric across the group's usable cells; ok is false when none has it.
func (g *Group) Spread(metric string) (s Spread, ok bool) {
	return SpreadOf(g.Values(metric))
}

// SpreadOf returns the spread of the values; ok is false when there are none.
func SpreadOf(values []float64) (s Spread, ok bool) {
	if len(values) == 0 {
		return Spread{}, false
	}
	v := slices.Sorted(slices.Values(values))
	s = Spread{N: len(v), Min: v[0], Max: v[len(v)-1], Median: v[len(v)/2]}
	if len(v)%2 == 0 {
		s.Median = v[len(v)/2-1]/2 + v[len(v)/2]/2
	}
	for _, x := range v {
		s.Sum += x
	}
	return s, true
}

// Verdict is the worst verdict of the group's cells.
func (g *Group) Verdict() string { return worstOf(g.Cells) }

// Promise is what the group's setup promised, nil if it was not asked to.
func (g *Group) Promise() *Promise {
	for _, c := range g.Cells {
		if c.Promise != nil {
			return c.Promise
		}
	}
	return nil
}
