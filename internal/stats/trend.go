package stats

import (
	"cmp"
	"math"
	"slices"
)

// Trend is a drift over equally spaced values.
type Trend struct {
	Tau    float64  // Kendall's rank correlation with time, -1 to 1
	P      float64  // two-sided p-value of "no trend" (Mann-Kendall)
	Slope  Interval // Theil-Sen slope per step, with its interval
	Change float64  // slope × (n-1) over the median: the whole drift as a fraction
}

// TestTrend tests values in the order of time for a monotonic drift with Mann
// and Kendall's test (Mann, "Nonparametric Tests Against Trend", 1945; normal
// approximation with ties and continuity correction) and sizes it with Theil
// and Sen's slope: the median of all pairwise slopes, its interval by Sen's
// ranks (Sen, "Estimates of the Regression Coefficient Based on Kendall's
// Tau", 1968). Values that depend on their predecessors would make P too
// small: the variance is widened by the autocorrelation of the ranks of what the
// slope leaves (Hamed and Rao, "A Modified Mann-Kendall Trend Test for
// Autocorrelated Data", 1998), and never narrowed. It looks at all n²/2 pairs: thin out beyond a few thousand values. With fewer
// than 4 values P is 1 and the slope unbounded.
func TestTrend(v []float64, confidence float64) Trend {
	n := len(v)
	tr := Trend{P: 1, Slope: unbounded}
	if n < 4 {
		return tr
	}
	slopes := make([]float64, 0, n*(n-1)/2)
	s := 0
	for i := range v {
		for j := i + 1; j < n; j++ {
			switch {
			case v[j] > v[i]:
				s++
			case v[j] < v[i]:
				s--
			}
			slopes = append(slopes, (v[j]-v[i])/float64(j-i))
		}
	}
	tr.Tau = float64(s) / float64(len(slopes))
	slices.Sort(slopes)
	sd := math.Sqrt(kendallVariance(v) * dependence(v, sortedQuantile(slopes, 0.5)))
	if sd > 0 && s != 0 {
		z := (math.Abs(float64(s)) - 1) / sd
		tr.P = math.Erfc(z / math.Sqrt2)
	}
	c := NormalQuantile(1-(1-confidence)/2) * sd
	m := float64(len(slopes))
	tr.Slope = Interval{
		Point: sortedQuantile(slopes, 0.5),
		Lo:    slopes[max(0, int((m-c)/2)-1)],
		Hi:    slopes[min(len(slopes)-1, int(math.Ceil((m+c)/2)))],
		N:     n,
	}
	if med := Median(v); med != 0 {
		tr.Change = tr.Slope.Point * float64(n-1) / math.Abs(med)
	}
	return tr
}

// kendallVariance is the variance of Kendall's S, corrected for ties.
func kendallVariance(v []float64) float64 {
	n := float64(len(v))
	vr := n * (n - 1) * (2*n + 5)
	s := slices.Clone(v)
	slices.Sort(s)
	for i := 0; i < len(s); {
		j := i
		for j < len(s) && s[j] == s[i] {
			j++
		}
		t := float64(j - i)
		vr -= t * (t - 1) * (2*t + 5)
		i = j
	}
	return vr / 18
}

// dependence is Hamed and Rao's n/n*: by how much the variance of Kendall's S is
// larger than that of independent values, at least 1. Of the autocorrelations
// only positive ones count that stand out at 95 %, and only lags of up to a
// quarter of the values, beyond which they are guesses.
func dependence(v []float64, slope float64) float64 {
	n := len(v)
	rest := make([]float64, n)
	for i := range v {
		rest[i] = v[i] - slope*float64(i)
	}
	r := ranks(rest)
	mean := float64(n-1) / 2
	var total float64
	for i := range r {
		total += (r[i] - mean) * (r[i] - mean)
	}
	f := 1.0
	if total == 0 {
		return f
	}
	nf := float64(n)
	for lag := 1; lag <= n/4; lag++ {
		var c float64
		for i := lag; i < n; i++ {
			c += (r[i] - mean) * (r[i-lag] - mean)
		}
		rho, k := c/total, float64(lag)
		if rho > NormalQuantile(0.95)/math.Sqrt(nf) {
			f += 2 / (nf * (nf - 1) * (nf - 2)) * (nf - k) * (nf - k - 1) * (nf - k - 2) * rho
		}
	}
	return f
}

