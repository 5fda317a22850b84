package fuse_test

import (
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

// TestThrottleDetector holds what `measure disk` says against what the disk knows
// of itself: a volume whose burst ends within the step, and one without limits.
func TestThrottleDetector(t *testing.T) {
	const iops = 150
	d := mount(t, "local-nvme", "lose-all")
	d.set(map[string]string{"iops": itoa(iops), "iops_credit": "1000"})
	s := ladderStep(t, d, 4*time.Second)
	stats, err := d.Stats(d.ctx())
	must(t, err)
	if stats["throttled_ms"] < 500 || stats["iops_credit"] > 20 {
		t.Fatalf("the disk itself was not throttled: %v", stats)
	}
	if len(s.Regimes) != 2 || s.NotSteady == "" || s.Latency != nil {
		t.Fatalf("a burst and its end are taken for one level: %+v", s)
	}
	plateau := s.Regimes[1]
	rate := float64(plateau.Count) / (plateau.ToS - plateau.FromS)
	t.Logf("burst %.0f/s, then %.0f/s; %s", float64(s.Regimes[0].Count)/s.Regimes[0].ToS, rate, s.NotSteady)
	if math.Abs(rate-iops) > 0.15*iops || math.Abs(1000/plateau.MeanMs-iops) > 0.15*iops {
		t.Errorf("the plateau is %.0f flushes per second (mean %.2f ms), the disk gives %d", rate, plateau.MeanMs, iops)
	}

	d.set(map[string]string{"iops": "0", "iops_credit": "0"})
	s = ladderStep(t, d, 2*time.Second)
	if len(s.Regimes) != 0 || s.Latency == nil {
		t.Errorf("a disk without limits is called throttled: %s %+v", s.NotSteady, s.Regimes)
	}
}
