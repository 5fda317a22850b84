package register

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-db/holdfast/internal/quorum"
)

// ledger knows what clients were told, and finds what contradicts it. What a
// write holds names the write before it, so that one that is lost is missed even
// when its version comes again.
type ledger struct {
	mu      sync.Mutex
	content map[uint64]string // by version
	newest  uint64            // highest version that anybody was told
	applied int               // proposals that were confirmed
	drawn   int
	wrong   []string
}

func newLedger() *ledger { return &ledger{content: map[uint64]string{0: ""}} }

// next is a write on top of v.
func (l *ledger) next(v quorum.Value) quorum.Proposal {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drawn++
	return quorum.Proposal{
		Epoch: v.Epoch, Version: v.Version, NextEpoch: v.Epoch, Data: fmt.Appendf(nil, "%s %d", digest(string(v.Data)), l.drawn),
	}
}

func digest(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) }

// floor is what whoever asks from now on must at least be told.
func (l *ledger) floor() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.newest
}

func (l *ledger) wrongf(format string, a ...any) {
	l.wrong = append(l.wrong, fmt.Sprintf(format, a...))
}

// told notes an answer of the register to what was asked when floor was.
func (l *ledger) told(who string, floor uint64, v quorum.Value) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v.Version < floor {
		l.wrongf("%s answers with version %d, and %d had been told before it was asked", who, v.Version, floor)
	}
	l.holds(who, v)
	l.newest = max(l.newest, v.Version)
}

// seen notes what a member shows without asking the others: it may be old, but
// not something else.
func (l *ledger) seen(who string, v quorum.Value) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds(who, v)
}

func (l *ledger) holds(who string, v quorum.Value) {
	data := string(v.Data)
	if old, ok := l.content[v.Version]; ok && old != data {
		l.wrongf("%s has %q as version %d, which was %q", who, data, v.Version, old)
		return
	}
	l.content[v.Version] = data
	if before, ok := l.content[v.Version-1]; ok && v.Version > 0 && !strings.HasPrefix(data, digest(before)+" ") {
		l.wrongf("%s has a version %d that was not written on top of version %d", who, v.Version, v.Version-1)
	}
}

// confirmed notes that a proposal took hold.
func (l *ledger) confirmed(who string, floor uint64, p quorum.Proposal, v quorum.Value) {
	l.told(who, floor, v)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.applied++
	if v.Version != p.Version+1 || string(v.Data) != string(p.Data) {
		l.wrongf("%s confirms %q on top of version %d as %q, version %d", who, p.Data, p.Version, v.Data, v.Version)
	}
}

func (l *ledger) check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range l.wrong {
		if i == 10 {
			t.Errorf("and %d more", len(l.wrong)-i)
			break
		}
		t.Error(w)
	}
	l.wrong = nil
}

// TestLedger: what must be noticed is.
func TestLedger(t *testing.T) {
	l := newLedger()
	write := func(on quorum.Value) (quorum.Proposal, quorum.Value) {
		p := l.next(on)
		v, ok := on.Apply(p)
		if !ok {
			t.Fatal("the write was refused")
		}
		return p, v
	}
	p1, one := write(quorum.Value{})
	p2, two := write(one)
	_, other := write(one)
	_, onOther := write(other)
	for _, s := range []struct {
		name  string
		do    func()
		wrong int
	}{
		{"two writes", func() { l.confirmed("a", 0, p1, one); l.confirmed("a", 1, p2, two) }, 0},
		{"a late answer", func() { l.told("a", 1, one) }, 0},
		{"an old view", func() { l.seen("b", one) }, 0},
		{"a stale read", func() { l.told("b", l.floor(), one) }, 1},
		{"another write in its place", func() { l.seen("b", other) }, 1},
		{"a write on top of one that was lost", func() { l.told("b", 2, onOther) }, 1},
		{"the register began anew", func() { l.told("b", 2, quorum.Value{}) }, 1},
		{"another one's write confirmed", func() { l.confirmed("a", 0, p1, two) }, 1},
	} {
		s.do()
		if len(l.wrong) != s.wrong {
			t.Errorf("%s: noticed %q, want %d", s.name, l.wrong, s.wrong)
		}
		l.wrong = nil
	}
}
