package stats

import (
	"math"
	"math/rand/v2"
	"testing"
)

// series is log-normal noise of size sigma around 1 with autocorrelation rho.
func series(n int, sigma, rho float64, r *rand.Rand) []float64 {
	v := make([]float64, n)
	x := r.NormFloat64()
	for i := range v {
		v[i] = math.Exp(sigma * x)
		x = rho*x + math.Sqrt(1-rho*rho)*r.NormFloat64()
	}
	return v
}

func TestTrendFalseAlarmsAndPower(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	alarms, missed, covered := 0, 0, 0
	const trials = 1000
	for range trials {
		v := series(20, 0.1, 0, r)
		if TestTrend(v, 0.95).P < 0.05 {
			alarms++
		}
		for i := range v {
			v[i] += 0.02 * float64(i) // 38 % over the run
		}
		tr := TestTrend(v, 0.95)
		if tr.P >= 0.05 || tr.Tau <= 0 {
			missed++
		}
		if tr.Slope.Contains(0.02) {
			covered++
		}
	}
	t.Logf("false alarms %.3f, missed %.3f, slope coverage %.3f", float64(alarms)/trials, float64(missed)/trials, float64(covered)/trials)
	if f := float64(alarms) / trials; f > 0.075 {
		t.Errorf("%.3f false alarms at 5 %%", f)
	}
	if f := float64(missed) / trials; f > 0.02 {
		t.Errorf("%.3f of real drifts missed", f)
	}
	if f := float64(covered) / trials; f < 0.92 || f > 0.985 {
		t.Errorf("the slope's interval covers %.3f", f)
	}
	if tr := TestTrend([]float64{1, 2, 3}, 0.95); tr.P != 1 {
		t.Errorf("three values show a trend: %+v", tr)
	}
	if tr := TestTrend([]float64{5, 5, 5, 5, 5, 5}, 0.95); tr.P != 1 || tr.Change != 0 {
		t.Errorf("a constant trends: %+v", tr)
	}
	// 1..10 rising: tau 1, S = 45, variance 125: z = 44/√125.
	tr := TestTrend([]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.95)
	near(t, "tau", tr.Tau, 1, 0)
	near(t, "p", tr.P, math.Erfc(44/math.Sqrt(125)/math.Sqrt2), 1e-12)
	near(t, "change", tr.Change, 9/5.5, 1e-12)
}

func TestChangePointAccusesFewSteadySeries(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for _, c := range []struct {
		n      int
		sigma  float64
		rho    float64
		trials int
	}{{10, 0.05, 0, 2000}, {10, 0.3, 0, 2000}, {10, 0.3, 0.5, 2000}, {60, 0.3, 0.5, 500}, {600, 0.3, 0.5, 20}} {
		accused := 0
		for range c.trials {
			if _, ok := ChangePoint(series(c.n, c.sigma, c.rho, r)); ok {
				accused++
			}
		}
		f := float64(accused) / float64(c.trials)
		t.Logf("n=%d sigma=%.2f rho=%.1f: accused %.4f", c.n, c.sigma, c.rho, f)
		if f >= 0.015 {
			t.Errorf("n=%d sigma=%.2f rho=%.1f: %.4f of steady series accused", c.n, c.sigma, c.rho, f)
		}
	}
}

func TestChangePointFindsThrottling(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, c := range []struct {
		n, at int
		ratio float64
	}{{10, 5, 2}, {10, 3, 3}, {50, 40, 2}, {200, 100, 1.6}} {
		found, trials := 0, 200
		for range trials {
			v := series(c.n, 0.05, 0.3, r)
			for i := c.at; i < c.n; i++ {
				v[i] *= c.ratio
			}
			ch, ok := ChangePoint(v)
			if ok && abs(ch.At-c.at) <= 1 && math.Abs(ch.Ratio/c.ratio-1) < 0.15 && ch.After > ch.Before {
				found++
			}
		}
		t.Logf("n=%d at=%d ratio=%.1f: found %d of %d", c.n, c.at, c.ratio, found, trials)
		if found < trials*9/10 {
			t.Errorf("n=%d at=%d ratio=%.1f: found only %d of %d", c.n, c.at, c.ratio, found, trials)
		}
	}
	spike := []float64{1, 1, 1, 1, 50, 50, 1, 1, 1, 1, 1, 1}
	if ch, ok := ChangePoint(spike); ok {
		t.Errorf("a spike of two values is called a regime: %+v", ch)
	}
	if _, ok := ChangePoint([]float64{1, 1, 0, 9, 9, 9}); ok {
		t.Error("zeros have no ratio")
	}
}

func abs(i int) int {
	if i < 0 {
		return -i
	}
	return i
}
