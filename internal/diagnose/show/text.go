// Package show lays a diagnosis out, as text and as one HTML file.
package show

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-db/holdfast/internal/diagnose"
)

// labels are the parts as a table has them.
var labels = map[string]string{
	diagnose.PageReads: "page reads", diagnose.CommitFlush: "commit flush", diagnose.OtherWAL: "other WAL I/O", diagnose.DataWrites: "data writes, checkpoints",
	diagnose.Replication: "replication wait", diagnose.RowLocks: "row locks", diagnose.OtherLocks: "other lightweight locks", diagnose.CPU: "CPU",
	diagnose.Client: "client and round trips", diagnose.Unexplained: "unexplained",
}

// Text writes a diagnosis in at most 100 columns where its own words allow.
func Text(w io.Writer, d diagnose.Diagnosis) error {
	var b strings.Builder
	header(&b, d)
	for _, s := range d.Verdict.Sentences {
		b.WriteString(wrap(s, "  ") + "\n")
	}
	if d.Verdict.Advice != "" {
		b.WriteString(wrap("What to do: "+d.Verdict.Advice, "  ") + "\n")
	}
	for _, p := range d.WhatIf {
		b.WriteString(wrap("What if: "+p.Sentence, "  ") + "\n")
	}
	breakdown(&b, d)
	symptoms(&b, d)
	facts(&b, d)
	list(&b, d)
	cost(&b, d)
	_, err := io.WriteString(w, b.String())
	return err
}

func header(b *strings.Builder, d diagnose.Diagnosis) {
	s := d.Server
	through := ""
	if s.Pooler {
		through = ", through a pooler"
	}
	fmt.Fprintf(b, "PostgreSQL %s at %s, database %s, %s%s; %s s, %d samples\n", s.Version, clean(s.Address), clean(s.Database), s.Role, through, trim(d.Seconds), d.Sampling.Samples)
	if d.Simulated {
		b.WriteString("Its disk is simulated (holdfast simdisk): the figures are no hardware's.\n")
	}
	if i := d.Interrupted; i != nil {
		fmt.Fprintf(b, "%s\n", wrap(fmt.Sprintf("After %s s: %s: %s.", trim(i.AtS), i.What, i.Text), ""))
	}
	fmt.Fprintf(b, "\nVerdict: %s (storage to blame: %s)\n", d.Verdict.Cause, d.Verdict.Storage)
}

func breakdown(b *strings.Builder, d diagnose.Diagnosis) {
	if len(d.Breakdown) == 0 {
		return
	}
	b.WriteString("\nWhere a transaction's time goes\n")
	fmt.Fprintf(b, "  %-25s %9s %15s %6s %9s %8s  %s\n", "", "ms", "95 %", "share", "sessions", "samples", "counters")
	for _, p := range d.Breakdown {
		fmt.Fprintf(b, "  %-25s %9s %15s %5.1f%% %9s %8d  %s\n", labels[p.Name], opt(p.Ms), interval(p), 100*p.Share, number(p.Sessions), p.Samples, counter(p.Counter))
	}
	if d.Ms != nil {
		fmt.Fprintf(b, "  %-25s %9s\n", "together", opt(d.Ms))
	}
	if d.CounterMs != nil && d.ServerMs != nil {
		fmt.Fprintf(b, "  in the server: %s ms sampled, %s by its own clock (active_time)%s\n", opt(d.ServerMs), opt(d.CounterMs), agreement(*d.ServerMs, *d.CounterMs))
	}
	for _, p := range d.Breakdown {
		if p.Counter != nil && p.Counter.Note != "" {
			fmt.Fprintf(b, "%s\n", wrap(fmt.Sprintf("%s, %s: %s", labels[p.Name], p.Counter.Source, p.Counter.Note), "  "))
		}
	}
}

func agreement(a, c float64) string {
	if diff := (a - c) / max(c, 1e-9); diff > 0.2 || diff < -0.2 {
		return fmt.Sprintf(": they disagree by %.0f %%", 100*diff)
	}
	return ""
}

