package result_test

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/result"
	"github.com/holdfast-db/holdfast/internal/result/resulttest"
)

func cut(setup string, rep int, verdict string, metrics map[string]float64) result.Cell {
	return result.Cell{Setup: setup, Experiment: "power-off", Fault: "host-power", Repetition: rep, Verdict: verdict,
		Params: map[string]any{"disk": "local-nvme"}, Metrics: metrics, Promise: &result.Promise{Lose: result.LoseNothing}}
}

func first(t *testing.T, cells ...result.Cell) result.Summary {
	t.Helper()
	sums := result.Summarise(&result.Run{Schema: 1, Cells: cells})
	if len(sums) == 0 {
		t.Fatal("no summary")
	}
	return sums[0]
}

func TestSentenceOfTwentyCleanCuts(t *testing.T) {
	var cells []result.Cell
	for i := range 20 {
		c := cut("pg-any1", i+1, result.Held, map[string]float64{"acked": 2061, "lost": 0, "first_ack_ms": 1800 + 10*float64(i)})
		c.Recovery = "operator's script: promote"
		cells = append(cells, c)
	}
	s := first(t, cells...)
	want := "pg-any1 on local-nvme: lost nothing in 20 power cuts (41,220 acknowledged writes; with 0 of 20 losing data, " +
		"the true rate of lossy power cuts is below 14 % at 95 %); wrote again after 1.9 s at the median."
	if s.Sentence != want {
		t.Errorf("got  %s\nwant %s", s.Sentence, want)
	}
	group := result.Summarise(&result.Run{Schema: 1, Cells: cells})[1].Sentence
	if !strings.HasSuffix(group, "at the median (1.8 s to 2 s), with a script in the operator's place.") {
		t.Error(group)
	}
	if s.Verdict != result.Held || s.Cells != 20 || s.Metrics["acked"] != 41220 {
		t.Errorf("%+v", s)
	}
}

func TestSentencesSayWhatHappened(t *testing.T) {
	broken := cut("pg-fsync-off", 1, result.Broken, map[string]float64{"acked": 100, "lost": 13, "lost_ms": 65})
	held := cut("pg-fsync-off", 2, result.Held, map[string]float64{"acked": 100, "lost": 0, "first_ack_ms": 900})
	failed := cut("pg-fsync-off", 3, result.Unknown, nil)
	failed.Why = "the driver\ndied"
	s := first(t, broken, held, failed)
	for _, want := range []string{"lost 13 of 200 acknowledged writes in 1 of 2 power cuts", "at worst those of the last 65 ms", "breaks its promise to lose nothing",
		"between 1.2 % and 99 % at 95 %", "in 1 of 2 it was not seen to write again", "1 further power cut could not be judged"} {
		if !strings.Contains(s.Sentence, want) {
			t.Errorf("no %q in\n%s", want, s.Sentence)
		}
	}
	if s.Verdict != result.Broken {
		t.Errorf("verdict %s", s.Verdict)
	}

	allowed := cut("pg-async", 1, result.Held, map[string]float64{"acked": 900, "lost": 317, "lost_ms": 1585, "first_ack_ms": 700})
	allowed.Promise = &result.Promise{Lose: result.LoseUnbounded}
	allowed.Params["lag_ms"] = 1500
	if s := first(t, allowed); !strings.Contains(s.Sentence, "standbys cut off 1.5 s before") || !strings.Contains(s.Sentence, "which it may: it promises no bound") {
		t.Error(s.Sentence)
	}
	bounded := allowed
	bounded.Promise = &result.Promise{Lose: result.LoseMillis, Ms: 2000}
	if s := first(t, bounded); !strings.Contains(s.Sentence, "which its promise allows (at most 2 s)") {
		t.Error(s.Sentence)
	}

	ghost := cut("pg-any1", 1, result.Broken, map[string]float64{"acked": 10, "lost": 0, "ghost": 2, "phantom": 1, "duplicated": 1, "first_ack_ms": 5})
	for _, want := range []string{"2 writes that it had refused are there (ghosts)", "1 write that nobody attempted is there (a phantom)", "1 write is there twice"} {
		if s := first(t, ghost); !strings.Contains(s.Sentence, want) {
			t.Errorf("no %q in\n%s", want, s.Sentence)
		}
	}
	stuck := cut("pg-any1", 1, result.Broken, map[string]float64{"acked": 10, "lost": 0})
	stuck.Why = "did not start within 60 s"
	if s := first(t, stuck); !strings.Contains(s.Sentence, "broken in 1 of 1 (did not start within 60 s)") || !strings.Contains(s.Sentence, "was not seen to write again") {
		t.Error(s.Sentence)
	}
	if s := first(t, failed); !strings.Contains(s.Sentence, "the only power cut could not be judged") {
		t.Error(s.Sentence)
	}
}

