package stats

import "math"

// Pair is an A/A pair: two series of the same setup, value i of each from the
// same block.
type Pair struct{ A, B []float64 }

// NoisePairs is the noise half-width of A/A pairs, as a fraction: for one pair
// the farther end from 1 of its ratio's interval, so that an offset between the
// equal series counts as noise too. For several it is, of ln(a/b), the root mean
// square of the pairs' means plus t(ν) · s / √n: s is the standard deviation
// within pairs, pooled, ν its degrees of freedom, and n the least number of
// blocks of a pair. Pairs with fewer than two blocks or a value that is not
// positive are left out; infinite when none is left. used is how many were not.
func NoisePairs(confidence float64, pairs ...Pair) (half float64, used int) {
	var ss, df, offsets float64
	n := 0
	for _, p := range pairs {
		k := min(len(p.A), len(p.B))
		la, okA := logs(p.A[:k])
		lb, okB := logs(p.B[:k])
		if !okA || !okB || k < 2 {
			continue
		}
		mean := Mean(la) - Mean(lb)
		offsets += mean * mean
		for i := range la {
			d := la[i] - lb[i] - mean
			ss += d * d
		}
		df += float64(k - 1)
		used++
		if n == 0 || k < n {
			n = k
		}
	}
	if used == 0 {
		return math.Inf(1), 0
	}
	chance := TQuantile(1-(1-confidence)/2, df) * math.Sqrt(ss/df/float64(n))
	return math.Expm1(chance + math.Sqrt(offsets/float64(used))), used
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
