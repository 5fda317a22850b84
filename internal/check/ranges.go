package check

import (
	"container/heap"
	"maps"
	"slices"

	"github.com/holdfast-db/holdfast/internal/history"
)

// NeverAttempted is the outcome of an id that no intent names.
const NeverAttempted = "never-attempted"

// Range is a run of ids (inclusive) with one outcome and one fate. At most
// Folded ids in it had another one: they were folded in to keep the ranges few.
type Range struct {
	From, To uint64
	Outcome  string // acked, refused, unknown, never-attempted
	Survived bool
	Folded   uint64
}

// lossy says whether the range counts against the setup.
func (r *Range) lossy() bool {
	switch r.Outcome {
	case "acked":
		return !r.Survived
	case "refused", NeverAttempted:
		return r.Survived
	default:
		return false
	}
}

func (r *Range) size() uint64 { return r.To - r.From + 1 }

func (r *Range) same(o *Range) bool { return r.Outcome == o.Outcome && r.Survived == o.Survived }

// ranges coalesces the ids into at most limit ranges. Every id that counts
// against the setup stays within a range that does: where there are too many,
// the smallest harmless ranges are folded into harmless neighbours first, then
// into the lossy ranges around them, and only then small lossy ones into others.
func (l *Ledger) ranges(limit int) []Range {
	var out []Range
	strangers := slices.Sorted(maps.Keys(l.strangers))
	add := func(r Range) {
		if n := len(out); n > 0 && out[n-1].To+1 == r.From && out[n-1].same(&r) {
			out[n-1].To = r.To
			return
		}
		out = append(out, r)
	}
	stranger := func() {
		add(Range{From: strangers[0], To: strangers[0], Outcome: NeverAttempted, Survived: true})
		strangers = strangers[1:]
	}
	read := slices.Contains(l.given[:], true)
	for e := range l.writes() {
		for len(strangers) > 0 && strangers[0] < e.id {
			stranger()
		}
		ft := l.fate(&e.seen)
		survived := ft.anywhere
		if e.outcome == history.Acked {
			survived = ft.everywhere || !read
		}
		add(Range{From: e.id, To: e.id, Outcome: e.outcome.String(), Survived: survived})
	}
	for len(strangers) > 0 {
		stranger()
	}
	return fold(out, limit)
}

// fold reduces rs to at most limit ranges.
func fold(rs []Range, limit int) []Range {
	if len(rs) <= limit {
		return rs
	}
	f := &folder{rs: rs, prev: make([]int, len(rs)), next: make([]int, len(rs)), gone: make([]bool, len(rs))}
	for i := range rs {
		f.prev[i], f.next[i] = i-1, i+1
	}
	f.next[len(rs)-1] = -1
	for i := range rs {
		f.items = append(f.items, f.item(i))
	}
	heap.Init(f)
	for left := len(rs); left > limit && f.Len() > 0; {
		it := heap.Pop(f).(foldItem)
		if f.gone[it.i] {
			continue
		}
		if now := f.item(it.i); now != it {
			heap.Push(f, now)
			continue
		}
		left -= f.absorb(it.i)
	}
	var out []Range
	for i := range rs {
		if !f.gone[i] {
			out = append(out, rs[i])
		}
	}
	return out
}

// foldItem orders ranges by how little is lost when they are folded.
type foldItem struct {
	class int // 0 harmless beside a harmless one, 1 harmless between lossy ones, 2 lossy
	size  uint64
	i     int
}

// folder is a linked list of ranges and a heap over them.
type folder struct {
	rs         []Range
	prev, next []int
	gone       []bool
	items      []foldItem
}

func (f *folder) Len() int { return len(f.items) }
func (f *folder) Less(a, b int) bool {
	x, y := f.items[a], f.items[b]
	if x.class != y.class {
		return x.class < y.class
	}
	if x.size != y.size {
		return x.size < y.size
	}
	return x.i < y.i
}
func (f *folder) Swap(a, b int) { f.items[a], f.items[b] = f.items[b], f.items[a] }
func (f *folder) Push(x any)    { f.items = append(f.items, x.(foldItem)) }
func (f *folder) Pop() any {
	x := f.items[len(f.items)-1]
	f.items = f.items[:len(f.items)-1]
	return x
}

func (f *folder) item(i int) foldItem {
	it := foldItem{class: 1, size: f.rs[i].size(), i: i}
	harmless := func(j int) bool { return j >= 0 && !f.rs[j].lossy() }
	switch {
	case f.rs[i].lossy():
		it.class = 2
	case harmless(f.prev[i]) || harmless(f.next[i]):
		it.class = 0
	}
	return it
}

// absorb folds range i into a neighbour and returns how many ranges went away.
func (f *folder) absorb(i int) int {
	p, n := f.prev[i], f.next[i]
	into := f.better(i, p, n)
	if into < 0 {
		return 0
	}
	f.rs[into].Folded += f.rs[i].size()
	f.merge(into, i)
	if p >= 0 && n >= 0 && f.rs[p].same(&f.rs[n]) {
		other := p + n - into
		f.rs[into].Folded += f.rs[other].Folded
		f.merge(into, other)
		return 2
	}
	return 1
}

// better picks the neighbour to fold range i into: a harmless one for a
// harmless range, a lossy one for a lossy range, else the larger.
func (f *folder) better(i, p, n int) int {
	switch {
	case p < 0:
		return n
	case n < 0:
		return p
	}
	want := f.rs[i].lossy()
	if a, b := f.rs[p].lossy() == want, f.rs[n].lossy() == want; a != b {
		if a {
			return p
		}
		return n
	}
	if f.rs[n].size() > f.rs[p].size() {
		return n
	}
	return p
}

// merge widens range into over its neighbour i and takes i out of the list.
func (f *folder) merge(into, i int) {
	a, b := &f.rs[into], &f.rs[i]
	a.From, a.To = min(a.From, b.From), max(a.To, b.To)
	f.gone[i] = true
	if p := f.prev[i]; p >= 0 {
		f.next[p] = f.next[i]
	}
	if n := f.next[i]; n >= 0 {
		f.prev[n] = f.prev[i]
	}
}
