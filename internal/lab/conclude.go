package lab

import (
	"math"
	"slices"

	"github.com/holdfast-db/holdfast/internal/result"
	"github.com/holdfast-db/holdfast/internal/stats"
)

const confidence = 0.95

// compared are the metrics whose ratios between groups are worth printing.
var compared = []string{"latency_mean_ms", "tps"}

// Conclude fills in what follows from the cells: noise, comparisons, summary.
// It may be called again when there are more cells.
func Conclude(run *result.Run) {
	run.Noise, run.Comparisons = nil, nil
	groups := result.Groups(run)
	for _, metric := range compared {
		compare(run, groups, "commit", metric)
	}
	run.Summary = result.Summarise(run)
}

// compare sets groups of one experiment that differ in setup or disk only
// beside each other: each against the next slower one, and all against the
// reference, pg-any1 on local-nvme, if it ran.
func compare(run *result.Run, groups []result.Group, experiment, metric string) {
	byParams := map[string][]result.Group{}
	var order []string
	var noise [][]float64
	for _, g := range groups {
		if g.Experiment != experiment || len(g.Values(metric)) == 0 {
			continue
		}
		noise = append(noise, g.Values(metric))
		k := result.Conditions(g.Params)
		if byParams[k] == nil {
			order = append(order, k)
		}
		byParams[k] = append(byParams[k], g)
	}
	half := stats.NoiseRepeats(confidence, noise...)
	if !math.IsInf(half, 0) && !math.IsNaN(half) {
		run.Noise = append(run.Noise, result.Noise{Experiment: experiment, Metric: metric, HalfWidth: half})
	}
	for _, k := range order {
		gs := byParams[k]
		slices.SortStableFunc(gs, func(a, b result.Group) int {
			return int(math.Copysign(1, stats.GeoMean(a.Values(metric))-stats.GeoMean(b.Values(metric))))
		})
		for i, a := range gs {
			for j, b := range gs[:i] {
				if j == i-1 || isReference(a) || isReference(b) {
					run.Comparisons = append(run.Comparisons, ratio(run.Seed, a, b, metric, half, k)...)
				}
			}
		}
	}
}

func isReference(g result.Group) bool {
	return g.Setup == "pg-any1" && g.Params["disk"] == "local-nvme"
}

// ratio is a over b by blocks: what a block's cells have in common cancels.
func ratio(seed uint64, a, b result.Group, metric string, noise float64, conditions string) []result.Comparison {
	pa, pb := paired(a, b, metric)
	if len(pa) < 2 {
		return nil
	}
	iv := stats.RatioPaired(pa, pb, confidence, seed)
	if math.IsInf(iv.Hi, 0) || math.IsNaN(iv.Point) {
		return nil
	}
	c := result.Comparison{
		A: result.On(a.Setup, a.Params) + ", " + conditions, B: result.On(b.Setup, b.Params) + ", " + conditions,
		Experiment: a.Experiment, Metric: metric, Ratio: iv.Point, Lo: iv.Lo, Hi: iv.Hi,
	}
	if !stats.Differs(iv, noise) {
		c.Note = "no difference"
	}
	return []result.Comparison{c}
}

// paired are the values of repetitions (blocks) that both groups have.
func paired(a, b result.Group, metric string) (va, vb []float64) {
	other := map[int]float64{}
	for _, c := range b.Usable() {
		if v, ok := c.Metrics[metric]; ok {
			other[c.Repetition] = v
		}
	}
	for _, c := range a.Usable() {
		v, ok := c.Metrics[metric]
		if w, both := other[c.Repetition]; ok && both {
			va, vb = append(va, v), append(vb, w)
		}
	}
	return va, vb
}
