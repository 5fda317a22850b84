package stats

import "math"

// NoisePaired is the noise half-width of an A/A pair, as a fraction: two
// series of the same setup, value i of each from the same block. It is the
// farther end from 1 of the pair's ratio interval, max(|ln lo|, |ln hi|) taken
// back by exp(·)-1, so that an offset between the equal series counts as noise
// too. Infinite for fewer than two pairs.
func NoisePaired(a, a2 []float64, confidence float64) float64 {
	iv := RatioPaired(a, a2, confidence, 1)
	if math.IsNaN(iv.Point) || iv.N < 2 {
		return math.Inf(1)
	}
	return math.Expm1(math.Max(math.Abs(math.Log(iv.Lo)), math.Abs(math.Log(iv.Hi))))
}

// NoiseRepeats is the noise half-width, as a fraction, from groups of repeated
// equal cells (one group per setup and parameters): by how much the geometric
// means of two groups of n equal cells differ by chance alone,
// exp(t(ν) · s · √(2/n)) - 1, with s the standard deviation of logarithms
// pooled over the groups, ν its degrees of freedom and n the size of the
// smallest group. Groups of one value say nothing and are left out; infinite
// when none is left.
func NoiseRepeats(confidence float64, groups ...[]float64) float64 {
	var ss, df float64
	n := 0
	for _, g := range groups {
		l, ok := logs(g)
		if !ok || len(l) < 2 {
			continue
		}
		s := StdDev(l)
		ss += s * s * float64(len(l)-1)
		df += float64(len(l) - 1)
		if n == 0 || len(l) < n {
			n = len(l)
		}
	}
	if n == 0 {
		return math.Inf(1)
	}
	t := TQuantile(1-(1-confidence)/2, df)
	return math.Expm1(t * math.Sqrt(ss/df) * math.Sqrt(2/float64(n)))
}

// Differs says whether a ratio is a difference that may be printed: its
// interval excludes 1 and its point lies outside the noise half-width (a
// fraction; 0 when no A/A pair was run).
func Differs(ratio Interval, noise float64) bool {
	if math.IsNaN(ratio.Point) || ratio.Contains(1) {
		return false
	}
	return math.Abs(math.Log(ratio.Point)) > math.Log1p(noise)
}
