package result

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// ValidationError says which part of a run cannot be true.
type ValidationError struct {
	Path    string // "" when not read from a file
	Where   string // such as "cells[3].metrics.lost (pg-any1 power-off)"
	Problem string // a predicate: "is -4: a count cannot be negative"
}

func (e *ValidationError) Error() string {
	return fmt.Sprintf("%s: %s %s", nameOr(e.Path), e.Where, e.Problem)
}

// Outcomes of a range of ids.
const (
	OutcomeAcked          = "acked"
	OutcomeRefused        = "refused"
	OutcomeUnknown        = "unknown"
	OutcomeNeverAttempted = "never-attempted"
)

// Validate finds the first thing in the run that cannot be true: verdicts that
// do not exist, negative counts, numbers that are none. The error is a *ValidationError.
func Validate(run *Run) error {
	if run.Schema != Schema {
		return invalid("schema", "is %d, this holdfast writes %d", run.Schema, Schema)
	}
	for _, t := range []struct{ name, value string }{{"started", run.Started}, {"finished", run.Finished}} {
		if t.value == "" {
			continue
		}
		if _, err := time.Parse(time.RFC3339Nano, t.value); err != nil {
			return invalid(t.name, "is %q: a time as RFC 3339 (2026-01-31T12:00:00Z) belongs there", t.value)
		}
	}
	for i := range run.Cells {
		if err := validateCell(&run.Cells[i]); err != nil {
			c := &run.Cells[i]
			err.Where = fmt.Sprintf("cells[%d]%s (%s)", i, err.Where, strings.TrimSpace(c.Setup+" "+c.Experiment))
			return err
		}
	}
	for i, n := range run.Noise {
		if bad(n.HalfWidth) || n.HalfWidth < 0 {
			return invalid(fmt.Sprintf("noise[%d].half_width", i), "is %v: a fraction of at least 0 belongs there", n.HalfWidth)
		}
	}
	for i, c := range run.Comparisons {
		if bad(c.Ratio) || bad(c.Lo) || bad(c.Hi) || c.Ratio < 0 || c.Lo < 0 {
			return invalid(fmt.Sprintf("comparisons[%d]", i), "is %v (%v to %v): finite ratios of at least 0 belong there", c.Ratio, c.Lo, c.Hi)
		}
		if c.Lo > c.Hi {
			return invalid(fmt.Sprintf("comparisons[%d]", i), "has an interval from %v to %v, which is upside down", c.Lo, c.Hi)
		}
	}
	for i := range run.Summary {
		s := &run.Summary[i]
		where := fmt.Sprintf("summary[%d]", i)
		if s.Cells < 0 {
			return invalid(where+".cells", "is %d: a count cannot be negative", s.Cells)
		}
		if err := cmp.Or(validateVerdict(s.Verdict), validateMetrics(s.Metrics), validateParams(s.Params)); err != nil {
			err.Where = where + err.Where
			return err
		}
	}
	return nil
}

func validateCell(c *Cell) *ValidationError {
	if c.Experiment == "" {
		return invalid(".experiment", "is empty")
	}
	if c.Repetition < 0 {
		return invalid(".repetition", "is %d: a count cannot be negative", c.Repetition)
	}
	if bad(c.StartedS) || c.StartedS < 0 {
		return invalid(".started_s", "is %v: seconds of at least 0 belong there", c.StartedS)
	}
	if p := c.Promise; p != nil {
		if p.Lose != LoseNothing && p.Lose != LoseMillis && p.Lose != LoseUnbounded {
			return invalid(".promise.lose", "is %q: one of %s, %s, %s belongs there", p.Lose, LoseNothing, LoseMillis, LoseUnbounded)
		}
		if bad(p.Ms) || p.Ms < 0 {
			return invalid(".promise.ms", "is %v: milliseconds of at least 0 belong there", p.Ms)
		}
	}
	switch c.Evidence {
	case "", EvidenceProcessKill, EvidenceSimulatedDisk, EvidenceVM, EvidencePower:
	default:
		return invalid(".evidence", "is %q, which is no kind of evidence", c.Evidence)
	}
	return cmp.Or(validateVerdict(c.Verdict), validateMetrics(c.Metrics), validateParams(c.Params),
		validateSeries(c.Series), validateDisk(c.DiskSeries), validateIDs(c.IDs), validateEvents(c.Events))
}

