package disk

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// machine runs random operations on a disk and on the reference model.
type machine struct {
	img    *memImage
	d      *Disk
	s      *Session
	ref    *reference
	policy Policy
	posix  bool
	now    int64
	commit int64 // when the last periodic commit was
}

func (m *machine) open(t *rapid.T, seed uint64) {
	var err error
	profile := Ext4
	if m.posix {
		profile = Posix
	}
	m.d, err = Open(m.img, Options{Policy: m.policy, Profile: profile, Seed: seed, InodeBase: 7, RootMode: 0o755, Now: m.now, Space: testSpace * PageSize})
	if err != nil {
		t.Fatal(err)
	}
	m.power(t)
}

func (m *machine) power(t *rapid.T) {
	var err error
	if m.s, _, err = m.d.PowerOn(m.now); err != nil {
		t.Fatal(err)
	}
	m.commit = m.now
}

func (m *machine) inos(keep func(*refNode) bool) []uint64 {
	var all []uint64
	for ino, n := range m.ref.live {
		if keep(n) {
			all = append(all, ino)
		}
	}
	slices.Sort(all)
	return all
}

var names = rapid.SampledFrom([]string{"a", "b", "c", "d"})

func (m *machine) drawDir(t *rapid.T) uint64 {
	return rapid.SampledFrom(m.inos(func(n *refNode) bool { return n.dir() && n.nlink > 0 })).Draw(t, "dir")
}

func (m *machine) drawFile(t *rapid.T) uint64 {
	files := m.inos(func(n *refNode) bool { return n.mode&syscall.S_IFMT == syscall.S_IFREG })
	if len(files) == 0 {
		t.Skip("no file")
	}
	return rapid.SampledFrom(files).Draw(t, "file")
}

func want(t *rapid.T, what string, got, want error) bool {
	if !errors.Is(got, want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
	return want == nil
}

func (m *machine) Create(t *rapid.T) {
	dir, name := m.drawDir(t), names.Draw(t, "name")
	v := rapid.SampledFrom([]NewNode{
		{Mode: syscall.S_IFREG | 0o600}, {Mode: syscall.S_IFDIR | 0o700}, {Mode: syscall.S_IFLNK | 0o777, Target: "some/where"},
	}).Draw(t, "node")
	var expect error
	if m.ref.live[dir].kids[name] != 0 {
		expect = syscall.EEXIST
	}
	a, err := m.s.Create(dir, name, v, m.now)
	if want(t, "create", err, expect) {
		m.ref.create(dir, name, a.Ino, v.Mode, v.Target)
	}
}

func (m *machine) Link(t *rapid.T) {
	ino, dir, name := m.drawFile(t), m.drawDir(t), names.Draw(t, "name")
	var expect error
	if m.ref.live[dir].kids[name] != 0 {
		expect = syscall.EEXIST
	}
	_, err := m.s.Link(ino, dir, name, m.now)
	if want(t, "link", err, expect) {
		m.ref.log(linked(dir, name, ino), ino, dir)
		m.ref.refs[ino]++
	}
}

func (m *machine) Remove(t *rapid.T) {
	dir, name, rmdir := m.drawDir(t), names.Draw(t, "name"), rapid.Bool().Draw(t, "rmdir")
	ino := m.ref.live[dir].kids[name]
	n := m.ref.live[ino]
	var expect error
	switch {
	case n == nil:
		expect = syscall.ENOENT
	case rmdir && !n.dir():
		expect = syscall.ENOTDIR
	case !rmdir && n.dir():
		expect = syscall.EISDIR
	case n.dir() && len(n.kids) > 0:
		expect = syscall.ENOTEMPTY
	}
	f := m.s.Unlink
	if rmdir {
		f = m.s.Rmdir
	}
	if want(t, "remove", f(dir, name, m.now), expect) {
		m.ref.log(unlinked(dir, name, ino, rmdir), ino, dir)
		m.ref.reap(ino)
	}
}

func (m *machine) below(dir, ino uint64) bool {
	for ; dir != Root; dir = m.ref.live[dir].parent {
		if dir == ino {
			return true
		}
	}
	return dir == ino
}

func (m *machine) Rename(t *rapid.T) {
	dir, name, dir2, name2 := m.drawDir(t), names.Draw(t, "name"), m.drawDir(t), names.Draw(t, "name2")
	flags := rapid.SampledFrom([]uint32{0, 0, 0, RenameNoReplace, RenameExchange}).Draw(t, "flags")
	ino, ino2 := m.ref.live[dir].kids[name], m.ref.live[dir2].kids[name2]
	n, n2 := m.ref.live[ino], m.ref.live[ino2]
	var expect error
	switch {
	case n == nil, flags == RenameExchange && n2 == nil:
		expect = syscall.ENOENT
	case n.dir() && m.below(dir2, ino), flags == RenameExchange && n2.dir() && m.below(dir, ino2):
		expect = syscall.EINVAL
	case n2 == nil, flags == RenameExchange:
	case flags == RenameNoReplace:
		expect = syscall.EEXIST
	case ino == ino2:
	case n.dir() && !n2.dir():
		expect = syscall.ENOTDIR
	case !n.dir() && n2.dir():
		expect = syscall.EISDIR
	case n2.dir() && len(n2.kids) > 0:
		expect = syscall.ENOTEMPTY
	}
	err := m.s.Rename(dir, name, dir2, name2, flags, m.now)
	if want(t, "rename", err, expect) {
		m.ref.rename(dir, name, dir2, name2, flags == RenameExchange, m.policy == Lying || m.posix)
	}
}

// testSpace is what a few files fill, in pages.
const testSpace = 12

const maxTestFile = 5 * PageSize

func (m *machine) Write(t *rapid.T) {
	ino := m.drawFile(t)
	off := rapid.IntRange(0, maxTestFile).Draw(t, "off")
	if rapid.Bool().Draw(t, "aligned") {
		off -= off % PageSize
	}
	b := bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, rapid.SampledFrom([]int{1, 100, SectorSize, PageSize, 2 * PageSize, 5000}).Draw(t, "len"))
	var expect error
	if m.ref.taken()+m.ref.needs(ino, off, len(b)) > testSpace && m.ref.needs(ino, off, len(b)) > 0 {
		expect = syscall.ENOSPC
	}
	if want(t, "write", m.s.Write(ino, b, int64(off), m.now), expect) {
		m.ref.write(ino, b, off)
	}
}

