// Package measure says what a flush and a round trip cost.
//
// The flush ladder writes blocks of 8 KiB, as Postgres does, and makes each
// durable before the next, in four patterns by three calls, through the page
// cache and past it. On one disk these differ by 3 to 8 times, which is why
// tools that each pick one of them disagree. A latency is that of the write
// and its flush together: only then can O_DSYNC, where both are one call, stand
// beside the others.
package measure

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"
)

// Block is the size of a write in bytes.
const Block = 8192

// Patterns of the ladder.
const (
	Append     = "append"      // the file grows with each write: data and size must be made durable
	Fallocated = "fallocated"  // reserved with fallocate, never written: extents change state
	ZeroFilled = "zero-filled" // written with zeros before, then sequentially: a WAL segment
	SameBlock  = "same-block"  // one block again and again: what pg_test_fsync does
)

// Calls of the ladder.
const (
	Fdatasync = "fdatasync"
	Fsync     = "fsync"
	ODsync    = "o_dsync"
)

// Patterns lists the ways to write, in the ladder's order.
func Patterns() []string { return []string{ZeroFilled, SameBlock, Append, Fallocated} }

// Calls lists the ways to make a write durable.
func Calls() []string { return []string{Fdatasync, Fsync, ODsync} }

// Step is one rung of the ladder. Its names are stable: files and scripts hold
// them.
type Step struct {
	Pattern string `json:"pattern"`
	Call    string `json:"call"`
	Direct  bool   `json:"direct"` // O_DIRECT, past the page cache
}

func (s Step) String() string {
	how := "buffered"
	if s.Direct {
		how = "direct"
	}
	return s.Pattern + "/" + s.Call + "/" + how
}

// walStep is the step that costs what a commit's flush costs in Postgres as it is
// set by default on Linux (wal_sync_method = fdatasync, recycled segments).
var walStep = Step{Pattern: ZeroFilled, Call: Fdatasync}

// Steps is the whole ladder, buffered before direct.
func Steps() []Step {
	var steps []Step
	for _, direct := range []bool{false, true} {
		for _, p := range Patterns() {
			for _, c := range Calls() {
				steps = append(steps, Step{Pattern: p, Call: c, Direct: direct})
			}
		}
	}
	return steps
}

// Select returns the steps that only names: "pattern", "pattern/call",
// "pattern/call/direct" or "…/buffered", any part also "*", several separated
// by commas. "" is all. The error lists the names there are.
func Select(only string) ([]Step, error) {
	if only == "" {
		return Steps(), nil
	}
	var picked []Step
	taken := map[Step]bool{}
	for _, sel := range strings.Split(only, ",") {
		parts := strings.Split(strings.TrimSpace(sel), "/")
		before := len(taken)
		matched := false
		for _, s := range Steps() {
			if len(parts) <= 3 && matches(parts, strings.Split(s.String(), "/")) {
				matched = true
				if !taken[s] {
					taken[s] = true
					picked = append(picked, s)
				}
			}
		}
		if !matched && len(taken) == before {
			return nil, fmt.Errorf("no step %q: give PATTERN[/CALL[/buffered|direct]] with a pattern of %s and a call of %s",
				sel, strings.Join(Patterns(), ", "), strings.Join(Calls(), ", "))
		}
	}
	return picked, nil
}

func matches(parts, names []string) bool {
	for i, p := range parts {
		if p != "*" && p != names[i] {
			return false
		}
	}
	return true
}

// Options of a ladder.
type Options struct {
	For   time.Duration // measured time per step; a second if 0
	Steps []Step        // all if nil
	// Progress is called before each step; done counts the steps that ended.
	Progress func(done, total int, s Step)
}

// Latency is a distribution in milliseconds. Histogram is the base64 of a
// compressed HdrHistogram in microseconds.
type Latency struct {
	P50Ms     float64 `json:"p50_ms"`
	P99Ms     float64 `json:"p99_ms"`
	MeanMs    float64 `json:"mean_ms"`
	MaxMs     float64 `json:"max_ms"`
	Histogram string  `json:"histogram,omitempty"`
}

