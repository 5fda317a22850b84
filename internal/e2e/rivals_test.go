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

// TestCasePatroniIssue1412: a commit whose wait for a standby was cancelled is
// neither acknowledged nor refused, and some of them are gone with the primary.
func TestCasePatroniIssue1412(t *testing.T) {
	needLab(t)
	c := drilled(t, "pg-any1", "experiment: cancel-storm, hold: 1, rate: 1000, writers: 8")
	m := c.Metrics
	if c.Verdict != result.Held || m["cancelled"] < 10 || m["unknown"]-m["recovered"] < 10 {
		t.Errorf("%s (%s): %g waits cancelled, %g unknown, of which %g are there", c.Verdict, c.Why, m["cancelled"], m["unknown"], m["recovered"])
	}
}

// drilled is the one cell of an experiment on a setup.
func drilled(t *testing.T, name, experiment string) *result.Cell {
	t.Helper()
	b := newBench(t)
	b.labRun(b.study("study: one\nsetups: [{setup: "+name+"}]\nexperiments: [{seconds: 1, after: 2, "+experiment+"}]\n")).want(t, 0)
	run := b.result()
	if len(run.Cells) != 1 {
		t.Fatalf("%d cells: %v", len(run.Cells), run.Skipped)
	}
	b.clean()
	c := &run.Cells[0]
	t.Logf("%s: %s; %v", c.Verdict, c.Recovery, c.Metrics)
	return c
}

// holds checks what any drill of our own cluster must show.
func holds(t *testing.T, c *result.Cell) {
	t.Helper()
	if c.Verdict != result.Held || c.Metrics["lost"] != 0 || c.Metrics["acked"] < 100 {
		t.Errorf("%s (%s), %g acknowledged", c.Verdict, c.Why, c.Metrics["acked"])
	}
	if _, ok := c.Metrics["first_ack_ms"]; !ok {
		t.Error("it does not write again")
	}
	if c.Metrics["not_rejoined"] != 0 {
		t.Errorf("somebody stays away: %s", c.Recovery)
	}
}

func longOnly(t *testing.T) {
	t.Helper()
	needLab(t)
	if os.Getenv("HOLDFAST_LONG") == "" {
		t.Skip("set HOLDFAST_LONG=1 for the drills of our own cluster")
	}
}

// TestCaseCNPGIssue1688: after the loss of all, the stalest comes back first and
// is not promoted.
func TestCaseCNPGIssue1688(t *testing.T) {
	longOnly(t)
	holds(t, drilled(t, "holdfast", "experiment: all-off, order: [stalest-first], rate: 300"))
}

// TestCaseCNPGIssue7407: a primary that is cut off together with a client
// acknowledges nothing, and another one takes over.
func TestCaseCNPGIssue7407(t *testing.T) {
	longOnly(t)
	c := drilled(t, "holdfast", "experiment: partition, ways: [both], promote: [true], rate: 300")
	holds(t, c)
	if c.Metrics["beside_acked_during"] != 0 || c.Metrics["beside_acked"] == 0 {
		t.Errorf("the client beside it was told yes %g times, %g of them while it was cut off", c.Metrics["beside_acked"], c.Metrics["beside_acked_during"])
	}
}

// TestCasePatroniIssue2388: the primary's disk answers nothing, and another one
// takes over although the agent's own files are on that disk.
func TestCasePatroniIssue2388(t *testing.T) {
	longOnly(t)
	c := drilled(t, "holdfast", "experiment: disk-hang, hold: 15, rate: 300")
	holds(t, c)
	if m := c.Metrics; m["acked_during"] == 0 || m["first_ack_ms"] > m["held_ms"] {
		t.Errorf("nobody wrote while the disk hung: %v", m)
	}
}

// TestCaseStolonIssue783: the primary is gone for good, an empty host comes back
// in its place, and is copied before it counts.
func TestCaseStolonIssue783(t *testing.T) {
	longOnly(t)
	holds(t, drilled(t, "holdfast", "experiment: host-lost, rate: 300"))
}

// TestCaseUbicloudIssue5526: the new primary dies as soon as it has taken over, and
// the stale one is back first: it is not promoted, whatever it could do.
func TestCaseUbicloudIssue5526(t *testing.T) {
	longOnly(t)
	holds(t, drilled(t, "holdfast", "experiment: double-failure, targets: [successor], rate: 300"))
}
