package check

import (
	"math"
	"time"

	"github.com/holdfast-db/holdfast/internal/history"
)

// Gaps are the interruptions, from the collector's clock alone. What was not
// measured is nil.
type Gaps struct {
	BaselineMs *float64 // longest between two acks before the first of "fault began" and "cut began"
	// LongestMs is the longest between two acks of which the later one is after
	// that; a gap that the end of the load leaves open counts up to there.
	LongestMs *float64
	// Open: the longest gap had not ended when the load did; it is a lower bound.
	Open bool
	// FirstAckMs is from the cut to the ack of the first write sent after it was
	// confirmed (or after it, where no mark says when that was).
	FirstAckMs *float64
	// SustainedMs is from the cut to the start of the first window, beginning no
	// earlier than that ack, with at least half the former rate.
	SustainedMs *float64
	// Window is the one used: shorter than asked for when the load ended sooner.
	Window time.Duration
	// Rate is the acks per second before the fault.
	Rate float64
}

// minWindow is the shortest over which a rate is worth a word.
const minWindow = int64(time.Second / time.Microsecond)

func (l *Ledger) gaps(zero, baseline int64, cut bool, window time.Duration) Gaps {
	var g Gaps
	if l.acks.n == 0 {
		return g
	}
	if baseline < 0 {
		baseline = math.MaxInt64
	}
	longer := func(p **float64, gap int64) bool {
		if *p != nil && **p >= ms(gap) {
			return false
		}
		v := ms(gap)
		*p = &v
		return true
	}
	var first, prev int64
	before := 0
	c := ackCursor{log: &l.acks}
	for i := 0; ; i++ {
		at, ok := c.next()
		if !ok {
			break
		}
		switch {
		case i == 0:
			first = at
			if at >= baseline {
				longer(&g.LongestMs, at-baseline)
			}
		case at < baseline:
			longer(&g.BaselineMs, at-prev)
		default:
			longer(&g.LongestMs, at-prev)
		}
		if at < baseline {
			before++
		}
		prev = at
	}
	if baseline == math.MaxInt64 {
		return g
	}
	if l.last > prev && l.last >= baseline {
		g.Open = longer(&g.LongestMs, l.last-prev)
	}
	if baseline > first && before > 1 {
		g.Rate = float64(before) / (float64(baseline-first) / 1e6)
	}
	if cut {
		l.recovery(&g, zero, window)
	}
	return g
}

// recovery measures when writes worked again after the cut.
func (l *Ledger) recovery(g *Gaps, cut int64, window time.Duration) {
	first, dead := int64(-1), l.dead(cut)
	for e := range l.writes() {
		if e.outcome == history.Acked && e.sent >= dead && (first < 0 || e.at < first) {
			first = e.at
		}
	}
	if first < 0 {
		return
	}
	v := ms(first - cut)
	g.FirstAckMs = &v
	w := min(int64(window/time.Microsecond), l.last-first)
	if w < minWindow || g.Rate == 0 {
		return
	}
	g.Window = time.Duration(w) * time.Microsecond
	need := int(math.Ceil(g.Rate / 2 * float64(w) / 1e6))
	// head begins the window; tail is the first ack after it; n are in between.
	head, tail := ackCursor{log: &l.acks}, ackCursor{log: &l.acks}
	n := 0
	end, more := tail.next()
	for {
		start, ok := head.next()
		if !ok || start+w > l.last {
			return
		}
		for more && end < start+w {
			n++
			end, more = tail.next()
		}
		if start >= first && n >= need {
			v := ms(start - cut)
			g.SustainedMs = &v
			return
		}
		n--
	}
}

// Second counts one second of the load by outcome; T is its start in seconds
// after the zero of the findings. A write counts where its outcome came, one
// without an outcome where it was sent.
type Second struct {
	T                       float64
	Acked, Refused, Unknown int
}

// maxSeconds bounds the series: a week.
const maxSeconds = 7 * 24 * 3600

// series has an entry for every second from the first event to the last, also
// for those in which nothing happened; nil for a load of over a week.
func (l *Ledger) series(zero int64) []Second {
	if l.first < 0 {
		return nil
	}
	bin := func(at int64) int64 { return int64(math.Floor(float64(at-zero) / 1e6)) }
	lo, hi := bin(l.first), bin(l.last)
	for e := range l.writes() {
		hi = max(hi, bin(e.at))
	}
	if hi-lo >= maxSeconds {
		return nil
	}
	out := make([]Second, hi-lo+1)
	for i := range out {
		out[i].T = float64(lo + int64(i))
	}
	for e := range l.writes() {
		s := &out[bin(e.at)-lo]
		switch e.outcome {
		case history.Acked:
			s.Acked++
		case history.Refused:
			s.Refused++
		default:
			s.Unknown++
		}
	}
	return out
}

// Metrics are the findings under their names in run.json, in milliseconds
// where the name says so. What was not measured is absent.
func (f *Findings) Metrics() map[string]float64 {
	m := map[string]float64{
		"acked": float64(f.Acked), "refused": float64(f.Refused), "unknown": float64(f.Unknown),
	}
	if len(f.Read) > 0 {
		m["lost"] = float64(f.Lost.Count)
		m["lost_ms"] = f.LostMs
		m["recovered"] = float64(f.Recovered.Count)
		m["ghost"] = float64(f.Ghost.Count)
		m["phantom"] = float64(f.Phantom.Count)
		m["duplicated"] = float64(f.Duplicated.Count)
	}
	for name, v := range map[string]*float64{
		"baseline_gap_ms": f.Gaps.BaselineMs, "longest_gap_ms": f.Gaps.LongestMs,
		"first_ack_ms": f.Gaps.FirstAckMs, "sustained_ms": f.Gaps.SustainedMs,
	} {
		if v != nil {
			m[name] = *v
		}
	}
	return m
}
