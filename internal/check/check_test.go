package check

import (
	"errors"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-db/holdfast/internal/history"
)

// events is a history in memory.
type events []history.Event

func (s *events) Next(e *history.Event) error {
	if len(*s) == 0 {
		return io.EOF
	}
	*e = (*s)[0]
	*s = (*s)[1:]
	return nil
}

func (s *events) intent(at time.Duration, id uint64) {
	*s = append(*s, history.Event{Kind: history.KindIntent, At: at, ID: id})
}

func (s *events) outcome(at time.Duration, id uint64, o history.Outcome) {
	*s = append(*s, history.Event{Kind: history.KindOutcome, At: at, ID: id, Outcome: o})
}

func (s *events) mark(at time.Duration, text string) {
	*s = append(*s, history.Event{Kind: history.KindMark, At: at, Text: text})
}

func ledger(t interface{ Fatal(...any) }, s events) *Ledger {
	l, err := Read(&s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// planted is a generated history with what was planted in its survivors.
type planted struct {
	events                                      events
	acked, refused, unknown                     []uint64
	lost, recovered, ghost, phantom, duplicated []uint64
	survivors                                   []uint64
	ackAt                                       map[uint64]time.Duration
	start                                       time.Duration
}

func some(rt *rapid.T, ids []uint64, name string) []uint64 {
	p := rapid.SampledFrom([]int{0, 1, 10, 50}).Draw(rt, name)
	var out []uint64
	for _, id := range ids {
		if rapid.IntRange(1, 100).Draw(rt, name) <= p {
			out = append(out, id)
		}
	}
	return out
}

// generate makes a history of up to two drivers with many writes in flight.
func generate(rt *rapid.T) *planted {
	p := &planted{ackAt: map[uint64]time.Duration{}}
	next := []uint64{rapid.Uint64Range(1, 100).Draw(rt, "base"), rapid.Uint64Range(1e6, 2e6).Draw(rt, "other base")}
	at := time.Duration(rapid.IntRange(0, 5000).Draw(rt, "start")) * time.Microsecond
	p.start = -1
	var open []uint64
	for range rapid.IntRange(0, 300).Draw(rt, "events") {
		at += time.Duration(rapid.IntRange(0, 3).Draw(rt, "dt")) * time.Microsecond
		if len(open) == 0 || len(open) < 6 && rapid.Bool().Draw(rt, "send") {
			d := rapid.IntRange(0, 1).Draw(rt, "driver")
			p.events.intent(at, next[d])
			if p.start < 0 {
				p.start = at
			}
			open = append(open, next[d])
			next[d]++
			continue
		}
		i := rapid.IntRange(0, len(open)-1).Draw(rt, "which")
		id := open[i]
		open = slices.Delete(open, i, i+1)
		switch rapid.IntRange(0, 5).Draw(rt, "outcome") {
		case 0:
			p.events.outcome(at, id, history.Refused)
			p.refused = append(p.refused, id)
		case 1:
			p.events.outcome(at, id, history.Unknown)
			p.unknown = append(p.unknown, id)
		default:
			p.events.outcome(at, id, history.Acked)
			p.acked = append(p.acked, id)
			p.ackAt[id] = at
		}
	}
	p.unknown = append(p.unknown, open...)
	p.lost, p.recovered, p.ghost = some(rt, p.acked, "lost"), some(rt, p.unknown, "recovered"), some(rt, p.refused, "ghost")
	for range rapid.IntRange(0, 5).Draw(rt, "phantoms") {
		id := rapid.OneOf(rapid.Uint64Range(next[0], next[0]+50), rapid.Uint64Range(3e6, math.MaxUint64), rapid.Just(uint64(0))).Draw(rt, "phantom")
		if !slices.Contains(p.phantom, id) {
			p.phantom = append(p.phantom, id)
		}
	}
	for _, id := range p.acked {
		if !slices.Contains(p.lost, id) {
			p.survivors = append(p.survivors, id)
		}
	}
	p.survivors = slices.Concat(p.survivors, p.recovered, p.ghost, p.phantom)
	p.duplicated = some(rt, p.survivors, "duplicated")
	for range rapid.IntRange(1, 3).Draw(rt, "copies") {
		p.survivors = append(p.survivors, p.duplicated...)
	}
	return p
}

func equal(rt *rapid.T, what string, got IDs, want []uint64) {
	want = slices.Sorted(slices.Values(want))
	if got.Count != len(want) || !slices.Equal(got.List, want) {
		rt.Fatalf("%s: %d %v, planted %v", what, got.Count, got.List, want)
	}
}

// TestPlanted: what was planted is found, and only that.
func TestPlanted(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := generate(rt)
		l := ledger(rt, p.events)
		given := rapid.SliceOfNDistinct(rapid.SampledFrom([]Source{FirstScan, FirstIndex, SecondScan, SecondIndex}), 1, 4, rapid.ID).Draw(rt, "sources")
		for _, s := range given {
			l.Survived(s, slices.Values(rapid.Permutation(p.survivors).Draw(rt, "order")))
		}
		f := l.Findings(Options{MaxIDs: 1 << 20})
		if f.Acked != len(p.acked) || f.Refused != len(p.refused) || f.Unknown != len(p.unknown) {
			rt.Fatalf("%d acked, %d refused, %d unknown; want %d, %d, %d", f.Acked, f.Refused, f.Unknown, len(p.acked), len(p.refused), len(p.unknown))
		}
		equal(rt, "lost", f.Lost, p.lost)
		equal(rt, "recovered", f.Recovered, p.recovered)
		equal(rt, "ghost", f.Ghost, p.ghost)
		equal(rt, "phantom", f.Phantom, p.phantom)
		equal(rt, "duplicated", f.Duplicated, p.duplicated)
		equal(rt, "disagree", f.Disagree, nil)
		equal(rt, "vanished", f.Vanished, nil)
		equal(rt, "appeared", f.Appeared, nil)
		if want := p.lostMs(); f.LostMs != want {
			rt.Fatalf("lost_ms %v, want %v", f.LostMs, want)
		}
		p.checkRanges(rt, f.Ranges, false)
		p.checkRanges(rt, fold(slices.Clone(f.Ranges), rapid.IntRange(1, 10).Draw(rt, "limit")), true)
		verdict, why := f.Judge(Promise{Lose: LoseNothing})
		want := Held
		switch {
		case len(p.lost)+len(p.ghost)+len(p.phantom)+len(p.duplicated) > 0:
			want = Broken
		case len(p.acked) == 0:
			want = Unknown
		}
		if verdict != want {
			rt.Fatalf("verdict %s (%s), want %s", verdict, why, want)
		}
	})
}

