package cluster

import (
	"testing"
	"time"
)

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

// TestOutrunByALook: a primary that was restarted in place may be looked at before
// its standbys are, and hold less in that look than they. That is not a disk that
// lost something, whenever its epoch began; one that stays behind is.
func TestOutrunByALook(t *testing.T) {
	m := &machine{State: State{
		cfg: Config{Self: "a", Timing: Timing{Suspect: 500 * time.Millisecond, Retry: 500 * time.Millisecond}},
		now: 20 * time.Second, lead: lead{phase: leadUp, epoch: 1, since: time.Second},
		reg:  Register{Epoch: 1, Timeline: 1, Primary: Member{"a", 1}, Chain: []Branch{{Epoch: 1, Timeline: 1}}},
		pg:   Postgres{Exists: true, Running: true, Primary: true, Incarnation: 1, History: []Branch{{Timeline: 1}}, End: 100},
		seen: []Sighting{{Member{"b", 2}, 1, 120}},
	}}
	for range 3 {
		if m.bringUp(); m.lead.broken != 0 || m.lead.phase != leadUp {
			t.Fatalf("after %s: broken until %s, %s", m.now, m.lead.broken, m.lead.phase)
		}
		m.now += 200 * time.Millisecond
	}
	behind := *m
	if behind.bringUp(); behind.lead.broken == 0 {
		t.Error("a primary that stays behind what was seen of its timeline goes on")
	}
	m.pg.End = 120
	if m.bringUp(); m.lead.phase == leadUp || m.lead.outrunAt != 0 {
		t.Errorf("a newer look does not let it go on: %s", m.lead.phase)
	}
	stopped := *m
	stopped.pg.Running, stopped.pg.End, stopped.lead = false, 100, lead{phase: leadUp, epoch: 1}
	if stopped.bringUp(); stopped.lead.broken == 0 {
		t.Error("a stopped directory that holds less than was seen is started")
	}
}
