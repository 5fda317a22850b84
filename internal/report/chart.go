package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Charts are drawn so that text keeps its size at any width: curves live in a
// stretched box of 1000 × 100 units with strokes that do not scale, labels in
// the outer svg at percentages.

// num writes a coordinate with as few bytes as its precision needs.
func num(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// scale maps values to 0..1, linear or logarithmic.
type scale struct {
	lo, hi float64
	log    bool
}

func (s scale) at(v float64) float64 {
	if s.log {
		return clamp((math.Log10(max(v, 1e-12)) - math.Log10(s.lo)) / (math.Log10(s.hi) - math.Log10(s.lo)))
	}
	return clamp((v - s.lo) / (s.hi - s.lo))
}

// clamp keeps a share within 0 to 1; one of infinities, which a damaged run can
// come to, is 0.
func clamp(v float64) float64 {
	if math.IsNaN(v) {
		return 0
	}
	return math.Max(0, math.Min(1, v))
}

// niceMax is the next 1, 2, 2.5 or 5 × 10ⁿ from v upwards.
func niceMax(v float64) float64 {
	if v <= 0 {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5, 10} {
		if v <= m*p*(1+1e-9) {
			return m * p
		}
	}
	return 10 * p
}

// niceTicks are about n round values within lo..hi.
func niceTicks(lo, hi float64, n int) []float64 {
	step := niceMax((hi - lo) / float64(n))
	var out []float64
	// The count ends the loop where steps are too small for numbers of that size.
	for v := math.Ceil(lo/step-1e-9) * step; v <= hi+step*1e-9 && len(out) <= 2*n; v += step {
		out = append(out, math.Round(v/step)*step+0) // +0: no negative zero
	}
	return out
}

// logTicks are the powers of ten within lo..hi, with 2 and 5 between them when few.
func logTicks(lo, hi float64) []float64 {
	decades := math.Log10(hi / lo)
	steps := []float64{1}
	if decades <= 2.5 {
		steps = []float64{1, 2, 5}
	}
	var out []float64
	for e := math.Floor(math.Log10(lo)); e <= math.Ceil(math.Log10(hi)); e++ {
		for _, m := range steps {
			if v := m * math.Pow(10, e); v >= lo*(1-1e-9) && v <= hi*(1+1e-9) {
				out = append(out, v)
			}
		}
	}
	return out
}

// tickText writes a tick without digits that it does not need.
func tickText(v float64) string {
	if math.Abs(v) >= 1000 {
		return thousands(v)
	}
	return strings.Replace(strconv.FormatFloat(v, 'g', 4, 64), "-", "−", 1)
}

func thousands(v float64) string {
	if math.Mod(v, 1000) == 0 {
		return strconv.FormatFloat(v/1000, 'f', -1, 64) + "k"
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// plot is a chart under construction. Height is in pixels, width whatever it gets.
type plot struct {
	height float64
	x, y   scale
	under  strings.Builder // grid and labels
	curves strings.Builder // in the stretched box
	over   strings.Builder // marks at percentages
}

func (p *plot) xPercent(v float64) string { return num(100*p.x.at(v)) + "%" }
func (p *plot) yPixel(v float64) float64  { return p.height * (1 - p.y.at(v)) }

func (p *plot) gridY(ticks []float64, label func(float64) string) {
	for _, t := range ticks {
		y := num(p.yPixel(t))
		fmt.Fprintf(&p.under, `<line class="grid" x2="100%%" y1="%s" y2="%s"/><text class="ty" x="-8" y="%s" dy=".35em">%s</text>`, y, y, y, esc(label(t)))
	}
}

func (p *plot) gridX(ticks []float64, label func(float64) string) {
	for _, t := range ticks {
		x := p.xPercent(t)
		fmt.Fprintf(&p.under, `<line class="grid" x1="%s" x2="%s" y2="%s"/><text class="tx" x="%s" y="%s">%s</text>`,
			x, x, num(p.height), x, num(p.height+18), esc(label(t)))
	}
}

// curveX and curveY are coordinates in the stretched box.
func (p *plot) curveX(v float64) string { return num(1000 * p.x.at(v)) }
func (p *plot) curveY(v float64) string { return num(100 * (1 - p.y.at(v))) }

func (p *plot) path(class, d string) {
	fmt.Fprintf(&p.curves, `<path class="%s" d="%s"/>`, class, d)
}

// html is the finished chart; label describes it to those who do not see it.
func (p *plot) html(label string) string {
	return fmt.Sprintf(`<div class="plot"><svg role="img" aria-label="%s" width="100%%" height="%s">%s`+
		`<svg viewBox="0 0 1000 100" width="100%%" height="%s" preserveAspectRatio="none">%s</svg>%s</svg></div>`,
		esc(label), num(p.height), p.under.String(), num(p.height), p.curves.String(), p.over.String())
}
