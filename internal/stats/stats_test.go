package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

func near(t *testing.T, what string, got, want, tol float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tol) {
		t.Errorf("%s = %.6g, want %.6g ± %.2g", what, got, want, tol)
	}
}

func TestBasics(t *testing.T) {
	v := []float64{4, 1, 3, 2}
	near(t, "mean", Mean(v), 2.5, 1e-12)
	near(t, "median", Median(v), 2.5, 1e-12)
	near(t, "q0.25", Quantile(v, 0.25), 1.75, 1e-12)
	near(t, "stddev", StdDev(v), 1.2909944487, 1e-9)
	near(t, "geomean", GeoMean([]float64{1, 4, 16}), 4, 1e-12)
	if v[0] != 4 {
		t.Error("Quantile reordered its argument")
	}
	for _, bad := range [][]float64{nil, {1, 0}, {1, -2}, {math.NaN()}, {math.Inf(1)}} {
		if !math.IsNaN(GeoMean(bad)) {
			t.Errorf("GeoMean(%v) is not NaN", bad)
		}
	}
}

// Values from printed tables of the t distribution and from closed forms.
func TestQuantilesAgainstTables(t *testing.T) {
	for _, c := range []struct{ p, df, want float64 }{
		{0.975, 1, 12.7062}, {0.975, 4, 2.7764}, {0.95, 4, 2.1318}, {0.975, 30, 2.0423}, {0.995, 9, 3.2498}, {0.025, 4, -2.7764}, {0.975, 1e6, 1.95997},
	} {
		near(t, "t quantile", TQuantile(c.p, c.df), c.want, 1e-4)
	}
	for _, n := range []int{1, 5, 20, 40, 1000} {
		near(t, "0 of n", BinomialUpper(0, n, 0.95), 1-math.Pow(0.05, 1/float64(n)), 1e-9)
	}
	near(t, "1 of 20", BinomialUpper(1, 20, 0.95), 0.216107, 1e-5)
	if BinomialUpper(3, 3, 0.95) != 1 || BinomialUpper(0, 0, 0.95) != 1 {
		t.Error("a bound without evidence is not 1")
	}
}

// The bound is exact: at p = bound, k or fewer events have probability 5 %.
func TestBinomialUpperInvertsTheBinomial(t *testing.T) {
	for _, c := range []struct{ k, n int }{{0, 20}, {1, 20}, {5, 40}, {17, 18}, {3, 500}} {
		p := BinomialUpper(c.k, c.n, 0.95)
		var cdf float64
		for i := 0; i <= c.k; i++ {
			ln, _ := math.Lgamma(float64(c.n + 1))
			li, _ := math.Lgamma(float64(i + 1))
			lr, _ := math.Lgamma(float64(c.n - i + 1))
			cdf += math.Exp(ln - li - lr + float64(i)*math.Log(p) + float64(c.n-i)*math.Log1p(-p))
		}
		near(t, "P(X<=k) at the bound", cdf, 0.05, 1e-9)
	}
}

// draws are distributions with a known mean.
var draws = map[string]struct {
	draw func(*rand.Rand) float64
	mean float64
}{
	"normal":     {func(r *rand.Rand) float64 { return 10 + r.NormFloat64() }, 10},
	"log-normal": {func(r *rand.Rand) float64 { return math.Exp(0.3 * r.NormFloat64()) }, math.Exp(0.045)},
}

func sample(n int, draw func(*rand.Rand) float64, r *rand.Rand) []float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = draw(r)
	}
	return v
}

