package disk

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"syscall"
)

// refNode is an inode of the reference model: a file's whole content in one
// slice, its allocated pages one by one.
type refNode struct {
	mode   uint32
	nlink  int
	data   []byte // content, as long as the file
	target string
	kids   map[string]uint64
	parent uint64
	alloc  map[int64]bool // pages that the object has data for
}

func (n *refNode) dir() bool { return n.mode&syscall.S_IFMT == syscall.S_IFDIR }

// refTree is a name space of the reference model. Its methods return the error
// that POSIX asks for, or change the tree.
type refTree map[uint64]*refNode

func (t refTree) clone() refTree {
	c := refTree{}
	for ino, n := range t {
		m := *n
		m.data = slices.Clone(n.data)
		m.kids = maps.Clone(n.kids)
		m.alloc = maps.Clone(n.alloc)
		c[ino] = &m
	}
	return c
}

// reference holds what a disk must show and what must be durable, by the rules
// of ext4, in the simplest way: metadata operations not yet committed are
// functions, pages are copied whole.
type reference struct {
	live    refTree
	durable refTree                     // names, sizes, allocation
	objects map[uint64]map[int64][]byte // pages on the disk, allocated or not
	pending []*refRec
	ops     []*refOp // changes of data that are not durable, in order
	posix   bool

	dirty  map[uint64]map[int64]bool
	logged map[uint64]int // size that the log knows
	frees  map[uint64]int // sequence of the last record that freed pages
	data   map[uint64]int // sequence that data needs
	meta   map[uint64]int // sequence of the last record
	stale  map[uint64]bool
	refs   map[uint64]int
	fail   int             // write-backs that are to fail
	failed map[uint64]bool // one did, in the background
	done   map[uint64]int  // under Posix: position up to which an inode's part is durable

	appended, committed int
	destaged            refTree // live, when a lying disk last destaged
}

func newReference() *reference {
	root := &refNode{mode: syscall.S_IFDIR | 0o755, nlink: 2, kids: map[string]uint64{}}
	r := &reference{durable: refTree{Root: root}, objects: map[uint64]map[int64][]byte{}}
	r.boot()
	return r
}

// boot makes the live state out of the durable one.
func (r *reference) boot() {
	r.durable = alive(r.durable)
	for ino := range r.objects {
		if r.durable[ino] == nil {
			delete(r.objects, ino)
		}
	}
	r.live = r.durable.clone()
	for ino, n := range r.live {
		n.data = r.content(r.durable, ino, nil)
	}
	r.pending, r.ops, r.appended, r.committed, r.done = nil, nil, 0, 0, map[uint64]int{}
	r.dirty, r.stale = map[uint64]map[int64]bool{}, map[uint64]bool{}
	r.fail, r.failed = 0, map[uint64]bool{}
	r.logged, r.frees, r.data, r.meta, r.refs = map[uint64]int{}, map[uint64]int{}, map[uint64]int{}, map[uint64]int{}, map[uint64]int{}
	for ino, n := range r.live {
		r.logged[ino] = len(n.data)
	}
	r.destaged = r.live.clone()
}

// content is what a file reads as in tree t; overlay pages come first.
func (r *reference) content(t refTree, ino uint64, overlay map[int64][]byte) []byte {
	n := t[ino]
	out := make([]byte, len(n.data))
	for p := range n.alloc {
		if at := p * PageSize; at < int64(len(out)) {
			pg := r.objects[ino][p]
			if overlay[p] != nil {
				pg = overlay[p]
			}
			copy(out[at:], pg)
		}
	}
	return out
}

// page is a page of the live content, padded with zeros.
func (r *reference) page(ino uint64, p int64) []byte {
	out := make([]byte, PageSize)
	if d := r.live[ino].data; p*PageSize < int64(len(d)) {
		copy(out, d[p*PageSize:])
	}
	return out
}

// log applies a metadata operation to the live tree and remembers it.
func (r *reference) log(p refRec, inos ...uint64) {
	p.f(r.live)
	r.appended++
	p.at = r.appended
	r.pending = append(r.pending, &p)
	for _, ino := range inos {
		r.meta[ino] = r.appended
	}
}

func (r *reference) commit() {
	for _, p := range r.pending {
		p.f(r.durable)
		r.clipOps(p)
	}
	r.pending, r.committed = nil, r.appended
	clear(r.stale)
	r.ops = slices.DeleteFunc(r.ops, func(o *refOp) bool { return o.written })
}

