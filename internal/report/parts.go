package report

import (
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/holdfast-db/holdfast/internal/result"
)

// partsChart is what a commit is made of, a bar for each group.
type partsChart struct {
	Title  string
	Axis   template.HTML
	Locks  bool // one group at least waits for rows
	Rows   []partsRow
	Looks  string // how often the sessions were looked at, all in all
	Notes  []string
	Single bool // no group has more than one repetition
}

type partsRow struct {
	Label, Setup, Disk, Mark string
	Track                    template.HTML
	Whole                    cellValue
	Flush, Replication       cellValue
	Locks, Rest              cellValue
	DiskFlush                cellValue
	N                        int
}

// partClass is the look of a part, by its name.
func partClass(name string) string {
	switch name {
	case result.PartFlush:
		return "p0"
	case result.PartReplication:
		return "p1"
	case result.PartLocks:
		return "p2"
	case result.PartReads:
		return "p4"
	case result.PartWrites:
		return "p5"
	case result.PartCPU:
		return "p6"
	}
	return "p3"
}

func partsCharts(groups []result.Group) []partsChart {
	clients, by := commitsBy(groups)
	var out []partsChart
	for _, n := range clients {
		if c, ok := newPartsChart(clientsText(n), by[n]); ok {
			out = append(out, c)
		}
	}
	return out
}

func newPartsChart(title string, groups []*result.Group) (partsChart, bool) {
	c := partsChart{Title: title, Single: true}
	var shown []*result.Group
	var made []result.Composition
	top, looks := 0.0, 0.0
	for _, g := range groups {
		m, ok := result.Compose(g)
		if !ok {
			continue
		}
		shown, made = append(shown, g), append(made, m)
		top, looks = max(top, m.Whole.Ms, reachOf(m)), looks+m.Samples
		c.Locks = c.Locks || len(m.Parts) == 4
		c.Single = c.Single && m.N == 1
	}
	if len(made) == 0 || top <= 0 {
		return c, false
	}
	c.Looks = result.Count(looks)
	axis := scale{hi: top * 1.05}
	ticks := niceTicks(0, axis.hi, 5)
	c.Axis = dotAxis(axis, ticks)
	for i, m := range made {
		g := shown[i]
		row := partsRow{Label: onWithSpecials(g), Setup: g.Setup, Disk: diskAndSpecials(g), Mark: mark(g.Simulated), Track: partsTrack(axis, ticks, m),
			Whole: partValue(m.Whole), Locks: cellValue{Main: "in rest"}, DiskFlush: cellValue{Main: "–"}, N: m.N}
		for _, p := range m.Parts {
			v := partValue(p)
			switch p.Name {
			case result.PartFlush:
				row.Flush = v
			case result.PartReplication:
				row.Replication = v
			case result.PartLocks:
				row.Locks = v
			case result.PartRest:
				row.Rest = v
				if p.Ms < 0 {
					c.Notes = append(c.Notes, fmt.Sprintf("%s: the parts come to %s ms more than the whole, which is the error of the sampling.", row.Label, result.Figure(-p.Ms)))
				}
			}
		}
		if m.DiskFlush != nil {
			row.DiskFlush = partValue(*m.DiskFlush)
		}
		c.Rows = append(c.Rows, row)
	}
	return c, true
}

// diskAndSpecials is what tells a group from others of its setup, without the clients.
func diskAndSpecials(g *result.Group) string {
	name := onWithSpecials(g)
	if rest, ok := strings.CutPrefix(name, g.Setup+" on "); ok {
		return rest
	}
	return name
}

// reachOf is how far the whisker of the whole goes, within reason: an interval
// of two repetitions can be many times as wide as what it is about.
func reachOf(m result.Composition) float64 {
	if !m.Whole.Bounded() {
		return m.Whole.Ms
	}
	return min(m.Whole.Hi, 1.5*m.Whole.Ms)
}

// partValue is a mean with its interval below it.
func partValue(p result.Part) cellValue {
	v := cellValue{Main: partText(p.Ms)}
	if p.Name != result.PartRest && p.Lo < 0 {
		p.Lo = 0 // nobody waits for less than no time; the rest is a difference
	}
	if p.Bounded() && (p.Ms != 0 || p.Hi != 0) {
		v.Spread = partText(p.Lo) + "–" + partText(p.Hi)
		if p.Lo < 0 {
			v.Spread = partText(p.Lo) + " to " + partText(p.Hi)
		}
	}
	return v
}

