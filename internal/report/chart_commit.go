package report

import (
	"fmt"
	"html/template"
	"slices"
	"strings"

	hdr "github.com/HdrHistogram/hdrhistogram-go"

	"github.com/holdfast-db/holdfast/internal/result"
)

// commitsBy sorts the commit groups by number of clients.
func commitsBy(groups []result.Group) (clients []float64, by map[float64][]*result.Group) {
	by = map[float64][]*result.Group{}
	for i := range groups {
		if g := &groups[i]; g.Experiment == "commit" {
			n, _ := result.Number(g.Params["clients"])
			if by[n] == nil {
				clients = append(clients, n)
			}
			by[n] = append(by[n], g)
		}
	}
	slices.Sort(clients)
	return clients, by
}

// dotPlot shows the mean latency of every repetition, a row for each group.
type dotPlot struct {
	Title string
	Noise []string // between equal cells, each of the widths that the disks have
	Axis  template.HTML
	Rows  []dotRow
}

type dotRow struct {
	Label, Mark, Value string
	Track              template.HTML
}

func dotPlots(groups []result.Group, noise []result.Noise) []dotPlot {
	clients, by := commitsBy(groups)
	var out []dotPlot
	for _, n := range clients {
		top := 0.0
		for _, g := range by[n] {
			if s, ok := g.Spread("latency_mean_ms"); ok {
				top = max(top, s.Max)
			}
		}
		if top == 0 {
			continue
		}
		axis := scale{hi: top * 1.05}
		ticks := niceTicks(0, axis.hi, 5)
		d := dotPlot{Title: clientsText(n), Axis: dotAxis(axis, ticks)}
		for _, g := range by[n] {
			values := g.Values("latency_mean_ms")
			s, ok := result.SpreadOf(values)
			if !ok {
				continue
			}
			band := result.NoiseOf(noise, "commit", "latency_mean_ms", g.Disk())
			if text := noiseText(band); text != "" && !slices.Contains(d.Noise, text) {
				d.Noise = append(d.Noise, text)
			}
			d.Rows = append(d.Rows, dotRow{Label: onWithSpecials(g), Mark: mark(g.Simulated), Value: result.Figure(s.Median),
				Track: dotTrack(axis, ticks, values, s.Median, band)})
		}
		out = append(out, d)
	}
	return out
}

// noiseText is the half-width of the noise, "" where it is not known.
func noiseText(noise float64) string {
	if noise <= 0 {
		return ""
	}
	return "± " + result.PercentUp(noise)
}

// onWithSpecials names a commit group in a chart that holds one number of clients.
func onWithSpecials(g *result.Group) string {
	params := map[string]any{}
	for k, v := range g.Params {
		if k != "clients" {
			params[k] = v
		}
	}
	name := result.On(g.Setup, params)
	for _, c := range []string{result.Conditions(params), g.Extra} {
		if c != "" {
			name += ", " + c
		}
	}
	return name
}

func dotTrack(axis scale, ticks []float64, values []float64, median, noise float64) template.HTML {
	var b strings.Builder
	b.WriteString(`<svg class="dots" width="100%" height="24" aria-hidden="true">`)
	for _, t := range ticks {
		x := num(100 * axis.at(t))
		fmt.Fprintf(&b, `<line class="grid" x1="%s%%" x2="%s%%" y2="24"/>`, x, x)
	}
	if noise > 0 {
		x0, x1 := 100*axis.at(median/(1+noise)), 100*axis.at(median*(1+noise))
		fmt.Fprintf(&b, `<rect class="noise" x="%s%%" width="%s%%" y="1" height="22"/>`, num(x0), num(x1-x0))
	}
	fmt.Fprintf(&b, `<line class="stem" x2="%s%%" y1="12" y2="12"/>`, num(100*axis.at(median)))
	for _, v := range values[:min(len(values), 100)] {
		fmt.Fprintf(&b, `<circle class="dot" cx="%s%%" cy="12" r="4"/>`, num(100*axis.at(v)))
	}
	x := num(100 * axis.at(median))
	fmt.Fprintf(&b, `<line class="mid" x1="%s%%" x2="%s%%" y1="3" y2="21"/></svg>`, x, x)
	return svg(b.String())
}

func dotAxis(axis scale, ticks []float64) template.HTML {
	var b strings.Builder
	b.WriteString(`<svg class="dots" width="100%" height="18" aria-hidden="true">`)
	for _, t := range ticks {
		fmt.Fprintf(&b, `<text class="tx" x="%s%%" y="13">%s</text>`, num(100*axis.at(t)), tickText(t))
	}
	b.WriteString(`</svg>`)
	return svg(b.String())
}

// ccdf shows how often a commit takes longer than so many milliseconds.
type ccdf struct {
	Title string
	What  string // "commits" or "writes"
	Chart template.HTML
	Lines []ccdfLine
}

type ccdfLine struct {
	Swatch              template.HTML
	Label, Mark         string
	P50, P99, P999, Max string
	N                   string
}

// maxCurves is how many curves can be told apart by colour and dash.
const maxCurves = 8

func ccdfs(groups []result.Group) []ccdf {
	clients, by := commitsBy(groups)
	var out []ccdf
	for _, n := range clients {
		out = append(out, newCCDFs(clientsText(n), "commits", by[n])...)
	}
	return out
}