// commitFor makes durable what of the log an fsync of an inode needs.
func (r *reference) commitFor(ino uint64) {
	if r.posix {
		r.commitInode(ino)
	} else {
		r.commit()
	}
}

// setSize sets a size, with zeros beyond the old one.
func setSize(n *refNode, size int) {
	if size <= len(n.data) {
		n.data = n.data[:size:size]
		return
	}
	n.data = append(slices.Clone(n.data), make([]byte, size-len(n.data))...)
}

// writeback puts a file's dirty pages on the disk. Their allocation and a new
// size go into the log.
func (r *reference) writeback(ino uint64) {
	n := r.live[ino]
	if n == nil || n.dir() || len(r.dirty[ino]) == 0 && len(n.data) == r.logged[ino] {
		return
	}
	if r.behind(ino, r.frees[ino]) {
		r.commitFor(ino)
	}
	if r.fail > 0 && len(r.dirty[ino]) > 0 {
		r.fail--
		r.failed[ino] = true
		r.lose(ino)
		return
	}
	var fresh []int64
	for p := range r.dirty[ino] {
		if r.objects[ino] == nil {
			r.objects[ino] = map[int64][]byte{}
		}
		r.objects[ino][p] = r.page(ino, p)
		if !n.alloc[p] {
			fresh = append(fresh, p)
		}
	}
	delete(r.dirty, ino)
	if size := len(n.data); len(fresh) > 0 || size != r.logged[ino] {
		r.log(refRec{wb: true, inode: ino, f: func(t refTree) {
			m := t[ino]
			if m.alloc == nil {
				m.alloc = map[int64]bool{}
			}
			for _, p := range fresh {
				m.alloc[p] = true
			}
			setSize(m, max(size, len(m.data)))
		}}, ino)
		r.data[ino], r.logged[ino] = r.appended, size
	}
	for _, o := range r.ops {
		o.written = o.written || o.ino == ino
	}
	if !r.behind(ino, r.data[ino]) {
		r.dropOps(ino)
	}
}

// lose makes an inode read as what the disk has, for dirty pages that a failed
// write-back gave up.
func (r *reference) lose(ino uint64) {
	n := r.live[ino]
	n.data = slices.Clone(n.data)
	for p := range r.dirty[ino] {
		page := make([]byte, PageSize)
		if n.alloc[p] {
			copy(page, r.objects[ino][p])
		}
		if at := int(p) * PageSize; at < len(n.data) {
			copy(n.data[at:], page)
		}
	}
	delete(r.dirty, ino)
	for _, o := range r.ops {
		o.written = o.written || o.ino == ino
	}
	r.dropOps(ino)
}

// fsync returns false if it is to fail.
func (r *reference) fsync(ino uint64, dataOnly bool) bool {
	r.writeback(ino)
	if r.failed[ino] {
		delete(r.failed, ino)
		return false
	}
	need := r.data[ino]
	if !dataOnly {
		need = max(need, r.meta[ino])
	}
	if r.behind(ino, need) || !dataOnly && r.stale[ino] {
		r.commitFor(ino)
	}
	return true
}

func (r *reference) sync() {
	for _, ino := range slices.Sorted(maps.Keys(r.live)) {
		r.writeback(ino)
	}
	r.commit()
	r.destaged = r.live.clone()
}

// taken is how many pages the files take, on the disk or dirty.
func (r *reference) taken() (pages int64) {
	for ino, n := range r.live {
		pages += int64(len(n.alloc))
		for p := range r.dirty[ino] {
			if !n.alloc[p] {
				pages++
			}
		}
	}
	return pages
}

// needs is how many pages more a write takes.
func (r *reference) needs(ino uint64, off, n int) (pages int64) {
	for p := int64(off / PageSize); p*PageSize < int64(off+n); p++ {
		if !r.live[ino].alloc[p] && !r.dirty[ino][p] {
			pages++
		}
	}
	return pages
}

func (r *reference) touchPage(ino uint64, p int64) {
	if r.dirty[ino] == nil {
		r.dirty[ino] = map[int64]bool{}
	}
	r.dirty[ino][p] = true
}

// grow prepares the last page for a file to become longer: it is written again
// so that no old bytes show up behind the old end.
func (r *reference) grow(ino uint64) {
	n := r.live[ino]
	if p := int64(len(n.data)) / PageSize; len(n.data)%PageSize != 0 && n.alloc[p] {
		r.touchPage(ino, p)
	}
}

