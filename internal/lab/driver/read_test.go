package driver

import (
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-db/holdfast/internal/lab/collector"
)

// TestTurns: the share of reads is kept to within one turn, from any number of
// turns on.
func TestTurns(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		turns := turns{share: rapid.Float64Range(0, 0.9).Draw(rt, "share")}
		reads := 0
		for n := 1; n <= rapid.IntRange(1, 500).Draw(rt, "turns"); n++ {
			if turns.read() {
				reads++
			}
			if want := turns.share * float64(n); math.Abs(float64(reads)-want) > 1+1e-6 {
				rt.Fatalf("%d of %d turns are reads, want %.2f", reads, n, want)
			}
		}
	})
}

// TestReads: what was acknowledged is read; a server that no longer has it
// gives stale answers; a server that is frozen gives none.
func TestReads(t *testing.T) {
	s := newServer(t, nil)
	ledger(s)
	l := newLab(t, func(c *Config) { c.ReadShare, c.Rate = 0.5, 400 }, s.target())
	reads := func() collector.Reads { return l.c.Drivers()[0].Reads }
	l.must(l.c.WaitDrivers(within(t, 10*time.Second), 1))
	eventually(t, 20*time.Second, "fresh answers", func() bool { return reads().Fresh >= 100 })
	if r := reads(); r.Stale != 0 || r.Failed != 0 {
		t.Fatalf("of an honest server: %+v", r)
	}
	s.exec("CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN DELETE FROM ledger WHERE id = new.id; RETURN NULL; END'",
		"CREATE TRIGGER forget AFTER INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION forget()")
	eventually(t, 20*time.Second, "stale answers", func() bool { return reads().Stale >= 20 })
	// A freeze may find every writer at a write.
	eventually(t, 60*time.Second, "a read without an answer", func() bool {
		acked, given := l.c.Live().Acked, l.c.Live().Unknown+reads().Failed
		s.signal(syscall.SIGSTOP)
		eventually(t, 20*time.Second, "the freeze to be noticed", func() bool { return l.c.Live().Unknown+reads().Failed >= given+4 })
		s.signal(syscall.SIGCONT)
		eventually(t, 20*time.Second, "writes to go on", func() bool { return l.c.Live().Acked >= acked+50 })
		return reads().Failed > 0
	})
	l.stop()
	r := reads()
	if r.FirstStale <= 0 || r.LastStale < r.FirstStale {
		t.Errorf("stale from %s to %s", r.FirstStale, r.LastStale)
	}
	marks := 0
	for _, m := range l.findings(s).Marks {
		if strings.Contains(m.Text, "which was acknowledged, and it is not there") {
			marks++
		}
	}
	if marks == 0 || marks > 100 {
		t.Errorf("%d marks of %d stale reads", marks, r.Stale)
	}
}
