package show

import (
	"bufio"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/diagnose"
	"github.com/holdfast-db/holdfast/internal/report"
)

//go:embed page.gohtml
var pageTemplate string

// ownStyle adds to the reports' style sheet what only this page has: ten parts,
// each told from its neighbours by lightness too.
const ownStyle template.CSS = `
.lead{font-size:1.15rem;max-width:52rem}
.b0{fill:#0b5cad}.b1{fill:#8fb4d6}.b2{fill:#b25600}.b3{fill:#efbf7f}.b4{fill:#00755a}.b5{fill:#8a3d82}.b6{fill:#d6b0d2}.b7{fill:#8a929a}.b8{fill:#c9ced3}.b9{fill:#a32a0b}
.bars{display:block;width:100%}
.yes{color:var(--broken);background:var(--broken-bg)}.no{color:var(--held);background:var(--held-bg)}
.tps{fill:none;stroke:var(--accent);stroke-width:2;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.under{fill:var(--noise)}
`

// answer is a word with a symbol and a colour that repeats it.
type answer struct{ Class, Symbol, Word string }

func answerOf(word string) answer {
	switch word {
	case diagnose.Yes, diagnose.Danger:
		return answer{"yes", "✗", word}
	case diagnose.No:
		return answer{"no", "✓", word}
	case diagnose.Warning:
		return answer{"unknown", "!", word}
	}
	return answer{"invalid", "?", word}
}

type partRow struct {
	Label, Class, Ms, Interval, Share, Sessions, Counter, Note string
	Samples                                                    int
	Shown                                                      bool
}

type answerRow struct {
	Name, Evidence string
	Answer         answer
}

type waitRow struct{ Event, Sessions, Share, Part string }

type statementRow struct{ Query, IO, Mean, Reads, Calls string }

// page is what the template shows.
type page struct {
	D                    diagnose.Diagnosis
	Title, Started       string
	Seconds              string
	Blame                answer
	Whole, Server, Clock string
	Parts                []partRow
	Bar, Chart           template.HTML
	Symptoms, Traps      []answerRow
	Rates, Machine       []Pair
	Waits                []waitRow
	Statements           []statementRow
	Cost                 string
}

