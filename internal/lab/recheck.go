package lab

import (
	"context"
	"fmt"

	"github.com/holdfast-db/holdfast/internal/lab/experiment"
	"github.com/holdfast-db/holdfast/internal/result"
)

// Rechecked is a cell judged again.
type Rechecked struct {
	Cell    string             `json:"cell"`
	History string             `json:"history"`
	Then    string             `json:"then"`
	Now     string             `json:"now"`
	Metrics map[string]float64 `json:"metrics"`
	Differs string             `json:"differs,omitempty"`
}

// counted are the metrics that must come out the same again.
var counted = []string{"acked", "refused", "unknown", "lost", "lost_ms", "recovered", "ghost", "phantom", "duplicated"}

// Recheck judges every cell of a run that has a history again, from its
// evidence. An error means that evidence is missing, truncated or corrupt.
func Recheck(ctx context.Context, dir string, run *result.Run) ([]Rechecked, error) {
	var all []Rechecked
	for i := range run.Cells {
		c := &run.Cells[i]
		if c.History == "" {
			continue
		}
		if ctx.Err() != nil {
			return all, context.Cause(ctx)
		}
		j, err := experiment.Judge(dir, c.History, c.Promise)
		if err != nil {
			return all, err
		}
		r := Rechecked{
			Cell:    fmt.Sprintf("%s %s #%d", result.On(c.Setup, c.Params), c.Experiment, c.Repetition),
			History: c.History, Then: c.Verdict, Now: j.Verdict, Metrics: j.Findings.Metrics(),
		}
		r.Differs = difference(c, r)
		all = append(all, r)
	}
	return all, nil
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