func validateVerdict(v string) *ValidationError {
	switch v {
	case Held, Broken, Unknown, Invalid:
		return nil
	}
	return invalid(".verdict", "is %q: one of %s, %s, %s, %s belongs there", v, Held, Broken, Unknown, Invalid)
}

// countMetrics are whole things, which one cannot have fewer than none of.
var countMetrics = []string{"acked", "refused", "unknown", "lost", "recovered", "ghost", "phantom", "duplicated", "failed",
	"requests", "bucket_bytes", "disk_bytes"}

func validateMetrics(metrics map[string]float64) *ValidationError {
	for _, name := range sortedKeys(metrics) {
		v := metrics[name]
		where := ".metrics." + name
		switch {
		case name == "":
			return invalid(".metrics", "has a metric without a name")
		case bad(v):
			return invalid(where, "is %v: what was not measured must be absent", v)
		case v < 0 && slices.Contains(countMetrics, name):
			return invalid(where, "is %v: a count cannot be negative", v)
		case v < 0 && (strings.HasPrefix(name, "latency_") || name == "tps"):
			return invalid(where, "is %v: it cannot be negative", v)
		}
	}
	return nil
}

func validateParams(params map[string]any) *ValidationError {
	for _, name := range sortedKeys(params) {
		if err := validateParam(params[name]); err != nil {
			err.Where = ".params." + name + err.Where
			return err
		}
	}
	return nil
}

// validateParam accepts what JSON can hold and reads back as the same.
func validateParam(value any) *ValidationError {
	switch v := value.(type) {
	case nil, bool, string, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
		return nil
	case float64:
		if bad(v) {
			return invalid("", "is %v, which is not a number", v)
		}
	case float32:
		return validateParam(float64(v))
	case []any:
		for i, e := range v {
			if err := validateParam(e); err != nil {
				err.Where = fmt.Sprintf("[%d]%s", i, err.Where)
				return err
			}
		}
	case []string:
	case map[string]any:
		return validateParams(v)
	default:
		return invalid("", "is a Go %T: a string, a number, true, false or a list of those belongs there", value)
	}
	return nil
}

func validateSeries(series []Second) *ValidationError {
	for i, s := range series {
		where := fmt.Sprintf(".series[%d]", i)
		if bad(s.T) {
			return invalid(where+".t_s", "is %v, which is not a time", s.T)
		}
		if s.Acked < 0 || s.Refused < 0 || s.Unknown < 0 {
			return invalid(where, "has %d acked, %d refused, %d unknown: a count cannot be negative", s.Acked, s.Refused, s.Unknown)
		}
	}
	return nil
}

func validateDisk(series []DiskSecond) *ValidationError {
	for i, s := range series {
		where := fmt.Sprintf(".disk_series[%d]", i)
		if bad(s.T) {
			return invalid(where+".t_s", "is %v, which is not a time", s.T)
		}
		for _, v := range []float64{s.Ops, s.Flushes, s.Bytes} {
			if bad(v) || v < 0 {
				return invalid(where, "has a rate of %v: a count cannot be negative", v)
			}
		}
	}
	return nil
}

func validateIDs(ids []IDRange) *ValidationError {
	for i, r := range ids {
		where := fmt.Sprintf(".ids[%d]", i)
		if r.From > r.To {
			return invalid(where, "goes from %d to %d, which is upside down", r.From, r.To)
		}
		switch r.Outcome {
		case OutcomeAcked, OutcomeRefused, OutcomeUnknown, OutcomeNeverAttempted:
		default:
			return invalid(where+".outcome", "is %q: one of acked, refused, unknown, never-attempted belongs there", r.Outcome)
		}
	}
	return nil
}

func validateEvents(events []Event) *ValidationError {
	for i, e := range events {
		if bad(e.AtMs) || bad(e.UntilMs) {
			return invalid(fmt.Sprintf(".events[%d]", i), "is at %v until %v, which is not a time", e.AtMs, e.UntilMs)
		}
	}
	return nil
}

func bad(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }

func invalid(where, format string, args ...any) *ValidationError {
	return &ValidationError{Where: where, Problem: fmt.Sprintf(format, args...)}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
