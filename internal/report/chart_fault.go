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

// span is the time and the height that the charts of one group share.
type span struct {
	from, to float64 // seconds
	top      float64 // writes per second
}

func spanOf(cells []*result.Cell) (s span, ok bool) {
	s.from, s.to = math.Inf(1), math.Inf(-1)
	for _, c := range cells {
		for _, sec := range c.Series {
			if !drawable(sec.T) {
				continue
			}
			s.from, s.to = min(s.from, math.Floor(sec.T)), max(s.to, math.Floor(sec.T)+1)
			s.top = max(s.top, float64(sec.Acked))
		}
	}
	s.top = niceMax(s.top)
	if s.to-s.from > fewSeconds+1 {
		s.from, s.to = s.from+1, s.to-1 // bins leaves the parts of seconds at the ends out
	}
	return s, s.to > s.from
}

// fewSeconds is the length of a series up to which it is drawn to its ends.
const fewSeconds = 5

// maxBins bounds the points of a chart; longer series are thinned by taking the
// smallest value, since gaps are what the chart is for.
const maxBins = 240

// drawable keeps out times that no run reaches (four months): a chart that
// reaches them would show nothing else.
func drawable(t float64) bool { return math.Abs(t) < 1e7 }

// bins returns the acknowledged writes per second of one cell by second of the
// span, -1 where the series has none.
func bins(c *result.Cell, s span) []float64 {
	n := int(s.to - s.from)
	width := max(1, (n+maxBins-1)/maxBins)
	out := make([]float64, (n+width-1)/width)
	for i := range out {
		out[i] = -1
	}
	sums := map[int]float64{}
	first, last := math.MaxInt, -1
	for _, sec := range c.Series {
		if !drawable(sec.T) {
			continue
		}
		second := int(math.Floor(sec.T) - s.from)
		sums[second] += float64(sec.Acked)
		first, last = min(first, second), max(last, second)
	}
	if last-first >= fewSeconds {
		// The load began and ended within these: they are no whole seconds.
		delete(sums, first)
		delete(sums, last)
	}
	for second, v := range sums {
		if second < 0 || second >= n {
			continue
		}
		if i := second / width; out[i] < 0 || v < out[i] {
			out[i] = v
		}
	}
	return out
}

// stepPath draws values as steps over the span; absent ones break the line.
func stepPath(p *plot, s span, values []float64) string {
	var b strings.Builder
	width := (s.to - s.from) / float64(len(values))
	pen := false
	for i, v := range values {
		if v < 0 {
			pen = false
			continue
		}
		x0, x1, y := p.curveX(s.from+float64(i)*width), p.curveX(s.from+float64(i+1)*width), p.curveY(v)
		if pen {
			fmt.Fprintf(&b, "V%sH%s", y, x1)
		} else {
			fmt.Fprintf(&b, "M%s %sH%s", x0, y, x1)
		}
		pen = true
	}
	return b.String()
}

// bandPath fills between two step lines.
func bandPath(p *plot, s span, lo, hi []float64) string {
	var b strings.Builder
	width := (s.to - s.from) / float64(len(lo))
	for i := range lo {
		if lo[i] < 0 {
			continue
		}
		x0, x1 := p.curveX(s.from+float64(i)*width), p.curveX(s.from+float64(i+1)*width)
		if lo[i] != hi[i] {
			fmt.Fprintf(&b, "M%s %sH%sV%sH%sz", x0, p.curveY(hi[i]), x1, p.curveY(lo[i]), x0)
		}
	}
	return b.String()
}

// secondsChart draws acknowledged writes per second of a whole group: the
// median, and the range over its cells; numbered marks are its phases.
func secondsChart(g *result.Group, s span, phases []phase) template.HTML {
	p := &plot{height: 190, x: scale{lo: s.from, hi: s.to}, y: scale{hi: s.top}}
	p.gridY(niceTicks(0, s.top, 4), tickText)
	p.gridX(niceTicks(s.from, s.to, 6), signed)
	usable := g.Usable()
	var all [][]float64
	for _, c := range usable {
		if len(c.Series) > 0 {
			all = append(all, bins(c, s))
		}
	}
	if len(all) == 0 {
		return ""
	}
	n := len(all[0])
	lo, hi, mid := make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range n {
		var at []float64
		for _, b := range all {
			if b[i] >= 0 {
				at = append(at, b[i])
			}
		}
		lo[i], hi[i], mid[i] = -1, -1, -1
		if sp, ok := result.SpreadOf(at); ok {
			lo[i], hi[i], mid[i] = sp.Min, sp.Max, sp.Median
		}
	}
	p.path("band", bandPath(p, s, lo, hi))
	p.path("median", stepPath(p, s, mid))
	p.cutLine()
	p.marks(phases)
	return svg(p.html(fmt.Sprintf("Acknowledged writes per second around the cut, %s cells", result.Count(float64(len(all))))))
}

