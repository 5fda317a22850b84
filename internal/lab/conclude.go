package lab

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/holdfast-db/holdfast/internal/result"
	"github.com/holdfast-db/holdfast/internal/stats"
)

const confidence = 0.95

// compared are the metrics whose ratios between groups are worth printing.
var compared = []string{"latency_mean_ms", "tps"}

// pairedExperiment is the one whose groups are set beside each other by ratios.
const pairedExperiment = "commit"

// Conclude fills in what follows from the cells: noise, comparisons, summary.
// It may be called again when there are more cells.
func Conclude(run *result.Run) {
	run.Noise, run.Comparisons = nil, nil
	groups := result.Groups(run)
	for _, metric := range compared {
		compare(run, groups, metric)
	}
	run.Summary = result.Summarise(run)
}

// compare sets groups that differ in setup or disk only beside each other: each
// against the next slower one, all against the reference, pg-any1 on local-nvme,
// if it ran, and what was slowed down on purpose against what was not. A/A pairs
// come first.
func compare(run *result.Run, groups []result.Group, metric string) {
	with := make([]result.Group, 0, len(groups))
	for _, g := range groups {
		if g.Experiment == pairedExperiment && len(g.Values(metric)) > 0 {
			with = append(with, g)
		}
	}
	pairs := twins(with)
	run.Noise = append(run.Noise, noises(pairs, with, metric)...)
	for i, p := range pairs {
		// A pair is not held against the noise that it made itself.
		others := slices.Concat(pairs[:i], pairs[i+1:])
		var noise float64
		if len(others) > 0 {
			noise = floor(others, nil, metric, p.a, p.b)
		}
		run.Comparisons = append(run.Comparisons, ratio(run.Seed, p.b, p.a, metric, noise, result.Conditions(p.a.Params))...)
	}
	byParams := map[string][]result.Group{}
	var order []string
	for _, g := range with {
		if isTwin(g) {
			continue
		}
		k := result.Conditions(g.Params)
		if byParams[k] == nil {
			order = append(order, k)
		}
		byParams[k] = append(byParams[k], g)
	}
	for _, k := range order {
		gs := byParams[k]
		slices.SortStableFunc(gs, func(a, b result.Group) int {
			return cmp.Compare(stats.GeoMean(a.Values(metric)), stats.GeoMean(b.Values(metric)))
		})
		for i, a := range gs {
			for j, b := range gs[:i] {
				x, y := a, b
				switch {
				case planted(b, a):
					x, y = b, a
				case planted(a, b), j == i-1, isReference(a), isReference(b):
				default:
					continue
				}
				run.Comparisons = append(run.Comparisons, ratio(run.Seed, x, y, metric, floor(pairs, with, metric, x, y), k)...)
			}
		}
	}
}

// pair is a group and its A/A twin.
type pair struct{ a, b result.Group }

func twins(groups []result.Group) []pair {
	firsts := map[string]result.Group{}
	for _, g := range groups {
		if !isTwin(g) {
			firsts[result.Key(g.Cells[0])] = g
		}
	}
	var ps []pair
	for _, g := range groups {
		if !isTwin(g) {
			continue
		}
		if first, ok := firsts[without(g, "twin")]; ok {
			ps = append(ps, pair{first, g})
		}
	}
	return ps
}

func isTwin(g result.Group) bool { return g.Params["twin"] == true }

// planted says whether a is b, slowed down on purpose.
func planted(a, b result.Group) bool {
	_, slowed := a.Params["flush_times"]
	return slowed && without(a, "flush_times") == result.Key(b.Cells[0])
}

// without is the key of a group that lacks one param and is else the same.
func without(g result.Group, param string) string {
	c := *g.Cells[0]
	c.Params = maps.Clone(c.Params)
	delete(c.Params, param)
	return result.Key(&c)
}

// floor is the noise that a ratio of a to b is held against: of the A/A pairs on
// their disks, or else of all pairs, or else from the repeats of equal cells,
// which know nothing of what differs between two deployments of one setup.
func floor(pairs []pair, groups []result.Group, metric string, a, b result.Group) float64 {
	near := make([]pair, 0, len(pairs))
	for _, p := range pairs {
		if d := p.a.Disk(); d == a.Disk() || d == b.Disk() {
			near = append(near, p)
		}
	}
	for _, ps := range [][]pair{near, pairs} {
		if half, used := stats.NoisePairs(confidence, series(ps, metric)...); used > 0 {
			return half
		}
	}
	values := make([][]float64, len(groups))
	for i, g := range groups {
		values[i] = g.Values(metric)
	}
	return stats.NoiseRepeats(confidence, values...)
}

// noises are what the run says of a metric's noise: for each disk that has A/A
// pairs, or else once.
func noises(pairs []pair, groups []result.Group, metric string) []result.Noise {
	byDisk := map[string][]pair{}
	for _, p := range pairs {
		byDisk[p.a.Disk()] = append(byDisk[p.a.Disk()], p)
	}
	var out []result.Noise
	for _, d := range slices.Sorted(maps.Keys(byDisk)) {
		if half, used := stats.NoisePairs(confidence, series(byDisk[d], metric)...); used > 0 {
			out = append(out, result.Noise{Experiment: pairedExperiment, Metric: metric, HalfWidth: half, Pairs: used, Disk: d})
		}
	}
	if len(out) > 0 || len(groups) == 0 {
		return out
	}
	half := floor(nil, groups, metric, groups[0], groups[0])
	if math.IsInf(half, 0) || math.IsNaN(half) {
		return nil
	}
	return []result.Noise{{Experiment: pairedExperiment, Metric: metric, HalfWidth: half}}
}

func series(pairs []pair, metric string) []stats.Pair {
	ps := make([]stats.Pair, len(pairs))
	for i, p := range pairs {
		ps[i].B, ps[i].A = paired(p.b, p.a, metric)
	}
	return ps
}

func isReference(g result.Group) bool {
	_, slowed := g.Params["flush_times"]
	return g.Setup == "pg-any1" && g.Params["disk"] == "local-nvme" && !slowed
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
	if !math.IsInf(noise, 0) && !math.IsNaN(noise) {
		c.Noise = noise
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