// The measurement by which MeanInterval chooses: at 5 values Student's t
// covers, the bootstrap does not; at BootstrapFrom both do.
func TestCoverageChoosesTBelowBootstrapFrom(t *testing.T) {
	const trials = 600
	for name, d := range draws {
		r := rand.New(rand.NewPCG(1, 2))
		cover := func(n int, f func([]float64, uint64) Interval) float64 {
			hits := 0
			for i := range trials {
				if f(sample(n, d.draw, r), uint64(i)).Contains(d.mean) {
					hits++
				}
			}
			return float64(hits) / trials
		}
		tmean := func(v []float64, _ uint64) Interval { return TMean(v, 0.95) }
		boot := func(v []float64, s uint64) Interval { return fastBootstrap(v, s) }
		t5, b5 := cover(5, tmean), cover(5, boot)
		tN, bN := cover(BootstrapFrom, tmean), cover(BootstrapFrom, boot)
		t.Logf("%s: n=5 t %.3f bootstrap %.3f; n=%d t %.3f bootstrap %.3f", name, t5, b5, BootstrapFrom, tN, bN)
		if t5 < 0.92 || t5 > 0.98 {
			t.Errorf("%s: t at n=5 covers %.3f", name, t5)
		}
		if b5 > 0.90 {
			t.Errorf("%s: bootstrap at n=5 covers %.3f; the package comment says less", name, b5)
		}
		if bN < 0.90 || bN > 0.98 {
			t.Errorf("%s: bootstrap at n=%d covers %.3f", name, BootstrapFrom, bN)
		}
	}
}

// fastBootstrap is BootstrapMean with fewer resamples, for tests that draw
// hundreds of intervals.
func fastBootstrap(v []float64, seed uint64) Interval {
	r := rand.New(rand.NewPCG(seed, 7))
	est := make([]float64, 500)
	for i := range est {
		est[i] = resampledMean(v, r)
	}
	lo, hi := cut(est, 0.95)
	return Interval{Point: Mean(v), Lo: lo, Hi: hi, N: len(v)}
}

// MedianInterval at 5 values: wide, and covering.
func TestMedianCoverage(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{5, 25} {
		hits := 0
		for i := range 300 {
			v := sample(n, draws["log-normal"].draw, r)
			if BootstrapMedian(v, 0.95, uint64(i)).Contains(1) {
				hits++
			}
		}
		c := float64(hits) / 300
		t.Logf("median, n=%d: coverage %.3f", n, c)
		if c < 0.90 || c > 0.99 {
			t.Errorf("median at n=%d covers %.3f", n, c)
		}
	}
}

// Two equal setups: a difference is claimed in no more than 5 % and the margin
// of 1,000 trials, for every way the ratios are made. And a real difference of
// 30 % at 5 blocks with 5 % noise is found nearly always.
func TestRatiosOnEqualAndUnequalSetups(t *testing.T) {
	type ratio func(a, b []float64, seed uint64) Interval
	kinds := map[string]ratio{
		"paired":   func(a, b []float64, s uint64) Interval { return RatioPaired(a, b, 0.95, s) },
		"unpaired": func(a, b []float64, s uint64) Interval { return RatioUnpaired(a, b, 0.95, s) },
	}
	for name, f := range kinds {
		r := rand.New(rand.NewPCG(5, 6))
		for _, c := range []struct{ n, trials int }{{5, 1000}, {BootstrapFrom, 150}} {
			wrong, missed, covered := 0, 0, 0
			for i := range c.trials {
				a, b := make([]float64, c.n), make([]float64, c.n)
				for j := range a { // the block's own drift cancels in pairs only
					block := 1.0
					if name == "paired" {
						block = math.Exp(0.5 * r.NormFloat64())
					}
					a[j] = block * math.Exp(0.05*r.NormFloat64())
					b[j] = block * math.Exp(0.05*r.NormFloat64())
				}
				if Differs(f(a, b, uint64(i)), 0) {
					wrong++
				}
				for j := range a {
					a[j] *= 1.3
				}
				iv := f(a, b, uint64(i))
				if iv.Contains(1.3) {
					covered++
				}
				if !Differs(iv, 0) {
					missed++
				}
			}
			tr := float64(c.trials)
			t.Logf("%s n=%d: false %.3f, missed %.3f, coverage %.3f", name, c.n, float64(wrong)/tr, float64(missed)/tr, float64(covered)/tr)
			margin := 0.05 + 3*math.Sqrt(0.05*0.95/tr)
			if c.n >= BootstrapFrom {
				margin += 0.01 // the bootstrap's known shortfall at 50
			}
			if float64(wrong)/tr > margin {
				t.Errorf("%s n=%d: %.3f false differences", name, c.n, float64(wrong)/tr)
			}
			if float64(missed)/tr > 0.02 {
				t.Errorf("%s n=%d: %.3f of real 30 %% differences missed", name, c.n, float64(missed)/tr)
			}
			if float64(covered)/tr < 1-margin {
				t.Errorf("%s n=%d: coverage %.3f", name, c.n, float64(covered)/tr)
			}
		}
	}
}

