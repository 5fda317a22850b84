package lab

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/holdfast-db/holdfast/internal/result"
)

// machine is the noise that a shared machine of two cores showed in whole runs
// of replication-modes, as standard deviations of logarithms.
type machine struct {
	block    float64 // between blocks; half of it is carried to the next
	cell     float64 // between cells of a block, whose tails are Student's t of 5 degrees of freedom
	window   float64 // between the twenty windows of a cell, of which 0.3 is carried on
	deployed float64 // between two deployments of one setup, over the whole run
}

// Residuals of cells in real runs: 0.035 to 0.05 on a simulated volume, 0.09 to
// 0.14 on a simulated local disk; within a cell 0.09 to 0.15 from second to second,
// of which 0.2 to 0.3 is carried on.
func volumeNoise() machine { return machine{block: 0.05, cell: 0.025, window: 0.08} }
func localNoise() machine  { return machine{block: 0.10, cell: 0.08, window: 0.15} }

// studentT draws from Student's t with 5 degrees of freedom, of variance 1.
func studentT(rnd *rand.Rand) float64 {
	var chi float64
	for range 5 {
		x := rnd.NormFloat64()
		chi += x * x
	}
	return rnd.NormFloat64() / math.Sqrt(chi/5) * math.Sqrt(3.0/5)
}

// cellMean is the mean latency of a cell around 1: windows that depend on their
// predecessors, and now and then a stall.
func (m machine) cellMean(rnd *rand.Rand) float64 {
	level := math.Exp(m.cell * studentT(rnd))
	x, sum := rnd.NormFloat64(), 0.0
	for range 20 {
		v := math.Exp(m.window * x)
		if rnd.Float64() < 0.01 {
			v *= 1 + rnd.ExpFloat64()
		}
		sum += v
		x = 0.3*x + math.Sqrt(1-0.3*0.3)*rnd.NormFloat64()
	}
	return level * sum / 20
}

// pairsStudy is a run of ten A/A pairs and two groups slowed down by 1 and 15 %.
func pairsStudy(rnd *rand.Rand, m machine, blocks int) *result.Run {
	run := &result.Run{Schema: 1, Study: "aa", Seed: rnd.Uint64()}
	add := func(block, clients int, ms float64, more map[string]any) {
		p := map[string]any{"disk": "cloud-volume", "clients": clients}
		for k, v := range more {
			p[k] = v
		}
		run.Cells = append(run.Cells, result.Cell{
			Setup: "pg-single", Experiment: pairedExperiment, Params: p, Repetition: block + 1, Verdict: result.Held,
			Metrics: map[string]float64{"latency_mean_ms": ms, "tps": 1000 * float64(clients) / ms},
		})
	}
	twin := math.Exp(m.deployed * rnd.NormFloat64())
	x := rnd.NormFloat64()
	for b := range blocks {
		drift := math.Exp(m.block * x)
		x = 0.5*x + math.Sqrt(0.75)*rnd.NormFloat64()
		for c := 1; c <= 10; c++ {
			add(b, c, float64(c)*drift*m.cellMean(rnd), nil)
			add(b, c, float64(c)*drift*twin*m.cellMean(rnd), map[string]any{"twin": true})
		}
		add(b, 1, 1.01*drift*m.cellMean(rnd), map[string]any{"flush_times": 1.012})
		add(b, 1, 1.15*drift*m.cellMean(rnd), map[string]any{"flush_times": 1.18})
	}
	return run
}

// claims counts which differences of mean latency a concluded study prints.
type claims struct{ pairs, one, fifteen int }

func claimed(t *testing.T, run *result.Run) (c claims) {
	t.Helper()
	Conclude(run)
	found := 0
	for _, r := range run.Comparisons {
		if r.Metric != "latency_mean_ms" {
			continue
		}
		differs := 0
		if r.Note == "" {
			differs = 1
		}
		switch kind(r) {
		case "pair":
			c.pairs += differs
		case "1 %":
			c.one += differs
		case "15 %":
			c.fifteen += differs
		default:
			continue
		}
		found++
	}
	if found != 12 {
		t.Fatalf("%d of 12 comparisons were drawn", found)
	}
	return c
}