// Regime is one of two stretches of a step between which the level changed.
type Regime struct {
	FromS float64 `json:"from_s"` // seconds since the step's first write
	ToS   float64 `json:"to_s"`
	Count int64   `json:"count"`
	Latency
}

// StepResult is what one step measured. Latency is nil, and its fields absent
// in JSON, when the step was skipped and when the regime changed: then no one
// average is true, and Regimes holds two.
type StepResult struct {
	Step
	Count int64 `json:"count"`
	*Latency
	Skipped    string   `json:"skipped,omitempty"`    // why the file system refused the step
	Regimes    []Regime `json:"regimes,omitempty"`    // two, when the level changed inside the step
	NotSteady  string   `json:"not_steady,omitempty"` // a drift, or too few windows for a word on it
	Suspicious string   `json:"suspicious,omitempty"` // faster than a disk can be
}

// Report is the result of `holdfast measure disk`.
type Report struct {
	Schema   int               `json:"schema"` // 1
	Path     string            `json:"path"`
	Started  string            `json:"started"` // RFC 3339, UTC
	ForS     float64           `json:"for_s"`   // measured time per step
	Block    int               `json:"block_bytes"`
	Facts    map[string]string `json:"facts"`
	Steps    []StepResult      `json:"steps"`
	Verdict  Verdict           `json:"verdict"`
	Compare  []Compared        `json:"compare,omitempty"`
	Headline *float64          `json:"wal_flush_ms,omitempty"` // p50 of zero-filled/fdatasync/buffered, absent unless it is one steady number
}

// Errors that a caller tells apart.
var (
	// ErrPath: the path is not a directory that can be written to.
	ErrPath = errors.New("not a writable directory")
	// ErrSpace: too little room to measure.
	ErrSpace = errors.New("too little free space")
	// ErrStuck: a flush has not come back long after it should have; the file
	// system cannot be waited for.
	ErrStuck = errors.New("the file system does not answer")
)

// Disk runs the ladder in a directory of its own under path and removes it
// again, also on errors and when ctx is cancelled. now is the wall clock for
// Report.Started. A step that the file system refuses is in the report as
// skipped. The report so far is returned along with an error.
func Disk(ctx context.Context, path string, now time.Time, opts Options) (*Report, error) {
	if opts.For <= 0 {
		opts.For = time.Second
	}
	if opts.Steps == nil {
		opts.Steps = Steps()
	}
	place, err := openScratch(path)
	if err != nil {
		return nil, err
	}
	rep := &Report{
		Schema: 1, Path: path, Started: now.UTC().Format(time.RFC3339), ForS: opts.For.Seconds(), Block: Block,
		Facts: DiskFacts(path),
	}
	stuck := false
	for i, s := range opts.Steps {
		if opts.Progress != nil {
			opts.Progress(i, len(opts.Steps), s)
		}
		var r StepResult
		r, err = runStep(ctx, place.dir, s, opts.For)
		if err != nil {
			stuck = errors.Is(err, ErrStuck)
			err = fmt.Errorf("measure %s in %s: %w", s, path, err)
			break
		}
		r.Suspicious = suspicion(r, rep.Facts)
		rep.Steps = append(rep.Steps, r)
	}
	rep.conclude()
	if stuck { // removing would hang as well
		return rep, fmt.Errorf("%w; remove %s when it answers again", err, place.dir)
	}
	if cerr := place.remove(); cerr != nil && err == nil && !errors.Is(cerr, fs.ErrNotExist) {
		err = fmt.Errorf("remove what was written for measuring: %w", cerr)
	}
	return rep, err
}

// conclude derives the headline, the comparison and the verdict from the steps.
func (r *Report) conclude() {
	for _, s := range r.Steps {
		if s.Step == walStep && s.Latency != nil {
			p50 := s.P50Ms
			r.Headline = &p50
			r.Compare = compare(p50)
		}
	}
	r.Verdict = judge(r.Steps, r.Facts)
}
