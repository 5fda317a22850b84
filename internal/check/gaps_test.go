package check

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-db/holdfast/internal/history"
)

// steady adds acked writes, one every step from from (inclusive) to to.
func (s *events) steady(from, to, step time.Duration) {
	id := uint64(1)
	for _, e := range *s {
		id = max(id, e.ID+1)
	}
	for at := from; at < to; at += step {
		s.intent(at, id)
		s.outcome(at+time.Millisecond, id, history.Acked)
		id++
	}
}

func value(p *float64) string {
	if p == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f", *p)
}

func TestGaps(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for _, c := range []struct {
		name                                string
		make                                func(h *events)
		baseline, longest, first, sustained string
		open                                bool
		window                              time.Duration
	}{
		{name: "no fault", make: func(h *events) { h.steady(0, 5*s, 10*ms) },
			baseline: "10", longest: "-", first: "-", sustained: "-"},
		{name: "an outage of 2 s", make: func(h *events) {
			h.steady(0, 10*s, 10*ms)
			h.mark(10*s, history.MarkCut)
			h.steady(12*s, 40*s, 10*ms)
		}, baseline: "10", longest: "2010", first: "2001", sustained: "2001", window: 10 * s},
		{name: "slow at first", make: func(h *events) {
			h.steady(0, 10*s, 10*ms)
			h.mark(10*s, history.MarkCut)
			h.steady(12*s, 15*s, 100*ms) // a tenth of the former rate
			h.steady(15*s, 40*s, 10*ms)
		}, baseline: "10", longest: "2010", first: "2001", sustained: "2001", window: 10 * s}, // 730 of 500 needed in the first window
		{name: "slow for long", make: func(h *events) {
			h.steady(0, 10*s, 10*ms)
			h.mark(10*s, history.MarkCut)
			h.steady(12*s, 22*s, 100*ms)
			h.steady(22*s, 40*s, 10*ms)
		}, baseline: "10", longest: "2010", first: "2001", sustained: "6501", window: 10 * s}, // 10·x + 100·(10-x) acks reach half at x = 5.5 s
		{name: "never at half", make: func(h *events) {
			h.steady(0, 10*s, 10*ms)
			h.mark(10*s, history.MarkCut)
			h.steady(12*s, 40*s, 100*ms)
		}, baseline: "10", longest: "2010", first: "2001", sustained: "-", window: 10 * s},
		{name: "the run ends soon after", make: func(h *events) {
			h.steady(0, 10*s, 10*ms)
			h.mark(10*s, history.MarkCut)
			h.steady(12*s, 15*s, 10*ms)
		}, baseline: "10", longest: "2010", first: "2001", sustained: "2001", window: 2989 * ms},
		{name: "the run ends at once", make: func(h *events) {
			h.steady(0, 10*s, 10*ms)
			h.mark(10*s, history.MarkCut)
			h.steady(12*s, 12500*ms, 10*ms)
		}, baseline: "10", longest: "2010", first: "2001", sustained: "-"},
		{name: "never again", make: func(h *events) {
			h.steady(0, 10*s, 10*ms)
			h.mark(10*s, history.MarkCut)
			h.intent(17*s, 5000)
			h.outcome(17*s, 5000, history.Refused)
		}, baseline: "10", longest: "7009", first: "-", sustained: "-", open: true},
		{name: "acks only of what was sent before", make: func(h *events) {
			h.steady(0, 10*s, 10*ms)
			h.intent(10*s, 5000)
			h.mark(10*s+ms, history.MarkCut)
			h.outcome(10*s+500*ms, 5000, history.Acked)
		}, baseline: "10", longest: "509", first: "-", sustained: "-"},
		{name: "in flight at the cut, and then sent anew", make: func(h *events) {
			h.steady(0, 10*s, 10*ms)
			h.intent(10*s, 5000)
			h.mark(10*s+ms, history.MarkCut)
			h.outcome(10*s+500*ms, 5000, history.Acked)
			h.steady(11*s, 31*s, 10*ms)
		}, baseline: "10", longest: "509", first: "1000", sustained: "1000", window: 10 * s},
		{name: "stalled before the cut", make: func(h *events) { // standbys cut off first
			h.steady(0, 10*s, 10*ms)
			h.mark(10*s, history.MarkFault)
			h.mark(11500*ms, history.MarkCut)
			h.steady(13*s, 33*s, 10*ms)
		}, baseline: "10", longest: "3010", first: "1501", sustained: "1501", window: 10 * s},
		{name: "the mark comes late", make: func(h *events) { // MarkAt, of a moment in the past
			h.steady(0, 10*s, 10*ms)
			h.steady(12*s, 40*s, 10*ms)
			h.mark(10*s, history.MarkCut)
		}, baseline: "10", longest: "2010", first: "2001", sustained: "2001", window: 10 * s},
		{name: "a hiccup before", make: func(h *events) {
			h.steady(0, 5*s, 10*ms)
			h.steady(8*s, 10*s, 10*ms)
			h.mark(10*s, history.MarkCut)
			h.steady(11*s, 40*s, 10*ms)
		}, baseline: "3010", longest: "1010", first: "1001", sustained: "1001", window: 10 * s},
		{name: "nothing before", make: func(h *events) {
			h.intent(0, 1)
			h.outcome(s, 1, history.Refused)
			h.mark(s, history.MarkCut)
			h.steady(2*s, 22*s, 10*ms)
		}, baseline: "-", longest: "1001", first: "1001", sustained: "-"},
		{name: "nothing at all", make: func(h *events) { h.mark(s, history.MarkCut) },
			baseline: "-", longest: "-", first: "-", sustained: "-"},
	} {
		var h events
		c.make(&h)
		f := ledger(t, h).Findings(Options{})
		g := f.Gaps
		if value(g.BaselineMs) != c.baseline || value(g.LongestMs) != c.longest || value(g.FirstAckMs) != c.first || value(g.SustainedMs) != c.sustained {
			t.Errorf("%s: baseline %s, longest %s, first %s, sustained %s; want %s, %s, %s, %s", c.name,
				value(g.BaselineMs), value(g.LongestMs), value(g.FirstAckMs), value(g.SustainedMs), c.baseline, c.longest, c.first, c.sustained)
		}
		if g.Open != c.open || g.Window.Truncate(time.Millisecond) != c.window {
			t.Errorf("%s: open %v, window %v; want %v, %v", c.name, g.Open, g.Window, c.open, c.window)
		}
		m := f.Metrics()
		for name, v := range map[string]*float64{"baseline_gap_ms": g.BaselineMs, "longest_gap_ms": g.LongestMs, "first_ack_ms": g.FirstAckMs, "sustained_ms": g.SustainedMs} {
			if got, ok := m[name]; ok != (v != nil) || ok && got != *v {
				t.Errorf("%s: %s is %v, %v", c.name, name, got, ok)
			}
		}
		if _, ok := m["lost"]; ok {
			t.Errorf("%s: lost is there although nothing was read", c.name)
		}
	}
}

