package fuse_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/measure"
)

// ladderStep runs one step of `measure disk` on the mount.
func ladderStep(t *testing.T, d *daemon, during time.Duration) measure.StepResult {
	t.Helper()
	steps, err := measure.Select("zero-filled/fdatasync/buffered")
	must(t, err)
	rep, err := measure.Disk(t.Context(), d.mnt, time.Now(), measure.Options{For: during, Steps: steps})
	must(t, err)
	return rep.Steps[0]
}

// tries is how often a busy machine may spoil a step: its other load changes the
// level, too.
const tries = 5

// TestThrottleDetector holds what `measure disk` says against what the disk knows
// of itself: a volume whose burst ends within the step, and one without limits.
func TestThrottleDetector(t *testing.T) {
	const iops = 150
	d := mount(t, "local-nvme", "lose-all")
	said := ""
	for range tries {
		d.set(map[string]string{"iops": "0", "iops_credit": "0"})
		d.set(map[string]string{"iops": itoa(iops), "iops_credit": "800"}) // all of it there again
		s := ladderStep(t, d, 4*time.Second)
		stats, err := d.Stats(d.ctx())
		must(t, err)
		if stats["throttled_ms"] < 500 {
			t.Fatalf("the disk itself was not throttled: %v", stats)
		}
		if said = throttledAt(s, iops); said == "" {
			t.Log(s.NotSteady)
			break
		}
	}
	if said != "" {
		t.Errorf("a burst and a plateau of %d per second: %s", iops, said)
	}

	d.set(map[string]string{"iops": "0", "iops_credit": "0"})
	for range tries {
		s := ladderStep(t, d, 2*time.Second)
		if said = s.NotSteady; s.Latency != nil && len(s.Regimes) == 0 {
			return
		}
	}
	t.Errorf("a disk without limits is called throttled %d times: %s", tries, said)
}

// throttledAt says what is wrong with a step as that of a burst and then a
// plateau of iops flushes per second; "" if nothing is.
func throttledAt(s measure.StepResult, iops float64) string {
	if len(s.Regimes) != 2 || s.NotSteady == "" || s.Latency != nil {
		return fmt.Sprintf("taken for one level: %+v", s)
	}
	plateau := s.Regimes[1]
	rate := float64(plateau.Count) / (plateau.ToS - plateau.FromS)
	if math.Abs(rate-iops) > 0.15*iops || math.Abs(1000/plateau.MeanMs-iops) > 0.15*iops {
		return fmt.Sprintf("the plateau is %.0f per second (mean %.2f ms)", rate, plateau.MeanMs)
	}
	return ""
}
