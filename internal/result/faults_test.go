package result

import (
	"strings"
	"testing"
)

// TestFaultsInWords: groups of one experiment that differ in how the fault was
// done are told apart, in tables and in sentences.
func TestFaultsInWords(t *testing.T) {
	run := &Run{Schema: Schema}
	for _, p := range []map[string]any{
		{"ways": "both", "promote": false}, {"ways": "both", "promote": true}, {"ways": "to-primary", "promote": false},
		{"standbys": 2}, {"order": "stalest-first"}, {"repeat_in_load": 5},
	} {
		p["disk"] = "local-nvme"
		run.Cells = append(run.Cells, Cell{
			Setup: "pg-any1", Experiment: "partition", Fault: "partition", Params: p, Verdict: Held,
			Promise: &Promise{Lose: LoseNothing}, Metrics: map[string]float64{"acked": 10, "lost": 0, "first_ack_ms": 5},
		})
	}
	seen := map[string]bool{}
	for _, g := range Groups(run) {
		c := g.Conditions()
		if c == "" || seen[c] {
			t.Errorf("%v are the conditions %q, which say nothing or stand for another group too", g.Params, c)
		}
		seen[c] = true
	}
	var all []string
	for _, s := range Summarise(run) {
		all = append(all, s.Sentence)
	}
	text := strings.Join(all, "\n")
	for _, want := range []string{"both ways, a standby promoted meanwhile", "to the primary only", "2 standbys", "the stalest host back first", "5 in one load"} {
		if !seen[want] || !strings.Contains(text, "("+want+")") {
			t.Errorf("%q is missing in\n%s\nor among %v", want, text, seen)
		}
	}
}

// TestManyFaults: of many kinds of faults, the sentence over all of them names
// those that did harm.
func TestManyFaults(t *testing.T) {
	run := &Run{Schema: Schema}
	add := func(fault string, lost float64) {
		run.Cells = append(run.Cells, Cell{
			Setup: "pg-async", Experiment: fault, Fault: fault, Params: map[string]any{"disk": "local-nvme"}, Verdict: Held,
			Promise: &Promise{Lose: LoseUnbounded}, Metrics: map[string]float64{"acked": 100, "lost": lost, "lost_ms": lost, "first_ack_ms": 5},
		})
	}
	for _, f := range []string{"host-power", "restart", "restart", "all-power", "standby-power"} {
		add(f, 0)
	}
	if s := Summarise(run)[0].Sentence; strings.Count(s, "lost nothing") != 4 {
		t.Errorf("of four kinds it says %q", s)
	}
	add("partition", 7)
	s := Summarise(run)[0].Sentence
	for _, want := range []string{"lost nothing in 5 faults of 4 kinds (500 acknowledged writes), and wrote again each time", "lost 7 of 100 acknowledged writes in 1 of 1 partition"} {
		if !strings.Contains(s, want) {
			t.Errorf("%q is missing in %q", want, s)
		}
	}
}

// TestFaultNouns: what a lab does to a setup has a name of its own.
func TestFaultNouns(t *testing.T) {
	seen := map[string]string{}
	for _, f := range []string{"host-power", "host-lost", "standby-power", "all-power", "restart", "freeze", "partition"} {
		one, many := FaultNoun(f, "x")
		if one == many || strings.Contains(one, f+" fault") {
			t.Errorf("%s is called %q and %q", f, one, many)
		}
		if other := seen[one]; other != "" {
			t.Errorf("%s and %s are both called %q", f, other, one)
		}
		seen[one] = f
	}
}
