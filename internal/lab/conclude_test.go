package lab

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/result"
)

// commits makes a run whose groups have the given mean latencies, with noise
// that all cells of a block share and a little of their own.
func commits(rnd *rand.Rand, repeat int, means map[string]float64) *result.Run {
	run := &result.Run{Schema: 1, Study: "t", Seed: 1}
	for r := range repeat {
		drift := 1 + 0.3*rnd.Float64()
		for _, setup := range []string{"pg-single", "pg-async", "pg-any1"} {
			v := means[setup] * drift * (1 + 0.01*rnd.NormFloat64())
			run.Cells = append(run.Cells, result.Cell{
				Setup: setup, Experiment: "commit", Params: map[string]any{"disk": "local-nvme", "clients": 1},
				Repetition: r + 1, Verdict: result.Held, Metrics: map[string]float64{"latency_mean_ms": v, "tps": 1000 / v},
			})
		}
	}
	return run
}

// TestConclude: ratios are taken within blocks, so that a drift of the machine
// does not hide a difference; equal setups are not told apart.
func TestConclude(t *testing.T) {
	run := commits(rand.New(rand.NewPCG(1, 2)), 5, map[string]float64{"pg-single": 1, "pg-async": 1.5, "pg-any1": 2})
	Conclude(run)
	found := 0
	for _, c := range run.Comparisons {
		if c.Metric != "latency_mean_ms" || !strings.HasPrefix(c.A, "pg-any1") || !strings.HasPrefix(c.B, "pg-single") {
			continue
		}
		found++
		if c.Lo > 2 || c.Hi < 2 || c.Hi-c.Lo > 0.2 {
			t.Errorf("any1 over single: %.2f (%.2f to %.2f), want about 2", c.Ratio, c.Lo, c.Hi)
		}
	}
	if found != 1 {
		t.Errorf("any1 and single are compared %d times", found)
	}
	if len(run.Noise) != 2 || len(run.Summary) == 0 {
		t.Errorf("noise %v, %d summaries", run.Noise, len(run.Summary))
	}
	before := len(run.Comparisons)
	Conclude(run)
	if len(run.Comparisons) != before {
		t.Error("concluding twice adds comparisons")
	}
}

// TestConcludeFew: one repetition bounds no ratio, so none is printed.
func TestConcludeFew(t *testing.T) {
	run := commits(rand.New(rand.NewPCG(1, 2)), 1, map[string]float64{"pg-single": 1, "pg-async": 2, "pg-any1": 3})
	Conclude(run)
	if len(run.Comparisons) != 0 || len(run.Noise) != 0 {
		t.Errorf("from one repetition: %v, %v", run.Comparisons, run.Noise)
	}
}

// TestConcludeAA: equal setups are declared different at most about as often
// as the level says.
func TestConcludeAA(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	different, pairs := 0, 0
	for range 200 {
		run := commits(rnd, 5, map[string]float64{"pg-single": 1, "pg-async": 1, "pg-any1": 1})
		Conclude(run)
		for _, c := range run.Comparisons {
			pairs++
			if c.Note == "" {
				different++
			}
		}
	}
	if share := float64(different) / float64(pairs); share > 0.07 {
		t.Errorf("%d of %d equal pairs are declared different", different, pairs)
	}
}
