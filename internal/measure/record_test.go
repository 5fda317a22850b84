package measure

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// recorded is a step of d in which the flush at second t takes ms(t).
func recorded(t *testing.T, d time.Duration, ms func(at float64) float64) StepResult {
	t.Helper()
	rec := newRecorder()
	for at := time.Duration(0); at < d; {
		took := time.Duration(ms(at.Seconds()) * float64(time.Millisecond))
		at += took
		if err := rec.record(at, took); err != nil {
			t.Fatal(err)
		}
	}
	res, err := rec.result(walStep)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestSteadyDriftingAndChanging(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	noisy := func(ms float64) float64 { return ms * math.Exp(0.2*r.NormFloat64()) }

	s := recorded(t, 2*time.Second, func(float64) float64 { return noisy(1) })
	if s.Latency == nil || s.NotSteady != "" || s.Regimes != nil {
		t.Errorf("steady: %+v", s)
	}
	s = recorded(t, 2*time.Second, func(at float64) float64 { return noisy(1 + 0.2*at) })
	if s.Latency == nil || !strings.Contains(s.NotSteady, "drifted by +") {
		t.Errorf("drifting: %+v", s)
	}
	s = recorded(t, 2*time.Second, func(at float64) float64 {
		if at > 1.4 {
			return noisy(5)
		}
		return noisy(1)
	})
	if s.Latency != nil || len(s.Regimes) != 2 || math.Abs(s.Regimes[0].ToS-1.4) > 0.11 || s.Regimes[1].MeanMs < 4 || s.Regimes[0].MeanMs > 1.2 {
		t.Errorf("changing: %+v", s)
	}
	// Half a second is too short for a word on it.
	s = recorded(t, 500*time.Millisecond, func(at float64) float64 {
		if at > 0.25 {
			return 5
		}
		return 1
	})
	if s.Latency == nil || s.NotSteady != "" {
		t.Errorf("short: %+v", s)
	}
	// A minute and a stall of four seconds: the stall is in the maximum.
	stalled := false
	s = recorded(t, 70*time.Second, func(at float64) float64 {
		if at > 30 && !stalled {
			stalled = true
			return 4000
		}
		return noisy(2)
	})
	if s.Latency == nil || s.MaxMs < 3996 || s.MaxMs > 4004 || s.NotSteady != "" {
		t.Errorf("stalled: max %v, %q", s.Latency, s.NotSteady)
	}
}

func TestHistogramIsInMicroseconds(t *testing.T) {
	s := recorded(t, time.Second, func(float64) float64 { return 2.5 })
	h, err := hdrhistogram.Decode([]byte(s.Histogram))
	if err != nil {
		t.Fatal(err)
	}
	if p := h.ValueAtQuantile(50); p < 2495 || p > 2505 || h.TotalCount() != s.Count {
		t.Errorf("p50 %d µs of 2,500, %d of %d counted", p, h.TotalCount(), s.Count)
	}
	if math.Abs(s.P50Ms-2.5) > 0.005 || math.Abs(s.MeanMs-2.5) > 0.005 {
		t.Errorf("%+v", s.Latency)
	}
	if err := newRecorder().record(0, 48*time.Hour); err == nil {
		t.Error("a latency beyond the histogram is clamped")
	}
}