// lostMs is the definition, word by word, over the acks in their order.
func (p *planted) lostMs() float64 {
	if len(p.lost) == 0 {
		return 0
	}
	first, last := time.Duration(math.MaxInt64), time.Duration(0)
	for _, id := range p.lost {
		first, last = min(first, p.ackAt[id]), max(last, p.ackAt[id])
	}
	from := p.start
	for _, id := range p.acked {
		if p.ackAt[id] < first {
			from = p.ackAt[id]
		}
	}
	return float64((last - from).Microseconds()) / 1000
}

// checkRanges: the ranges are in order, disjoint and within the limit, and say
// of each id what is true; folded ones at least of each that counts against the setup.
func (p *planted) checkRanges(rt *rapid.T, rs []Range, folded bool) {
	for i := range rs {
		if rs[i].From > rs[i].To || i > 0 && rs[i-1].To >= rs[i].From {
			rt.Fatalf("ranges out of order: %+v", rs)
		}
	}
	at := func(id uint64) Range {
		for _, r := range rs {
			if r.From <= id && id <= r.To {
				return r
			}
		}
		rt.Fatalf("%d is in no range: %+v", id, rs)
		return Range{}
	}
	exact := func(ids []uint64, outcome string, survived bool) {
		for _, id := range ids {
			if r := at(id); r.Outcome != outcome || r.Survived != survived || r.Folded != 0 {
				rt.Fatalf("%d is in %+v, want %s, survived %v", id, r, outcome, survived)
			}
		}
	}
	for _, ids := range [][]uint64{p.lost, p.ghost, p.phantom} {
		for _, id := range ids {
			if r := at(id); !r.lossy() {
				rt.Fatalf("%d counts against the setup and is in %+v", id, r)
			}
		}
	}
	without := func(all, some []uint64) (out []uint64) {
		for _, id := range all {
			if !slices.Contains(some, id) {
				out = append(out, id)
			}
		}
		return out
	}
	if folded {
		return
	}
	exact(without(p.acked, p.lost), "acked", true)
	exact(p.lost, "acked", false)
	exact(p.ghost, "refused", true)
	exact(without(p.refused, p.ghost), "refused", false)
	exact(p.recovered, "unknown", true)
	exact(without(p.unknown, p.recovered), "unknown", false)
	exact(p.phantom, NeverAttempted, true)
}

