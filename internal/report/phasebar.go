package report

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/holdfast-db/holdfast/internal/result"
)

// phaseMark is a moment in the course of one fault, in ms after its beginning.
type phaseMark struct {
	name, class string
	ms          float64
}

// phaseBar is the course of one fault on a timeline of its own.
type phaseBar struct {
	Label string
	Track template.HTML
	Line  string

	marks []phaseMark
	never bool // no write was acknowledged again
}

// phaseNames are the phases in the order of the legend.
func phaseNames() []phaseMark {
	return []phaseMark{
		{"cut", "f0", 0}, {"noticed", "f1", 0}, {"fault over", "f2", 0}, {"promoted", "f3", 0},
		{"first acknowledged write", "f4", 0}, {"sustained", "f5", 0},
	}
}

func namedPhase(i int, ms float64) phaseMark {
	m := phaseNames()[i]
	m.ms = ms
	return m
}

// phaseBars are the faults of one cell: one, or as many as struck its load.
func phaseBars(c *result.Cell) []phaseBar {
	if c.Verdict != result.Held && c.Verdict != result.Broken {
		return nil
	}
	first := phaseBar{marks: firstMarks(c)}
	_, again := c.Metrics["first_ack_ms"]
	first.never = !again
	bars := []phaseBar{first}
	for n := 2; n <= 1000; n++ {
		bar, ok := laterBar(c, n)
		if !ok {
			break
		}
		bars = append(bars, bar)
	}
	out := bars[:0]
	for _, b := range bars {
		if len(b.marks) == 0 && len(bars) == 1 {
			continue // nothing of its course was measured
		}
		slices.SortStableFunc(b.marks, func(x, y phaseMark) int { return cmp.Compare(x.ms, y.ms) })
		b.Line = phaseLine(b)
		out = append(out, b)
	}
	return out
}

// firstMarks come from the metrics, which are those of the first fault.
func firstMarks(c *result.Cell) []phaseMark {
	var marks []phaseMark
	if e, ok := strikeOf(c); ok && e.UntilMs > e.AtMs && c.Metrics["held_ms"] == 0 {
		marks = append(marks, namedPhase(0, e.UntilMs))
	}
	for i, metric := range []string{"", "detected_ms", "held_ms", "promoted_ms", "first_ack_ms", "sustained_ms"} {
		if v, ok := c.Metrics[metric]; ok && metric != "" && v >= 0 {
			marks = append(marks, namedPhase(i, v))
		}
	}
	return marks
}

// strikeOf is the event that is the first fault itself.
func strikeOf(c *result.Cell) (result.Event, bool) {
	for _, e := range c.Events {
		if e.AtMs == 0 {
			return e, true
		}
	}
	return result.Event{}, false
}

// laterBar is the course of the nth fault in one load, from its events.
func laterBar(c *result.Cell, n int) (phaseBar, bool) {
	strike, ok := strikeOf(c)
	if !ok {
		return phaseBar{}, false
	}
	suffix := fmt.Sprintf(" (fault %d)", n)
	i := slices.IndexFunc(c.Events, func(e result.Event) bool { return e.What == strike.What+suffix })
	if i < 0 {
		return phaseBar{}, false
	}
	zero := c.Events[i].AtMs
	bar := phaseBar{never: true}
	if until := c.Events[i].UntilMs; until > zero {
		bar.marks = append(bar.marks, namedPhase(0, until-zero))
	}
	for _, e := range c.Events {
		switch strings.TrimSuffix(e.What, suffix) {
		case e.What: // of another fault
		case "a standby was promoted":
			bar.marks = append(bar.marks, namedPhase(3, e.AtMs-zero))
		case "first acknowledged write":
			bar.marks, bar.never = append(bar.marks, namedPhase(4, e.AtMs-zero)), false
		}
	}
	return bar, true
}

func phaseLine(b phaseBar) string {
	var parts []string
	for _, m := range b.marks {
		parts = append(parts, m.name+" "+result.Duration(m.ms))
	}
	if b.never {
		parts = append(parts, "no write was acknowledged again")
	}
	return glued(strings.Join(parts, " → "))
}

// phaseScale is what the bars of one group share.
func phaseScale(bars []phaseBar) scale {
	top := 0.0
	for _, b := range bars {
		for _, m := range b.marks {
			top = max(top, m.ms)
		}
	}
	return scale{hi: max(top*1.04, 1)}
}