func TestMeasurementsInSentences(t *testing.T) {
	cell := func(ms float64, verdict string) result.Cell {
		return result.Cell{Setup: "pg-any1", Experiment: "commit", Verdict: verdict, Params: map[string]any{"disk": "local-nvme", "clients": 1},
			Metrics: map[string]float64{"latency_mean_ms": ms}}
	}
	s := first(t, cell(2.2, result.Held), cell(2.3, result.Held), cell(90, result.Invalid))
	if !strings.Contains(s.Sentence, "a commit takes 2.25 ms at 1 client") || !strings.Contains(s.Sentence, "1 of 3 commit measurements must not be used") {
		t.Error(s.Sentence)
	}
	if s.Verdict != result.Invalid {
		t.Error(s.Verdict)
	}
}

// TestSummariesFromFileAndMemoryAgree: params are ints in memory and floats from a file.
func TestSummariesFromFileAndMemoryAgree(t *testing.T) {
	run := resulttest.Sample(5, 4)
	data, err := result.Encode(run)
	if err != nil {
		t.Fatal(err)
	}
	back, err := result.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	a, b := result.Summarise(run), result.Summarise(back)
	if len(a) != len(b) {
		t.Fatalf("%d and %d summaries", len(a), len(b))
	}
	for i := range a {
		if a[i].Sentence != b[i].Sentence || !reflect.DeepEqual(a[i].Metrics, b[i].Metrics) {
			t.Errorf("%s\n%s", a[i].Sentence, b[i].Sentence)
		}
	}
	// And in whatever order the cells ran.
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(run.Cells), func(i, j int) { run.Cells[i], run.Cells[j] = run.Cells[j], run.Cells[i] })
	c := result.Summarise(run)
	for i := range a {
		if a[i].Sentence != c[i].Sentence {
			t.Errorf("the order of cells changes\n%s\n%s", a[i].Sentence, c[i].Sentence)
		}
	}
	run.Summary = a
	if err := result.Validate(run); err != nil {
		t.Error(err)
	}
}

func TestGroups(t *testing.T) {
	run := resulttest.Sample(5, 4)
	groups := result.Groups(run)
	n := 0
	for i := range groups {
		g := &groups[i]
		n += len(g.Cells)
		for _, c := range g.Cells {
			if c.Setup != g.Setup || c.Experiment != g.Experiment || c.Params["disk"] != g.Params["disk"] {
				t.Errorf("%s %s is in the group %s %s", c.Setup, c.Experiment, g.Setup, g.Experiment)
			}
		}
	}
	if n != len(run.Cells) {
		t.Errorf("%d of %d cells are in groups", n, len(run.Cells))
	}
	real, simulated := cut("a", 1, result.Held, nil), cut("a", 2, result.Held, nil)
	simulated.Simulated = true
	if got := result.Groups(&result.Run{Cells: []result.Cell{real, simulated}}); len(got) != 2 {
		t.Error("simulated and real cells are in one group")
	}
}

func TestExit(t *testing.T) {
	mk := func(study string, cells ...result.Cell) *result.Run { return &result.Run{Study: study, Cells: cells} }
	h, b, u, i := cut("x", 1, result.Held, nil), cut("x", 1, result.Broken, nil), cut("x", 1, result.Unknown, nil), cut("x", 1, result.Invalid, nil)
	liar := func(n int, verdict string) result.Cell { return cut(result.Liars()[n], 1, verdict, nil) }
	caught := []result.Cell{liar(0, result.Broken), liar(1, result.Broken), liar(2, result.Broken)}
	tests := []struct {
		run  *result.Run
		want string
	}{
		{mk("quick"), result.Unknown},
		{mk("quick", h, h), result.Held},
		{mk("quick", h, i), result.Invalid},
		{mk("quick", u, i, h), result.Unknown},
		{mk("quick", u, b, h), result.Broken},
		{mk("selftest", append(caught, h)...), result.Held},
		{mk("selftest", append(caught, b)...), result.Broken},
		{mk("selftest", append(caught[:2:2], h)...), result.Unknown},
		{mk("selftest", append(caught[:2:2], liar(2, result.Held))...), result.Unknown},
	}
	for n, tt := range tests {
		if got := result.Exit(tt.run); got != tt.want {
			t.Errorf("%d: %s, want %s", n, got, tt.want)
		}
	}
}

func TestFigures(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.34: "0.34", 2.2349: "2.23", 36.91: "36.9", 1311.4: "1,311", 112483: "112,483", 0.012: "0.012", 99.97: "100", 9.996: "10.0"} {
		if got := result.Figure(v); got != want {
			t.Errorf("Figure(%v) = %s, want %s", v, got, want)
		}
	}
	for v, want := range map[float64]string{12: "12 ms", 1900: "1.9 s", 999.9: "1 s", 68000: "1 min 8 s", 120000: "2 min", 59990: "1 min", 0.4: "0.40 ms"} {
		if got := result.Duration(v); got != want {
			t.Errorf("Duration(%v) = %s, want %s", v, got, want)
		}
	}
	if got := result.Count(-1234567); got != "−1,234,567" {
		t.Error(got)
	}
}