func (m *machine) Truncate(t *rapid.T) {
	ino, size := m.drawFile(t), rapid.IntRange(0, maxTestFile).Draw(t, "size")
	size64 := int64(size)
	_, err := m.s.SetAttr(ino, SetAttr{Size: &size64}, m.now)
	want(t, "truncate", err, nil)
	m.ref.truncate(ino, size)
}

func (m *machine) Fallocate(t *rapid.T) {
	ino := m.drawFile(t)
	from, length := rapid.IntRange(0, maxTestFile).Draw(t, "from"), rapid.IntRange(1, maxTestFile).Draw(t, "length")
	mode := rapid.SampledFrom([]uint32{0, FallocKeepSize, FallocPunchHole | FallocKeepSize, FallocZeroRange, FallocZeroRange | FallocKeepSize}).Draw(t, "mode")
	want(t, "fallocate", m.s.Fallocate(ino, mode, int64(from), int64(length), m.now), nil)
	if mode&(FallocPunchHole|FallocZeroRange) != 0 {
		m.ref.punch(ino, from, from+length)
	}
	if mode&FallocKeepSize == 0 && from+length > len(m.ref.live[ino].data) {
		m.ref.truncate(ino, from+length)
	}
	m.ref.stale[ino] = true
}

func (m *machine) Fsync(t *rapid.T) {
	all := m.inos(func(*refNode) bool { return true })
	ino, dataOnly := rapid.SampledFrom(all).Draw(t, "ino"), rapid.Bool().Draw(t, "dataOnly")
	var expect error
	if m.policy != Lying && !m.ref.fsync(ino, dataOnly) {
		expect = syscall.EIO
	}
	want(t, "fsync", m.s.Fsync(ino, dataOnly), expect)
}

// Fail lets a write-back fail, unless the disk's own order decides whose it is.
func (m *machine) Fail(t *rapid.T) {
	if m.policy == Lying {
		t.Skip("a lying disk destages all")
	}
	m.ref.fail = rapid.IntRange(0, 2).Draw(t, "failures")
	m.d.FailWriteBacks(int64(m.ref.fail))
}

func (m *machine) Sync(t *rapid.T) {
	m.ref.fail = 0
	m.d.FailWriteBacks(0)
	want(t, "sync", m.s.Sync(), nil)
	m.ref.sync()
}

