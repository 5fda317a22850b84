package experiment

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/result"
)

// TestWithoutTimes: a lab that stood still says so, keeps what was counted and
// none of what was timed.
func TestWithoutTimes(t *testing.T) {
	c := &result.Cell{Why: "All survived.", Metrics: map[string]float64{"acked": 5, "lost": 0, "lost_ms": 0, "first_ack_ms": 9000, "promoted_ms": 8000}}
	withoutTimes(c, 2500*time.Millisecond)
	want := map[string]float64{"acked": 5, "lost": 0, "lost_ms": 0, "lab_stalled_ms": 2500}
	if len(c.Metrics) != len(want) {
		t.Errorf("left are %v", c.Metrics)
	}
	for m, v := range want {
		if got, ok := c.Metrics[m]; !ok || got != v {
			t.Errorf("%s is %v, want %v", m, got, v)
		}
	}
	if !strings.HasPrefix(c.Why, "All survived. The lab itself stood still for 2.5 s") {
		t.Errorf("it says %q", c.Why)
	}
}