func (r *reference) write(ino uint64, b []byte, off int) {
	n := r.live[ino]
	r.op(ino, off, b, 0)
	if off > len(n.data) {
		r.grow(ino)
	}
	setSize(n, max(len(n.data), off+len(b)))
	copy(n.data[off:], b)
	for p := int64(off / PageSize); p*PageSize < int64(off+len(b)); p++ {
		r.touchPage(ino, p)
	}
	r.stale[ino] = true
}

func (r *reference) truncate(ino uint64, size int) {
	n := r.live[ino]
	shrinks := size < len(n.data)
	if size > len(n.data) {
		r.grow(ino)
	}
	for p := range r.dirty[ino] {
		if p >= pagesFor(int64(size)) {
			delete(r.dirty[ino], p)
		}
	}
	r.log(refRec{inode: ino, clip: func(o *refOp) { o.hole(size, 1<<40) }, f: func(t refTree) {
		m := t[ino]
		setSize(m, size)
		for p := range m.alloc {
			if p >= pagesFor(int64(size)) {
				delete(m.alloc, p)
			}
		}
	}}, ino)
	r.logged[ino], r.data[ino] = size, r.appended
	if shrinks {
		r.frees[ino] = r.appended
	}
	r.stale[ino] = true
}

// punch zeroes [from, to): whole pages are freed, parts written.
func (r *reference) punch(ino uint64, from, to int) {
	n := r.live[ino]
	to = min(to, int(pagesFor(int64(len(n.data)))*PageSize))
	if from < to {
		r.op(ino, from, nil, to-from)
	}
	var free []int64
	for at := from; at < to; {
		p := int64(at / PageSize)
		end := min(to, int(p+1)*PageSize)
		switch {
		case at%PageSize == 0 && end%PageSize == 0:
			delete(r.dirty[ino], p)
			if n.alloc[p] {
				free = append(free, p)
			}
		case n.alloc[p]:
			r.touchPage(ino, p)
		}
		if at < len(n.data) {
			clear(n.data[at:min(end, len(n.data))])
		}
		at = end
	}
	if len(free) > 0 {
		r.log(refRec{wb: true, inode: ino, clip: func(o *refOp) {
			first, end := int(pagesFor(int64(from)))*PageSize, to/PageSize*PageSize
			o.hole(first, end)
		}, f: func(t refTree) {
			for _, p := range free {
				delete(t[ino].alloc, p)
			}
		}}, ino)
		r.data[ino], r.frees[ino] = r.appended, r.appended
	}
}

// unref takes a name from an inode of tree t; it returns whether that was the last.
func unref(t refTree, ino, parent uint64) bool {
	n := t[ino]
	if n.dir() {
		n.nlink = 0
		t[parent].subdirs(-1)
	} else {
		n.nlink--
	}
	return n.nlink == 0
}

// reap drops an inode without names and references.
func (r *reference) reap(ino uint64) {
	if n := r.live[ino]; n == nil || n.nlink > 0 || r.refs[ino] > 0 {
		return
	}
	delete(r.dirty, ino)
	delete(r.stale, ino)
	r.log(refRec{ends: ino, f: func(t refTree) { delete(t, ino) }})
}

func (r *reference) create(dir uint64, name string, ino uint64, mode uint32, target string) {
	make := func(t refTree) {
		n := &refNode{mode: mode, target: target, data: []byte(target)}
		if n.dir() {
			n.kids = map[string]uint64{}
		}
		t[ino] = n
	}
	link := linked(dir, name, ino)
	if r.posix {
		r.log(refRec{made: ino, f: make}, ino)
		r.log(link, dir, ino)
	} else {
		r.log(refRec{f: func(t refTree) { make(t); link.f(t) }}, dir, ino)
	}
	r.data[ino], r.logged[ino], r.refs[ino] = r.appended, len(target), r.refs[ino]+1
}

// subdirs counts a directory that comes or goes; one without a name has no links.
func (n *refNode) subdirs(change int) {
	if n.nlink > 0 {
		n.nlink += change
	}
}

// linked gives an inode a name.
func linked(dir uint64, name string, ino uint64) refRec {
	return refRec{
		uses: []uint64{ino, dir}, entries: []entryKey{{dir, name}}, leads: [][2]uint64{{ino, dir}},
		f: func(t refTree) {
			t[dir].kids[name] = ino
			n := t[ino]
			if n.nlink++; !n.dir() {
				return
			}
			n.nlink, n.parent = 2, dir
			for _, kid := range n.kids {
				if t[kid].dir() {
					n.nlink++
				}
			}
			t[dir].subdirs(1)
		},
	}
}

