package diagnose

import "math"

// round keeps digits after the point.
func round(v float64, digits int) float64 {
	f := math.Pow(10, float64(digits))
	return math.Round(v*f) / f
}
