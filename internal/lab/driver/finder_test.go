package driver

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/holdfast-db/holdfast/internal/check"
	"github.com/holdfast-db/holdfast/internal/history"
)

// events reads the whole history.
func (l *lab) events() []history.Event {
	l.t.Helper()
	r, err := history.Open(l.path)
	l.must(err)
	defer func() { _ = r.Close() }()
	var out []history.Event
	for {
		var e history.Event
		if err := r.Next(&e); err != nil {
			return out
		}
		out = append(out, e)
	}
}

// TestFindsTheWritableServer: standbys are passed over; the one that becomes
// writable is found within a few probe intervals, and then the others are left
// alone.
func TestFindsTheWritableServer(t *testing.T) {
	fakes := []*fake{newFake(t, nil), newFake(t, nil), newFake(t, nil)}
	for _, f := range fakes {
		f.standby.Store(true)
	}
	l := newLab(t, func(c *Config) { c.Rate = 500 }, fakes[0].target(), fakes[1].target(), fakes[2].target())
	eventually(t, 10*time.Second, "every target to be probed again and again", func() bool {
		return fakes[0].conns.Load() >= 5 && fakes[1].conns.Load() >= 5 && fakes[2].conns.Load() >= 5
	})
	promoted := time.Now()
	fakes[1].standby.Store(false)
	l.must(l.c.WaitFirstAckSentAfter(within(t, 10*time.Second), promoted))
	if d := time.Since(promoted); d > time.Second {
		t.Errorf("found after %v, with a probe every 100 ms", d)
	}
	l.must(l.c.WaitAcks(within(t, 10*time.Second), 20))
	eventually(t, 10*time.Second, "the probes to end", func() bool { return fakes[0].open.Load()+fakes[2].open.Load() == 0 })
	before := []int64{fakes[0].conns.Load(), fakes[1].conns.Load(), fakes[2].conns.Load()}
	l.must(l.c.WaitAcks(within(t, 10*time.Second), l.c.Live().Acked+300))
	for i, f := range fakes {
		if n := f.conns.Load() - before[i]; n != 0 {
			t.Errorf("target %d got %d connections while writes went well", i, n)
		}
	}
	l.stop()
}

// TestProbesDoNotPileUp: a target that says nothing holds at most as many
// probes as intervals fit into a probe's timeout.
func TestProbesDoNotPileUp(t *testing.T) {
	f := newFake(t, nil)
	f.silent.Store(true)
	l := newLab(t, func(c *Config) { c.ProbeEveryMs, c.ProbeTimeoutMs, c.ConnectTimeoutMs = 20, 200, 200 }, f.target())
	eventually(t, 10*time.Second, "many probes", func() bool { return f.conns.Load() >= 40 })
	if most := f.most.Load(); most < 5 || most > 11 {
		t.Errorf("%d probes at once, want about 10", most)
	}
	l.stop()
	f.stop()
	// The outage is in the history: refused attempts, each the retry of the one before.
	last, n := map[uint32]uint64{}, 0
	codes := map[uint64]string{}
	for _, e := range l.events() {
		switch e.Kind {
		case history.KindIntent:
			if e.RetryOf != last[e.Writer] {
				t.Errorf("write %d retries %d, want %d", e.ID, e.RetryOf, last[e.Writer])
			}
			last[e.Writer] = e.ID
			n++
		case history.KindOutcome:
			codes[e.ID] = e.Code
			if e.Outcome != history.Refused || e.Code != "timeout" && e.Code != "no-server" { // the latter before a probe has ended
				t.Errorf("write %d: %v %q", e.ID, e.Outcome, e.Code)
			}
		}
	}
	if n < 4 || n != len(codes) {
		t.Errorf("%d attempts, %d outcomes", n, len(codes))
	}
}

