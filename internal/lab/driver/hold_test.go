package driver

import (
	"net"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/driver/frame"
)

func TestHoldFor(t *testing.T) {
	for _, c := range []struct {
		rate    float64
		confirm bool
		want    time.Duration
	}{
		{0, false, 0}, {100, false, 0}, {1999, false, 0}, {2000, false, time.Millisecond},
		{10_000, false, 200 * time.Microsecond}, {10_000, true, 0},
	} {
		if got := holdFor(&Config{Rate: c.rate, ConfirmIntents: c.confirm}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestHeldAck: an ack that waits goes with the next intent, in order, or alone
// when none comes; what is not an ack goes at once and takes it along.
func TestHeldAck(t *testing.T) {
	ours, theirs := net.Pipe()
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	for _, c := range []struct {
		name string
		hold time.Duration
		more func(s *sender) error
		want []frame.Type
	}{
		{"alone", time.Millisecond, func(*sender) error { return nil }, []frame.Type{frame.Outcome}},
		{"with an intent", time.Hour, func(s *sender) error { _, err := s.intent(1, 0); return err }, []frame.Type{frame.Outcome, frame.Intent}},
		{"with a refusal", time.Hour, func(s *sender) error { s.outcome(2, &result{outcome: history.Refused}, false); return nil }, []frame.Type{frame.Outcome, frame.Outcome}},
		{"with the last word", time.Hour, func(s *sender) error { return s.bye("over") }, []frame.Type{frame.Outcome, frame.Bye}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &sender{nc: ours, timeout: 10 * time.Second, hold: c.hold, next: 1}
			s.cond.L = &s.mu
			s.timer = time.AfterFunc(time.Hour, s.overdue)
			defer s.timer.Stop()
			got := make(chan frame.Type, len(c.want))
			go func() {
				defer close(got)
				r := frame.NewReader(theirs)
				var f frame.Frame
				for range c.want {
					if r.Read(&f) != nil {
						return
					}
					got <- f.Type
				}
			}()
			s.outcome(1, &result{outcome: history.Acked}, false)
			if err := c.more(s); err != nil {
				t.Fatal(err)
			}
			for i, want := range c.want {
				select {
				case f, ok := <-got:
					if !ok || f != want {
						t.Fatalf("frame %d has type %d, want %d", i, f, want)
					}
				case <-time.After(10 * time.Second):
					t.Fatalf("frame %d does not come", i)
				}
			}
		})
	}
}
