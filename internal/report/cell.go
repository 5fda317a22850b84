package report

import (
	"bufio"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-db/holdfast/internal/result"
)

// FindCell finds one cell by its anchor in the page (cell-…, with or without the
// #) or by its number in the study's plan. The error says which there are, where
// a number stands for several.
func FindCell(run *result.Run, name string) (*result.Cell, string, error) {
	groups := result.Groups(run)
	ids := newCellIDs(groups)
	name = strings.TrimPrefix(name, "#")
	number, err := strconv.Atoi(name)
	byNumber := err == nil
	var found []*result.Cell
	var names []string
	for i := range groups {
		for _, c := range groups[i].Cells {
			if id := ids[c]; byNumber && c.Planned == number && number > 0 || id == name || id == "cell-"+name {
				found, names = append(found, c), append(names, id)
			}
		}
	}
	switch len(found) {
	case 1:
		return found[0], names[0], nil
	case 0:
		if byNumber {
			return nil, "", fmt.Errorf("the run has no cell %d: `holdfast lab report DIR --json` lists them, each with its number (planned)", number)
		}
		return nil, "", fmt.Errorf("the run has no cell %q: give its number in the plan, or the part after # of a link in report.html", name)
	}
	const shown = 3
	rest := ""
	if len(names) > shown {
		rest = fmt.Sprintf(" and %d more", len(names)-shown)
	}
	return nil, "", fmt.Errorf("cell %d of the plan came to %d measurements: name one, as %s%s", number, len(names), strings.Join(names[:min(shown, len(names))], ", "), rest)
}

// cellPage is everything about one cell.
type cellPage struct {
	badge
	ID, Title, Mark, Kind string
	Study, Command        string
	Started               string
	Why, Promise          string
	Params                []pair
	Fault                 *faultCell
	Chart                 template.HTML
	Courses               *courses
	PhaseLegend, Legend   []legendEntry
	Parts                 []partsChart
	PartsLegend           []legendEntry
	CCDFs                 []ccdf
	DiskCharts            []diskChart
	Metrics               []pair
	Evidence              string
	Environment, Versions []pair
	SimulatedHow          []string
	NotProven             []string
	Words                 words
}

func newCellPage(run *result.Run, c *result.Cell, id string) *cellPage {
	one := *run
	one.Cells = []result.Cell{*c}
	one.Skipped, one.Comparisons, one.Noise, one.Summary = nil, nil, nil, nil
	groups := result.Groups(&one)
	g := &groups[0]
	p := &cellPage{badge: cellBadge(c, g.IsFault()), ID: id, Title: fmt.Sprintf("%s, repetition %d", groupTitle(g), c.Repetition), Mark: mark(c.Simulated), Kind: kindOf(&one),
		Study: run.Study, Command: run.Command, Why: c.Why, Promise: c.Promise.Words(), Words: allWords()}
	p.Started, _ = when(run)
	for _, name := range sorted(c.Params) {
		p.Params = append(p.Params, pair{strings.ReplaceAll(name, "_", " "), result.ParamText(c.Params[name])})
	}
	for _, name := range sorted(c.Metrics) {
		p.Metrics = append(p.Metrics, pair{metricName(name), result.Figure(c.Metrics[name])})
	}
	if g.IsFault() {
		f := newFaultGroup(g, cellIDs{g.Cells[0]: id}, "", false)
		p.Fault, p.Chart, p.Courses, p.Evidence = &f.Cells[0], f.Chart, f.Courses, f.Evidence
		if f.Courses != nil {
			f.Courses.Caption = "Its course."
		}
		p.PhaseLegend, p.Legend = phaseLegend([]faultGroup{f}), fateLegend()
		p.CCDFs = faultCCDFs(groups)
	}
	if p.Parts = partsCharts(groups); len(p.Parts) > 0 {
		p.PartsLegend = partsLegend(p.Parts)
	}
	if p.Fault == nil {
		p.CCDFs = newCCDFs(p.Title, map[bool]string{true: "commits", false: "operations"}[c.Experiment == "commit"], []*result.Group{g})
	}
	p.DiskCharts = diskCharts(groups)
	p.Environment, p.Versions = environment(run), versions(&one)
	p.SimulatedHow, p.NotProven = simulatedHow(&one, groups), notProven(&one, groups)
	p.NotProven = slices.Insert(p.NotProven, 0, "Anything that takes more than one repetition to know. This is one cell of a run; how it compares and how far it is from the others stands in the run’s own report.")
	return p
}

// HTMLCell writes a page of one cell, found by FindCell's names.
func HTMLCell(w io.Writer, run *result.Run, name string) error {
	c, id, err := FindCell(run, name)
	if err != nil {
		return err
	}
	return render(w, "cell", newCellPage(run, c, id))
}

// TextCell writes one cell for a terminal.
func TextCell(w io.Writer, run *result.Run, name string, opt TextOptions) error {
	c, id, err := FindCell(run, name)
	if err != nil {
		return err
	}
	t := newText(opt)
	t.cell(newCellPage(run, c, id))
	return t.flush(w)
}

func (t *text) cell(p *cellPage) {
	t.line(t.bold(plain("holdfast · " + p.Study)))
	t.wrapped("", "", p.Title+tilde(p.Mark))
	t.wrapped("", "", p.ID)
	t.line(t.paint(p.badge, p.Symbol+" "+p.Word))
	if p.Why != "" {
		t.wrapped("  ", "  ", p.Why)
	}
	if p.Promise != "" {
		t.wrapped("  ", "  ", "promises to lose: "+p.Promise)
	}
	if p.Courses != nil {
		t.heading("Its course")
		for _, b := range p.Courses.Rows {
			t.wrapped("  ", "    ", b.Label+": "+b.Line)
		}
	}
	if p.Fault != nil {
		t.pairs("Events", eventPairs(p.Fault.Events))
		if len(p.Fault.Fates) > 0 {
			t.heading("Ids")
			t.wrapped("  ", "    ", strings.Join(p.Fault.Fates, " · "))
		}
	}
	t.parts(p.Parts)
	t.pairs("Figures", p.Metrics)
	t.pairs("Parameters", p.Params)
	t.pairs("Versions", p.Versions)
	t.list("What is simulated", p.SimulatedHow)
	t.list("What this does not prove", p.NotProven)
}

func eventPairs(events []eventLine) []pair {
	var out []pair
	for _, e := range events {
		out = append(out, pair{e.At, e.What})
	}
	return out
}

func (t *text) pairs(title string, pairs []pair) {
	if len(pairs) == 0 {
		return
	}
	t.heading(title)
	for _, p := range pairs {
		t.wrapped("  ", "    ", p.Key+": "+p.Value)
	}
}

func (t *text) flush(w io.Writer) error {
	out := bufio.NewWriter(w)
	if _, err := out.WriteString(strings.TrimLeft(t.b.String(), "\n")); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
