package report

import (
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/result"
)

// TestPhaseBars: each fault of a load has a course of its own, from its own
// beginning; what was not seen is not drawn.
func TestPhaseBars(t *testing.T) {
	c := &result.Cell{Verdict: result.Held, Metrics: map[string]float64{"promoted_ms": 280, "first_ack_ms": 340, "sustained_ms": 340},
		Events: []result.Event{
			{AtMs: -1500, UntilMs: 0, What: "standbys cut off"}, {AtMs: 0, UntilMs: 25, What: "power cut"}, {AtMs: 340, What: "first acknowledged write"},
			{AtMs: 8000, UntilMs: 9500, What: "standbys cut off (fault 2)"}, {AtMs: 9500, UntilMs: 9530, What: "power cut (fault 2)"},
			{AtMs: 9700, What: "a standby was promoted (fault 2)"}, {AtMs: 10000, What: "first acknowledged write (fault 2)"},
			{AtMs: 20000, UntilMs: 20010, What: "power cut (fault 3)"},
		}}
	var lines []string
	for _, b := range phaseBars(c) {
		lines = append(lines, strings.ReplaceAll(b.Line, nbsp, " "))
	}
	want := []string{
		"cut 25 ms → promoted 280 ms → first acknowledged write 340 ms → sustained 340 ms",
		"cut 30 ms → promoted 200 ms → first acknowledged write 500 ms",
		"cut 10 ms → no write was acknowledged again",
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q, want %q", lines, want)
	}
	c.Verdict = result.Unknown
	if bars := phaseBars(c); bars != nil {
		t.Errorf("a cell that was not judged has %d courses", len(bars))
	}
	// A freeze lasts; that it was noticed nobody measured.
	c = &result.Cell{Verdict: result.Held, Metrics: map[string]float64{"held_ms": 3000, "first_ack_ms": 3010}, Events: []result.Event{{AtMs: 0, UntilMs: 3000, What: "frozen"}}}
	if line := strings.ReplaceAll(phaseBars(c)[0].Line, nbsp, " "); line != "fault over 3 s → first acknowledged write 3 s" {
		t.Errorf("a freeze: %q", line)
	}
}

// TestPartsSayWhenTheyExceedTheWhole: a rest below zero is said, not hidden.
func TestPartsSayWhenTheyExceedTheWhole(t *testing.T) {
	run := &result.Run{Cells: []result.Cell{{Setup: "pg-single", Experiment: "commit", Verdict: result.Held, Params: map[string]any{"disk": "d", "clients": 1},
		Metrics: map[string]float64{"latency_mean_ms": 1, "commit_flush_ms": 0.9, "replication_ms": 0.3, "wait_samples": 60}}}}
	charts := partsCharts(result.Groups(run))
	if len(charts) != 1 || len(charts[0].Notes) != 1 || !strings.Contains(charts[0].Notes[0], "0.20 ms more than the whole") || charts[0].Rows[0].Rest.Main != "−0.20" {
		t.Errorf("%+v", charts)
	}
	delete(run.Cells[0].Metrics, "commit_flush_ms")
	if charts := partsCharts(result.Groups(run)); charts != nil {
		t.Errorf("parts that were not measured: %+v", charts)
	}
}

// TestFindCell: by anchor, by number, and a number that stands for several.
func TestFindCell(t *testing.T) {
	cell := func(pattern string, planned int) result.Cell {
		return result.Cell{Setup: "pg-single", Experiment: "flush", Params: map[string]any{"disk": "d", "pattern": pattern}, Repetition: 1, Planned: planned, Simulated: true, Verdict: result.Held}
	}
	run := &result.Run{Cells: []result.Cell{cell("a", 1), cell("b", 1), cell("c", 2)}}
	for _, name := range []string{"2", "cell-pg-single-d-flush-patternc-r1", "#cell-pg-single-d-flush-patternc-r1", "pg-single-d-flush-patternc-r1"} {
		c, id, err := FindCell(run, name)
		if err != nil || c != &run.Cells[2] || id != "cell-pg-single-d-flush-patternc-r1" {
			t.Errorf("%s: %v, %s, %v", name, c, id, err)
		}
	}
	for name, want := range map[string]string{
		"1": "came to 2 measurements: name one, as cell-pg-single-d-flush-patterna-r1, cell-", "7": "no cell 7", "0": "no cell 0", "nonsense": `no cell "nonsense"`, "": `no cell ""`,
	} {
		if _, _, err := FindCell(run, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
