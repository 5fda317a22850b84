package disk

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestExtents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var e extents
		set := map[int64]bool{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			r := run{from: rapid.Int64Range(0, 40).Draw(t, "from")}
			r.to = r.from + rapid.Int64Range(0, 10).Draw(t, "pages")
			switch rapid.IntRange(0, 2).Draw(t, "op") {
			case 0:
				e.add(r)
				for p := r.from; p < r.to; p++ {
					set[p] = true
				}
			case 1:
				e.remove(r)
				for p := r.from; p < r.to; p++ {
					delete(set, p)
				}
			case 2:
				e.cut(r.from)
				for p := range set {
					if p >= r.from {
						delete(set, p)
					}
				}
			}
			if int(e.pages()) != len(set) {
				t.Fatalf("%v: %d pages, want %d", e, e.pages(), len(set))
			}
			for i, x := range e {
				if x.from >= x.to || i > 0 && e[i-1].to >= x.from {
					t.Fatalf("%v: runs empty, out of order or adjacent", e)
				}
			}
			all, some := true, false
			for p := r.from; p < r.to; p++ {
				all, some = all && set[p], some || set[p]
			}
			if r.from < r.to && (e.has(r) != all || e.meets(r) != some) {
				t.Fatalf("%v: has %v, meets %v of %v, want %v, %v", e, e.has(r), e.meets(r), r, all, some)
			}
		}
	})
}

// journalOf builds a journal with one frame per record.
func journalOf(records ...record) []byte {
	b := []byte(journalMagic)
	for i := range records {
		start := len(b)
		b = endFrame(appendRecord(beginFrame(b), &records[i]), start)
	}
	return b
}

func someRecords() []record {
	return []record{
		{op: opFormat, a: 99, b: 5},
		{op: opInode, ino: Root, attr: Attr{Mode: 0o40755, Nlink: 2}},
		{op: opCreate, ino: 2, dir: Root, name: "a", now: 5, attr: Attr{Mode: 0o100600, UID: 1, Atime: -3}},
		{op: opCreate, ino: 3, dir: Root, name: "d", attr: Attr{Mode: 0o40700}},
		{op: opCreate, ino: 4, dir: Root, name: "l", target: "a", attr: Attr{Mode: 0o120777}},
		{op: opLink, ino: 2, dir: 3, name: "b"},
		{op: opWritten, ino: 2, size: 9000, runs: extents{{0, 2}, {7, 9}}},
		{op: opPunch, ino: 2, runs: extents{{1, 2}}},
		{op: opTruncate, ino: 2, size: 100},
		{op: opAttr, ino: 2, mask: setAll, attr: Attr{Mode: 0o600, GID: 4}},
		{op: opRename, dir: Root, name: "a", dir2: 3, name2: "c"},
		{op: opRename, mask: RenameExchange, dir: 3, name: "b", dir2: Root, name2: "l"},
		{op: opUnlink, dir: 3, name: "c"},
		{op: opUnlink, dir: 3, name: "b"},
		{op: opDrop, ino: 4},
	}
}

func TestJournalRoundTrip(t *testing.T) {
	tree := newTree(0)
	b := journalOf(someRecords()...)
	valid, err := replay(b, tree.apply)
	if err != nil || valid != len(b) {
		t.Fatalf("replay: %d of %d bytes, %v", valid, len(b), err)
	}
	again := newTree(0)
	snap := tree.snapshot()
	if _, err := replay(snap, again.apply); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(snap, again.snapshot()) {
		t.Error("a snapshot of a snapshot differs")
	}
	if err := tree.check(); err != nil {
		t.Errorf("the tree is not whole: %v", err)
	}
	if !bytes.Equal(snap, tree.clone().snapshot()) {
		t.Error("a clone differs")
	}
	// A torn frame ends the journal, without an error.
	for cut := len(journalMagic); cut < len(b); cut++ {
		if valid, err := replay(b[:cut], newTree(0).apply); err != nil || valid > cut {
			t.Fatalf("cut at %d: valid %d, %v", cut, valid, err)
		}
	}
}

func FuzzJournal(f *testing.F) {
	f.Add(journalOf(someRecords()...))
	f.Add([]byte(journalMagic))
	for i := range someRecords() {
		f.Add(journalOf(someRecords()[:i+1]...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		tree := newTree(0)
		valid, err := replay(b, tree.apply)
		if valid < 0 || valid > len(b) {
			t.Fatalf("valid %d of %d", valid, len(b))
		}
		if err != nil {
			if !errors.Is(err, errJournal) {
				t.Fatalf("error %v is not about the journal", err)
			}
			return
		}
		if tree.check() != nil {
			return
		}
		// What was read can be written and read again.
		if _, err := replay(tree.snapshot(), newTree(0).apply); err != nil {
			t.Fatalf("own snapshot: %v", err)
		}
	})
}

// FuzzRecords puts arbitrary payloads into sound frames, where the checksum
// protects nothing.
func FuzzRecords(f *testing.F) {
	for _, r := range someRecords() {
		f.Add(appendRecord(nil, &r))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		if len(payload) == 0 {
			return
		}
		b := journalOf(someRecords()[:4]...)
		start := len(b)
		b = endFrame(append(beginFrame(b), payload...), start)
		tree := newTree(0)
		if _, err := replay(b, tree.apply); err != nil || tree.check() != nil {
			return
		}
		again := newTree(0)
		if _, err := replay(tree.snapshot(), again.apply); err != nil || again.check() != nil {
			t.Fatalf("own snapshot: %v, %v", err, again.check())
		}
	})
}

