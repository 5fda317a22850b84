package result

import "math"

// UpperBound returns the one-sided 95 % upper bound on the true rate of an event
// that was seen k times in n independent trials (Clopper and Pearson, 1934). For
// k = 0 it is 1 - 0.05^(1/n), which the "rule of three" writes as about 3/n.
func UpperBound(k, n int) float64 { return upper(k, n, 0.05) }

// rateInterval returns the two-sided 95 % interval (Clopper and Pearson) of the
// true rate of an event that was seen k times in n independent trials.
func rateInterval(k, n int) (lo, hi float64) {
	// Seen from the trials without the event, the lower bound is an upper one.
	return 1 - upper(n-k, n, 0.025), upper(k, n, 0.025)
}

// upper finds the rate at which seeing k or fewer events has probability alpha.
func upper(k, n int, alpha float64) float64 {
	if n <= 0 || k >= n {
		return 1
	}
	lo, hi := 0.0, 1.0
	for range 60 {
		mid := (lo + hi) / 2
		if atMost(k, n, mid) > alpha {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

// atMost is the probability of k or fewer events in n trials at rate p.
func atMost(k, n int, p float64) float64 {
	if p <= 0 {
		return 1
	}
	if p >= 1 {
		return 0
	}
	lgN, _ := math.Lgamma(float64(n) + 1)
	sum := 0.0
	for i := 0; i <= k; i++ {
		lgI, _ := math.Lgamma(float64(i) + 1)
		lgR, _ := math.Lgamma(float64(n-i) + 1)
		sum += math.Exp(lgN - lgI - lgR + float64(i)*math.Log(p) + float64(n-i)*math.Log1p(-p))
	}
	return math.Min(sum, 1)
}
