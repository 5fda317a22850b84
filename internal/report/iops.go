package report

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"slices"

	"github.com/holdfast-db/holdfast/internal/result"
)

// diskChart is what one disk did while transactions ran on it.
type diskChart struct {
	Disk, Mark string
	Cap        string // operations a second, "" for none
	Chart      template.HTML
	Lines      []diskLine
}

type diskLine struct {
	Swatch         template.HTML
	Label          string
	Mean, Most     string
	Share, Flushes string // of the cap; flushes a second

}

// diskCharts draw the groups that carry the disk's own counters, by disk.
func diskCharts(groups []result.Group) []diskChart {
	type key struct {
		disk string
		sim  bool
	}
	by := map[key][]*result.Group{}
	var order []key
	for i := range groups {
		g := &groups[i]
		if !slices.ContainsFunc(g.Usable(), func(c *result.Cell) bool { return len(c.DiskSeries) > 0 }) {
			continue
		}
		k := key{result.DiskLabel(g.Params), g.Simulated}
		if by[k] == nil {
			order = append(order, k)
		}
		by[k] = append(by[k], g)
	}
	var out []diskChart
	for _, k := range order {
		for start := 0; start < len(by[k]); start += maxCurves {
			out = append(out, newDiskChart(k.disk, mark(k.sim), by[k][start:min(start+maxCurves, len(by[k]))]))
		}
	}
	return out
}

// diskLabel names a group among those of one disk.
func diskLabel(g *result.Group) string {
	name := cmp.Or(g.Setup, "this machine")
	for _, c := range []string{result.Conditions(g.Params), g.Extra} {
		if c != "" {
			name += ", " + c
		}
	}
	return name
}

func newDiskChart(name, kind string, groups []*result.Group) diskChart {
	d := diskChart{Disk: name, Mark: kind}
	limit, top, last := 0.0, 0.0, 1.0
	var curves [][]float64
	var spans []span
	for _, g := range groups {
		curve, n := opsBySecond(g)
		curves, spans = append(curves, curve), append(spans, span{to: n})
		last = max(last, n)
		for _, v := range curve {
			top = max(top, v)
		}
		if s, ok := g.Spread("disk_iops_cap"); ok {
			limit = max(limit, s.Median)
		}
	}
	p := &plot{height: 170, x: scale{hi: last}, y: scale{hi: niceMax(max(top, limit) * 1.05)}}
	p.gridY(niceTicks(0, p.y.hi, 4), tickText)
	p.gridX(niceTicks(0, last, 6), tickText)
	for i, g := range groups {
		p.path(fmt.Sprintf("curve k%d", i), stepPath(p, spans[i], curves[i]))
		d.Lines = append(d.Lines, newDiskLine(g, i, limit))
	}
	if limit > 0 {
		d.Cap = result.Count(limit)
		y := num(p.yPixel(limit))
		fmt.Fprintf(&p.over, `<line class="limit" x2="100%%" y1="%s" y2="%s"/><text class="limitt" x="100%%" y="%s" dy="-.4em">cap %s</text>`, y, y, y, esc(d.Cap))
	}
	d.Chart = svg(p.html("Operations of the disk " + name + " a second"))
	return d
}

// opsBySecond is the median over the repetitions by second of the load, -1 where
// none has one.
func opsBySecond(g *result.Group) (values []float64, seconds float64) {
	at := map[int][]float64{}
	last := -1
	for _, c := range g.Usable() {
		for _, s := range c.DiskSeries {
			if sec := int(math.Floor(s.T)); s.T >= 0 && s.T < 1e6 {
				at[sec] = append(at[sec], s.Ops)
				last = max(last, sec)
			}
		}
	}
	n := last + 1
	width := max(1, (n+maxBins-1)/maxBins)
	out := make([]float64, (n+width-1)/width)
	for i := range out {
		out[i] = -1
		for sec := i * width; sec < min(n, (i+1)*width); sec++ {
			if s, ok := result.SpreadOf(at[sec]); ok {
				out[i] = max(out[i], s.Median)
			}
		}
	}
	return out, float64(n)
}

func newDiskLine(g *result.Group, i int, limit float64) diskLine {
	l := diskLine{Swatch: swatch(i), Label: diskLabel(g), Mean: "–", Most: "–", Share: "–", Flushes: "–"}
	var flushes []float64
	for _, c := range g.Usable() {
		for _, s := range c.DiskSeries {
			flushes = append(flushes, s.Flushes)
		}
	}
	if s, ok := result.SpreadOf(flushes); ok {
		l.Flushes = result.Count(s.Sum / float64(s.N))
	}
	mean, ok := g.Spread("disk_iops")
	if ok {
		l.Mean = result.Count(mean.Median)
	}
	if s, ok := g.Spread("disk_iops_max"); ok {
		l.Most = result.Count(s.Max)
	}
	if ok && limit > 0 {
		l.Share = result.Count(100*mean.Median/limit) + " %"
	}
	return l
}

func swatch(i int) template.HTML {
	return svg(fmt.Sprintf(`<svg class="key" width="34" height="10" aria-hidden="true"><line class="curve k%d" x2="34" y1="5" y2="5"/></svg>`, i))
}