// ranks of values from 0, ties sharing their mean.
func ranks(v []float64) []float64 {
	order := make([]int, len(v))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(v[a], v[b]) })
	r := make([]float64, len(v))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && v[order[j]] == v[order[i]] {
			j++
		}
		for k := i; k < j; k++ {
			r[order[k]] = float64(i+j-1) / 2
		}
		i = j
	}
	return r
}

// Change is a change of regime between two stretches of one series.
type Change struct {
	At            int     // index of the first value of the second stretch
	Before, After float64 // medians of the two stretches
	Ratio         float64 // the larger median over the smaller one
	Score         float64 // the step in units of its own noise
}

// What a change of regime takes: at least changeMinSide values and a twentieth
// of them all on each side, medians apart by changeMinRatio, and a step of changeMinScore times its
// standard error. The thresholds were chosen so that steady series (white or
// with autocorrelation 0.5, 10 to 600 values) are accused in about 1 % of runs
// at most; the tests measure it.
const (
	changeMinSide  = 3
	changeMinRatio = 1.5
	changeMinScore = 7
)

// ChangePoint looks for one change of level in positive values in the order of
// time, such as medians per 100 ms. It works on logarithms: of all splits with
// at least 3 values on each side it takes the one with the least sum of
// absolute deviations from the two medians (the least-absolute-deviation
// estimate of Bai, "Least Absolute Deviation Estimation of a Shift", 1995),
// and asks how large the step between the medians is against its standard
// error σ·√(1/k + 1/(n-k)). σ is the largest of 2 %, the median absolute
// deviation within the stretches, and the median absolute successive
// difference over √2 (both times 1.4826). Single spikes do not count. ok is
// false without a change, and for fewer than 6 values, which cannot show one.
// It sorts n times n values: thin out beyond a thousand.
func ChangePoint(v []float64) (c Change, ok bool) {
	l, positive := logs(v)
	n := len(l)
	if !positive || n < 2*changeMinSide {
		return Change{}, false
	}
	k, best, side := 0, math.Inf(1), max(changeMinSide, n/20)
	for i := side; i <= n-side; i++ {
		if cost := sum(deviations(l[:i])) + sum(deviations(l[i:])); cost < best {
			k, best = i, cost
		}
	}
	diffs := make([]float64, n-1)
	for i := range diffs {
		diffs[i] = math.Abs(l[i+1] - l[i])
	}
	const mad = 1.4826 // median absolute deviation to standard deviation
	within := Median(append(deviations(l[:k]), deviations(l[k:])...))
	sigma := max(0.02, mad*within, mad*medianInPlace(diffs)/math.Sqrt2)
	step := math.Abs(Median(l[k:]) - Median(l[:k]))
	c = Change{
		At: k, Before: Median(v[:k]), After: Median(v[k:]), Ratio: math.Exp(step),
		Score: step / (sigma * math.Sqrt(1/float64(k)+1/float64(n-k))),
	}
	if c.Score < changeMinScore || c.Ratio < changeMinRatio {
		return Change{}, false
	}
	return c, true
}

// deviations are the absolute deviations from the median.
func deviations(v []float64) []float64 {
	m := Median(v)
	d := make([]float64, len(v))
	for i, x := range v {
		d[i] = math.Abs(x - m)
	}
	return d
}

func sum(v []float64) float64 {
	var s float64
	for _, x := range v {
		s += x
	}
	return s
}
