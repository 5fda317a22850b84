package e2e

import (
	"os"
	"slices"
	"testing"

	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/result"
)

const rivalFaults = `
study: rivals
setups: [{setup: patroni-fast}]
experiments:
  - {experiment: power-off, seconds: 1, after: 2, rate: 300}
  - {experiment: host-lost, seconds: 1, after: 2, rate: 300}
  - {experiment: postgres-kill, seconds: 1, after: 2, rate: 300}
  - {experiment: switchover, seconds: 1, after: 2, rate: 300}
  - {experiment: freeze, targets: [agent], promote: [true], seconds: 1, after: 2, rate: 300}
  - {experiment: double-failure, targets: [standby], seconds: 1, after: 2, rate: 300}
  - {experiment: cancel-storm, hold: 1, seconds: 1, after: 2, rate: 1000, writers: 8}
  - {experiment: nemesis, hold: 90, seconds: 1, after: 2, rate: 300}
`

// TestRivals: a setup that heals itself is struck, judged and left behind like
// any other.
func TestRivals(t *testing.T) {
	needLab(t)
	if os.Getenv("HOLDFAST_LONG") == "" {
		t.Skip("set HOLDFAST_LONG=1: a rival takes half a minute to notice that its primary is gone")
	}
	k, err := setup.Find("patroni-fast")
	if err == nil {
		err = k.Missing()
	}
	if err != nil {
		t.Skip(err)
	}
	b := newBench(t)
	b.labRun(b.study(rivalFaults)).want(t, 0)
	run := b.result()
	if len(run.Cells) != 8 || len(run.Skipped) > 0 {
		t.Errorf("%d cells, skipped: %v", len(run.Cells), run.Skipped)
	}
	for i := range run.Cells {
		c := &run.Cells[i]
		m := c.Metrics
		name := c.Experiment + " " + result.Conditions(c.Params)
		if c.Verdict != result.Held || m["lost"] != 0 || m["acked"] < 200 {
			t.Errorf("%s: %s (%s), %g acknowledged", name, c.Verdict, c.Why, m["acked"])
		}
		if _, ok := m["first_ack_ms"]; !ok {
			t.Errorf("%s: it does not write again", name)
		}
		moved := []string{"power-off", "host-lost", "switchover", "freeze"}
		if _, promoted := m["promoted_ms"]; slices.Contains(moved, c.Experiment) && !promoted {
			t.Errorf("%s: nobody was promoted: %s", name, c.Recovery)
		}
		if c.Experiment == "nemesis" && m["faults"] < 2 {
			t.Errorf("%s: %v", name, m)
		}
	}
	b.run("lab", "recheck", "out").want(t, 0)
	b.run("lab", "report", "out").want(t, 0)
	b.noSecrets()
	b.clean()
}