func (m *machine) Forget(t *rapid.T) {
	ino := rapid.SampledFrom(m.inos(func(*refNode) bool { return true })).Draw(t, "ino")
	m.s.Forget(ino, uint64(m.ref.refs[ino]))
	m.ref.refs[ino] = 0
	m.ref.reap(ino)
}

// Tick lets time pass and checks that write-back comes neither early nor late.
func (m *machine) Tick(t *rapid.T) {
	m.now += int64(rapid.SampledFrom([]time.Duration{100 * time.Millisecond, 4 * time.Second, 12 * time.Second, 31 * time.Second}).Draw(t, "wait"))
	var due []uint64
	for n := range m.s.dirty {
		if age := n.live.due - m.s.now.Load(); age > maxDirtyAge {
			t.Fatalf("inode %d is due in %v", n.ino, time.Duration(age))
		}
		if n.live.due <= m.now {
			due = append(due, n.ino)
		}
	}
	slices.Sort(due)
	want(t, "tick", m.s.Tick(m.now), nil)
	periodic := m.now-m.commit >= commitInterval
	if periodic {
		m.commit = m.now
	}
	if m.policy == Lying {
		if periodic {
			m.ref.sync()
		}
		return
	}
	for _, ino := range due {
		m.ref.writeback(ino)
	}
	if periodic {
		m.ref.commit()
	}
}

// Cut cuts the power and compares what is left with what must be.
func (m *machine) Cut(t *rapid.T) {
	m.s.Cut()
	if _, err := m.s.GetAttr(Root); !errors.Is(err, syscall.EIO) {
		t.Fatalf("after the cut: %v", err)
	}
	if err := m.s.Fsync(Root, false); !errors.Is(err, syscall.EIO) {
		t.Fatalf("fsync after the cut: %v", err)
	}
	old := m.ref
	if rapid.Bool().Draw(t, "restart") {
		// The daemon dies with the host: only the image is left. A disk that is
		// opened anew keeps nothing by chance.
		m.open(t, 1)
		if m.policy != Lying {
			old.boot()
			m.compare(t, "after a restart", old.live)
			return
		}
	} else {
		m.power(t)
	}
	switch m.policy {
	case LoseAll:
		old.boot()
		m.compare(t, "after the cut", old.live)
	case Lying:
		left := old.destaged
		m.ref = newReference()
		m.ref.posix = m.posix
		m.compare(t, "after the cut of a lying disk", alive(left))
		m.adopt(t)
	case RandomSectors:
		if m.posix {
			m.checkRandomPosix(t, old)
		} else {
			m.checkRandom(t, old)
		}
		m.adopt(t)
	case OperationPrefix, TornWrite:
		m.checkPrefix(t, old)
		m.adopt(t)
	}
}

// alive drops what no name leads to.
func alive(t refTree) refTree {
	t = t.clone()
	for again := true; again; {
		again = false
		for ino, n := range t {
			if n.nlink > 0 {
				continue
			}
			for _, kid := range n.kids {
				unref(t, kid, ino)
			}
			delete(t, ino)
			again = true
		}
	}
	return t
}

func (m *machine) compare(t *rapid.T, when string, tree refTree) {
	if d := difference(m.s, tree, func(ino uint64) []byte { return tree[ino].data }); d != "" {
		t.Fatalf("%s: %s", when, d)
	}
	for ino := range m.s.t.nodes {
		if tree[ino] == nil {
			t.Fatalf("%s: inode %d is left over", when, ino)
		}
	}
}

// checkRandom accepts any prefix of the log, and of dirty pages within it any
// sectors.
func (m *machine) checkRandom(t *rapid.T, old *reference) {
	base := old.durable.clone()
	reasons := ""
	for k := 0; k <= len(old.pending); k++ {
		if k > 0 {
			old.pending[k-1].f(base)
		}
		d := m.sectors(old, alive(base), func(ino uint64) bool { return old.frees[ino] > old.committed+k })
		if d == "" {
			return
		}
		reasons += fmt.Sprintf("\n  after %d operations: %s", k, d)
	}
	t.Fatalf("no allowed state is left:%s", reasons)
}

