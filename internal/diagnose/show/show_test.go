package show_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/holdfast-db/holdfast/internal/diagnose"
	"github.com/holdfast-db/holdfast/internal/diagnose/show"
)

func full(t *testing.T) diagnose.Diagnosis {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "diagnosis.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d diagnose.Diagnosis
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields() // a field that was renamed is an old file that is not read any more
	if err := dec.Decode(&d); err != nil {
		t.Fatal(err)
	}
	return d
}

func text(t *testing.T, d diagnose.Diagnosis) string {
	t.Helper()
	var b strings.Builder
	if err := show.Text(&b, d); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func page(t *testing.T, d diagnose.Diagnosis) string {
	t.Helper()
	var b strings.Builder
	if err := show.HTML(&b, d); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestBothSayTheSame: what matters is in the text and on the page.
func TestBothSayTheSame(t *testing.T) {
	d := full(t)
	strip := regexp.MustCompile(`<[^>]*>|\s+`)
	flat := func(s string) string { return strings.Join(strings.Fields(strip.ReplaceAllString(s, " ")), " ") }
	txt, html := flat(text(t, d)), flat(page(t, d))
	for _, want := range []string{
		"slow flush", d.Verdict.Sentences[0], d.Verdict.Sentences[1], d.Verdict.Advice, d.WhatIf[0].Sentence, "commit flush", "other lightweight locks", "unexplained",
		"slow ingestion", "logical replication lag", "can't tell", "LWLock:WALWrite", "one WAL flush", "of one core", "fuse.holdfast", d.Traps[0].Text, "simulated",
	} {
		unescaped := strings.NewReplacer("&#39;", "'", "&#34;", `"`, "&lt;", "<", "&gt;", ">", "&amp;", "&").Replace(html)
		if !strings.Contains(txt, want) {
			t.Errorf("the text lacks %q:\n%s", want, txt)
		}
		if !strings.Contains(unescaped, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for line := range strings.Lines(text(t, d)) {
		if n := utf8.RuneCountInString(line); n > 130 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestAbsentIsNotZero: what is not known is n/a in both.
func TestAbsentIsNotZero(t *testing.T) {
	d := full(t)
	d.Ms, d.Host, d.Statements, d.Waits, d.Series, d.WhatIf, d.Traps = nil, nil, nil, nil, nil, nil, nil
	d.Rates, d.Storage = diagnose.Rates{}, diagnose.Storage{}
	for i := range d.Breakdown {
		d.Breakdown[i].Ms, d.Breakdown[i].Counter = nil, nil
	}
	if s := text(t, d); strings.Count(s, "n/a") < 15 {
		t.Errorf("%s", s)
	}
	if s := page(t, d); !strings.Contains(s, "there are shares only") {
		t.Error("the page does not say that there are shares only")
	}
	_ = text(t, diagnose.Diagnosis{})
	_ = page(t, diagnose.Diagnosis{})
}

// TestForeignWords: what a server calls its things is text, never markup, and
// moves no terminal's cursor.
func TestForeignWords(t *testing.T) {
	d := full(t)
	evil := "<script>alert(1)</script>\x1b[2J\u202e"
	d.Server.Address, d.Server.Database = evil, evil
	d.Statements = []diagnose.Statement{{Query: evil, Calls: 1}}
	d.Missing, d.Traps = []string{evil}, []diagnose.Trap{{Name: evil, Text: evil, Level: diagnose.Danger}}
	d.Symptoms[0].Evidence = evil
	if s := page(t, d); strings.Contains(s, "<script") {
		t.Error("markup gets through")
	}
	if s := text(t, d); strings.ContainsAny(s, "\x1b\u202e") {
		t.Error("control characters get through")
	}
}

// TestSelfContained: one file, no script, no request.
func TestSelfContained(t *testing.T) {
	s := page(t, full(t))
	for _, bad := range []string{"<script", "http://", "https://", "src=", "@import", "url("} {
		if strings.Contains(s, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if len(s) > 60_000 {
		t.Errorf("%d bytes", len(s))
	}
}

func TestInterrupted(t *testing.T) {
	d := full(t)
	d.Interrupted = &diagnose.Interrupted{What: "died", AtS: 3.2, Text: "nobody listens there"}
	for _, s := range []string{text(t, d), page(t, d)} {
		if !strings.Contains(s, "died") || !strings.Contains(s, "nobody listens there") {
			t.Errorf("%.200s", s)
		}
	}
}