func TestFold(t *testing.T) {
	var rs []Range
	for i := range uint64(1000) {
		rs = append(rs, Range{From: i * 10, To: i*10 + 8, Outcome: "acked", Survived: true})
		rs = append(rs, Range{From: i*10 + 9, To: i*10 + 9, Outcome: "unknown"})
	}
	rs[500].Survived = false
	got := fold(rs, 5)
	if len(got) > 5 {
		t.Fatalf("%d ranges", len(got))
	}
	i := slices.IndexFunc(got, func(r Range) bool { return r.lossy() })
	if i < 0 || got[i].From != 2500 || got[i].To != 2508 || got[i].Folded != 0 {
		t.Fatalf("the lossy range is not as it was: %+v", got)
	}
	if got[0].Outcome != "acked" || got[0].Folded == 0 {
		t.Fatalf("what was folded is not counted: %+v", got[0])
	}
}

// TestReadings plants differences between the four sources.
func TestReadings(t *testing.T) {
	var h events
	for id := range uint64(10) {
		h.intent(0, id+1)
	}
	for id := range uint64(8) {
		h.outcome(time.Millisecond, id+1, history.Acked)
	}
	all := []uint64{1, 2, 3, 4, 5, 6, 7, 8}
	without := func(drop ...uint64) []uint64 {
		return slices.DeleteFunc(slices.Clone(all), func(id uint64) bool { return slices.Contains(drop, id) })
	}
	for _, c := range []struct {
		name                               string
		sets                               map[Source][]uint64
		lost, disagree, vanished, appeared []uint64
		verdict                            string
	}{
		{"all there", map[Source][]uint64{FirstScan: all, FirstIndex: all, SecondScan: all, SecondIndex: all}, nil, nil, nil, nil, Held},
		{"only one source", map[Source][]uint64{SecondIndex: all}, nil, nil, nil, nil, Held},
		{"missing by index", map[Source][]uint64{FirstScan: all, FirstIndex: without(3)}, []uint64{3}, []uint64{3}, nil, nil, Broken},
		{"missing by scan", map[Source][]uint64{FirstScan: all, FirstIndex: all, SecondScan: without(4), SecondIndex: all}, []uint64{4}, []uint64{4}, nil, nil, Broken},
		{"gone after rejoining", map[Source][]uint64{FirstScan: all, FirstIndex: all, SecondScan: without(1, 8), SecondIndex: without(1, 8)}, []uint64{1, 8}, nil, []uint64{1, 8}, nil, Broken},
		{"an unknown one vanished", map[Source][]uint64{FirstScan: append(all, 9), SecondScan: all}, nil, nil, []uint64{9}, nil, Broken},
		{"an unknown one appeared", map[Source][]uint64{FirstScan: all, SecondScan: append(all, 9)}, nil, nil, nil, []uint64{9}, Held},
		{"an unknown one by index only", map[Source][]uint64{FirstScan: all, FirstIndex: append(all, 9)}, nil, []uint64{9}, nil, nil, Broken},
		{"twice by scan only", map[Source][]uint64{FirstScan: append(all, 2), FirstIndex: all}, nil, []uint64{2}, nil, nil, Broken},
		{"nothing there", map[Source][]uint64{FirstScan: nil}, all, nil, nil, nil, Broken},
		{"not read", nil, nil, nil, nil, nil, Unknown},
	} {
		l := ledger(t, h)
		for s, ids := range c.sets {
			l.Survived(s, slices.Values(ids))
		}
		f := l.Findings(Options{})
		for what, x := range map[string][2][]uint64{
			"lost": {f.Lost.List, c.lost}, "disagree": {f.Disagree.List, c.disagree},
			"vanished": {f.Vanished.List, c.vanished}, "appeared": {f.Appeared.List, c.appeared},
		} {
			if !slices.Equal(x[0], x[1]) {
				t.Errorf("%s: %s %v, want %v", c.name, what, x[0], x[1])
			}
		}
		if v, why := f.Judge(Promise{Lose: LoseNothing}); v != c.verdict {
			t.Errorf("%s: %s (%s), want %s", c.name, v, why, c.verdict)
		}
		if len(f.Read) != len(c.sets) {
			t.Errorf("%s: read %v", c.name, f.Read)
		}
	}
}

