package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// BootstrapFrom is the number of values from which the ratios use the
// bootstrap; below it they use t on logarithms (see the package comment).
const BootstrapFrom = 50

// resamples of a bootstrap: enough that the ends of a 95 % interval move by
// about 1 % of its width from one seed to another.
const resamples = 4000

var unbounded = Interval{Point: math.NaN(), Lo: math.Inf(-1), Hi: math.Inf(1)}

// Bootstrap is the percentile bootstrap of any statistic (Efron and
// Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 13): the
// statistic of many resamples with replacement, cut at (1-confidence)/2 on
// either side. statistic must not keep or order its argument's backing array
// for later use; it may sort it.
func Bootstrap(v []float64, statistic func([]float64) float64, confidence float64, seed uint64) Interval {
	if len(v) == 0 {
		return unbounded
	}
	iv := Interval{Point: statistic(slices.Clone(v)), Lo: math.Inf(-1), Hi: math.Inf(1), N: len(v)}
	if len(v) < 2 {
		return iv
	}
	rng := rand.New(rand.NewPCG(seed, uint64(len(v))))
	buf := make([]float64, len(v))
	est := make([]float64, resamples)
	for i := range est {
		for j := range buf {
			buf[j] = v[rng.IntN(len(v))]
		}
		est[i] = statistic(buf)
	}
	iv.Lo, iv.Hi = cut(est, confidence)
	return iv
}

// cut sorts est and returns the ends of its central part.
func cut(est []float64, confidence float64) (lo, hi float64) {
	slices.Sort(est)
	tail := (1 - confidence) / 2
	return sortedQuantile(est, tail), sortedQuantile(est, 1-tail)
}

// BootstrapMean is Bootstrap of the mean. Below BootstrapFrom values it is too narrow;
// TMean covers better there.
func BootstrapMean(v []float64, confidence float64, seed uint64) Interval {
	return Bootstrap(v, Mean, confidence, seed)
}

// BootstrapMedian is Bootstrap of the median. With 5 values it spans nearly
// all of them, which is what 5 values say about a median.
func BootstrapMedian(v []float64, confidence float64, seed uint64) Interval {
	return Bootstrap(v, medianInPlace, confidence, seed)
}

// TMean is Student's interval for a mean: mean ± t(n-1) · s / √n.
func TMean(v []float64, confidence float64) Interval {
	if len(v) == 0 {
		return unbounded
	}
	iv := Interval{Point: Mean(v), Lo: math.Inf(-1), Hi: math.Inf(1), N: len(v)}
	if len(v) < 2 {
		return iv
	}
	h := TQuantile(1-(1-confidence)/2, float64(len(v)-1)) * StdDev(v) / math.Sqrt(float64(len(v)))
	iv.Lo, iv.Hi = iv.Point-h, iv.Point+h
	return iv
}

// MeanInterval is the interval to print for a mean of per-run values: TMean
// below BootstrapFrom values, BootstrapMean from there on.
func MeanInterval(v []float64, confidence float64, seed uint64) Interval {
	if len(v) < BootstrapFrom {
		return TMean(v, confidence)
	}
	return BootstrapMean(v, confidence, seed)
}

// RatioPaired is the geometric mean of a[i]/b[i] with its interval, for values
// of the same block: what the blocks have in common cancels. Below
// BootstrapFrom pairs it is exp of Student's interval on ln(a/b), else exp of
// the bootstrap's. Slices of different length are cut to the shorter one; a
// value that is not positive makes the ratio NaN and unbounded.
func RatioPaired(a, b []float64, confidence float64, seed uint64) Interval {
	n := min(len(a), len(b))
	la, okA := logs(a[:n])
	lb, okB := logs(b[:n])
	if !okA || !okB {
		return ratioUnbounded(math.NaN(), n)
	}
	d := make([]float64, n)
	for i := range d {
		d[i] = la[i] - lb[i]
	}
	return expInterval(MeanInterval(d, confidence, seed))
}

// RatioUnpaired is the ratio of the geometric means of two independent groups
// with its interval. When the smaller group has fewer than BootstrapFrom
// values it is exp of Welch's interval on the logarithms ("The Generalization
// of 'Student's' Problem", 1947), else exp of a bootstrap that resamples each
// group on its own.
func RatioUnpaired(a, b []float64, confidence float64, seed uint64) Interval {
	n := min(len(a), len(b))
	la, okA := logs(a)
	lb, okB := logs(b)
	if !okA || !okB {
		return ratioUnbounded(math.NaN(), n)
	}
	d := Mean(la) - Mean(lb)
	switch {
	case n < 2:
		return ratioUnbounded(math.Exp(d), n)
	case n < BootstrapFrom:
		h := welchHalfWidth(la, lb, confidence)
		return expInterval(Interval{Point: d, Lo: d - h, Hi: d + h, N: n})
	}
	rng := rand.New(rand.NewPCG(seed, uint64(len(a))<<32|uint64(len(b))))
	est := make([]float64, resamples)
	for i := range est {
		est[i] = resampledMean(la, rng) - resampledMean(lb, rng)
	}
	lo, hi := cut(est, confidence)
	return expInterval(Interval{Point: d, Lo: lo, Hi: hi, N: n})
}

func resampledMean(v []float64, rng *rand.Rand) float64 {
	var sum float64
	for range v {
		sum += v[rng.IntN(len(v))]
	}
	return sum / float64(len(v))
}

// welchHalfWidth is t(ν) · √(sa²/na + sb²/nb) with Welch and Satterthwaite's ν.
func welchHalfWidth(a, b []float64, confidence float64) float64 {
	na, nb := float64(len(a)), float64(len(b))
	va, vb := math.Pow(StdDev(a), 2)/na, math.Pow(StdDev(b), 2)/nb
	if va+vb == 0 {
		return 0
	}
	df := (va + vb) * (va + vb) / (va*va/(na-1) + vb*vb/(nb-1))
	return TQuantile(1-(1-confidence)/2, df) * math.Sqrt(va+vb)
}

func ratioUnbounded(point float64, n int) Interval {
	return Interval{Point: point, Lo: 0, Hi: math.Inf(1), N: n}
}

func expInterval(i Interval) Interval {
	return Interval{Point: math.Exp(i.Point), Lo: math.Exp(i.Lo), Hi: math.Exp(i.Hi), N: i.N}
}