// HTML writes a diagnosis as one self-contained file: no script, no request,
// and every word of the server's escaped.
func HTML(w io.Writer, d diagnose.Diagnosis) error {
	t, err := template.New("page").Funcs(template.FuncMap{"css": report.Style, "own": func() template.CSS { return ownStyle }}).Parse(pageTemplate)
	if err != nil {
		return fmt.Errorf("parse the page: %w", err)
	}
	out := bufio.NewWriter(w)
	if err := t.Execute(out, newPage(d)); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

func newPage(d diagnose.Diagnosis) page {
	p := page{D: d, Title: "PostgreSQL at " + clean(d.Server.Address), Started: d.Started, Seconds: trim(d.Seconds), Blame: answerOf(d.Verdict.Storage), Rates: Rates(d)}
	if t, err := time.Parse(time.RFC3339, d.Started); err == nil {
		p.Started = t.UTC().Format("2 January 2006, 15:04 UTC")
	}
	if d.Ms != nil {
		p.Whole = number(*d.Ms)
	}
	if d.ServerMs != nil {
		p.Server = number(*d.ServerMs)
	}
	if d.CounterMs != nil {
		p.Clock = number(*d.CounterMs)
	}
	for i, part := range d.Breakdown {
		row := partRow{Label: labels[part.Name], Class: fmt.Sprintf("b%d", i), Ms: opt(part.Ms), Interval: interval(part), Share: fmt.Sprintf("%.1f %%", 100*part.Share),
			Sessions: number(part.Sessions), Samples: part.Samples, Shown: part.Share >= 0.005}
		if c := part.Counter; c != nil {
			row.Counter, row.Note = counter(c)+" ("+c.Source+")", c.Note
		}
		p.Parts = append(p.Parts, row)
	}
	p.Bar, p.Chart = bar(d), chart(d)
	for _, s := range d.Symptoms {
		p.Symptoms = append(p.Symptoms, answerRow{s.Name, s.Evidence, answerOf(s.Answer)})
	}
	for _, t := range d.Traps {
		p.Traps = append(p.Traps, answerRow{t.Name, t.Text, answerOf(t.Level)})
	}
	for _, w := range d.Waits[:min(10, len(d.Waits))] {
		p.Waits = append(p.Waits, waitRow{w.Event, number(w.Sessions), fmt.Sprintf("%.1f %%", 100*w.Share), labels[w.Part]})
	}
	for _, s := range d.Statements {
		p.Statements = append(p.Statements, statementRow{short(clean(s.Query), 200), number(s.IOMs), number(s.MeanMs), number(s.Reads), fmt.Sprintf("%.0f", s.Calls)})
	}
	if d.Host != nil {
		p.Machine = Machine(d.Host)
	}
	p.Cost = costText(d)
	return p
}

// bar stacks the parts, with the figure of each that has room for it.
func bar(d diagnose.Diagnosis) template.HTML {
	if len(d.Breakdown) == 0 {
		return ""
	}
	var b strings.Builder
	var words []string
	at := 0.0
	for i, p := range d.Breakdown {
		if p.Share <= 0 {
			continue
		}
		words = append(words, fmt.Sprintf("%s %.0f %%", labels[p.Name], 100*p.Share))
		fmt.Fprintf(&b, `<rect class="b%d" x="%.2f%%" width="%.2f%%" height="34"/>`, i, 100*at, 100*p.Share)
		at += p.Share
	}
	head := `<svg class="bars" width="100%" height="34" role="img" aria-label="` + template.HTMLEscapeString(strings.Join(words, ", ")) + `">`
	return template.HTML(head + b.String() + `</svg>`)
}

// chart draws transactions a second. Its labels are outside the stretched
// drawing, so that they keep their size on a telephone.
func chart(d diagnose.Diagnosis) template.HTML {
	var tps []float64
	for _, s := range d.Series {
		if s.TPS == nil {
			return ""
		}
		tps = append(tps, *s.TPS)
	}
	if len(tps) < 3 {
		return ""
	}
	top := slices.Max(tps) * 1.1
	if top <= 0 {
		return ""
	}
	begin, end := d.Series[0].T, d.Series[len(tps)-1].T
	x := func(t float64) float64 { return 1000 * (t - begin) / max(end-begin, 1e-9) }
	var b strings.Builder
	b.WriteString(`<div class="plot"><svg width="100%" height="180" role="img" aria-label="Transactions a second">`)
	fmt.Fprintf(&b, `<text class="ty" x="-8" y="10">%s</text><text class="ty" x="-8" y="180">0</text><line class="grid" x2="100%%" y1="180" y2="180"/><line class="grid" x2="100%%"/>`, template.HTMLEscapeString(number(top)))
	fmt.Fprintf(&b, `<text x="0" y="198">%.0f s</text><text class="ty" x="100%%" y="198">%.0f s</text>`, begin, end)
	b.WriteString(`<svg width="100%" height="180" viewBox="0 0 1000 180" preserveAspectRatio="none">`)
	step := 1000 / float64(len(tps)-1)
	for _, s := range d.Series {
		if s.Checkpoint {
			fmt.Fprintf(&b, `<rect class="under" x="%.1f" width="%.1f" height="180"/>`, x(s.T)-step/2, step)
		}
	}
	b.WriteString(`<polyline class="tps" points="`)
	for i, s := range d.Series {
		fmt.Fprintf(&b, "%.1f,%.1f ", x(s.T), 180-180*tps[i]/top)
	}
	b.WriteString(`"/></svg></svg></div>`)
	return template.HTML(b.String())
}