func TestJudge(t *testing.T) {
	ids := func(n int) IDs { return IDs{Count: n} }
	read := []Source{FirstScan}
	for _, c := range []struct {
		name    string
		f       Findings
		p       Promise
		verdict string
		why     string
	}{
		{"nothing lost", Findings{Acked: 12345}, Promise{Lose: LoseNothing}, Held, "All 12,345 acknowledged writes survived."},
		{"one", Findings{Acked: 1}, Promise{Lose: LoseNothing}, Held, "The one acknowledged write survived."},
		{"one lost", Findings{Acked: 1000, Lost: ids(1), LostMs: 0.5}, Promise{Lose: LoseNothing}, Broken,
			"1 of 1,000 acknowledged writes are lost, over 0.5 ms, where nothing may be lost."},
		{"within", Findings{Acked: 1000, Lost: ids(7), LostMs: 500}, Promise{LoseMillis, 500}, Held,
			"7 of 1,000 acknowledged writes are lost, over 500 ms, within the 500 ms that may be lost."},
		{"beyond", Findings{Acked: 1000, Lost: ids(7), LostMs: 500.001}, Promise{LoseMillis, 500}, Broken, "where up to 500 ms may be lost"},
		{"nothing lost of ms", Findings{Acked: 10}, Promise{LoseMillis, 500}, Held, "All 10"},
		{"unbounded", Findings{Acked: 1000, Lost: ids(1000), LostMs: 9e5}, Promise{Lose: LoseUnbounded}, Held, "does not rule out"},
		{"ghost", Findings{Acked: 10, Ghost: ids(1)}, Promise{Lose: LoseUnbounded}, Broken, "1 row present although the write was refused."},
		{"duplicate", Findings{Acked: 10, Duplicated: ids(2)}, Promise{Lose: LoseUnbounded}, Broken, "2 rows present more than once."},
		{"disagree", Findings{Acked: 10, Disagree: ids(2)}, Promise{Lose: LoseUnbounded}, Broken, "disagree"},
		{"vanished", Findings{Acked: 10, Vanished: ids(2)}, Promise{Lose: LoseUnbounded}, Broken, "gone after"},
		{"phantom", Findings{Acked: 10, Phantom: ids(2)}, Promise{Lose: LoseUnbounded}, Broken, "nobody attempted"},
		{"phantom in doubt", Findings{Acked: 10, Phantom: ids(2), Incomplete: true}, Promise{Lose: LoseNothing}, Unknown, "not confirmed"},
		{"phantom in doubt, and lost", Findings{Acked: 10, Phantom: ids(2), Lost: ids(1), Incomplete: true}, Promise{Lose: LoseNothing}, Broken, "1 of 10"},
		{"recovered and appeared", Findings{Acked: 10, Recovered: ids(2), Appeared: ids(2)}, Promise{Lose: LoseNothing}, Held, "All 10"},
		{"nothing acked", Findings{Refused: 5}, Promise{Lose: LoseNothing}, Unknown, "nothing was put to the test"},
		{"nothing acked, but a ghost", Findings{Refused: 5, Ghost: ids(1)}, Promise{Lose: LoseNothing}, Broken, "refused"},
		{"everything at once", Findings{Acked: 9, Lost: ids(1), Ghost: ids(1), Duplicated: ids(1)}, Promise{Lose: LoseNothing}, Broken, "; 1 row present although the write was refused; 1 row present more than once."},
		{"no such promise", Findings{Acked: 9}, Promise{Lose: "some"}, Unknown, `no promise "some"`},
	} {
		c.f.Read = read
		v, why := c.f.Judge(c.p)
		if v != c.verdict || !strings.Contains(why, c.why) {
			t.Errorf("%s: %s: %s\nwant %s: …%s…", c.name, v, why, c.verdict, c.why)
		}
	}
}

