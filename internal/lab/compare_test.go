package lab

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// TestCompare: a planted 15 % slowdown between two runs is found, a planted
// 1 % is not claimed, and what else differs is said.
func TestCompare(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	quiet := func(slower float64) Compared {
		a := commits(rnd, 10, map[string]float64{"pg-single": 1, "pg-async": 1.5, "pg-any1": 2})
		b := commits(rnd, 10, map[string]float64{"pg-single": slower, "pg-async": 1.5 * slower, "pg-any1": 2 * slower})
		for i := range a.Cells { // no drift: nothing pairs cells of two runs
			for _, run := range []int{0, 1} {
				c := &a.Cells[i]
				if run == 1 {
					c = &b.Cells[i]
				}
				base := map[string]float64{"pg-single": 1, "pg-async": 1.5, "pg-any1": 2}[c.Setup]
				if run == 1 {
					base *= slower
				}
				v := base * (1 + 0.03*rnd.NormFloat64())
				c.Metrics["latency_mean_ms"], c.Metrics["tps"] = v, 1000/v
			}
		}
		a.Environment, b.Environment = map[string]string{"kernel": "6.1"}, map[string]string{"kernel": "6.18"}
		Conclude(a)
		Conclude(b)
		return Compare(a, b)
	}
	c := quiet(1.15)
	for _, r := range c.Ratios {
		if r.Metric == "latency_mean_ms" && !strings.Contains(r.Reading, "more") {
			t.Errorf("%s: 15 %% slower reads %q (%.3f, %.3f to %.3f)", r.Group, r.Reading, r.Ratio, r.Lo, r.Hi)
		}
	}
	if len(c.Ratios) != 6 || len(c.Differs) != 1 {
		t.Errorf("%d ratios, environment %v", len(c.Ratios), c.Differs)
	}
	claimed := 0
	for range 20 {
		for _, r := range quiet(1.01).Ratios {
			if strings.Contains(r.Reading, "in the second run") {
				claimed++
			}
		}
	}
	if claimed > 8 { // of 120
		t.Errorf("a slowdown of 1 %% inside a noise of 3 %% is claimed %d times of 120", claimed)
	}
}

// TestCompareOneValue: nothing is claimed from single values.
func TestCompareOneValue(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	a := commits(rnd, 1, map[string]float64{"pg-single": 1, "pg-async": 1, "pg-any1": 1})
	b := commits(rnd, 1, map[string]float64{"pg-single": 9, "pg-async": 9, "pg-any1": 9})
	for _, r := range Compare(a, b).Ratios {
		if !strings.Contains(r.Reading, "repeat") || r.Hi != 0 {
			t.Errorf("%+v", r)
		}
	}
}