// partText has two decimals at most: sampling resolves no more.
func partText(ms float64) string {
	switch {
	case ms == 0:
		return "0"
	case ms > -0.005 && ms < 0.005:
		return "< 0.01"
	case ms > -10 && ms < 10:
		return strings.Replace(fmt.Sprintf("%.2f", ms), "-", "−", 1)
	}
	return strings.Replace(result.Figure(ms), "-", "−", 1)
}

// labelFrom is the share of the track from which a part has room for its figure
// at the narrowest that the page gets.
const labelFrom = 0.17

func partsTrack(axis scale, ticks []float64, m result.Composition) template.HTML {
	var b strings.Builder
	var words []string
	b.WriteString(`<svg class="dots parts" width="100%" height="34" role="img" aria-label="`)
	for _, p := range m.Parts {
		words = append(words, p.Name+" "+partText(p.Ms)+" ms")
	}
	b.WriteString(esc(strings.Join(words, ", ")) + `">`)
	for _, t := range ticks {
		x := num(100 * axis.at(t))
		fmt.Fprintf(&b, `<line class="grid" x1="%s%%" x2="%s%%" y2="34"/>`, x, x)
	}
	at := 0.0
	for _, p := range m.Parts {
		if p.Ms <= 0 {
			continue
		}
		x, width := 100*axis.at(at), 100*(axis.at(at+p.Ms)-axis.at(at))
		fmt.Fprintf(&b, `<rect class="%s" x="%s%%" y="8" width="%s%%" height="17"/>`, partClass(p.Name), num(x), num(width))
		if width >= 100*labelFrom {
			fmt.Fprintf(&b, `<text class="in" x="%s%%" y="16.5" dy=".35em">%s</text>`, num(x+width/2), partText(p.Ms))
		}
		at += p.Ms
	}
	// The interval of each part stands at its end, below the bar; that of the
	// whole above it.
	at = 0
	for _, p := range m.Parts {
		at += max(p.Ms, 0)
		if p.Bounded() && p.Ms > 0 && p.Name != result.PartRest {
			whisker(&b, axis, at-(p.Ms-p.Lo), at+(p.Hi-p.Ms), 29, 31)
		}
	}
	if m.Whole.Bounded() {
		whisker(&b, axis, m.Whole.Lo, m.Whole.Hi, 2, 4)
	}
	b.WriteString(`</svg>`)
	return svg(b.String())
}

func whisker(b *strings.Builder, axis scale, lo, hi float64, top, bottom int) {
	x0, x1, mid := num(100*axis.at(lo)), num(100*axis.at(hi)), (top+bottom)/2
	fmt.Fprintf(b, `<line class="whisk" x1="%s%%" x2="%s%%" y1="%d" y2="%d"/>`, x0, x1, mid, mid)
	for _, x := range []string{x0, x1} {
		fmt.Fprintf(b, `<line class="whisk" x1="%s%%" x2="%s%%" y1="%d" y2="%d"/>`, x, x, top-1, bottom+1)
	}
}

// partsLegend are the parts in words.
func partsLegend(charts []partsChart) []legendEntry {
	var out []legendEntry
	locks := slices.ContainsFunc(charts, func(c partsChart) bool { return c.Locks })
	for _, p := range []struct{ name, text string }{
		{result.PartFlush, "flush: waiting for the primary's own WAL to be on its disk, for its turn in a group too"},
		{result.PartReplication, "replication: waiting for a standby after that"},
		{result.PartLocks, "row locks: waiting for other transactions"},
		{result.PartRest, "rest: processor, pages, client and its round trips"},
	} {
		if p.name == result.PartLocks && !locks {
			continue
		}
		out = append(out, legendEntry{svg(fmt.Sprintf(`<svg class="key" width="22" height="12" aria-hidden="true"><rect class="%s" width="22" height="12"/></svg>`, partClass(p.name))), p.text})
	}
	return out
}
