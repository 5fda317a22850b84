package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/holdfast-db/holdfast/internal/result"
)

// comparisonRow is one ratio with what may be said of it.
type comparisonRow struct {
	A, B, Metric, Ratio, Interval string
	Reading                       string
	Different                     bool
	Bar                           interval
	Noise                         *interval // around 1, nil where it is not known
	Published                     string    // elsewhere; never mixed with Ratio
	Ref                           string
	ratio                         result.Comparison
}

// comparisonTable is some of the ratios; Published is whether any has a
// counterpart elsewhere.
type comparisonTable struct {
	Rows      []comparisonRow
	Published bool
}

// fewComparisons may all stand in one table.
const fewComparisons = 10

// splitComparisons keeps the ratios that one decides by in sight when there are
// many: those of latency and those with a published counterpart.
func splitComparisons(rows []comparisonRow) (first, more comparisonTable) {
	for _, r := range rows {
		t := &first
		if len(rows) > fewComparisons && r.Published == "" && !strings.Contains(r.ratio.Metric, "latency") {
			t = &more
		}
		t.Rows = append(t.Rows, r)
		t.Published = t.Published || r.Published != ""
	}
	return first, more
}

// maxReach bounds the axis of the ratios, from a sixth to six times: an interval
// of two repetitions may reach a thousand times as far, and would leave nothing
// of the others to be seen.
const maxReach = 2.6

