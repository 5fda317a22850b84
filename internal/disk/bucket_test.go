package disk

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// serve has one client after the other take transfers for a while and returns
// how many were let through in each second.
func serve(th *Throttle, bytes int64, seconds int) []int {
	out := make([]int, seconds)
	for now := int64(0); now < int64(seconds)*1e9; {
		out[now/1e9]++
		now += int64(th.Take(1, bytes, now)) + 1000
	}
	return out
}

func timing(iops, bytes Limit) *Timing { return &Timing{IOPS: iops, Bytes: bytes} }

func TestNamedVolumeIsWhatItIsSoldWith(t *testing.T) {
	kind, err := ByName("gp3-3000")
	if err != nil {
		t.Fatal(err)
	}
	if got := serve(NewThrottle(&kind.Timing, 0), 4096, 5)[4]; math.Abs(float64(got-3000)) > 5 {
		t.Errorf("%d small transfers in a second, want 3000", got)
	}
	if got := serve(NewThrottle(&kind.Timing, 0), MaxIO, 5)[4] * MaxIO; math.Abs(float64(got)-125e6) > 1e6 {
		t.Errorf("%d bytes in a second, want 125 MB", got)
	}
}

func TestBurstThenPlateau(t *testing.T) {
	th := NewThrottle(timing(Limit{Rate: 100, Burst: 300, Credit: 1000}, Limit{}), 0)
	got := serve(th, 0, 12)
	// 200 more than come in are spent each second: the credit lasts five.
	for i, want := range []int{300, 300, 300, 300, 300, 100, 100, 100} {
		if math.Abs(float64(got[i]-want)) > 5 {
			t.Errorf("second %d: %d, want %d", i, got[i], want)
		}
	}
	if c := th.Stats(12e9)["iops_credit"]; c > 2 {
		t.Errorf("%v credit left", c)
	}
	if c := th.Stats(17e9)["iops_credit"]; math.Abs(c-500) > 5 {
		t.Errorf("%v credit after five idle seconds, want 500", c)
	}
}

// TestThrottleNeverExceedsItsLimits lets random transfers through at random
// times: none may go earlier than the limits allow.
func TestThrottleNeverExceedsItsLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limit{Rate: rapid.Float64Range(1, 1e5).Draw(t, "rate"), Credit: rapid.Float64Range(0, 1e5).Draw(t, "credit")}
		l.Burst = l.Rate * rapid.Float64Range(1, 10).Draw(t, "burst")
		th := NewThrottle(timing(l, Limit{}), 0)
		now, total := int64(0), 0.0
		for range rapid.IntRange(1, 100).Draw(t, "transfers") {
			now += rapid.Int64Range(0, int64(time.Second)).Draw(t, "pause")
			n := rapid.Int64Range(1, 1000).Draw(t, "operations")
			done := now + int64(th.Take(n, 0, now))
			total += float64(n)
			if most := l.Credit + l.Rate*slack + l.Rate*float64(done)/1e9; total > most*1.000001+1e-3 {
				t.Fatalf("%.1f operations by %v, at most %.1f", total, time.Duration(done), most)
			}
			if c := th.Stats(now)["iops_credit"]; c < 0 || c > l.Credit {
				t.Fatalf("credit %v of %v", c, l.Credit)
			}
		}
	})
}
