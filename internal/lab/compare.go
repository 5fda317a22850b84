package lab

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/holdfast-db/holdfast/internal/result"
	"github.com/holdfast-db/holdfast/internal/stats"
)

// Compared is what two runs say of the groups that both have.
type Compared struct {
	Ratios  []Ratio  `json:"ratios"`
	Differs []string `json:"environment"`      // what is not the same about the two runs
	OnlyA   []string `json:"only_a,omitempty"` // groups that the other run does not have
	OnlyB   []string `json:"only_b,omitempty"`
}

// Ratio is the metric of the second run over that of the first. Without at
// least two values on either side there is no interval, and so no difference
// to speak of.
type Ratio struct {
	Group   string  `json:"group"`
	Metric  string  `json:"metric"`
	A       float64 `json:"a"` // geometric means
	B       float64 `json:"b"`
	Ratio   float64 `json:"ratio"`
	Lo      float64 `json:"lo,omitempty"`
	Hi      float64 `json:"hi,omitempty"`
	Reading string  `json:"reading"`
}

// acrossRuns are the metrics that are worth comparing between runs.
var acrossRuns = []string{
	"latency_mean_ms", "latency_p99_ms", "tps", "p50_ms", "tcp_p50_ms", "select1_p50_ms",
	"first_ack_ms", "longest_gap_ms", "rejoined_ms",
}

// Compare sets two runs beside each other: of other machines or other days, so
// that nothing pairs their cells. The noise of either run counts.
func Compare(a, b *result.Run) Compared {
	var c Compared
	groupsB := map[string]result.Group{}
	for _, g := range result.Groups(b) {
		groupsB[result.Key(g.Cells[0])] = g
	}
	for _, ga := range result.Groups(a) {
		key := result.Key(ga.Cells[0])
		gb, ok := groupsB[key]
		if !ok {
			c.OnlyA = append(c.OnlyA, groupName(ga))
			continue
		}
		delete(groupsB, key)
		for _, m := range acrossRuns {
			va, vb := ga.Values(m), gb.Values(m)
			if len(va) > 0 && len(vb) > 0 {
				c.Ratios = append(c.Ratios, acrossRatio(groupName(ga), m, va, vb, math.Max(noiseOf(a, ga, m), noiseOf(b, gb, m)), a.Seed^b.Seed))
			}
		}
	}
	for _, g := range groupsB {
		c.OnlyB = append(c.OnlyB, groupName(g))
	}
	slices.Sort(c.OnlyB)
	c.Differs = environmentDiff(a, b)
	return c
}

func groupName(g result.Group) string {
	name := result.On(g.Setup, g.Params) + ", " + g.Experiment
	if w := result.Conditions(g.Params); w != "" {
		name += ", " + w
	}
	return name
}

// noiseOf is a run's noise of a metric on the group's disk, or else the widest.
func noiseOf(run *result.Run, g result.Group, metric string) float64 {
	var widest float64
	for _, n := range run.Noise {
		switch {
		case n.Experiment != g.Experiment || n.Metric != metric:
		case n.Disk == g.Disk():
			return n.HalfWidth
		default:
			widest = max(widest, n.HalfWidth)
		}
	}
	return widest
}

func acrossRatio(group, metric string, a, b []float64, noise float64, seed uint64) Ratio {
	r := Ratio{Group: group, Metric: metric, A: stats.GeoMean(a), B: stats.GeoMean(b)}
	r.Ratio = r.B / r.A
	if len(a) < 2 || len(b) < 2 {
		r.Reading = "one value cannot bound a difference: repeat the cell"
		return r
	}
	iv := stats.RatioUnpaired(b, a, confidence, seed)
	r.Ratio, r.Lo, r.Hi = iv.Point, iv.Lo, iv.Hi
	text, different := result.Reading(iv.Point, iv.Lo, iv.Hi, noise)
	switch {
	case !different:
		r.Reading = text
	case iv.Point > 1:
		r.Reading = fmt.Sprintf("%.0f %% more in the second run", (iv.Point-1)*100)
	default:
		r.Reading = fmt.Sprintf("%.0f %% less in the second run", (1-iv.Point)*100)
	}
	return r
}

// environmentDiff says what else differs, before anybody credits a change to
// one thing.
func environmentDiff(a, b *result.Run) []string {
	keys := map[string]bool{}
	for _, m := range []map[string]string{a.Environment, b.Environment} {
		for k := range maps.Keys(m) {
			keys[k] = true
		}
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		va, vb := a.Environment[k], b.Environment[k]
		if k != "selftest" && va != vb {
			out = append(out, fmt.Sprintf("%s: %s, then %s", k, orNone(va), orNone(vb)))
		}
	}
	if a.Simulated != b.Simulated {
		out = append(out, fmt.Sprintf("simulated: %v, then %v: these figures are of different kinds", a.Simulated, b.Simulated))
	}
	return out
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