// faultCCDFs are of the writes around faults, as the driver saw them.
func faultCCDFs(groups []result.Group) []ccdf {
	by := map[string][]*result.Group{}
	for i := range groups {
		if g := &groups[i]; g.IsFault() {
			one, _ := result.FaultNoun(g.Fault(), g.Experiment)
			by[one] = append(by[one], g)
		}
	}
	var out []ccdf
	for _, fault := range sorted(by) {
		out = append(out, newCCDFs(upperFirst(fault), "writes", by[fault])...)
	}
	return out
}

// newCCDFs draws the groups that have histograms: more than one chart rather
// than curves that nobody can follow.
func newCCDFs(title, what string, groups []*result.Group) []ccdf {
	var drawn []*result.Group
	var merged []*hdr.Histogram
	for _, g := range groups {
		if h := mergedHistogram(g.Usable()); h != nil {
			drawn, merged = append(drawn, g), append(merged, h)
		}
	}
	var out []ccdf
	for start := 0; start < len(drawn); start += maxCurves {
		end := min(start+maxCurves, len(drawn))
		out = append(out, newCCDF(title, what, drawn[start:end], merged[start:end]))
	}
	return out
}

func newCCDF(title, what string, groups []*result.Group, merged []*hdr.Histogram) ccdf {
	lo, hi, rarest := 1e12, 0.0, 0.1
	for _, h := range merged {
		lo = min(lo, float64(h.ValueAtPercentile(1))/1000)
		hi = max(hi, float64(h.Max())/1000)
		rarest = min(rarest, 1/float64(h.TotalCount()))
	}
	x := scale{lo: max(lo*0.8, 1e-3), hi: max(hi*1.1, lo*2, 2e-3), log: true}
	y := scale{lo: max(rarest, 1e-6), hi: 1, log: true}
	p := &plot{height: 260, x: x, y: y}
	p.gridY(logTicksDecades(y.lo, 1), rarity)
	p.gridX(logTicks(x.lo, x.hi), tickText)
	c := ccdf{Title: title, What: what}
	for i, h := range merged {
		p.path(fmt.Sprintf("curve k%d", i), ccdfPath(p, h))
		g := groups[i]
		c.Lines = append(c.Lines, ccdfLine{
			Swatch: swatch(i),
			Label:  onWithSpecials(g), Mark: mark(g.Simulated), N: result.Count(float64(h.TotalCount())),
			P50: histMs(h, 50), P99: histMs(h, 99), P999: histMs(h, 99.9), Max: result.Figure(float64(h.Max()) / 1000),
		})
	}
	c.Chart = svg(p.html("How many " + what + " take longer than a given time, " + title))
	return c
}

func histMs(h *hdr.Histogram, p float64) string {
	return result.Figure(float64(h.ValueAtPercentile(p)) / 1000)
}

func logTicksDecades(lo, hi float64) []float64 {
	return slices.DeleteFunc(logTicks(lo/1.0001, hi), func(v float64) bool {
		for d := 1.0; d > lo/10; d /= 10 {
			if v/d > 0.99 && v/d < 1.01 {
				return false
			}
		}
		return true
	})
}

// rarity writes a share as people say it: all, 1 in 100.
func rarity(v float64) string {
	if v >= 0.99 {
		return "all"
	}
	return "1 in " + tickText(1/v)
}

// ccdfPath draws at most a few hundred points, none closer than a pixel to the next.
func ccdfPath(p *plot, h *hdr.Histogram) string {
	var b strings.Builder
	total := float64(h.TotalCount())
	seen := int64(0)
	fmt.Fprintf(&b, "M%s 0", p.curveX(float64(h.Min())/1000))
	lastX, lastY := -1.0, -1.0
	for _, bar := range h.Distribution() {
		if bar.Count == 0 {
			continue
		}
		seen += bar.Count
		longer := max(float64(int64(total)-seen)/total, p.y.lo)
		x, y := 1000*p.x.at(float64(bar.To)/1000), 100*(1-p.y.at(longer))
		if x-lastX < 5 && y-lastY < 1 && seen < int64(total) {
			continue
		}
		fmt.Fprintf(&b, "L%s %s", num(x), num(y))
		lastX, lastY = x, y
	}
	return b.String()
}

// mergedHistogram adds up the cells' histograms, nil when there is none to read.
func mergedHistogram(cells []*result.Cell) *hdr.Histogram {
	var out *hdr.Histogram
	for _, c := range cells {
		h := decodeHistogram(c.Histogram)
		switch {
		case h == nil:
		case out == nil:
			out = h
		default:
			out.Merge(h)
		}
	}
	if out == nil || out.TotalCount() == 0 {
		return nil
	}
	return out
}

// maxHistogramText bounds what is decoded; a latency histogram takes a few kB.
const maxHistogramText = 1 << 20

// decodeHistogram returns nil for a histogram that is absent or damaged: the
// figures beside it stand for themselves.
func decodeHistogram(text string) (h *hdr.Histogram) {
	if text == "" || len(text) > maxHistogramText {
		return nil
	}
	defer func() {
		// The decoder indexes by lengths that it finds in its input.
		if recover() != nil {
			h = nil
		}
	}()
	h, err := hdr.Decode([]byte(text))
	if err != nil {
		return nil
	}
	return h
}
