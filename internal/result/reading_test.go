package result

import (
	"math"
	"strings"
	"testing"
)

func TestReading(t *testing.T) {
	for _, tt := range []struct {
		ratio, lo, hi, noise float64
		want                 string
	}{
		{1.01, 0.95, 1.07, 0.08, "no difference beyond the noise of ± 8 %"},
		{1.01, 0.98, 1.031, 0.02, "no difference beyond ± 3.1 %"},
		{1.01, 0.98, 1.031, 0, "no difference beyond ± 3.1 %"},
		{1.14, 0.98, 1.34, 0.123, "not enough repetitions: 2 % less to 34 % more fits"},
		{1.9, 0.4, 8.8, 0.1, "not enough repetitions: 60 % less to 8.80 times as much fits"},
		{1.06, 1.01, 1.12, 0.123, "no difference beyond the noise of ± 13 %"},
		{0.92, 0.88, 0.97, 0.1, "no difference beyond the noise of ± 10 %"},
		{1.5, 1.4, 1.6, 0.1, ""},
		{0.5, 0.4, 0.6, 0, ""},
		{1, 0, 1, 0, "not enough repetitions: a tenth or less to the same fits"},
		{1.4, 0.01, 8419, 0.2, "not enough repetitions: a tenth or less to ten times or more fits"},
	} {
		got, different := Reading(tt.ratio, tt.lo, tt.hi, tt.noise)
		if got != tt.want || different != (tt.want == "") {
			t.Errorf("%v (%v to %v, noise %v): %q, %v; want %q", tt.ratio, tt.lo, tt.hi, tt.noise, got, different, tt.want)
		}
	}
}

func TestPlanned(t *testing.T) {
	run := &Run{Cells: []Cell{{Planned: 1}, {Planned: 1}, {Planned: 2}, {}, {}}}
	if n := Planned(run); n != 4 {
		t.Errorf("%d cells, want 4", n)
	}
}

func composed(setup string, whole, flush, replication, lock float64) Cell {
	return Cell{Setup: setup, Experiment: "commit", Params: map[string]any{"disk": "d", "clients": 1}, Verdict: Held,
		Metrics: map[string]float64{"latency_mean_ms": whole, "commit_flush_ms": flush, "replication_ms": replication, "lock_ms": lock, "wait_samples": 500}}
}

// TestCompose: the parts add up to the whole, a rest below zero included, and
// what was not measured is not made up.
func TestCompose(t *testing.T) {
	for name, tt := range map[string]struct {
		cells []Cell
		want  map[string]float64
	}{
		"parts":    {[]Cell{composed("a", 2, 0.4, 1, 0.01), composed("a", 2.2, 0.5, 1.1, 0)}, map[string]float64{PartFlush: 0.45, PartReplication: 1.05, PartRest: 0.6}},
		"locks":    {[]Cell{composed("a", 4, 0.4, 0, 3)}, map[string]float64{PartFlush: 0.4, PartReplication: 0, PartLocks: 3, PartRest: 0.6}},
		"negative": {[]Cell{composed("a", 1, 0.8, 0.4, 0)}, map[string]float64{PartFlush: 0.8, PartReplication: 0.4, PartRest: -0.2}},
	} {
		run := &Run{Cells: tt.cells}
		g := Groups(run)[0]
		c, ok := Compose(&g)
		if !ok || len(c.Parts) != len(tt.want) {
			t.Fatalf("%s: %+v, %v", name, c, ok)
		}
		sum := 0.0
		for _, p := range c.Parts {
			sum += p.Ms
			if math.Abs(p.Ms-tt.want[p.Name]) > 1e-9 {
				t.Errorf("%s: %s is %v, want %v", name, p.Name, p.Ms, tt.want[p.Name])
			}
			if p.Bounded() != (len(tt.cells) > 1) {
				t.Errorf("%s: %s from %v to %v", name, p.Name, p.Lo, p.Hi)
			}
		}
		if math.Abs(sum-c.Whole.Ms) > 1e-9 {
			t.Errorf("%s: the parts come to %v of %v", name, sum, c.Whole.Ms)
		}
	}
	open := composed("a", 9, 0.4, 1, 0)
	open.Metrics["service_mean_ms"] = 2
	g := Groups(&Run{Cells: []Cell{open}})[0]
	if c, _ := Compose(&g); c.Whole.Ms != 2 {
		t.Errorf("of an open loop %v ms are taken apart, want the 2 of its transactions", c.Whole.Ms)
	}
	old := composed("a", 2, 0.4, 1, 0)
	delete(old.Metrics, "replication_ms")
	g = Groups(&Run{Cells: []Cell{old}})[0]
	if c, ok := Compose(&g); ok {
		t.Errorf("parts that nobody measured: %+v", c)
	}
}

// TestDiskSeriesValid: rates below zero or without a number are refused.
func TestDiskSeriesValid(t *testing.T) {
	for _, s := range []DiskSecond{{Ops: -1}, {T: math.NaN()}, {Bytes: math.Inf(1)}} {
		run := &Run{Schema: Schema, Cells: []Cell{{Experiment: "commit", Verdict: Held, DiskSeries: []DiskSecond{s}}}}
		if err := Validate(run); err == nil || !strings.Contains(err.Error(), "disk_series[0]") {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
