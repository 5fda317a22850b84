package experiment

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/holdfast-db/holdfast/internal/measure"
)

// TestCaseFioIssue878: the percentiles of flushes that were measured on another
// host survive the way from there, as JSON, into the cells and into the sum of
// several cells.
func TestCaseFioIssue878(t *testing.T) {
	steps, err := measure.Select("same-block/fdatasync/buffered,append/fsync/buffered")
	if err != nil {
		t.Fatal(err)
	}
	var whole *hdrhistogram.Histogram
	count, worst := int64(0), 0.0
	for range 3 { // three hosts
		there, err := measure.Disk(t.Context(), t.TempDir(), time.Now(), measure.Options{For: 100 * time.Millisecond, Steps: steps})
		if err != nil {
			t.Fatal(err)
		}
		wire, err := json.Marshal(there)
		if err != nil {
			t.Fatal(err)
		}
		var here measure.Report
		if err := json.Unmarshal(wire, &here); err != nil {
			t.Fatal(err)
		}
		for i, s := range here.Steps {
			c := flushCell(s, 100*time.Millisecond)
			if s.Latency == nil { // its level changed: it has no one distribution
				continue
			}
			if c.Metrics["p99_ms"] != there.Steps[i].P99Ms || c.Metrics["p50_ms"] != there.Steps[i].P50Ms {
				t.Errorf("%s: %v there, %v here", s, there.Steps[i].Latency, c.Metrics)
			}
			h, err := hdrhistogram.Decode([]byte(c.Histogram))
			if err != nil {
				t.Fatalf("%s: %v", s, err)
			}
			if p := float64(h.ValueAtQuantile(99)) / 1000; p < s.P99Ms*0.99-0.002 || p > s.P99Ms*1.01+0.002 {
				t.Errorf("%s: p99 is %g ms, and %g in its histogram", s, s.P99Ms, p)
			}
			count, worst = count+s.Count, max(worst, s.MaxMs)
			if whole == nil {
				whole = h
			} else if dropped := whole.Merge(h); dropped > 0 {
				t.Errorf("%s: %d flushes are dropped from the sum", s, dropped)
			}
		}
	}
	if whole == nil {
		t.Skip("no step kept its level on this disk, so none has a distribution")
	}
	if m := float64(whole.Max()) / 1000; whole.TotalCount() != count || m < worst*0.99-0.002 {
		t.Errorf("%d flushes and at most %g ms in the sum of %d and at most %g ms", whole.TotalCount(), m, count, worst)
	}
}