// checkRandomPosix takes which operations were kept from the disk, checks that
// they can do without the others, and that the state is what they give.
func (m *machine) checkRandomPosix(t *rapid.T, old *reference) {
	keep := m.d.kept
	if len(old.pending) == 0 {
		keep = nil
	}
	if len(keep) != len(old.pending) {
		t.Fatalf("%d operations were pending, want %d", len(keep), len(old.pending))
	}
	whole := slices.Clone(keep)
	old.closed(whole)
	if !slices.Equal(whole, keep) {
		t.Fatalf("operations %v were kept, which need %v", keep, whole)
	}
	base := old.durable.clone()
	free := map[uint64]bool{}
	for i, p := range old.pending {
		if keep[i] {
			p.f(base)
		} else if p.clip != nil {
			free[p.inode] = true
		}
	}
	// A truncation that grows a file frees nothing.
	if d := m.sectors(old, alive(base), func(ino uint64) bool { return free[ino] && old.behind(ino, old.frees[ino]) }); d != "" {
		t.Fatalf("after the operations %v: %s", keep, d)
	}
}

// sectors compares the state with a tree in which any sectors of dirty pages may
// have been written, but not in files that hold is true for.
func (m *machine) sectors(old *reference, tree refTree, hold func(ino uint64) bool) string {
	return difference(m.s, tree, func(ino uint64) []byte {
		content := old.content(tree, ino, nil)
		got := make([]byte, len(content))
		if _, _, err := m.s.Read(ino, got, 0); err != nil || hold(ino) {
			return content
		}
		for p := range old.dirty[ino] {
			if !tree[ino].alloc[p] {
				continue
			}
			fresh := old.page(ino, p)
			for at := int(p) * PageSize; at < min(int(p+1)*PageSize, len(content)); at += SectorSize {
				end := min(at+SectorSize, len(content))
				if new := fresh[at-int(p)*PageSize:][:end-at]; bytes.Equal(got[at:end], new) {
					copy(content[at:end], new)
				}
			}
		}
		return content
	})
}

// adopt takes over what is there as the reference, after a full sync.
func (m *machine) adopt(t *rapid.T) {
	r := newReference()
	r.posix = m.posix
	r.durable = refTree{}
	for ino, n := range m.s.t.nodes {
		v := &refNode{mode: n.mode, nlink: int(n.nlink), target: n.target, parent: n.parent, alloc: map[int64]bool{}}
		v.data = make([]byte, n.size)
		if n.isReg() {
			if _, _, err := m.s.Read(ino, v.data, 0); err != nil {
				t.Fatal(err)
			}
		}
		if n.isDir() {
			v.kids = map[string]uint64{}
			for name, e := range n.kids {
				v.kids[name] = e.ino
			}
		}
		r.objects[ino] = map[int64][]byte{}
		for _, e := range n.ext {
			for p := e.from; p < e.to; p++ {
				v.alloc[p] = true
				pg := make([]byte, PageSize)
				_ = m.img.ReadAt(ino, pg, p*PageSize)
				r.objects[ino][p] = pg
			}
		}
		r.durable[ino] = v
	}
	r.boot()
	m.ref = r
}

// Check compares the live state after every operation.
func (m *machine) Check(t *rapid.T) {
	if d := difference(m.s, m.ref.live, func(ino uint64) []byte { return m.ref.live[ino].data }); d != "" {
		t.Fatalf("live state: %s", d)
	}
	var dirty int64
	for _, pages := range m.ref.dirty {
		dirty += int64(len(pages)) * PageSize
	}
	if got := m.s.used.Load(); got != m.ref.taken() {
		t.Fatalf("%d pages are taken, want %d", got, m.ref.taken())
	}
	if got := m.s.dirtyBytes.Load(); got != dirty {
		t.Fatalf("%d dirty bytes, want %d", got, dirty)
	}
}

func TestModel(t *testing.T) {
	for _, profile := range Profiles() {
		for _, p := range Policies() {
			t.Run(string(profile)+"/"+string(p), func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) {
					m := &machine{img: newMemImage(), ref: newReference(), policy: p, posix: profile == Posix, now: 1e18}
					m.ref.posix = m.posix
					m.open(t, rapid.Uint64().Draw(t, "seed"))
					actions := rapid.StateMachineActions(m)
					actions["Write2"], actions["Write3"], actions["Fsync2"], actions["Create2"] = m.Write, m.Write, m.Fsync, m.Create
					t.Repeat(actions)
				})
			})
		}
	}
}
