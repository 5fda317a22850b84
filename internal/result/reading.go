package result

import (
	"fmt"
	"math"
)

// smallMargin is the difference, as a fraction, below which an interval that
// holds 1 says that there is none worth speaking of, however small the noise.
const smallMargin = 0.05

// Reading says in words what a ratio shows, and whether that is a difference.
// noise is the half-width of the noise between equal cells as a fraction, 0
// where it is not known. An interval that holds 1 shows that two things are
// alike only where it is no wider than the noise (or than 5 %); a wider one
// shows that there were not enough repetitions to tell.
func Reading(ratio, lo, hi, noise float64) (text string, different bool) {
	reach := math.Max(hi-1, 1/math.Max(lo, 1e-9)-1) // how far from 1 it goes, either way
	holdsOne := lo <= 1 && hi >= 1
	switch {
	case holdsOne && noise > 0 && reach <= noise:
		return "no difference beyond the noise of ± " + margin(noise), false
	case holdsOne && reach <= smallMargin:
		return "no difference beyond ± " + margin(reach), false
	case holdsOne:
		return fmt.Sprintf("not enough repetitions: %s to %s fits", moreOrLess(lo), moreOrLess(hi)), false
	case noise > 0 && math.Abs(math.Log(ratio)) <= math.Log1p(noise):
		return "no difference beyond the noise of ± " + margin(noise), false
	}
	return "", true
}

// NoiseOf is the half-width of the noise of a metric on a disk ("" for any), 0
// where the run has none. That of the disk's own A/A pairs goes before that of
// equal cells, and of several the widest counts.
func NoiseOf(noise []Noise, experiment, metric, disk string) float64 {
	own, all := 0.0, 0.0
	for _, n := range noise {
		if n.Metric != metric || experiment != "" && n.Experiment != "" && n.Experiment != experiment {
			continue
		}
		switch n.Disk {
		case "":
			all = max(all, n.HalfWidth)
		case disk:
			own = max(own, n.HalfWidth)
		default:
			if disk == "" {
				all = max(all, n.HalfWidth)
			}
		}
	}
	if own > 0 {
		return own
	}
	return all
}

func margin(share float64) string { return percent(share, math.Ceil, -1e-9) }

// moreOrLess is a ratio as a difference: 21 % less, 33 % more.
func moreOrLess(ratio float64) string {
	d := math.Round((ratio - 1) * 100) // beyond a factor of ten the figure says nothing more
	switch {
	case d == 0:
		return "the same"
	case ratio < 0.1:
		return "a tenth or less"
	case ratio >= 10:
		return "ten times or more"
	case ratio >= 3:
		return Figure(ratio) + " times as much"
	case d < 0:
		return Count(-d) + " % less"
	}
	return Count(d) + " % more"
}

// Planned is the number of cells as a study counts them: what came of one
// planned cell, such as the steps of a flush ladder, counts once.
func Planned(run *Run) int {
	seen := map[int]bool{}
	unnumbered := 0 // of a run from before there were numbers
	for i := range run.Cells {
		if n := run.Cells[i].Planned; n > 0 {
			seen[n] = true
		} else {
			unnumbered++
		}
	}
	return len(seen) + unnumbered
}