func comparisonRows(run *result.Run) []comparisonRow {
	var rows []comparisonRow
	reach := 1.0 // how far the widest interval is from 1, as a logarithm
	for _, c := range run.Comparisons {
		for _, v := range []float64{c.Lo, c.Hi, c.Ratio} {
			if v > 0 {
				reach = max(reach, math.Abs(math.Log2(v)))
			}
		}
	}
	reach = min(reach, maxReach)
	for _, c := range run.Comparisons {
		row := comparisonRow{
			A: c.A, B: c.B, Metric: comparedName(c.Metric), Ratio: ratioText(c.Ratio), Interval: ratioText(c.Lo) + "–" + ratioText(c.Hi),
			ratio: c,
			Bar:   interval{Lo: onAxis(c.Lo, reach), Hi: onAxis(c.Hi, reach), At: onAxis(c.Ratio, reach)},
		}
		noise := c.Noise // of its own disks, where it was held against that
		if noise == 0 {
			noise = result.NoiseOf(run.Noise, c.Experiment, c.Metric, "")
		}
		row.Reading, row.Different = reading(c, noise)
		if noise > 0 {
			row.Noise = &interval{Lo: onAxis(1/(1+noise), reach), Hi: onAxis(1+noise, reach)}
		}
		for _, note := range strings.Split(c.Note, "; ") {
			switch {
			case note == "":
			case strings.HasPrefix(note, "published"):
				row.Published = strings.TrimSpace(strings.TrimPrefix(note, "published"))
			case note == "no difference" && row.Different: // by the noise of a run that did not keep it
				row.Reading, row.Different = "no difference beyond the noise", false
			case note != "no difference":
				row.Reading += "; " + note
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// comparedName names a metric whose unit cancels in a ratio.
func comparedName(metric string) string {
	switch metric {
	case "latency_mean_ms":
		return "mean latency"
	case "tps":
		return "throughput"
	}
	name, _, _ := strings.Cut(metricName(metric), " (")
	return name
}

// interval is a bar on an axis from 0 to 100 whose middle is a ratio of 1.
type interval struct{ Lo, Hi, At float64 }

func (i interval) Width() float64 { return round1(i.Hi - i.Lo) }

func onAxis(ratio, reach float64) float64 {
	if ratio <= 0 {
		return 0
	}
	return round1(50 + 48*math.Max(-1, math.Min(1, math.Log2(ratio)/reach)))
}

func round1(v float64) float64 { return math.Round(v*10) / 10 }

// reading says what a ratio shows, which may be nothing.
func reading(c result.Comparison, noise float64) (text string, different bool) {
	if text, different = result.Reading(c.Ratio, c.Lo, c.Hi, noise); !different {
		return text, false
	}
	what := "that of B"
	switch {
	case strings.Contains(c.Metric, "latency"), strings.HasSuffix(c.Metric, "_ms"), strings.HasSuffix(c.Metric, "_s"):
		what = "the time"
	case c.Metric == "tps":
		what = "the throughput"
	}
	if c.Ratio >= 2 || c.Ratio <= 0.5 {
		return fmt.Sprintf("%s × %s", ratioText(c.Ratio), what), true
	}
	word := "more"
	if c.Ratio < 1 {
		word = "less"
	}
	return fmt.Sprintf("%.0f %% %s than %s", math.Abs(c.Ratio-1)*100, word, strings.Replace(what, "the ", "B’s ", 1)), true
}

func ratioText(v float64) string {
	if v >= 100 {
		return result.Count(v)
	}
	return fmt.Sprintf("%.2f", v)
}

func noiseLines(run *result.Run) []string {
	var lines []string
	for _, n := range run.Noise {
		from := ""
		if n.Pairs > 0 {
			from = fmt.Sprintf(" (A/A pairs on %s: %d)", n.Disk, n.Pairs)
		}
		lines = append(lines, fmt.Sprintf("%s, %s: ± %s %%%s", n.Experiment, metricName(n.Metric), result.Figure(n.HalfWidth*100), from))
	}
	return lines
}

// ladder is what a flush costs on one disk: pattern × direct down, call across.
type ladder struct {
	Title, Mark string
	Where       string // whose host it was measured on
	Calls       []string
	Rows        []ladderRow
}

// barRem is the length of the longest bar: the same in every column.
const barRem = 6

type ladderRow struct {
	Pattern, IO string
	Cells       []ladderCell
}

type ladderCell struct {
	P50, P99, Mean string
	Bar            float64  // length in rem, barRem for the ladder's slowest p50
	IDs            []string // anchors of its repetitions
	Bad            badge    // set when the figure must not be used
}

func ladders(groups []result.Group, ids cellIDs) []ladder {
	keys, byBase := bases(groups)
	var out []ladder
	for _, k := range keys {
		flushes := slices.DeleteFunc(slices.Clone(byBase[k]), func(g *result.Group) bool { return g.Experiment != "flush" || g.Params["pattern"] == nil })
		if len(flushes) > 0 {
			out = append(out, newLadder(flushes, ids))
		}
	}
	return out
}

func newLadder(groups []*result.Group, ids cellIDs) ladder {
	l := ladder{Title: result.DiskLabel(groups[0].Params), Mark: mark(groups[0].Simulated)}
	if s := groups[0].Setup; s != "" && s != "disk" {
		l.Where = "on the host of " + s
	}
	slowest := 0.0
	for _, g := range groups {
		if call := result.ParamText(g.Params["call"]); !slices.Contains(l.Calls, call) {
			l.Calls = append(l.Calls, call)
		}
		if s, ok := g.Spread("p50_ms"); ok {
			slowest = max(slowest, s.Median)
		}
	}
	slices.SortStableFunc(l.Calls, func(a, b string) int { return rank(callOrder, a) - rank(callOrder, b) })
	for _, g := range groups {
		row := l.row(result.ParamText(g.Params["pattern"]), ioText(g.Params["direct"]))
		cell := &row.Cells[slices.Index(l.Calls, result.ParamText(g.Params["call"]))]
		cell.IDs = append(cell.IDs, ids.of(g)...)
		s, ok := g.Spread("p50_ms")
		if !ok {
			cell.Bad = newBadge(g.Verdict(), true)
			continue
		}
		cell.P50, cell.Bar = result.Figure(s.Median), round1(barRem*s.Median/max(slowest, 1e-9))
		cell.P99, cell.Mean = figure(g, "p99_ms").Main, figure(g, "mean_ms").Main
	}
	slices.SortStableFunc(l.Rows, func(a, b ladderRow) int {
		if d := rank(patternOrder, a.Pattern) - rank(patternOrder, b.Pattern); d != 0 {
			return d
		}
		return strings.Compare(a.IO, b.IO)
	})
	return l
}

var (
	callOrder    = []string{"fdatasync", "fsync", "O_DSYNC", "o_dsync"}
	patternOrder = []string{"zero-filled", "same-block", "append", "fallocated"}
)

func rank(order []string, s string) int {
	if i := slices.Index(order, s); i >= 0 {
		return i
	}
	return len(order)
}

func ioText(direct any) string {
	if d, ok := direct.(bool); ok && d {
		return "direct"
	}
	return "buffered"
}

func (l *ladder) row(pattern, io string) *ladderRow {
	for i := range l.Rows {
		if l.Rows[i].Pattern == pattern && l.Rows[i].IO == io {
			return &l.Rows[i]
		}
	}
	l.Rows = append(l.Rows, ladderRow{Pattern: pattern, IO: io, Cells: make([]ladderCell, len(l.Calls))})
	return &l.Rows[len(l.Rows)-1]
}
