package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/history"
)

// Options bound what the findings list; zero values stand for the defaults.
type Options struct {
	MaxIDs    int           // listed of each kind; the counts are exact (1,000)
	MaxRanges int           // of ids (1,000)
	Window    time.Duration // over which a rate counts as sustained (10 s)
}

// IDs counts writes exactly and lists some of them, sorted.
type IDs struct {
	Count int
	List  []uint64
}

func (s *IDs) add(id uint64, limit int) {
	s.Count++
	if len(s.List) < limit {
		s.List = append(s.List, id)
	}
}

// named is how many runs of ids a sentence names.
const named = 3

// names is " (ids 3, 7 to 9)" for a sentence, "" when no id is listed.
func (s *IDs) names() string {
	list := slices.Clone(s.List)
	slices.Sort(list)
	var runs []string
	told := 0
	for i := 0; i < len(list) && len(runs) < named; {
		j := i
		for j+1 < len(list) && list[j+1] <= list[j]+1 {
			j++
		}
		run := strconv.FormatUint(list[i], 10)
		if list[j] > list[i] {
			run += " to " + strconv.FormatUint(list[j], 10)
		}
		runs = append(runs, run)
		told += j - i + 1
		i = j + 1
	}
	switch {
	case len(runs) == 0:
		return ""
	case s.Count == 1:
		return " (id " + runs[0] + ")"
	case told < s.Count:
		runs = append(runs, fmt.Sprintf("and %s more", count(s.Count-told)))
	}
	return " (ids " + strings.Join(runs, ", ") + ")"
}

// Mark is a mark of the history, in milliseconds after the zero of the findings.
type Mark struct {
	AtMs float64
	Text string
}

// Findings are what a history and its survivors say. Zero is the mark "cut
// began", or the first intent when there is no such mark.
type Findings struct {
	Acked, Refused, Unknown int // outcomes; an intent without one is unknown

	// Read lists the sources that were read. Without any, what follows up to
	// Appeared is empty.
	Read       []Source
	Lost       IDs // acked, and missing from at least one source
	Recovered  IDs // unknown, and present in at least one
	Ghost      IDs // refused, and present
	Phantom    IDs // present, and never attempted
	Duplicated IDs // more than once in one source
	Disagree   IDs // scan and index of one reading differ
	Vanished   IDs // in the first reading, and not in the second
	Appeared   IDs // in the second reading, and not in the first

	// LostMs is from the ack of the last write before which nothing acked is
	// missing (the first intent, if there is none) to the ack of the last lost
	// one. Of acks in one microsecond those that survived count as later.
	LostMs float64

	// Incomplete: an intent may have been lost on its way, so that a phantom
	// proves nothing (the mark "intents may be missing").
	Incomplete bool

	Cut    bool // there is a mark "cut began"
	Gaps   Gaps
	Marks  []Mark
	Series []Second
	Ranges []Range // by id
}

// Findings evaluates the ledger; it may be called again after more was seen.
func (l *Ledger) Findings(o Options) *Findings {
	o.MaxIDs = cmp.Or(o.MaxIDs, 1000)
	o.MaxRanges = cmp.Or(o.MaxRanges, 1000)
	o.Window = cmp.Or(o.Window, 10*time.Second)
	f := &Findings{}
	for s, given := range l.given {
		if given {
			f.Read = append(f.Read, Source(s))
		}
	}
	for _, m := range l.marks {
		if m.text == history.MarkIncomplete {
			f.Incomplete = true
		}
	}
	zero, baseline, cut := l.zero()
	f.Cut = cut
	for _, m := range l.marks {
		f.Marks = append(f.Marks, Mark{ms(m.at - zero), m.text})
	}
	lossFrom, lossTo := l.count(f, o.MaxIDs)
	if f.Lost.Count > 0 {
		f.LostMs = ms(lossTo - l.ackBefore(lossFrom))
	}
	f.Gaps = l.gaps(zero, baseline, cut, o.Window)
	f.Series = l.series(zero)
	f.Ranges = l.ranges(o.MaxRanges)
	return f
}

