package disk

import (
	"slices"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// refOp is one change of a file's bytes that is not durable: b at off, or zeros.
// What a truncation has undone since is void.
type refOp struct {
	ino     uint64
	after   int // position of the log's last record before it
	off     int
	b       []byte
	void    []bool
	zeros   int
	written bool // back, so that it is durable with the next commit
}

func (r *reference) op(ino uint64, off int, b []byte, zeros int) {
	r.ops = append(r.ops, &refOp{ino: ino, after: r.appended, off: off, b: slices.Clone(b), void: make([]bool, len(b)), zeros: zeros})
}

// dropOps forgets the operations on an inode that are durable.
func (r *reference) dropOps(ino uint64) {
	r.ops = slices.DeleteFunc(r.ops, func(o *refOp) bool { return o.ino == ino && o.written })
}

// clipOps makes void what a record, durable now, undid of the writes before it.
func (r *reference) clipOps(p *refRec) {
	if p.clip == nil {
		return
	}
	for _, o := range r.ops {
		if o.ino == p.inode && o.after < p.at {
			p.clip(o)
		}
	}
}

func (o *refOp) hole(from, to int) {
	for i := range o.void {
		if at := o.off + i; at >= from && at < to {
			o.void[i] = true
		}
	}
}

// parts splits a write at what is void of it: each part is an operation.
func (o *refOp) parts() []*refOp {
	if len(o.b) == 0 {
		return []*refOp{o}
	}
	var all []*refOp
	for i := 0; i < len(o.b); {
		if o.void[i] {
			i++
			continue
		}
		j := i
		for j < len(o.b) && !o.void[j] {
			j++
		}
		all = append(all, &refOp{ino: o.ino, off: o.off + i, b: o.b[i:j]})
		i = j
	}
	return all
}

// redo does the operation on tree t, whose files hold all their content.
func (o *refOp) redo(t refTree) {
	n := t[o.ino]
	if n == nil {
		return
	}
	if o.zeros > 0 {
		if o.off < len(n.data) {
			n.data = slices.Clone(n.data)
			clear(n.data[o.off:min(o.off+o.zeros, len(n.data))])
		}
		return
	}
	setSize(n, max(len(n.data), o.off+len(o.b)))
	n.data = slices.Clone(n.data)
	copy(n.data[o.off:], o.b)
}

// history returns what is not durable, in order: every function does one
// operation; tears are the states that a torn one may leave.
func (r *reference) history() (steps []func(refTree), tears [][]func(refTree)) {
	ops := slices.Clone(r.ops)
	data := func(before int) {
		for ; len(ops) > 0 && ops[0].after < before; ops = ops[1:] {
			for _, o := range ops[0].parts() {
				steps, tears = append(steps, o.redo), append(tears, o.torn())
			}
		}
	}
	for _, p := range r.pending {
		data(p.at)
		if !p.wb {
			steps, tears = append(steps, p.f), append(tears, nil)
		}
	}
	data(r.appended + 1)
	return steps, tears
}

// torn returns the write cut after each of its sectors but the last.
func (o *refOp) torn() (all []func(refTree)) {
	for i := 1; i < len(o.b); i++ {
		if (o.off+i)%SectorSize == 0 {
			cut := *o
			cut.b = o.b[:i]
			all = append(all, cut.redo)
		}
	}
	return all
}

// checkPrefix accepts what is durable with any first operations done again, and
// with torn a part of the next write.
func (m *machine) checkPrefix(t *rapid.T, old *reference) {
	base := old.durable.clone()
	for ino, n := range base {
		if n.mode&syscall.S_IFMT == syscall.S_IFREG {
			n.data = old.content(old.durable, ino, nil)
		}
	}
	steps, tears := old.history()
	reasons := ""
	fits := func(tree refTree) bool {
		tree = alive(tree)
		d := difference(m.s, tree, func(ino uint64) []byte { return tree[ino].data })
		reasons += "\n  " + d
		return d == ""
	}
	tearable := slices.ContainsFunc(tears, func(all []func(refTree)) bool { return len(all) > 0 })
	for k := 0; k <= len(steps); k++ {
		if k > 0 {
			steps[k-1](base)
		}
		if m.policy == TornWrite && tearable {
			if k < len(steps) {
				for _, f := range tears[k] {
					tree := base.clone()
					if f(tree); fits(tree) {
						return
					}
				}
			}
			continue
		}
		if fits(base) {
			return
		}
	}
	t.Fatalf("no prefix of the %d operations leaves this:%s", len(steps), reasons)
}

// TestTornWriteTears has one long write pending at each cut: each must be cut in
// its middle, and not always at the same place.
func TestTornWriteTears(t *testing.T) {
	places := map[int]bool{}
	for seed := range uint64(40) {
		d, err := Open(newMemImage(), Options{Policy: TornWrite, Seed: seed, RootMode: 0o755})
		if err != nil {
			t.Fatal(err)
		}
		s, _, err := d.PowerOn(0)
		if err != nil {
			t.Fatal(err)
		}
		a, err := s.Create(Root, "f", NewNode{Mode: syscall.S_IFREG | 0o600}, 0)
		if err != nil {
			t.Fatal(err)
		}
		old, fresh := make([]byte, 2*PageSize), make([]byte, 2*PageSize)
		for i := range old {
			old[i], fresh[i] = 'o', 'n'
		}
		if err := s.Write(a.Ino, old, 0, 0); err != nil {
			t.Fatal(err)
		}
		if err := s.Fsync(a.Ino, false); err != nil {
			t.Fatal(err)
		}
		if err := s.Write(a.Ino, fresh, 0, 0); err != nil {
			t.Fatal(err)
		}
		s.Cut()
		if s, _, err = d.PowerOn(0); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 2*PageSize)
		if _, _, err := s.Read(a.Ino, got, 0); err != nil {
			t.Fatal(err)
		}
		at := slices.Index(got, 'o')
		if at <= 0 || at%SectorSize != 0 || slices.Contains(got[at:], 'n') {
			t.Fatalf("seed %d: the write is cut at byte %d", seed, at)
		}
		places[at] = true
	}
	if len(places) < 5 {
		t.Errorf("40 writes were cut at %d places only", len(places))
	}
}
