// Package check holds what a setup kept against what it acknowledged: a
// history and the ids found in its survivors go in, findings and a verdict
// come out. It knows no SQL and no clock.
package check

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/holdfast-db/holdfast/internal/history"
)

// Source says where a set of surviving ids was read.
type Source int

// The four readings. First is on the confirmed new primary, Second after the
// old node rejoined. Scan and Index of one reading belong to one snapshot:
// otherwise a commit that finishes between them looks like a damaged index.
const (
	FirstScan Source = iota
	FirstIndex
	SecondScan
	SecondIndex
	sources
)

func (s Source) String() string {
	return [...]string{"first scan", "first index scan", "second scan", "second index scan"}[s]
}

// ErrInconsistent means that the history contradicts itself, so it is no evidence.
var ErrInconsistent = errors.New("inconsistent history")

// A word packs one write into eight bytes: 48 bits of microseconds (of the
// outcome; of the intent while there is none), then for each source how often
// the id was seen (2 bits: 0, 1, 2 for more), then 2 bits of outcome.
const (
	outcomeBits = 2
	atShift     = 16
	seenMany    = 2
)

// chunkLen writes share one allocation, so that a long history grows without
// ever being copied.
const chunkLen = 1024

type chunk struct {
	word [chunkLen]uint64
	took [chunkLen]uint32 // microseconds from intent to outcome
}

// lane holds a run of consecutive ids: one for each driver.
type lane struct {
	base   uint64
	n      uint64
	chunks []*chunk
}

func (l *lane) word(i uint64) *uint64 { return &l.chunks[i/chunkLen].word[i%chunkLen] }
func (l *lane) took(i uint64) *uint32 { return &l.chunks[i/chunkLen].took[i%chunkLen] }

// mark is a mark of the history.
type mark struct {
	at   int64
	text string
}

// Ledger is a history in memory, about 14 bytes for each write, and what was
// seen of it.
type Ledger struct {
	lanes     []*lane // by base
	near      int     // the lane of the last access
	acks      ackLog
	marks     []mark
	first     int64 // microseconds of the first intent, -1 if there is none
	last      int64 // of the last intent
	given     [sources]bool
	strangers map[uint64]*[sources]uint8 // ids that were never attempted
}

// Events is what Read reads: a *history.Reader.
type Events interface {
	Next(*history.Event) error
}

// Read reads a history to its end. When the history is truncated or corrupt it
// returns that error together with a ledger of all that came before; for a
// history that contradicts itself (ErrInconsistent) the ledger is nil.
func Read(r Events) (*Ledger, error) {
	l := &Ledger{first: -1, strangers: map[uint64]*[sources]uint8{}}
	var e history.Event
	for {
		if err := r.Next(&e); errors.Is(err, io.EOF) {
			return l, nil
		} else if err != nil {
			return l, err
		}
		if err := l.add(&e); err != nil {
			return nil, err
		}
	}
}

func (l *Ledger) add(e *history.Event) error {
	at := int64(e.At / time.Microsecond)
	switch e.Kind {
	case history.KindIntent:
		if l.first < 0 {
			l.first = at
		}
		l.last = at
		return l.intent(e.ID, at)
	case history.KindOutcome:
		w, took := l.find(e.ID)
		if w == nil {
			return fmt.Errorf("%w: write %d has an outcome and no intent", ErrInconsistent, e.ID)
		}
		if history.Outcome(*w&(1<<outcomeBits-1)) != history.Unfinished {
			return fmt.Errorf("%w: write %d has two outcomes", ErrInconsistent, e.ID)
		}
		*took = uint32(min(at-int64(*w>>atShift), math.MaxUint32))
		*w = uint64(at)<<atShift | uint64(e.Outcome)
		if e.Outcome == history.Acked {
			l.acks.add(at)
		}
	case history.KindMark:
		l.marks = append(l.marks, mark{at, e.Text})
	}
	return nil
}

