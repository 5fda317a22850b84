package quorum

import (
	"testing"
	"time"
)

func TestWiden(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name  string
		from  Timers
		flush time.Duration
		want  Timers
	}{
		{"local NVMe", DefaultTimers(), 340 * time.Microsecond, DefaultTimers()},
		{"a network volume", DefaultTimers(), 2700 * time.Microsecond, DefaultTimers()},
		{"a hard disk", DefaultTimers(), 20 * ms, Timers{Heartbeat: 720 * ms, Election: 720 * ms, Lease: 360 * ms}},
		{"the same, fast", FastTimers(), 20 * ms, Timers{Heartbeat: 720 * ms, Election: 720 * ms, Lease: 360 * ms}},
		{"fast on a slow volume", FastTimers(), 10 * ms, Timers{Heartbeat: 360 * ms, Election: 360 * ms, Lease: 180 * ms}},
		{"a broken disk", DefaultTimers(), time.Minute, Timers{Heartbeat: 10 * time.Second, Election: 10 * time.Second, Lease: 5 * time.Second}},
		{"no poke stays so", Timers{Heartbeat: 100 * ms, Election: 200 * ms, Lease: 100 * ms, NoPoke: true}, 10 * ms,
			Timers{Heartbeat: 360 * ms, Election: 720 * ms, Lease: 360 * ms, NoPoke: true}},
	} {
		if got := c.from.Widen(c.flush); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestOverdue(t *testing.T) {
	const ms = time.Millisecond
	d := DefaultTimers()
	for _, c := range []struct {
		silence time.Duration
		rank    int
		want    bool
	}{{505 * ms, 0, false}, {506 * ms, 0, true}, {506 * ms, 1, false}, {515 * ms, 1, false}, {516 * ms, 1, true}, {525 * ms, 2, false}, {526 * ms, 2, true}} {
		if got := d.overdue(c.silence, c.rank); got != c.want {
			t.Errorf("silent for %s, rank %d: %v", c.silence, c.rank, got)
		}
	}
}
