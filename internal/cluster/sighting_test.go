package cluster

import "testing"

// TestSeenAtTheFork: what a standby has flushed when it connects to a new primary
// lies on the timeline that it holds, not on the one that it is about to get.
func TestSeenAtTheFork(t *testing.T) {
	h := []Branch{{Timeline: 1}, {Timeline: 2, Fork: 30}, {Timeline: 5, Fork: 70}}
	for lsn, want := range map[LSN]Timeline{0: 1, 1: 1, 30: 1, 31: 2, 70: 2, 71: 5} {
		if got := timelineAt(h, lsn); got != want {
			t.Errorf("LSN %d lies on timeline %d, want %d", lsn, got, want)
		}
	}
	if got := timelineAt(nil, 5); got != 0 {
		t.Errorf("without a history: timeline %d", got)
	}
}