func TestOpenRefusesDamage(t *testing.T) {
	for name, journal := range map[string][]byte{
		"not a journal":      []byte("something else entirely, and long enough"),
		"no root":            journalOf(record{op: opFormat}),
		"impossible":         journalOf(record{op: opUnlink, dir: Root, name: "x"}),
		"magic cut short":    []byte(journalMagic[:5]),
		"root is not a dir":  journalOf(record{op: opInode, ino: Root, attr: Attr{Mode: 0o100600, Nlink: 1}}),
		"dangling entry":     journalOf(append(someRecords()[:3], record{op: opUnlink, dir: Root, name: "a"}, record{op: opEntry, dir: Root, name: "b", ino: 2}, record{op: opDrop, ino: 2})...),
		"rename onto itself": journalOf(append(someRecords()[:3], record{op: opRename, dir: Root, name: "a", dir2: Root, name2: "a"})...),
	} {
		if _, err := Open(&memImage{objects: map[uint64][]byte{}, journal: journal}, Options{}); !errors.Is(err, errJournal) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDirtyLimit(t *testing.T) {
	img := newMemImage()
	d, err := Open(img, Options{DirtyLimit: 1 << 20, RootMode: 0o755})
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := d.PowerOn(0)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Create(Root, "big", NewNode{Mode: 0o100600}, 0)
	if err != nil {
		t.Fatal(err)
	}
	const chunk = 64 << 10
	for i := range int64(200) {
		if err := s.Write(a.Ino, bytes.Repeat([]byte{byte(i)}, chunk), i*chunk, 0); err != nil {
			t.Fatal(err)
		}
		if dirty := s.dirtyBytes.Load(); dirty > 1<<20+chunk {
			t.Fatalf("%d bytes are dirty, the limit is %d", dirty, 1<<20)
		}
	}
	if d.Stats()["stalls"] == 0 {
		t.Error("no writer ever waited")
	}
	p := make([]byte, chunk)
	for i := range int64(200) {
		if _, _, err := s.Read(a.Ino, p, i*chunk); err != nil || p[0] != byte(i) || p[chunk-1] != byte(i) {
			t.Fatalf("chunk %d reads %d (%v)", i, p[0], err)
		}
	}
}

func TestReadDirIsStable(t *testing.T) {
	d, err := Open(newMemImage(), Options{RootMode: 0o755})
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := d.PowerOn(0)
	if err != nil {
		t.Fatal(err)
	}
	name := func(i int) string {
		return string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676))
	}
	for i := range 1000 {
		if _, err := s.Create(Root, name(i), NewNode{Mode: 0o100600}, 0); err != nil {
			t.Fatal(err)
		}
	}
	// List in small steps while every listed entry is removed, as rm -r does.
	seen := map[string]int{}
	cookie := uint64(0)
	for {
		var batch []string
		err := s.ReadDir(Root, cookie, func(e Entry) bool {
			cookie = e.Cookie
			if e.Name != "." && e.Name != ".." {
				batch = append(batch, e.Name)
			}
			return len(batch) < 7
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(batch) == 0 {
			break
		}
		for _, n := range batch {
			seen[n]++
			if err := s.Unlink(Root, n, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 1000 {
		if seen[name(i)] != 1 {
			t.Fatalf("%s was listed %d times", name(i), seen[name(i)])
		}
	}
}

func TestNamedDisks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, k := range NamedDisks() {
		got, err := ByName(k.Name)
		if err != nil || got != k {
			t.Errorf("%s: %v", k.Name, err)
		}
		var h Hist
		for range 20000 {
			h.Add(k.Timing.Flush.Sample(rng))
		}
		want := k.Timing.Flush.Median
		if m := h.Quantile(0.5); m < want*95/100 || m > want*105/100 {
			t.Errorf("%s: median flush %v, want %v", k.Name, m, want)
		}
		if want > 0 && h.Quantile(0.999) < want*2 {
			t.Errorf("%s: flush p99.9 %v has no tail", k.Name, h.Quantile(0.999))
		}
	}
	if _, err := ByName("floppy"); err == nil {
		t.Error("floppy is a known disk")
	}
}

func TestHist(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := rapid.Int64Range(0, int64(time.Hour)).Draw(t, "ns")
		b := histBucket(ns)
		if lo, hi := histLow(b), histLow(b+1); ns < lo || ns >= hi || float64(hi-lo) > 1+float64(ns)/16 {
			t.Fatalf("%d is in bucket %d: [%d, %d)", ns, b, lo, hi)
		}
	})
	var h Hist
	if h.Quantile(0.5) != 0 || h.Mean() != 0 {
		t.Error("an empty histogram has values")
	}
	for i := range 1000 {
		h.Add(time.Duration(i) * time.Millisecond)
	}
	for q, want := range map[float64]float64{0: 0, 0.5: 500, 0.99: 990, 1: 999} {
		if got := h.Quantile(q).Seconds() * 1000; got < want*0.96-1 || got > want*1.04+1 {
			t.Errorf("quantile %g: %g ms, want %g", q, got, want)
		}
	}
}