// kind tells the comparisons of such a study apart.
func kind(r result.Comparison) string {
	const base = "pg-single on cloud-volume, 1 client"
	switch {
	case r.A == "pg-single on cloud-volume, A/A twin"+r.B[len("pg-single on cloud-volume"):]:
		return "pair"
	case r.B == base && r.A == "pg-single on cloud-volume, flush × 1.012, 1 client":
		return "1 %"
	case r.B == base && r.A == "pg-single on cloud-volume, flush × 1.18, 1 client":
		return "15 %"
	}
	return ""
}

// TestMonteCarlo: of equal pairs at most 1 in 20 is declared different, a
// slowdown of 15 % is found where the number of blocks allows it, and one of 1 %
// is claimed no more often than chance has it.
func TestMonteCarlo(t *testing.T) {
	for _, c := range []struct {
		name   string
		m      machine
		blocks int
		power  float64
	}{
		{"volume, 5 blocks", volumeNoise(), 5, 0.85},
		{"volume, 10 blocks", volumeNoise(), 10, 0.99},
		{"local disk, 5 blocks", localNoise(), 5, 0},
		{"local disk, 20 blocks", localNoise(), 20, 0.9},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const trials = 200
			rnd := rand.New(rand.NewPCG(7, uint64(c.blocks)))
			var sum claims
			twoOrMore := 0
			for range trials {
				got := claimed(t, pairsStudy(rnd, c.m, c.blocks))
				sum.pairs, sum.one, sum.fifteen = sum.pairs+got.pairs, sum.one+got.one, sum.fifteen+got.fifteen
				if got.pairs > 1 {
					twoOrMore++
				}
			}
			rate := func(n, of int) float64 { return float64(n) / float64(of) }
			t.Logf("equal pairs declared different %.3f, two or more in a study %.3f, 1 %% claimed %.3f, 15 %% found %.3f",
				rate(sum.pairs, 10*trials), rate(twoOrMore, trials), rate(sum.one, trials), rate(sum.fifteen, trials))
			// Three standard errors of 2,000 pairs are 1.5 %, of 200 studies 5 %.
			if f := rate(sum.pairs, 10*trials); f > 0.065 {
				t.Errorf("%.3f of equal pairs are declared different", f)
			}
			if f := rate(twoOrMore, trials); f > 0.13 {
				t.Errorf("in %.3f of studies two or more of ten equal pairs are declared different", f)
			}
			if f := rate(sum.one, trials); f > 0.12 {
				t.Errorf("1 %% is claimed in %.3f of studies", f)
			}
			if f := rate(sum.fifteen, trials); f < c.power {
				t.Errorf("15 %% is found in %.3f of studies, want %.2f", f, c.power)
			}
		})
	}
}

// TestMonteCarloDeployments: where one of two equal deployments is slower all
// along, intervals by blocks alone would call that a difference with confidence.
// The pairs tell that it is noise, and a difference of that size is not printed.
func TestMonteCarloDeployments(t *testing.T) {
	m := volumeNoise()
	m.deployed = 0.15
	rnd := rand.New(rand.NewPCG(8, 8))
	const trials = 100
	pairs, byInterval := 0, 0
	for range trials {
		run := pairsStudy(rnd, m, 5)
		pairs += claimed(t, run).pairs
		if n := run.Noise[0]; n.Pairs != 10 || n.HalfWidth <= 0 {
			t.Fatalf("the noise comes of %d pairs, want 10: %+v", n.Pairs, n)
		}
		for _, r := range run.Comparisons {
			if r.Metric == "latency_mean_ms" && kind(r) == "pair" && (r.Lo > 1 || r.Hi < 1) {
				byInterval++
			}
		}
	}
	t.Logf("equal pairs declared different %.3f, by their intervals alone %.3f", float64(pairs)/(10*trials), float64(byInterval)/(10*trials))
	if f := float64(pairs) / (10 * trials); f > 0.065 {
		t.Errorf("%.3f of equal pairs are declared different", f)
	}
	if f := float64(byInterval) / (10 * trials); f < 0.3 {
		t.Errorf("the intervals alone call %.3f of them different: the offset that this test is about is not there", f)
	}
}
