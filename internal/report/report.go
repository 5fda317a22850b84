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

//go:embed cell.gohtml
var cellTemplate string

//go:embed style.css
var style string

// Style is the style sheet of every page of holdfast.
func Style() template.CSS { return template.CSS(style) } // our own file, not a run's words

// HTML writes the run as one HTML page. It asks for nothing from anywhere, needs
// no script, and escapes every word of the run. The error is w's, or that of a
// run that cannot be shown.
func HTML(w io.Writer, run *result.Run) error { return render(w, "page", newPage(run)) }

// render carries out one of the templates.
func render(w io.Writer, name string, data any) error {
	t := template.New("page").Funcs(template.FuncMap{
		"css": Style,
	})
	for _, text := range []string{pageTemplate, cellTemplate} {
		if _, err := t.Parse(text); err != nil {
			return fmt.Errorf("parse the report's page: %w", err)
		}
	}
	out := bufio.NewWriter(w)
	if err := t.ExecuteTemplate(out, name, data); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// mark tells simulated numbers from real ones wherever they are printed.
func mark(simulated bool) string {
	if simulated {
		return "simulated"
	}
	return "real"
}
