package disk

import "slices"

// PageSize is the unit in which data is held, allocated and written back.
const PageSize = 4096

// SectorSize is the unit that a disk writes atomically.
const SectorSize = 512

// run is a range of pages, [from, to).
type run struct{ from, to int64 }

// extents is a sorted set of disjoint, non-adjacent runs of pages: those that
// an object holds data for. All others read as zeros.
type extents []run

// find returns the index of the first run that ends after page.
func (e extents) find(page int64) int {
	if n := len(e); n == 0 || e[n-1].to <= page {
		return n
	} else if n == 1 {
		return 0
	}
	lo, hi := 0, len(e)
	for lo < hi {
		mid := (lo + hi) / 2
		if e[mid].to > page {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// has says whether the whole of r is in the set.
func (e extents) has(r run) bool {
	i := e.find(r.from)
	return i < len(e) && e[i].from <= r.from && r.to <= e[i].to
}

// meets says whether any page of r is in the set.
func (e extents) meets(r run) bool {
	i := e.find(r.from)
	return i < len(e) && e[i].from < r.to
}

func (e extents) pages() int64 {
	var n int64
	for _, r := range e {
		n += r.to - r.from
	}
	return n
}

// add puts r into the set.
func (e *extents) add(r run) {
	if r.from >= r.to {
		return
	}
	s := *e
	// The first run that touches r (adjacent counts) and the first beyond it.
	i := s.find(r.from - 1)
	j := i
	for j < len(s) && s[j].from <= r.to {
		r.from, r.to = min(r.from, s[j].from), max(r.to, s[j].to)
		j++
	}
	*e = slices.Replace(s, i, j, r)
}

// remove takes r out of the set.
func (e *extents) remove(r run) {
	if r.from >= r.to {
		return
	}
	s := *e
	i := s.find(r.from)
	j := i
	var keep [2]run
	k := 0
	for j < len(s) && s[j].from < r.to {
		if s[j].from < r.from {
			keep[k] = run{s[j].from, r.from}
			k++
		}
		if s[j].to > r.to {
			keep[k] = run{r.to, s[j].to}
			k++
		}
		j++
	}
	if i == j {
		return
	}
	*e = slices.Replace(s, i, j, keep[:k]...)
}

// cut takes out every page from page on.
func (e *extents) cut(page int64) {
	if n := len(*e); n > 0 && (*e)[n-1].to > page {
		e.remove(run{page, (*e)[n-1].to})
	}
}

// pagesFor is the number of pages that size bytes take.
func pagesFor(size int64) int64 { return (size + PageSize - 1) / PageSize }