func signed(v float64) string {
	if v > 0 {
		return "+" + tickText(v)
	}
	return tickText(v)
}

// cutLine marks time 0.
func (p *plot) cutLine() {
	if p.x.lo > 0 || p.x.hi < 0 {
		return
	}
	x := p.xPercent(0)
	fmt.Fprintf(&p.over, `<line class="cut" x1="%s" x2="%s" y1="-6" y2="%s"/>`, x, x, num(p.height))
}

// marks puts the phases' numbers above the plot, lower where two would touch.
func (p *plot) marks(phases []phase) {
	var lastAt [3]float64
	for i := range lastAt {
		lastAt[i] = -1
	}
	for _, ph := range phases {
		at := ph.median / 1000
		if at < p.x.lo || at > p.x.hi {
			continue
		}
		f := p.x.at(at)
		row := 0
		for row < 2 && lastAt[row] >= 0 && f-lastAt[row] < 0.05 {
			row++
		}
		lastAt[row] = f
		x := p.xPercent(at)
		y := 12 + 20*row
		fmt.Fprintf(&p.over, `<line class="ev" x1="%s" x2="%s" y1="%d" y2="%s"/><circle class="evc" cx="%s" cy="%d" r="8"/><text class="evt" x="%s" y="%d" dy=".35em">%d</text>`,
			x, x, y, num(p.height), x, y, x, y, ph.Number)
	}
}

// phase is one kind of event over the cells of a group.
type phase struct {
	Number   int
	What, At string
	Range    string
	Cells    int
	median   float64
}

const maxPhases = 12

func phases(g *result.Group) []phase {
	at := map[string][]float64{}
	for _, c := range g.Usable() {
		for _, e := range c.Events {
			at[e.What] = append(at[e.What], e.AtMs)
		}
	}
	var out []phase
	for _, what := range sorted(at) {
		s, _ := result.SpreadOf(at[what])
		ph := phase{What: what, At: seconds(s.Median), Cells: s.N, median: s.Median}
		if lo, hi := seconds(s.Min), seconds(s.Max); lo != hi {
			ph.Range = lo + " to " + hi
		}
		out = append(out, ph)
	}
	slices.SortStableFunc(out, func(a, b phase) int { return cmp.Compare(a.median, b.median) })
	out = out[:min(len(out), maxPhases)]
	for i := range out {
		out[i].Number = i + 1
	}
	return out
}

// seconds writes an event's time: +1.90 s, −1.50 s, 0.00 s.
func seconds(ms float64) string {
	sign := ""
	switch {
	case ms >= 5:
		sign = "+"
	case ms <= -5:
		sign = "−"
	}
	return fmt.Sprintf("%s%.2f s", sign, math.Abs(ms)/1000)
}

// miniChart is one cell's acknowledged writes per second, on its group's scales,
// with so many of its events at most.
func miniChart(c *result.Cell, s span, ticks int) template.HTML {
	if len(c.Series) == 0 {
		return ""
	}
	p := &plot{height: 44, x: scale{lo: s.from, hi: s.to}, y: scale{hi: s.top}}
	d := areaPath(p, s, bins(c, s))
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="mini" width="100%%" height="46" role="img" aria-label="acknowledged writes per second"><svg viewBox="0 0 1000 100" width="100%%" height="44" preserveAspectRatio="none"><path class="area" d="%s"/></svg>`, d)
	if s.from <= 0 && s.to >= 0 {
		x := p.xPercent(0)
		fmt.Fprintf(&b, `<line class="cut" x1="%s" x2="%s" y2="46"/>`, x, x)
	}
	if ms, ok := c.Metrics["first_ack_ms"]; ok && ms/1000 <= s.to {
		x := p.xPercent(ms / 1000)
		fmt.Fprintf(&b, `<line class="ack" x1="%s" x2="%s" y1="30" y2="46"/>`, x, x)
	}
	for i, e := range c.Events {
		if at := e.AtMs / 1000; i < ticks && at >= s.from && at <= s.to && e.AtMs != 0 {
			x := p.xPercent(at)
			fmt.Fprintf(&b, `<line class="tick" x1="%s" x2="%s" y2="7"/>`, x, x)
		}
	}
	b.WriteString(`</svg>`)
	return svg(b.String())
}

// areaPath fills below the steps; equal neighbours share one step.
func areaPath(p *plot, s span, values []float64) string {
	var b strings.Builder
	width := (s.to - s.from) / float64(len(values))
	fmt.Fprintf(&b, "M%s 100", p.curveX(s.from))
	last := "100"
	for i, v := range values {
		y := num(math.Round(100 * (1 - p.y.at(max(v, 0)))))
		if y != last {
			fmt.Fprintf(&b, "H%sV%s", num(math.Round(1000*p.x.at(s.from+float64(i)*width))), y)
			last = y
		}
	}
	fmt.Fprintf(&b, "H%sV100z", p.curveX(s.to))
	return b.String()
}
