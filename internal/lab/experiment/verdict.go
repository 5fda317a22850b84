package experiment

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/check"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/result"
)

// judge turns the evidence of a trial into a cell.
func (t *trial) judge() (*result.Cell, error) {
	fault := t.fault()
	b := t.env.System.Promise(fault)
	cell := &result.Cell{
		Fault: fault.Kind(), Promise: &result.Promise{Lose: b.Lose, Ms: b.Ms},
		Silent: t.drill.silent, History: HistoryFile(t.env.Key), Recovery: t.recovery(),
	}
	if t.drill.power {
		cell.Evidence = t.env.Facts.Evidence
	}
	j, err := Judge(t.env.Dir, cell.History, cell.Promise)
	if err != nil {
		return nil, err
	}
	cell.Verdict, cell.Why = j.Verdict, j.Why
	cell.Metrics = j.Findings.Metrics()
	for _, r := range j.Findings.Ranges {
		cell.IDs = append(cell.IDs, result.IDRange{From: r.From, To: r.To, Outcome: r.Outcome, Survived: r.Survived})
	}
	series := j.Findings.Series
	if len(t.load.clients) > 1 {
		out, err := t.outside(cell)
		if err != nil {
			return nil, err
		}
		series = out.Series
	}
	for _, s := range series {
		cell.Series = append(cell.Series, result.Second{T: s.T, Acked: s.Acked, Refused: s.Refused, Unknown: s.Unknown})
	}
	if cell.Histogram, err = latencies(filepath.Join(t.env.Dir, cell.History)); err != nil {
		return nil, err
	}
	if err := t.measure(cell); err != nil {
		return nil, err
	}
	if s := t.load.stalled; s > 0 {
		withoutTimes(cell, s)
	}
	return cell, nil
}

// withoutTimes takes the times out of a cell during which the lab itself stood
// still: what was lost holds all the same.
func withoutTimes(cell *result.Cell, stalled time.Duration) {
	for m := range cell.Metrics {
		if strings.HasSuffix(m, "_ms") && m != "lost_ms" {
			delete(cell.Metrics, m)
		}
	}
	cell.Metrics["lab_stalled_ms"] = millis(stalled)
	cell.Why += fmt.Sprintf(" The lab itself stood still for %.1f s meanwhile (a machine that is too busy, or was suspended), so the cell has no times.", stalled.Seconds())
}

// outside puts the gaps of the driver on the client's host in the place of
// those of both: the one beside a primary that was cut off does not miss
// anything, and nobody else sees what it writes.
func (t *trial) outside(cell *result.Cell) (*check.Findings, error) {
	f, err := findings(t.env.Dir, cell.History, besideIDs, time.Duration(t.found.WindowMs)*time.Millisecond)
	if err != nil {
		return nil, err
	}
	own := f.Metrics()
	for _, m := range []string{"baseline_gap_ms", "longest_gap_ms", "first_ack_ms", "sustained_ms"} {
		delete(cell.Metrics, m)
		if v, ok := own[m]; ok {
			cell.Metrics[m] = v
		}
	}
	cell.Metrics["beside_acked"] = cell.Metrics["acked"] - own["acked"]
	return f, nil
}

// measure adds what happened, in ms after the beginning of the first strike,
// and what the lab saw first-hand.
func (t *trial) measure(cell *result.Cell) error {
	var windows []window
	for _, s := range t.strikes {
		windows = append(windows, window{from: t.load.coll.Since(s.confirmed), until: t.load.coll.Since(s.until)})
	}
	seen, err := watch(t.env.Dir, cell.History, windows)
	if err != nil {
		return err
	}
	first := t.strikes[0]
	t.timeline(cell, seen)
	maps.Copy(cell.Metrics, t.extra)
	if t.notWhole != nil {
		cell.Metrics["not_rejoined"] = 1
	}
	if !first.recovered.Detected.IsZero() {
		cell.Metrics["detected_ms"] = millis(first.recovered.Detected.Sub(first.began))
	}
	if !first.recovered.Promoted.IsZero() {
		cell.Metrics["promoted_ms"] = millis(first.recovered.Promoted.Sub(first.began))
	}
	if !first.back.Done.IsZero() {
		cell.Metrics["rejoined_ms"] = millis(first.back.Done.Sub(first.backBegan))
	}
	if !first.until.IsZero() {
		var during, beside int
		for _, w := range seen {
			during, beside = during+w.outside, beside+w.beside
		}
		cell.Metrics["held_ms"] = millis(first.until.Sub(first.began))
		cell.Metrics["acked_during"] = float64(during)
		if len(t.load.clients) > 1 {
			cell.Metrics["beside_acked_during"] = float64(beside)
		}
	}
	if n := len(t.strikes); n > 1 {
		cell.Metrics["faults"] = float64(n)
		for i, s := range t.strikes {
			if w := seen[i]; w.firstAck >= 0 {
				v := millis(w.firstAck - t.load.coll.Since(s.began))
				cell.Metrics["first_ack_worst_ms"] = max(cell.Metrics["first_ack_worst_ms"], v)
			}
		}
	}
	if t.env.Spec.Reads > 0 {
		t.load.reads(cell.Metrics)
	}
	return nil
}

func (t *trial) timeline(cell *result.Cell, seen []watched) {
	zero := t.strikes[0].began
	for _, s := range t.spans {
		e := result.Event{What: s.what}
		switch {
		case s.firstAck && s.strike == 1:
			v, ok := cell.Metrics["first_ack_ms"]
			if !ok {
				continue
			}
			e.AtMs, e.What = v, "first acknowledged write"
		case s.firstAck:
			at := seen[s.strike-1].firstAck
			if at < 0 {
				continue
			}
			e.AtMs, e.What = millis(at-t.load.coll.Since(zero)), "first acknowledged write"
		default:
			e.AtMs = millis(s.from.Sub(zero))
			if !s.until.IsZero() {
				e.UntilMs = millis(s.until.Sub(zero))
			}
		}
		if s.strike > 1 {
			e.What += fmt.Sprintf(" (fault %d)", s.strike)
		}
		cell.Events = append(cell.Events, e)
	}
}

// recovery says how the setup came back from the first strike.
func (t *trial) recovery() string {
	s := t.strikes[0]
	if t.notWhole != nil {
		return s.recovered.How + "; somebody did not come back by itself: " + t.notWhole.Error()
	}
	if t.noStart != nil && t.fault() != setup.HostPower {
		return "it did not come back: " + t.noStart.Error()
	}
	if s.recovered.How == "" && s.back.How == "" {
		return ""
	}
	how := s.recovered.How
	if !s.back.Done.IsZero() {
		if how != "" {
			how += "; "
		}
		how += s.back.How
	}
	if s.recovered.Operator || s.back.Operator {
		how += " (by the lab's script, which stands for an operator and holds no time for noticing)"
	}
	return how
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