func TestInconsistent(t *testing.T) {
	for name, h := range map[string]events{
		"attempted twice": {{Kind: history.KindIntent, ID: 1}, {Kind: history.KindIntent, ID: 2}, {Kind: history.KindIntent, ID: 1}},
		"next id taken":   {{Kind: history.KindIntent, ID: 2}, {Kind: history.KindIntent, ID: 1}, {Kind: history.KindIntent, ID: 2}},
		"no intent":       {{Kind: history.KindOutcome, ID: 1, Outcome: history.Acked}},
		"two outcomes":    {{Kind: history.KindIntent, ID: 1}, {Kind: history.KindOutcome, ID: 1, Outcome: history.Acked}, {Kind: history.KindOutcome, ID: 1, Outcome: history.Unknown}},
	} {
		if l, err := Read(&h); !errors.Is(err, ErrInconsistent) || l != nil {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
}

type broken struct {
	events
	err error
}

func (b *broken) Next(e *history.Event) error {
	if len(b.events) == 0 {
		return b.err
	}
	return b.events.Next(e)
}

func TestTruncatedKeepsWhatCameBefore(t *testing.T) {
	b := &broken{err: &history.FormatError{Kind: history.ErrTruncated, Offset: 7}}
	b.intent(0, 1)
	b.outcome(1, 1, history.Acked)
	l, err := Read(b)
	if !errors.Is(err, history.ErrTruncated) || l == nil {
		t.Fatalf("%v, %v", l, err)
	}
	if f := l.Findings(Options{}); f.Acked != 1 {
		t.Errorf("%d acked", f.Acked)
	}
}

func TestMaxIDs(t *testing.T) {
	var h events
	for id := range uint64(50) {
		h.intent(0, id+1)
		h.outcome(0, id+1, history.Acked)
	}
	l := ledger(t, h)
	l.Given(FirstScan)
	f := l.Findings(Options{MaxIDs: 3})
	if f.Lost.Count != 50 || !slices.Equal(f.Lost.List, []uint64{1, 2, 3}) {
		t.Errorf("lost %+v", f.Lost)
	}
	if again := l.Findings(Options{MaxIDs: 3}); !reflect.DeepEqual(f, again) {
		t.Error("the same ledger has other findings")
	}
}