// TestSustained holds the search for the window against the definition.
func TestSustained(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var h events
		at, id := time.Duration(0), uint64(1)
		var acks []time.Duration
		burst := func(n int) {
			for range n {
				at += time.Duration(rapid.IntRange(1, 1<<rapid.IntRange(1, 20).Draw(rt, "bits")).Draw(rt, "dt")) * time.Microsecond
				h.intent(at, id)
				h.outcome(at, id, history.Acked)
				acks = append(acks, at)
				id++
			}
		}
		burst(rapid.IntRange(2, 40).Draw(rt, "before"))
		before := len(acks)
		cut := at + 1000
		cut = cut.Truncate(time.Microsecond)
		h.mark(cut, history.MarkCut)
		at = cut
		burst(rapid.IntRange(1, 60).Draw(rt, "after"))
		window := time.Duration(rapid.IntRange(1000, 4000).Draw(rt, "window")) * time.Millisecond
		g := ledger(rt, h).Findings(Options{Window: window}).Gaps

		first := acks[before]
		w := min(window, at-first)
		rate := float64(before) / (cut - acks[0]).Seconds()
		want := "-"
		if w >= time.Second {
			for _, start := range acks[before:] {
				n := 0
				for _, a := range acks {
					if a >= start && a < start+w {
						n++
					}
				}
				if start+w <= at && float64(n) >= math.Ceil(rate/2*float64(w.Microseconds())/1e6) {
					v := float64((start - cut).Microseconds()) / 1000
					want = value(&v)
					break
				}
			}
		}
		if got := value(g.SustainedMs); got != want {
			rt.Fatalf("sustained after %s ms, want %s", got, want)
		}
	})
}