func (l *Ledger) intent(id uint64, at int64) error {
	i := l.near
	if i >= len(l.lanes) || id != l.lanes[i].base+l.lanes[i].n {
		// The last lane that begins at or before id.
		i = sort.Search(len(l.lanes), func(i int) bool { return l.lanes[i].base > id }) - 1
	}
	if i >= 0 && id < l.lanes[i].base+l.lanes[i].n || i+1 < len(l.lanes) && l.lanes[i+1].base == id {
		return fmt.Errorf("%w: write %d was attempted twice", ErrInconsistent, id)
	}
	if i < 0 || id != l.lanes[i].base+l.lanes[i].n {
		i++
		l.lanes = slices.Insert(l.lanes, i, &lane{base: id})
	}
	l.near = i
	ln := l.lanes[i]
	if ln.n%chunkLen == 0 {
		ln.chunks = append(ln.chunks, new(chunk))
	}
	*ln.word(ln.n) = uint64(at) << atShift
	ln.n++
	return nil
}

// find returns the word and the duration of an attempted write, or nil.
func (l *Ledger) find(id uint64) (*uint64, *uint32) {
	i := l.near
	if i >= len(l.lanes) || id-l.lanes[i].base >= l.lanes[i].n {
		i = sort.Search(len(l.lanes), func(i int) bool { return l.lanes[i].base > id }) - 1
		if i < 0 || id-l.lanes[i].base >= l.lanes[i].n {
			return nil, nil
		}
		l.near = i
	}
	ln := l.lanes[i]
	return ln.word(id - ln.base), ln.took(id - ln.base)
}

// Survived adds the ids that were read from a source, in any order, an id as
// often as it was seen. A source that was read and held nothing is given an
// empty sequence; one that was not read is not given.
func (l *Ledger) Survived(s Source, ids iter.Seq[uint64]) {
	l.Given(s)
	for id := range ids {
		l.Saw(s, id)
	}
}

// Given says that source s was read, so that what is not seen there is missing.
func (l *Ledger) Given(s Source) { l.given[s] = true }

// Saw adds one id that was read from source s.
func (l *Ledger) Saw(s Source, id uint64) {
	l.given[s] = true
	shift := outcomeBits + 2*uint(s)
	if w, _ := l.find(id); w != nil {
		if *w>>shift&3 < seenMany {
			*w += 1 << shift
		}
		return
	}
	n := l.strangers[id]
	if n == nil {
		n = new([sources]uint8)
		l.strangers[id] = n
	}
	if n[s] < seenMany {
		n[s]++
	}
}

// entry is one write as the ledger knows it.
type entry struct {
	id      uint64
	outcome history.Outcome
	at      int64 // microseconds, of the outcome, or of the intent while there is none
	sent    int64 // of the intent
	seen    [sources]uint8
}

// writes yields every attempted write by id.
func (l *Ledger) writes() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		var e entry
		for _, ln := range l.lanes {
			for i := range ln.n {
				w := *ln.word(i)
				e.id = ln.base + i
				e.outcome = history.Outcome(w & (1<<outcomeBits - 1))
				e.at = int64(w >> atShift)
				e.sent = e.at - int64(*ln.took(i))
				for s := range sources {
					e.seen[s] = uint8(w >> (outcomeBits + 2*uint(s)) & 3)
				}
				if !yield(&e) {
					return
				}
			}
		}
	}
}

// ackLog keeps the times of the acks, in order, as differences of a byte or two.
type ackLog struct {
	bufs [][]byte
	last int64
	n    int
}

func (a *ackLog) add(at int64) {
	const size = 64 << 10
	if len(a.bufs) == 0 || len(a.bufs[len(a.bufs)-1]) > size-binary.MaxVarintLen64 {
		a.bufs = append(a.bufs, make([]byte, 0, size))
	}
	b := &a.bufs[len(a.bufs)-1]
	*b = binary.AppendUvarint(*b, uint64(at-a.last))
	a.last = at
	a.n++
}

// ackCursor walks an ackLog.
type ackCursor struct {
	log *ackLog
	buf int
	pos int
	at  int64
}

func (c *ackCursor) next() (int64, bool) {
	for c.buf < len(c.log.bufs) {
		if b := c.log.bufs[c.buf]; c.pos < len(b) {
			d, n := binary.Uvarint(b[c.pos:])
			c.pos += n
			c.at += int64(d)
			return c.at, true
		}
		c.buf, c.pos = c.buf+1, 0
	}
	return 0, false
}
