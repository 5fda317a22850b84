package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/holdfast-db/holdfast/internal/lab/experiment"
	"github.com/holdfast-db/holdfast/internal/result"
)

// Rechecked is a cell judged again, or one figure of the run computed again.
type Rechecked struct {
	Cell    string             `json:"cell"`
	History string             `json:"history,omitempty"`
	Then    string             `json:"then"`
	Now     string             `json:"now,omitempty"` // "" if the evidence could not be read
	Metrics map[string]float64 `json:"metrics,omitempty"`
	Differs string             `json:"differs,omitempty"`
	Damaged string             `json:"damaged,omitempty"` // why the evidence could not be read
}

// counted are the metrics that must come out the same again.
var counted = []string{"acked", "refused", "unknown", "lost", "lost_ms", "recovered", "ghost", "phantom", "duplicated"}

// Recheck judges every cell of a run that has a history again, from its
// evidence; of the others it computes the mean latency again from the histogram.
// Evidence that is missing, truncated or corrupt is told in Damaged, and the
// rest is checked all the same. An error means that ctx was cancelled.
func Recheck(ctx context.Context, dir string, run *result.Run) ([]Rechecked, error) {
	var all []Rechecked
	for i := range run.Cells {
		c := &run.Cells[i]
		if ctx.Err() != nil {
			return all, context.Cause(ctx)
		}
		r := Rechecked{
			Cell:    fmt.Sprintf("%s %s #%d", result.On(c.Setup, c.Params), c.Experiment, c.Repetition),
			History: c.History, Then: c.Verdict, Now: c.Verdict,
		}
		switch {
		case c.History != "":
			j, err := experiment.Judge(dir, c.History, c.Promise)
			if err != nil {
				r.Damaged, r.Now = err.Error(), ""
				break
			}
			r.Now, r.Metrics = j.Verdict, j.Findings.Metrics()
			r.Differs = difference(c, r)
		case c.Experiment == pairedExperiment && c.Histogram != "":
			if r.Differs = meanDiffers(c); r.Differs == "" {
				continue // a measurement has no verdict to check
			}
		default:
			continue
		}
		all = append(all, r)
	}
	return append(all, conclusions(run)...), nil
}

// meanDiffers holds a cell's mean latency against its histogram, whose values
// have three significant digits.
func meanDiffers(c *result.Cell) string {
	h, err := hdrhistogram.Decode([]byte(c.Histogram))
	if err != nil {
		return "the histogram cannot be read: " + err.Error()
	}
	now, then := h.Mean()/1000, c.Metrics["latency_mean_ms"]
	if math.Abs(now-then) > 0.002*now {
		return fmt.Sprintf("latency_mean_ms is %.4g in run.json and %.4g in the histogram", then, now)
	}
	return ""
}

// conclusions draws a finished run's noise, comparisons and summary again from
// its cells, and says which of them run.json has otherwise.
func conclusions(run *result.Run) []Rechecked {
	if run.Finished == "" {
		return nil // they are drawn whenever it is read
	}
	again := *run
	Conclude(&again)
	var out []Rechecked
	for _, part := range []struct {
		name      string
		then, now any
	}{
		{"noise", run.Noise, again.Noise}, {"comparisons", run.Comparisons, again.Comparisons}, {"summary", run.Summary, again.Summary},
	} {
		then, errThen := json.Marshal(part.then)
		now, errNow := json.Marshal(part.now)
		if errThen != nil || errNow != nil || !bytes.Equal(then, now) {
			out = append(out, Rechecked{
				Cell:    "the run's " + part.name,
				Differs: "it does not follow from the cells: run.json was edited, or comes of another version (" + orNone(run.Environment["holdfast"]) + ")",
			})
		}
	}
	return out
}

func difference(c *result.Cell, r Rechecked) string {
	if r.Now != r.Then {
		return fmt.Sprintf("the verdict was %s and is %s", r.Then, r.Now)
	}
	for _, m := range counted {
		then, had := c.Metrics[m]
		now, has := r.Metrics[m]
		if had != has || then != now {
			return fmt.Sprintf("%s was %g and is %g", m, then, now)
		}
	}
	return ""
}
