package report

import (
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/result"
)

// TestDifferentFaults: faults of several kinds are not called by the name, or
// held against the promise, of one of them.
func TestDifferentFaults(t *testing.T) {
	cell := func(experiment, fault, lose string, params map[string]any) result.Cell {
		params["disk"] = "local-nvme"
		return result.Cell{
			Setup: "pg-async", Experiment: experiment, Fault: fault, Params: params, Verdict: result.Held, Simulated: true,
			Promise: &result.Promise{Lose: lose}, Metrics: map[string]float64{"acked": 10, "lost": 0, "first_ack_ms": 5},
		}
	}
	run := &result.Run{Schema: result.Schema, Study: "x", Started: "2026-01-31T12:00:00Z", Simulated: true}
	text := func() string {
		var b strings.Builder
		if err := Text(&b, run, TextOptions{Width: 100}); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	run.Cells = append(run.Cells, cell("restart", "restart", result.LoseNothing, map[string]any{}))
	if one := text(); !strings.Contains(one, "Restart (all of a setup") || strings.Contains(one, "by fault") || strings.Contains(one, "not silent") {
		t.Errorf("of restarts alone it says\n%s", one)
	}
	run.Cells = append(run.Cells, cell("freeze", "freeze", result.LoseUnbounded, map[string]any{"promote": true}))
	both := text()
	for _, want := range []string{"Faults (all of a setup", "by fault", "freeze, a standby"} {
		if !strings.Contains(both, want) {
			t.Errorf("%q is missing in\n%s", want, both)
		}
	}
}
