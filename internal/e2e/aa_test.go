package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/result"
)

// TestAA runs the study `aa` for real, a quarter of an hour, best on a quiet
// machine: of ten pairs of equal cells at most one is declared different, flushes
// that make a commit 15 % slower are found, and 1 % is not claimed.
func TestAA(t *testing.T) {
	needLab(t)
	if os.Getenv("HOLDFAST_LONG") == "" {
		t.Skip("takes a quarter of an hour: set HOLDFAST_LONG=1")
	}
	b := newBench(t)
	b.deadline = longDeadline
	b.labRun("aa").want(t, 0)
	run := b.result()
	pairs, different := 0, 0
	one, fifteen := false, false
	for _, c := range run.Comparisons {
		if c.Metric != "latency_mean_ms" {
			continue
		}
		differs := c.Note == ""
		t.Logf("%s over %s: %.3f (%.3f to %.3f), %s", c.A, c.B, c.Ratio, c.Lo, c.Hi, c.Note)
		switch {
		case strings.Contains(c.A, "A/A twin"):
			pairs++
			if differs {
				different++
			}
		case c.B == "pg-single on cloud-volume, 1 client" && strings.Contains(c.A, "flush × 1.18,"):
			fifteen = differs
			if c.Ratio < 1.08 || c.Ratio > 1.25 {
				t.Errorf("what was to be 15 %% slower is slower by %.1f %%", 100*(c.Ratio-1))
			}
		case c.B == "pg-single on cloud-volume, 1 client" && strings.Contains(c.A, "flush × 1.012,"):
			one = differs
		}
	}
	if pairs != 10 || different > 1 {
		t.Errorf("%d of %d equal pairs are declared different, want at most 1 of 10", different, pairs)
	}
	if !fifteen || one {
		t.Errorf("15 %% is found: %v; 1 %% is claimed: %v", fifteen, one)
	}
	fromPairs := 0
	for _, n := range run.Noise {
		if n.Metric == "latency_mean_ms" {
			fromPairs += n.Pairs
		}
	}
	if fromPairs != 10 {
		t.Errorf("the noise does not come of ten pairs: %+v", run.Noise)
	}
	// The disk's own counters say what was planted.
	flush := func(times any) (sum float64, n int) {
		for _, c := range run.Cells {
			if v, ok := c.Metrics["disk_flush_mean_ms"]; ok && c.Params["disk"] == "cloud-volume" && c.Params["twin"] == nil && result.ParamText(c.Params["clients"]) == "1" && c.Params["flush_times"] == times {
				sum, n = sum+v, n+1
			}
		}
		return sum, n
	}
	plain, n := flush(nil)
	slow, m := flush(1.18)
	if n == 0 || m == 0 || slow/float64(m) < 1.1*plain/float64(n) {
		t.Errorf("by the disk's counters a flush took %.2f ms over %d cells, and %.2f ms over %d slowed down", plain/float64(n), n, slow/float64(m), m)
	}
	b.run("lab", "recheck", "out").want(t, 2, "no cell of this run has a history")
	b.clean()
}