// unlinked takes a name from an inode.
func unlinked(dir uint64, name string, ino uint64, rmdir bool) refRec {
	p := refRec{
		uses: []uint64{dir}, entries: []entryKey{{dir, name}},
		f: func(t refTree) { delete(t[dir].kids, name); unref(t, ino, dir) },
	}
	if rmdir {
		p.ends = ino
	}
	return p
}

func (r *reference) rename(dir uint64, name string, dir2 uint64, name2 string, exchange, lying bool) {
	ino, old := r.live[dir].kids[name], r.live[dir2].kids[name2]
	if ino == old {
		return
	}
	if old != 0 && !exchange && r.live[ino].mode&syscall.S_IFMT == syscall.S_IFREG && !lying {
		r.writeback(ino)
	}
	inos := []uint64{ino, dir, dir2}
	if old != 0 {
		inos = append(inos, old)
	}
	p := refRec{
		uses: []uint64{dir, dir2}, entries: []entryKey{{dir, name}, {dir2, name2}}, leads: [][2]uint64{{ino, dir2}},
		between: dir != dir2, moves: dir != dir2 && r.live[ino].dir(),
	}
	if exchange {
		p.leads = append(p.leads, [2]uint64{old, dir})
		p.moves = p.moves || dir != dir2 && r.live[old].dir()
	} else {
		p.ends = old
	}
	p.f = func(t refTree) {
		move := func(ino, from, to uint64) {
			if n := t[ino]; n.dir() && from != to {
				n.parent = to
				t[from].subdirs(-1)
				t[to].subdirs(1)
			}
		}
		if exchange {
			t[dir].kids[name], t[dir2].kids[name2] = old, ino
			move(old, dir2, dir)
		} else {
			if old != 0 {
				unref(t, old, dir2)
			}
			delete(t[dir].kids, name)
			t[dir2].kids[name2] = ino
		}
		move(ino, dir, dir2)
	}
	r.log(p, inos...)
	if old != 0 && !exchange {
		r.reap(old)
	}
}

// difference says how the session's visible state differs from tree t, whose
// files read as content says; "" if it does not.
func difference(s *Session, t refTree, content func(ino uint64) []byte) string {
	seen := map[uint64]bool{}
	var walk func(ino uint64, path string) string
	walk = func(ino uint64, path string) string {
		seen[ino] = true
		n := t[ino]
		a, err := s.GetAttr(ino)
		if err != nil {
			return fmt.Sprintf("%s: %v", path, err)
		}
		if a.Mode != n.mode || int(a.Nlink) != n.nlink {
			return fmt.Sprintf("%s: mode %o nlink %d, want %o %d", path, a.Mode, a.Nlink, n.mode, n.nlink)
		}
		switch n.mode & syscall.S_IFMT {
		case syscall.S_IFREG:
			want := content(ino)
			if a.Size != int64(len(want)) {
				return fmt.Sprintf("%s: %d bytes, want %d", path, a.Size, len(want))
			}
			got := make([]byte, len(want)+10)
			k, _, err := s.Read(ino, got, 0)
			if err != nil || !bytes.Equal(got[:k], want) {
				i := 0
				for i < min(k, len(want)) && got[i] == want[i] {
					i++
				}
				return fmt.Sprintf("%s: content differs at byte %d (%v)", path, i, err)
			}
		case syscall.S_IFLNK:
			if got, err := s.Readlink(ino); err != nil || got != n.target {
				return fmt.Sprintf("%s: links to %q (%v), want %q", path, got, err, n.target)
			}
		case syscall.S_IFDIR:
			got := map[string]uint64{}
			err := s.ReadDir(ino, 0, func(e Entry) bool {
				if e.Name != "." && e.Name != ".." {
					got[e.Name] = e.Ino
				}
				return true
			})
			if err != nil || !maps.Equal(got, n.kids) {
				return fmt.Sprintf("%s: holds %v (%v), want %v", path, got, err, n.kids)
			}
			for _, name := range slices.Sorted(maps.Keys(n.kids)) {
				if d := walk(n.kids[name], path+"/"+name); d != "" {
					return d
				}
			}
		}
		return ""
	}
	return walk(Root, "")
}