func TestIntervalsAreDeterministicAndHonestWhenEmpty(t *testing.T) {
	v := sample(30, draws["log-normal"].draw, rand.New(rand.NewPCG(1, 1)))
	if BootstrapMean(v, 0.95, 42) != BootstrapMean(v, 0.95, 42) {
		t.Error("the same seed gives another interval")
	}
	if BootstrapMean(v, 0.95, 42) == BootstrapMean(v, 0.95, 43) {
		t.Error("the seed changes nothing")
	}
	for _, iv := range []Interval{
		TMean(nil, 0.95), TMean([]float64{1}, 0.95), BootstrapMean(nil, 0.95, 1), BootstrapMean([]float64{1}, 0.95, 1),
	} {
		if !math.IsInf(iv.Lo, -1) || !math.IsInf(iv.Hi, 1) {
			t.Errorf("an interval from %d values is bounded: %+v", iv.N, iv)
		}
	}
	for _, iv := range []Interval{
		RatioPaired([]float64{1}, []float64{2}, 0.95, 1), RatioUnpaired([]float64{1, 2, 3}, []float64{2}, 0.95, 1),
		RatioPaired(nil, nil, 0.95, 1), RatioUnpaired([]float64{1, 0}, []float64{1, 2}, 0.95, 1),
	} {
		if iv.Lo != 0 || !math.IsInf(iv.Hi, 1) || Differs(iv, 0) {
			t.Errorf("a ratio without evidence is bounded: %+v", iv)
		}
	}
}

func TestNoise(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	// Another A/A ratio lies within the half-width of repeats about 95 % of the time.
	in, trials := 0, 500
	for range trials {
		g := func() []float64 {
			return sample(5, func(r *rand.Rand) float64 { return math.Exp(0.1 * r.NormFloat64()) }, r)
		}
		hw := NoiseRepeats(0.95, g(), g(), g())
		if math.Abs(math.Log(GeoMean(g())/GeoMean(g()))) <= math.Log1p(hw) {
			in++
		}
	}
	got := float64(in) / float64(trials)
	t.Logf("A/A ratios inside the half-width: %.3f", got)
	if got < 0.92 || got > 0.98 {
		t.Errorf("%.3f of A/A ratios inside the half-width, want about 0.95", got)
	}
	equal, _ := NoisePairs(0.95, Pair{[]float64{1, 2, 3}, []float64{1, 2, 3}})
	near(t, "noise of equal pairs", equal, 0, 1e-9)
	if offset, used := NoisePairs(0.95, Pair{[]float64{1.1, 2.2, 3.3}, []float64{1, 2, 3}}, Pair{[]float64{1}, []float64{1}}); offset < 0.0999 || used != 1 {
		t.Errorf("an offset of 10 %% between equal series gives noise %.3f", offset)
	}
	if !math.IsInf(NoiseRepeats(0.95, []float64{1}), 1) || func() bool { n, _ := NoisePairs(0.95, Pair{[]float64{1}, []float64{1}}); return !math.IsInf(n, 1) }() {
		t.Error("noise from single values is finite")
	}
	if Differs(Interval{Point: 1.04, Lo: 1.02, Hi: 1.06}, 0.05) {
		t.Error("a difference inside the noise is printed")
	}
	if !Differs(Interval{Point: 0.9, Lo: 0.88, Hi: 0.92}, 0.05) {
		t.Error("a difference outside the noise is not printed")
	}
}
