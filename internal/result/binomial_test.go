package result

import (
	"math"
	"testing"
)

// The figures are those of common tables of exact binomial limits.
func TestBinomialBounds(t *testing.T) {
	for _, tt := range []struct {
		k, n int
		want float64
	}{{0, 20, 0.1391}, {0, 40, 0.0722}, {0, 1, 0.95}, {0, 300, 0.00994}, {1, 20, 0.2161}, {20, 20, 1}, {0, 0, 1}, {0, 100000, 2.9957e-5}} {
		if got := UpperBound(tt.k, tt.n); math.Abs(got-tt.want) > 0.0001*math.Max(1, tt.want) {
			t.Errorf("UpperBound(%d, %d) = %.5f, want %.4f", tt.k, tt.n, got, tt.want)
		}
	}
	for _, tt := range []struct {
		k, n   int
		lo, hi float64
	}{{1, 20, 0.0013, 0.2487}, {10, 20, 0.2720, 0.7280}, {20, 20, 0.8316, 1}, {0, 20, 0, 0.1684}} {
		lo, hi := rateInterval(tt.k, tt.n)
		if math.Abs(lo-tt.lo) > 0.0001 || math.Abs(hi-tt.hi) > 0.0001 {
			t.Errorf("rateInterval(%d, %d) = %.4f, %.4f, want %.4f, %.4f", tt.k, tt.n, lo, hi, tt.lo, tt.hi)
		}
	}
}

// A bound must not be rounded to where it claims more than was shown.
func TestPercentRoundsAwayFromComfort(t *testing.T) {
	for _, tt := range []struct {
		rate     float64
		up, down string
	}{{0.1391, "14 %", "13 %"}, {0.0722, "7.3 %", "7.2 %"}, {0.00994, "1 %", "0.99 %"}, {0.95, "95 %", "95 %"}, {1, "100 %", "100 %"}, {0.0013, "0.13 %", "0.13 %"}} {
		if up, down := PercentUp(tt.rate), percentDown(tt.rate); up != tt.up || down != tt.down {
			t.Errorf("%v: %s and %s, want %s and %s", tt.rate, up, down, tt.up, tt.down)
		}
	}
}
