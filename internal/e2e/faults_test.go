package e2e

import (
	"os"
	"testing"

	"github.com/holdfast-db/holdfast/internal/result"
)

// someFaults are those that tell most; the positive controls are the setups
// that must lose something.
const someFaults = `
study: some
setups: [{setup: pg-single}, {setup: pg-any1}, {setup: pg-async}]
experiments:
  - {experiment: host-lost, setups: [pg-single], seconds: 1, after: 1, rate: 300}
  - {experiment: freeze, setups: [pg-any1], promote: [true], hold: 2, seconds: 1, after: 2, rate: 300, reads: 0.2}
  - {experiment: partition, setups: [pg-async], ways: [both], promote: [true], hold: 2, seconds: 1, after: 2, rate: 300, reads: 0.2}
`

const allFaults = `
study: all
setups: [{setup: pg-single}, {setup: pg-any1}, {setup: pg-async}, {setup: pg-sync}, {setup: pg-remote-apply}]
experiments:
  - {experiment: power-off, seconds: 1, after: 2, rate: 300}
  - {experiment: power-off, setups: [pg-any1], repeat_in_load: 3, seconds: 1, after: 2, rate: 300}
  - {experiment: host-lost, seconds: 1, after: 2, rate: 300}
  - {experiment: restart, seconds: 1, after: 2, rate: 300, repeat_in_load: 2}
  - {experiment: standby-power-off, seconds: 1, after: 2, rate: 300}
  - {experiment: lose-standbys, hold: 2, seconds: 1, after: 2, rate: 300}
  - {experiment: all-off, seconds: 1, after: 2, rate: 300}
  - {experiment: freeze, hold: 2, seconds: 1, after: 2, rate: 300, reads: 0.2}
  - {experiment: partition, setups: [pg-single, pg-any1, pg-async, pg-sync], hold: 2, seconds: 1, after: 2, rate: 300, reads: 0.2}
  - {experiment: partition, setups: [pg-any1], targets: [standby], hold: 2, seconds: 1, after: 2, rate: 300}
  - {experiment: cancel-storm, setups: [pg-any1, pg-sync], hold: 1, seconds: 1, after: 2, rate: 1000, writers: 8}
  - {experiment: postgres-kill, setups: [pg-single, pg-any1], seconds: 1, after: 2, rate: 300}
  - {experiment: double-failure, setups: [pg-any1], targets: [standby, successor], hold: 2, seconds: 1, after: 2, rate: 300}
  - {experiment: disk-full, setups: [pg-single, pg-any1], hold: 2, seconds: 1, after: 2, rate: 300}
  - {experiment: disk-hang, setups: [pg-single, pg-any1], hold: 2, seconds: 1, after: 2, rate: 300}
`

// TestFaults: each fault ends in the verdict that common sense gives it, with a
// timeline, and leaves nothing behind.
func TestFaults(t *testing.T) {
	needLab(t)
	study := someFaults
	if os.Getenv("HOLDFAST_LONG") != "" {
		study = allFaults
	}
	b := newBench(t)
	b.labRun(b.study(study)).want(t, 0)
	run := b.result()
	if len(run.Skipped) > 0 {
		t.Errorf("skipped: %v", run.Skipped)
	}
	for i := range run.Cells {
		checkFault(t, &run.Cells[i])
	}
	b.run("lab", "recheck", "out").want(t, 0)
	b.run("lab", "report", "out").want(t, 0)
	b.noSecrets()
	b.clean()
}

func checkFault(t *testing.T, c *result.Cell) {
	t.Helper()
	name := c.Setup + " " + c.Experiment + " " + result.Conditions(c.Params)
	m := c.Metrics
	takeover := c.Params["promote"] == true
	if c.Verdict != result.Held || c.Promise == nil || c.Fault == "" || len(c.Events) == 0 || m["acked"] < 100 {
		t.Errorf("%s: %s (%s), promise %v, %d events, %g acknowledged", name, c.Verdict, c.Why, c.Promise, len(c.Events), m["acked"])
		return
	}
	spans := 0
	for _, e := range c.Events {
		if e.UntilMs > e.AtMs {
			spans++
		}
	}
	if spans == 0 {
		t.Errorf("%s: no span among the events %v", name, c.Events)
	}
	first, again := m["first_ack_ms"]
	switch {
	case c.Setup == "pg-single" && c.Experiment == "host-lost":
		if m["lost"] != m["acked"] || again || c.Promise.Lose != result.LoseUnbounded {
			t.Errorf("%s: the only copy is gone, and %g of %g are lost: %v", name, m["lost"], m["acked"], c.Promise)
		}
		return
	case c.Setup == "pg-async" && c.Experiment == "partition" && takeover:
		if m["lost"] < 50 || m["beside_acked_during"] < 50 || m["reads_stale"] == 0 {
			t.Errorf("%s: the clients beside the old primary were told yes %g times: %g lost, %g stale reads", name, m["beside_acked_during"], m["lost"], m["reads_stale"])
		}
	case c.Experiment == "cancel-storm" && (m["cancelled"] < 10 || m["unknown"]-m["recovered"] < 10):
		// Those that are gone would be lost, had they been taken for acknowledged.
		t.Errorf("%s: %g waits cancelled, %g unknown, of which %g are there", name, m["cancelled"], m["unknown"], m["recovered"])
	case c.Setup != "pg-async" && m["lost"] != 0:
		t.Errorf("%s: %g lost", name, m["lost"])
	}
	if !again {
		t.Errorf("%s: it does not write again", name)
	}
	checkStall(t, name, c, first)
}

// checkStall: whether anybody writes while a fault lasts.
func checkStall(t *testing.T, name string, c *result.Cell, first float64) {
	t.Helper()
	m := c.Metrics
	held, lasted := m["held_ms"]
	replicated := c.Setup != "pg-single"
	sync := replicated && c.Setup != "pg-async"
	var stalls bool
	switch c.Experiment {
	case "freeze":
		stalls = c.Params["promote"] != true
	case "partition":
		stalls = c.Params["promote"] != true && (sync || !replicated)
	case "lose-standbys":
		n, _ := result.Number(c.Params["standbys"])
		stalls = sync && (n == 2 || c.Setup == "pg-sync")
	default:
		return
	}
	switch {
	case !lasted || held < 1900:
		t.Errorf("%s: it lasted %g ms (known: %v)", name, held, lasted)
	case stalls && (first < held || m["acked_during"] != 0):
		t.Errorf("%s: nobody could write for %g ms, yet %g were acknowledged, the first after %g ms", name, held, m["acked_during"], first)
	case !stalls && (first > held || m["acked_during"] == 0):
		t.Errorf("%s: writes went on after %g ms only, %g while it lasted", name, first, m["acked_during"])
	case sync && c.Params["promote"] == true && m["beside_acked_during"] != 0:
		t.Errorf("%s: the former primary acknowledged %g writes alone", name, m["beside_acked_during"])
	}
}