func TestSeries(t *testing.T) {
	const ms = time.Millisecond
	var h events
	h.intent(300*ms, 1)
	h.outcome(400*ms, 1, history.Acked)
	h.intent(1400*ms, 2)
	h.intent(1450*ms, 3)
	h.mark(1500*ms, history.MarkCut)
	h.outcome(1500*ms, 2, history.Unknown)
	h.intent(3600*ms, 4)
	h.outcome(5700*ms, 4, history.Refused)
	want := []Second{
		{T: -2, Acked: 1}, {T: -1, Unknown: 1}, {T: 0, Unknown: 1}, {T: 1}, {T: 2}, {T: 3}, {T: 4, Refused: 1},
	}
	if got := ledger(t, h).Findings(Options{}).Series; !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got := ledger(t, nil).Findings(Options{}).Series; got != nil {
		t.Errorf("of nothing: %v", got)
	}
}

// TestTenMillion is the size that the checker is made for: a history of ten
// million writes, checked against what survived.
func TestTenMillion(t *testing.T) {
	n := 1_000_000
	if os.Getenv("HOLDFAST_LONG") != "" {
		n = 10_000_000
	}
	path := filepath.Join(t.TempDir(), "h")
	w, err := history.Create(path, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	at := time.Duration(0)
	for i := range n {
		id := uint64(i + 1)
		if err := w.Append(&history.Event{Kind: history.KindIntent, At: at, ID: id, Writer: uint32(i % 8)}); err != nil {
			t.Fatal(err)
		}
		at += 100 * time.Microsecond
		if err := w.Append(&history.Event{Kind: history.KindOutcome, At: at, ID: id, Outcome: history.Acked, Latency: 700 * time.Microsecond}); err != nil {
			t.Fatal(err)
		}
		if i == n/2 {
			if err := w.Append(&history.Event{Kind: history.KindMark, At: at, Text: history.MarkCut}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	r, err := history.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	l, err := Read(r)
	if err != nil {
		t.Fatal(err)
	}
	for s := range sources {
		l.Given(s)
		for i := range n {
			if id := uint64(i + 1); id != uint64(n/3) {
				l.Saw(s, id)
			}
		}
	}
	f := l.Findings(Options{})
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if f.Acked != n || f.Lost.Count != 1 || f.Gaps.FirstAckMs == nil {
		t.Errorf("%d acked, %d lost", f.Acked, f.Lost.Count)
	}
	mb := func(b uint64) float64 { return float64(b) / 1e6 }
	t.Logf("%d writes: %.1f MB (%.1f bytes each), checked in %v, %.0f MB of heap taken from the system", n, mb(uint64(st.Size())), float64(st.Size())/float64(n), took, mb(after.HeapSys-before.HeapSys))
	if per := float64(st.Size()) / float64(n); per > 15 {
		t.Errorf("%.1f bytes for each write", per)
	}
	if limit := 50 * float64(n); float64(after.HeapSys-before.HeapSys) > limit && n >= 10_000_000 {
		t.Errorf("%.0f MB of memory, want at most %.0f", mb(after.HeapSys-before.HeapSys), limit/1e6)
	}
	if n >= 10_000_000 && took > 10*time.Second {
		t.Errorf("took %v, want at most 10 s", took)
	}
}