// TestSwitchesAwayFromASilentServer: the primary stops answering without a
// word; the writers move to the new one well before their deadline.
func TestSwitchesAwayFromASilentServer(t *testing.T) {
	quiet := make(chan struct{})
	old := newFake(t, func(b *pgproto3.Backend, bind *pgproto3.Bind) bool {
		select {
		case <-quiet:
			return true // no answer
		default:
			return ack(b, bind)
		}
	})
	heir := newFake(t, nil)
	heir.standby.Store(true)
	l := newLab(t, func(c *Config) { c.WriteTimeoutMs = 30_000 }, old.target(), heir.target())
	l.must(l.c.WaitAcks(within(t, 10*time.Second), 100))
	cut := time.Now()
	l.c.MarkAt(cut, history.MarkCut)
	old.silent.Store(true)
	close(quiet)
	probed := heir.conns.Load()
	eventually(t, 10*time.Second, "the heir to be probed", func() bool { return heir.conns.Load() > probed+1 })
	heir.standby.Store(false)
	l.must(l.c.WaitFirstAckSentAfter(within(t, 10*time.Second), cut.Add(time.Millisecond)))
	l.must(l.c.WaitAcks(within(t, 10*time.Second), l.c.Live().Acked+100))
	l.stop()
	if old.odd.Load() || heir.odd.Load() {
		t.Error("a server was asked to cancel")
	}
	unknown, note := 0, false
	for _, e := range l.events() {
		if e.Kind == history.KindOutcome && e.Outcome == history.Unknown {
			unknown++
			if e.Code != "switched" {
				t.Errorf("write %d: %q", e.ID, e.Code)
			}
		}
		note = note || e.Kind == history.KindMark && strings.Contains(e.Text, "writable: "+heir.target()+" (before: "+old.target()+")")
	}
	if unknown < 1 || unknown > 4 {
		t.Errorf("%d unknown writes with 4 writers", unknown)
	}
	if !note {
		t.Error("the switch is not in the history")
	}
}

// TestSlowButAlone: a server that is merely slow, with standbys beside it,
// keeps its writes.
func TestSlowButAlone(t *testing.T) {
	slow := newFake(t, func(b *pgproto3.Backend, bind *pgproto3.Bind) bool {
		time.Sleep(300 * time.Millisecond) // the server's own latency
		return ack(b, bind)
	})
	standby := newFake(t, nil)
	standby.standby.Store(true)
	l := newLab(t, func(c *Config) { c.SuspectAfterMs = 50 }, slow.target(), standby.target())
	l.must(l.c.WaitAcks(within(t, 20*time.Second), 8))
	l.stop()
	if v := l.c.Live(); v.Unknown+v.Refused != 0 {
		t.Errorf("%+v", v)
	}
	if standby.conns.Load() < 3 {
		t.Errorf("the standby was probed %d times although writes were slow", standby.conns.Load())
	}
}

// TestFailover kills a real primary and promotes its synchronous standby.
func TestFailover(t *testing.T) {
	p := newServer(t, nil)
	ledger(p)
	s := newServer(t, p)
	p.exec("ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
	eventually(t, 20*time.Second, "the standby to be synchronous", func() bool {
		c, err := p.connect()
		if err != nil {
			return false
		}
		defer func() { _ = c.Close(context.Background()) }()
		var ok bool
		return c.QueryRow(context.Background(), "SELECT bool_or(sync_state = 'sync') FROM pg_stat_replication").Scan(&ok) == nil && ok
	})
	l := newLab(t, nil, p.target(), s.target())
	l.must(l.c.WaitAcks(within(t, 20*time.Second), 500))
	cut := time.Now()
	l.c.MarkAt(cut, history.MarkCut)
	p.kill()
	s.exec("SELECT pg_promote()")
	l.must(l.c.WaitFirstAckSentAfter(within(t, 20*time.Second), time.Now()))
	l.must(l.c.WaitAcks(within(t, 20*time.Second), l.c.Live().Acked+500))
	l.stop()
	f := l.findings(s)
	if v, why := f.Judge(check.Promise{Lose: check.LoseNothing}); v != check.Held {
		t.Errorf("%s: %s", v, why)
	}
	if f.Gaps.FirstAckMs == nil || *f.Gaps.FirstAckMs > 10_000 {
		t.Errorf("gaps %+v", f.Gaps)
	}
}
