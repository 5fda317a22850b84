package report

import (
	"fmt"
	"html/template"
	"strings"

	"github.com/holdfast-db/holdfast/internal/result"
)

// faultGroup is the section of one fault group: a sentence, the group's chart
// and phases, and every cell.
type faultGroup struct {
	badge
	ID, Title, Mark, Sentence string
	Base                      string // setup and disk
	Top                       string // of the charts' height
	From, To                  string // of the charts' time
	Chart                     template.HTML
	Phases                    []phase
	Courses                   *courses // nil where nothing of them was measured
	Recovery                  []string
	Evidence                  string
	Cells                     []faultCell
	Open                      bool
	Fault                     string
}

// faultCell is one repetition.
type faultCell struct {
	badge
	ID, Title, Why string
	Chart, Strip   template.HTML
	Bars           []phaseBar
	Fates          []string
	Line           string
	Events         []eventLine
	More           []pair
}

type eventLine struct{ At, What string }

// maxRecoveries is how many ways of coming back are spelled out for a group.
const maxRecoveries = 3

// briefFrom is the number of fault cells from which those that held say less, so
// that a run of hundreds stays a page that one can send.
const briefFrom = 150

// openUpTo is the number of cells that a group shows without being asked.
const openUpTo = 8

func faultGroups(run *result.Run, groups []result.Group, ids cellIDs) []faultGroup {
	summary := run.Summary
	if len(summary) == 0 {
		summary = result.Summarise(run)
	}
	sentences := map[string]string{}
	for _, s := range summary {
		if s.Experiment != "" {
			key := result.Key(&result.Cell{Setup: s.Setup, Experiment: s.Experiment, Params: s.Params})
			sentences[key] = strings.TrimPrefix(s.Sentence, result.On(s.Setup, s.Params)+": ")
		}
	}
	cells := 0
	for i := range groups {
		if groups[i].IsFault() {
			cells += len(groups[i].Cells)
		}
	}
	brief := cells > briefFrom
	var out []faultGroup
	for i := range groups {
		if g := &groups[i]; g.IsFault() {
			key := result.Key(&result.Cell{Setup: g.Setup, Experiment: g.Experiment, Params: g.Params})
			out = append(out, newFaultGroup(g, ids, glued(upperFirst(sentences[key])), brief))
		}
	}
	return out
}

func newFaultGroup(g *result.Group, ids cellIDs, sentence string, brief bool) faultGroup {
	one, _ := result.FaultNoun(g.Fault(), g.Experiment)
	f := faultGroup{badge: groupBadge(g), ID: groupID(g), Title: result.On(g.Setup, g.Params) + ": " + one,
		Mark: mark(g.Simulated), Base: result.On(g.Setup, g.Params), Sentence: sentence, Phases: phases(g), Open: len(g.Cells) <= openUpTo && !brief, Fault: one}
	if c := g.Conditions(); c != "" {
		f.Title += ", " + c
	}
	s, ok := spanOf(g.Cells)
	if ok {
		f.Chart = secondsChart(g, s, f.Phases)
		f.Top, f.From, f.To = tickText(s.top), signed(s.from)+" s", signed(s.to)+" s"
	}
	course, courseScale := newCourses(g)
	f.Courses = course
	recoveries, evidence := map[string]bool{}, map[string]bool{}
	for _, c := range g.Cells {
		if c.Recovery != "" {
			recoveries[c.Recovery] = true
		}
		if c.Evidence != "" {
			text := c.Evidence
			if c.Silent {
				text += ", silent"
			} else {
				text += ", not silent"
			}
			evidence[text] = true
		}
		f.Cells = append(f.Cells, newFaultCell(c, ids[c], s, ok, courseScale, brief))
	}
	f.Recovery = sorted(recoveries)
	if n := len(f.Recovery); n > maxRecoveries {
		f.Recovery = append(f.Recovery[:maxRecoveries], fmt.Sprintf("and %d more ways, each in its cell", n-maxRecoveries))
	}
	f.Evidence = strings.Join(sorted(evidence), "; ")
	return f
}

func newFaultCell(c *result.Cell, id string, s span, charted bool, course scale, brief bool) faultCell {
	f := faultCell{badge: cellBadge(c, true), ID: id, Title: fmt.Sprintf("repetition %d", c.Repetition)}
	if c.Verdict != result.Held { // what is held is said by its figures
		f.Why = c.Why
	}
	if charted {
		ticks := 20
		if brief && c.Verdict == result.Held {
			ticks = 6
		}
		f.Chart = miniChart(c, s, ticks)
	}
	f.Strip, f.Fates = idStrip(c.IDs)
	f.Bars = phaseBars(c)
	for i := range f.Bars {
		f.Bars[i].draw(course, 8)
	}
	var parts []string
	for _, m := range []struct{ name, text string }{
		{"acked", "%s acknowledged"}, {"lost", "%s lost"}, {"lost_ms", "over %s ms"}, {"first_ack_ms", "writes again after %s ms"},
	} {
		if v, ok := c.Metrics[m.name]; ok && (m.name != "lost_ms" || c.Metrics["lost"] > 0) {
			parts = append(parts, fmt.Sprintf(m.text, result.Count(v)))
		}
	}
	f.Line = glued(strings.Join(parts, " · "))
	for _, e := range c.Events {
		at := seconds(e.AtMs)
		if e.UntilMs > e.AtMs {
			at += " to " + seconds(e.UntilMs)
		}
		f.Events = append(f.Events, eventLine{at, e.What})
	}
	if brief && c.Verdict == result.Held && len(f.Bars) > 0 {
		f.Events = nil // its course says what came when
	}
	for _, name := range sorted(c.Metrics) {
		switch name {
		case "acked", "lost", "lost_ms", "first_ack_ms":
		default:
			if !brief || c.Verdict != result.Held {
				f.More = append(f.More, pair{metricName(name), result.Figure(c.Metrics[name])})
			}
		}
	}
	if c.Recovery != "" && (!brief || c.Verdict != result.Held) {
		f.More = append(f.More, pair{"brought back by", c.Recovery})
	}
	if c.History != "" {
		f.More = append(f.More, pair{"history", c.History})
	}
	return f
}
