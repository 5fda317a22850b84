// Package report turns a run into something a person can decide from: one
// self-contained HTML page, or text for a terminal. Both say the same; see
// DESIGN.md for what they must never do.
package report

import (
	"bufio"
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"github.com/holdfast-db/holdfast/internal/result"
)

//go:embed page.gohtml
var pageTemplate string

//go:embed style.css
var style string

// HTML writes the run as one HTML page. It asks for nothing from anywhere, needs
// no script, and escapes every word of the run. The error is w's, or that of a
// run that cannot be shown.
func HTML(w io.Writer, run *result.Run) error {
	page, err := template.New("page").Funcs(template.FuncMap{
		"css": func() template.CSS { return template.CSS(style) }, // our own file, not the run's words
	}).Parse(pageTemplate)
	if err != nil {
		return fmt.Errorf("parse the report's page: %w", err)
	}
	out := bufio.NewWriter(w)
	if err := page.Execute(out, newPage(run)); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// badge is a verdict as a word and a symbol, so that it never hangs on colour.
type badge struct{ Word, Symbol, Class string }

// newBadge words a verdict. A group that only measured has promised nothing, so
// "held" would say too much of it.
func newBadge(verdict string, promised bool) badge {
	switch {
	case verdict == result.Held && !promised:
		return badge{"measured", "•", "measured"}
	case verdict == result.Held:
		return badge{"held", "✓", "held"}
	case verdict == result.Broken:
		return badge{"broken", "✗", "broken"}
	case verdict == result.Invalid:
		return badge{"invalid", "⊘", "invalid"}
	}
	return badge{"unknown", "?", "unknown"}
}

// mark tells simulated numbers from real ones wherever they are printed.
func mark(simulated bool) string {
	if simulated {
		return "simulated"
	}
	return "real"
}

// words are the verdicts for the explanation at the end.
type words struct{ Held, Broken, Unknown, Invalid, Measured badge }

// Words explains the verdicts.
func (p *page) Words() words {
	return words{newBadge(result.Held, true), newBadge(result.Broken, true), newBadge(result.Unknown, true),
		newBadge(result.Invalid, true), newBadge(result.Held, false)}
}
