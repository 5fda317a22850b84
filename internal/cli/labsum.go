package cli

import (
	"fmt"

	"github.com/holdfast-db/holdfast/internal/result"
)

// sumOf is what the cells of a cumulative study come to, over all of its runs.
func sumOf(run *result.Run) string {
	sum := map[string]float64{}
	slowest, judged := 0.0, 0
	for i := range run.Cells {
		c := &run.Cells[i]
		if c.Verdict == result.Unknown || c.Verdict == result.Invalid {
			continue
		}
		judged++
		for _, m := range []string{"faults", "acked", "lost", "ghost", "phantom", "duplicated", "not_rejoined"} {
			sum[m] += c.Metrics[m]
		}
		slowest = max(slowest, c.Metrics["first_ack_ms"])
	}
	return fmt.Sprintf("In all, over %d cells in %d runs: %s faults, %s acknowledged writes, %s lost, %s ghosts, %s phantoms, %s duplicates; "+
		"writable again at the latest %.1f s after the last fault of a cell; somebody stayed away in %s cells; %d cells without a verdict.",
		judged, len(run.Resumed)+1, result.Count(sum["faults"]), result.Count(sum["acked"]), result.Count(sum["lost"]), result.Count(sum["ghost"]),
		result.Count(sum["phantom"]), result.Count(sum["duplicated"]), slowest/1000, result.Count(sum["not_rejoined"]), len(run.Cells)-judged)
}