func interval(p diagnose.Part) string {
	if p.Lo == nil || p.Hi == nil || p.Samples == 0 {
		return ""
	}
	return number(*p.Lo) + "–" + number(*p.Hi)
}

func counter(c *diagnose.Counter) string {
	if c == nil {
		return ""
	}
	word := "agrees"
	if !c.Agrees {
		word = "DISAGREES"
	}
	return fmt.Sprintf("%s of %s, %s", number(c.Ms), number(c.Seen), word)
}

func symptoms(b *strings.Builder, d diagnose.Diagnosis) {
	b.WriteString("\nFive symptoms\n")
	for _, s := range d.Symptoms {
		lines := strings.Split(wrapTo(clean(s.Evidence), "", width-42), "\n")
		fmt.Fprintf(b, "  %-27s %-11s %s\n", s.Name, s.Answer, lines[0])
		for _, l := range lines[1:] {
			fmt.Fprintf(b, "  %-39s %s\n", "", strings.TrimSpace(l))
		}
	}
}

func facts(b *strings.Builder, d diagnose.Diagnosis) {
	b.WriteString("\nRates\n")
	for _, p := range Rates(d) {
		fact(b, p)
	}
	if len(d.Waits) > 0 {
		b.WriteString("\nWaits of sessions in a statement\n")
		for _, w := range d.Waits[:min(8, len(d.Waits))] {
			fmt.Fprintf(b, "  %-34s %8s sessions %5.1f%%  %s\n", w.Event, number(w.Sessions), 100*w.Share, labels[w.Part])
		}
	}
	if len(d.Statements) > 0 {
		b.WriteString("\nStatements by I/O\n")
		for _, s := range d.Statements {
			fmt.Fprintf(b, "  %8s ms I/O, %8s ms, %6s pages, %8.0f calls  %s\n", number(s.IOMs), number(s.MeanMs), number(s.Reads), s.Calls, short(clean(s.Query), 60))
		}
	}
	if d.Host == nil {
		return
	}
	b.WriteString("\nThe machine\n")
	for _, p := range Machine(d.Host) {
		fact(b, p)
	}
}

// fact is a name with its value, broken at blanks and commas.
func fact(b *strings.Builder, p Pair) {
	value := clean(p.Value)
	if utf8.RuneCountInString(value) > width-37 {
		value = strings.ReplaceAll(value, ",", ", ")
		value = strings.Join(strings.Fields(value), " ")
	}
	lines := strings.Split(wrapTo(value, "", width-37), "\n")
	fmt.Fprintf(b, "  %-34s %s\n", p.Name, lines[0])
	for _, l := range lines[1:] {
		fmt.Fprintf(b, "  %-34s %s\n", "", strings.TrimSpace(l))
	}
}

func list(b *strings.Builder, d diagnose.Diagnosis) {
	if len(d.Traps) > 0 {
		b.WriteString("\nTraps\n")
		for _, t := range d.Traps {
			fmt.Fprintf(b, "%s\n", wrap(fmt.Sprintf("%-8s %s", t.Level, clean(t.Text)), "  "))
		}
	}
	if len(d.Missing) > 0 {
		b.WriteString("\nNot looked at\n")
		for _, m := range d.Missing {
			fmt.Fprintf(b, "%s\n", wrap(clean(m), "  "))
		}
	}
}

func cost(b *strings.Builder, d diagnose.Diagnosis) {
	b.WriteString("\n" + wrap(costText(d), "") + "\n")
}

func costText(d diagnose.Diagnosis) string {
	s := d.Sampling
	wide := ""
	if s.IntervalMs > 1.3*s.AskedMs {
		wide = fmt.Sprintf(" (%s was asked for; widened so as to cost less)", trim(s.AskedMs))
	}
	return fmt.Sprintf("Its own cost: %.2f %% of one core (%s), a sample every %s ms%s, %s ms each, with %.0f sessions.",
		s.CorePercent, s.Source, trim(s.IntervalMs), wide, number(s.QueryMs), s.Sessions)
}
