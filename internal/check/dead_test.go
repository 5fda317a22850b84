package check

import (
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/history"
)

// TestFirstAckAfterDead: only a write sent after the host was dead counts as
// the first one, since the frames of one from just before the cut may have been
// stamped late.
func TestFirstAckAfterDead(t *testing.T) {
	const msec = time.Millisecond
	var s events
	write := func(sent, acked time.Duration, id uint64) {
		s.intent(sent, id)
		s.outcome(acked, id, history.Acked)
	}
	for i := range 10 {
		write(time.Duration(i)*10*msec, time.Duration(i)*10*msec+5*msec, uint64(i+1))
	}
	s.mark(100*msec, history.MarkCut)
	write(101*msec, 103*msec, 11)
	s.mark(120*msec, history.MarkDead)
	write(700*msec, 710*msec, 12)
	write(720*msec, 730*msec, 13)
	g := ledger(t, s).Findings(Options{}).Gaps
	if g.FirstAckMs == nil || *g.FirstAckMs != 610 {
		t.Errorf("first ack: %v, want 610 ms after the cut", g.FirstAckMs)
	}
	if g.LongestMs == nil || *g.LongestMs != 607 {
		t.Errorf("longest gap: %v, want 607 ms", g.LongestMs)
	}
}