// zero returns the zero of all times, the end of the baseline, and whether
// there was a cut.
func (l *Ledger) zero() (zero, baseline int64, cut bool) {
	zero, baseline = max(l.first, 0), -1
	for _, m := range l.marks {
		if m.text == history.MarkCut && !cut {
			zero, cut = m.at, true
		}
	}
	for _, m := range l.marks {
		if (m.text == history.MarkFault || m.text == history.MarkCut) && (baseline < 0 || m.at < baseline) {
			baseline = m.at
		}
	}
	return zero, baseline, cut
}

// dead returns the time after the cut from which on an answer cannot come from
// the host that lost its power: the cut itself where no mark says more.
func (l *Ledger) dead(cut int64) int64 {
	for _, m := range l.marks {
		if m.text == history.MarkDead && m.at >= cut {
			return m.at
		}
	}
	return cut
}

// fate is what the readings say of one id.
type fate struct {
	anywhere, everywhere, twice, disagree, vanished, appeared bool
}

func (l *Ledger) fate(seen *[sources]uint8) fate {
	f := fate{everywhere: true}
	for s, n := range seen {
		if !l.given[s] {
			continue
		}
		f.anywhere = f.anywhere || n > 0
		f.everywhere = f.everywhere && n > 0
		f.twice = f.twice || n > 1
	}
	pair := func(scan, index Source) bool {
		return l.given[scan] && l.given[index] && seen[scan] != seen[index]
	}
	f.disagree = pair(FirstScan, FirstIndex) || pair(SecondScan, SecondIndex)
	if (l.given[FirstScan] || l.given[FirstIndex]) && (l.given[SecondScan] || l.given[SecondIndex]) {
		first := seen[FirstScan]+seen[FirstIndex] > 0
		second := seen[SecondScan]+seen[SecondIndex] > 0
		f.vanished, f.appeared = first && !second, second && !first
	}
	return f
}

// count fills in the counts and lists, and returns when the first and the last
// lost write were acked.
func (l *Ledger) count(f *Findings, limit int) (lossFrom, lossTo int64) {
	lossFrom = -1
	common := func(id uint64, ft fate) {
		if ft.twice {
			f.Duplicated.add(id, limit)
		}
		if ft.disagree {
			f.Disagree.add(id, limit)
		}
		if ft.vanished {
			f.Vanished.add(id, limit)
		}
		if ft.appeared {
			f.Appeared.add(id, limit)
		}
	}
	anyRead := len(f.Read) > 0
	for e := range l.writes() {
		ft := l.fate(&e.seen)
		switch e.outcome {
		case history.Acked:
			f.Acked++
			if anyRead && !ft.everywhere {
				f.Lost.add(e.id, limit)
				if lossFrom < 0 || e.at < lossFrom {
					lossFrom = e.at
				}
				lossTo = max(lossTo, e.at)
			}
		case history.Refused:
			f.Refused++
			if ft.anywhere {
				f.Ghost.add(e.id, limit)
			}
		default:
			f.Unknown++
			if ft.anywhere {
				f.Recovered.add(e.id, limit)
			}
		}
		common(e.id, ft)
	}
	// Strangers come after the writes, so the lists are put in order at the end.
	for _, id := range slices.Sorted(maps.Keys(l.strangers)) {
		f.Phantom.add(id, limit)
		common(id, l.fate(l.strangers[id]))
	}
	for _, s := range []*IDs{&f.Duplicated, &f.Disagree, &f.Vanished, &f.Appeared} {
		slices.Sort(s.List)
	}
	return lossFrom, lossTo
}

// ackBefore returns the time of the last ack before at, or of the first intent.
func (l *Ledger) ackBefore(at int64) int64 {
	before := max(l.first, 0)
	c := ackCursor{log: &l.acks}
	for {
		t, ok := c.next()
		if !ok || t >= at {
			return before
		}
		before = t
	}
}

func ms(micros int64) float64 { return float64(micros) / 1000 }
