package disk

import (
	"math"
	"syscall"
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

// TestWriteBackIsPaidForByAndBy: a reader never waits behind all that the disk
// writes back by itself, and nothing of it is forgotten.
func TestWriteBackIsPaidForByAndBy(t *testing.T) {
	now := int64(0)
	th := NewThrottle(&Timing{IOPS: Limit{Rate: 1000}}, now)
	th.Owe(5000, 5000*PageSize)
	if !th.Behind() {
		t.Error("5 seconds of operations are owed, and writers need not wait")
	}
	reads, worst := 0, time.Duration(0)
	for done := false; !done; {
		var due time.Duration
		if due, done = th.PayBack(now); done {
			break
		}
		// A reader comes right behind it.
		wait := th.Take(1, PageSize, now)
		worst, reads = max(worst, wait), reads+1
		now += int64(max(due, wait))
	}
	if worst > 100*time.Millisecond {
		t.Errorf("a read waited %v", worst)
	}
	if s := th.Stats(now); s["io_operations"] != float64(5000+reads) || s["owed_operations"] != 0 || th.Behind() {
		t.Errorf("%.0f operations were taken, %.0f are owed; want %d and none", s["io_operations"], s["owed_operations"], 5000+reads)
	}
	if took := time.Duration(now); took < 4900*time.Millisecond || took > 5500*time.Millisecond {
		t.Errorf("5,000 operations and %d reads took %v at 1,000 a second", reads, took)
	}
}

// TestLargeWriteBackLeavesRoom: large transfers are paid for a few at a time.
func TestLargeWriteBackLeavesRoom(t *testing.T) {
	now := int64(0)
	th := NewThrottle(&Timing{Bytes: Limit{Rate: 100e6}}, now)
	th.Owe(400, 400*MaxIO)
	worst := time.Duration(0)
	for {
		due, done := th.PayBack(now)
		if done {
			break
		}
		worst = max(worst, th.Take(1, PageSize, now))
		now += int64(due)
	}
	if worst > 25*time.Millisecond {
		t.Errorf("a read waited %v behind write-back", worst)
	}
	if s := th.Stats(now); math.Abs(s["io_bytes"]-400*MaxIO) > 0.02*400*MaxIO {
		t.Errorf("%.0f bytes were taken of %d", s["io_bytes"], 400*MaxIO)
	}
}

// TestBackgroundCountsRuns: each run of pages is one operation, wherever in the
// file it lies.
func TestBackgroundCountsRuns(t *testing.T) {
	d, err := Open(newMemImage(), Options{RootMode: 0o755})
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := d.PowerOn(0)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Create(Root, "f", NewNode{Mode: syscall.S_IFREG | 0o600}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []int64{3, 5000, 5001, 20_000} { // three runs
		if err := s.Write(f.Ino, make([]byte, PageSize), page*PageSize, 0); err != nil {
			t.Fatal(err)
		}
	}
	const later = int64(time.Minute)
	if err := s.Tick(later); err != nil {
		t.Fatal(err)
	}
	if ops, bytes := d.Background(); ops != 3 || bytes != 4*PageSize {
		t.Errorf("written back: %d operations of %d bytes, want 3 of %d", ops, bytes, 4*PageSize)
	}
}
