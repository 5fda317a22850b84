package experiment

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/measure"
	"github.com/holdfast-db/holdfast/internal/result"
)

const flushStep = 0.5 // seconds per step of the ladder, where the study names none

// flush measures the flush ladder on the primary's disk, with the database stopped.
type flush struct{}

func (flush) Name() string { return "flush" }
func (flush) About() string {
	return "what a flush costs on the primary's disk: pattern × call × direct"
}
func (flush) NeedsDatabase() bool { return false }

func (flush) Groups(config.Experiment, setup.Kind) []Params { return []Params{{}} }

func (flush) Estimate(spec config.Experiment, _ Params) time.Duration {
	return time.Duration(len(measure.Steps())) * seconds(orDefault(spec.Seconds, flushStep)+0.1)
}

func (flush) Run(ctx context.Context, env Env) ([]result.Cell, error) {
	h, err := primary(env)
	if err != nil {
		return nil, err
	}
	per := seconds(orDefault(env.Spec.Seconds, flushStep))
	cells, err := ladder(ctx, env, h, per)
	if err != nil {
		return nil, err
	}
	// Steps that must not be used are taken from the ladder once more, as other
	// cells are repeated: a step alone would find the disk in another state.
	for range MaxDiscarded {
		if !slices.ContainsFunc(cells, func(c result.Cell) bool { return c.Verdict == result.Invalid }) {
			break
		}
		env.Live("the ladder again, for its invalid steps")
		again, err := ladder(ctx, env, h, per)
		if err != nil {
			return nil, err
		}
		for i := range min(len(cells), len(again)) {
			if old := cells[i]; old.Verdict == result.Invalid {
				cells[i] = again[i]
				cells[i].Discarded = slices.Concat(old.Discarded, []result.Discarded{{Why: old.Why}})
			}
		}
	}
	return cells, nil
}

// ladder is one pass over all steps.
func ladder(ctx context.Context, env Env, h place.Host, per time.Duration) ([]result.Cell, error) {
	out, err := h.Run(ctx, place.Cmd{Path: env.Binary, Args: []string{"measure", "disk", h.DataDir(), "--json", "--for", per.String()}})
	if err != nil {
		return nil, fmt.Errorf("measure the disk of %s: %w", h.Name(), err)
	}
	var rep measure.Report
	if err := json.Unmarshal(out, &rep); err != nil {
		return nil, fmt.Errorf("read the ladder of %s: %w", h.Name(), err)
	}
	var cells []result.Cell
	for _, s := range rep.Steps {
		cells = append(cells, flushCell(s, per))
	}
	return cells, nil
}

func flushCell(s measure.StepResult, per time.Duration) result.Cell {
	c := result.Cell{
		Params:  map[string]any{"pattern": s.Pattern, "call": s.Call, "direct": s.Direct, "seconds": per.Seconds()},
		Metrics: map[string]float64{}, Verdict: result.Held,
	}
	switch {
	case s.Skipped != "":
		c.Verdict, c.Why = Skipped, s.Skipped
	case s.Latency == nil || s.NotSteady != "":
		c.Verdict, c.Why = result.Invalid, "not steady: "+cmp.Or(s.NotSteady, "the level changed inside the run, so no one average is true")
	default:
		c.Metrics["p50_ms"], c.Metrics["p99_ms"], c.Metrics["mean_ms"] = s.P50Ms, s.P99Ms, s.MeanMs
		c.Histogram = s.Histogram
	}
	return c
}

func primary(env Env) (place.Host, error) {
	c, ok := env.System.(setup.Cluster)
	if !ok {
		return nil, fmt.Errorf("setup %s has no primary", env.Kind.Name)
	}
	return c.Primary(), nil
}