// draw fills the bar: each phase from the mark before it to its own.
func (b *phaseBar) draw(s scale, height int) {
	var out strings.Builder
	// The line beside it says the same in words.
	fmt.Fprintf(&out, `<svg class="dots phase" width="100%%" height="%d" aria-hidden="true">`, height)
	from := 0.0
	for _, m := range b.marks {
		x0, x1 := s.at(from), s.at(m.ms)
		if x1 > x0 {
			fmt.Fprintf(&out, `<rect class="%s" x="%s%%" width="%s%%" height="%d"/>`, m.class, num(100*x0), num(max(0.3, 100*(x1-x0))), height)
		} else if m.name == "sustained" || m.name == "first acknowledged write" {
			continue // at once: said in the line below
		}
		from = max(from, m.ms)
	}
	if b.never {
		fmt.Fprintf(&out, `<rect class="never" x="%s%%" width="%s%%" height="%d"/>`, num(100*s.at(from)), num(100*(1-s.at(from))), height)
	}
	out.WriteString(`</svg>`)
	b.Track = svg(out.String())
}

// courses is the figure over a group: its faults from the quickest to the slowest.
type courses struct {
	Caption string
	Rows    []phaseBar
	Axis    template.HTML
}

// maxCourses is how many faults the figure of a group has room for.
const maxCourses = 10

func newCourses(g *result.Group) (*courses, scale) {
	var all []phaseBar
	for _, c := range g.Cells {
		bars := phaseBars(c)
		for i, b := range bars {
			b.Label = fmt.Sprintf("repetition %d", c.Repetition)
			if len(bars) > 1 {
				b.Label = fmt.Sprintf("%d, fault %d", c.Repetition, i+1)
			}
			all = append(all, b)
		}
	}
	s := phaseScale(all)
	if len(all) == 0 {
		return nil, s
	}
	slices.SortStableFunc(all, func(a, b phaseBar) int { return cmp.Compare(a.end(), b.end()) })
	f := &courses{Caption: "The course of each fault, from the quickest to the slowest."}
	if n := len(all); n > maxCourses {
		f.Caption = fmt.Sprintf("The course of %d of the %d faults, evenly from the quickest to the slowest.", maxCourses, n)
		var some []phaseBar
		for i := range maxCourses {
			some = append(some, all[i*(n-1)/(maxCourses-1)])
		}
		all = some
	}
	for i := range all {
		all[i].draw(s, 16)
	}
	f.Rows = all
	var axis strings.Builder
	axis.WriteString(`<svg class="dots" width="100%" height="18" aria-hidden="true">`)
	for _, t := range niceTicks(0, s.hi/1000, 4) {
		fmt.Fprintf(&axis, `<text class="tx" x="%s%%" y="13">%s s</text>`, num(100*s.at(t*1000)), tickText(t))
	}
	axis.WriteString(`</svg>`)
	f.Axis = svg(axis.String())
	return f, s
}

// end is when writes came back, after everything else where they did not.
func (b *phaseBar) end() float64 {
	if b.never {
		return 1e18
	}
	for _, m := range b.marks {
		if m.class == "f4" {
			return m.ms
		}
	}
	return 1e18
}

// phaseLegend are the phases in words; what a bar's stretch ends with is what it is called.
func phaseLegend(groups []faultGroup) []legendEntry {
	seen := map[string]bool{}
	never := false
	for _, g := range groups {
		if g.Courses == nil {
			continue
		}
		for _, b := range g.Courses.Rows {
			never = never || b.never
			for _, m := range b.marks {
				seen[m.class] = true
			}
		}
	}
	text := map[string]string{"f0": "until the cut was complete", "f1": "until it was noticed", "f2": "until the fault was over", "f3": "until a standby was promoted",
		"f4": "until the first acknowledged write", "f5": "until writes were sustained again"}
	var out []legendEntry
	add := func(class, words string) {
		out = append(out, legendEntry{svg(fmt.Sprintf(`<svg class="key" width="22" height="12" aria-hidden="true"><rect class="%s" width="22" height="12"/></svg>`, class)), words})
	}
	for _, p := range phaseNames() {
		if seen[p.class] {
			add(p.class, text[p.class])
		}
	}
	if never {
		add("never", "no write was acknowledged again")
	}
	return out
}
