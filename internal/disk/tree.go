package disk

import (
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
)

// Root is the inode number of the root directory.
const Root = 1

// Attr is what stat shows of an inode. Times are Unix nanoseconds.
type Attr struct {
	Ino    uint64 // within this package; shown to programs as Disk.InodeBase()+Ino
	Mode   uint32 // type and permission bits
	Nlink  uint32
	UID    uint32
	GID    uint32
	Rdev   uint32
	Size   int64 // bytes
	Blocks int64 // of 512 bytes
	Atime  int64
	Mtime  int64
	Ctime  int64
}

// dirent is a name in a directory. Its cookie is its place in the listing and
// does not change while the entry exists.
type dirent struct {
	name   string
	ino    uint64
	cookie uint64
	gone   bool
}

// inode is a file, directory or link in one of the two trees. The times are
// atomic because writes set them without the tree's lock.
type inode struct {
	ino                 uint64
	kind                uint32 // the type bits of mode, which never change
	mode, nlink         uint32
	uid, gid, rdev      uint32
	target              string
	atime, mtime, ctime atomic.Int64
	size                int64
	ext                 extents
	parent              uint64 // of a directory
	kids                map[string]*dirent
	list                []*dirent // by cookie, with gone entries
	gone                int       // entries of list that are gone
	cookie              uint64    // the last one given out
	live                *live     // nil in the durable tree
}

func (n *inode) isDir() bool { return n.kind == syscall.S_IFDIR }
func (n *inode) isReg() bool { return n.kind == syscall.S_IFREG }

func (n *inode) setTimes(a *Attr) {
	n.atime.Store(a.Atime)
	n.mtime.Store(a.Mtime)
	n.ctime.Store(a.Ctime)
}

// touched sets the times that a change of a directory's entries sets.
func (n *inode) touched(now int64) {
	n.mtime.Store(now)
	n.ctime.Store(now)
}

func (n *inode) add(name string, ino uint64) {
	n.cookie++
	e := &dirent{name: name, ino: ino, cookie: n.cookie}
	n.kids[name] = e
	n.list = append(n.list, e)
}

func (n *inode) remove(name string) {
	e := n.kids[name]
	e.gone = true
	delete(n.kids, name)
	n.gone++
	if n.gone > 32 && n.gone > len(n.list)/2 {
		n.list = slices.DeleteFunc(n.list, func(e *dirent) bool { return e.gone })
		n.gone = 0
	}
}

// tree is a name space with its inodes. It is not safe for concurrent use.
type tree struct {
	nodes map[uint64]*inode
	next  uint64 // the next inode number
	base  uint64 // added to inode numbers that programs see
}

func newTree(base uint64) *tree {
	return &tree{nodes: map[uint64]*inode{}, next: Root + 1, base: base}
}

func (t *tree) insert(ino uint64, a *Attr, target string) *inode {
	n := &inode{ino: ino, kind: a.Mode & syscall.S_IFMT, mode: a.Mode, nlink: a.Nlink, uid: a.UID, gid: a.GID, rdev: a.Rdev, target: target}
	n.setTimes(a)
	if n.isDir() {
		n.kids = map[string]*dirent{}
	}
	if n.kind == syscall.S_IFLNK {
		n.size = int64(len(target))
	}
	t.nodes[ino] = n
	t.next = max(t.next, ino+1)
	return n
}

func (t *tree) node(ino uint64) (*inode, error) {
	n := t.nodes[ino]
	if n == nil {
		return nil, fmt.Errorf("no inode %d", ino)
	}
	return n, nil
}

func (t *tree) dir(ino uint64) (*inode, error) {
	n, err := t.node(ino)
	if err == nil && !n.isDir() {
		err = fmt.Errorf("inode %d is no directory", ino)
	}
	return n, err
}

// child finds an entry and its inode.
func (t *tree) child(dir uint64, name string) (d, n *inode, err error) {
	if d, err = t.dir(dir); err != nil {
		return nil, nil, err
	}
	e := d.kids[name]
	if e == nil {
		return nil, nil, fmt.Errorf("no entry %q in inode %d", name, dir)
	}
	n, err = t.node(e.ino)
	return d, n, err
}

// apply carries out one record. It refuses what does not fit the tree, which
// only a damaged journal can ask for, and then leaves the tree unusable.
func (t *tree) apply(r *record) error {
	switch r.op {
	case opFormat:
		t.base, t.next = uint64(r.a), max(t.next, uint64(r.b))
		return nil
	case opInode, opCreate:
		return t.applyCreate(r)
	case opEntry:
		return t.applyEntry(r)
	case opLink:
		return t.applyLink(r)
	case opUnlink, opRmdir:
		return t.applyUnlink(r)
	case opRename:
		return t.applyRename(r)
	}
	n, err := t.node(r.ino)
	if err != nil {
		return err
	}
	if r.op == opDrop {
		if n.nlink > 0 {
			return fmt.Errorf("inode %d still has a name", r.ino)
		}
		delete(t.nodes, r.ino)
		return nil
	}
	n.applyData(r)
	return nil
}

// applyData carries out a record that concerns one inode alone.
func (n *inode) applyData(r *record) {
	switch r.op {
	case opAttr:
		n.applyAttr(r)
	case opTruncate:
		n.size = r.size
		n.ext.cut(pagesFor(r.size))
	case opPunch:
		for _, e := range r.runs {
			n.ext.remove(e)
		}
	case opWritten:
		for _, e := range r.runs {
			n.ext.add(e)
		}
		n.size = max(n.size, r.size)
	}
}

func (n *inode) applyAttr(r *record) {
	if r.mask&setMode != 0 {
		n.mode = n.mode&syscall.S_IFMT | r.attr.Mode&^syscall.S_IFMT
	}
	if r.mask&setUID != 0 {
		n.uid = r.attr.UID
	}
	if r.mask&setGID != 0 {
		n.gid = r.attr.GID
	}
	if r.mask&setAtime != 0 {
		n.atime.Store(r.attr.Atime)
	}
	if r.mask&setMtime != 0 {
		n.mtime.Store(r.attr.Mtime)
	}
	if r.mask&setCtime != 0 {
		n.ctime.Store(r.attr.Ctime)
	}
}

func (t *tree) applyCreate(r *record) error {
	if t.nodes[r.ino] != nil || r.ino == 0 {
		return fmt.Errorf("inode %d exists", r.ino)
	}
	if r.op == opInode {
		n := t.insert(r.ino, &r.attr, r.target)
		n.size, n.parent, n.ext = r.size, r.dir, slices.Clone(r.runs)
		return nil
	}
	if r.dir == 0 {
		t.insert(r.ino, &r.attr, r.target).nlink = 0
		return nil
	}
	d, err := t.dir(r.dir)
	if err != nil {
		return err
	}
	if d.kids[r.name] != nil {
		return fmt.Errorf("entry %q exists in inode %d", r.name, r.dir)
	}
	n := t.insert(r.ino, &r.attr, r.target)
	n.nlink = 1
	if n.isDir() {
		n.nlink, n.parent = 2, r.dir
		d.subdirs(+1)
	}
	d.add(r.name, r.ino)
	d.touched(r.now)
	return nil
}

func (t *tree) applyEntry(r *record) error {
	d, err := t.dir(r.dir)
	if err != nil {
		return err
	}
	if _, err := t.node(r.ino); err != nil {
		return err
	}
	if d.kids[r.name] != nil {
		return fmt.Errorf("entry %q exists in inode %d", r.name, r.dir)
	}
	d.add(r.name, r.ino)
	return nil
}

func (t *tree) applyLink(r *record) error {
	n, err := t.node(r.ino)
	if err != nil {
		return err
	}
	if n.isDir() && (n.nlink > 0 || r.ino == r.dir) {
		return fmt.Errorf("directory %d has a name already", r.ino)
	}
	if err := t.applyEntry(r); err != nil {
		return err
	}
	d := t.nodes[r.dir]
	if n.isDir() {
		n.parent = r.dir
		for _, e := range n.kids {
			if c := t.nodes[e.ino]; c != nil && c.isDir() {
				n.nlink++
			}
		}
		n.nlink += 2
		d.subdirs(+1)
	} else {
		n.nlink++
	}
	n.ctime.Store(r.now)
	d.touched(r.now)
	return nil
}

func (t *tree) applyUnlink(r *record) error {
	d, n, err := t.child(r.dir, r.name)
	if err != nil {
		return err
	}
	d.remove(r.name)
	d.touched(r.now)
	t.unnamed(d, n, r.now)
	return nil
}

// unnamed takes one name from n, which was in directory d.
func (t *tree) unnamed(d, n *inode, now int64) {
	n.ctime.Store(now)
	if n.isDir() {
		n.nlink = 0
		d.subdirs(-1)
	} else if n.nlink > 0 {
		n.nlink--
	}
}

func (t *tree) applyRename(r *record) error {
	d, n, err := t.child(r.dir, r.name)
	if err != nil {
		return err
	}
	d2, err := t.dir(r.dir2)
	if err != nil {
		return err
	}
	if r.dir == r.dir2 && r.name == r.name2 {
		return fmt.Errorf("rename of %q to itself", r.name)
	}
	old := d2.kids[r.name2]
	if r.mask&RenameExchange != 0 {
		if old == nil {
			return fmt.Errorf("no entry %q in inode %d", r.name2, r.dir2)
		}
		m, err := t.node(old.ino)
		if err != nil {
			return err
		}
		d.kids[r.name].ino, old.ino = m.ino, n.ino
		t.moved(n, d, d2, r.now)
		t.moved(m, d2, d, r.now)
		return nil
	}
	if old != nil {
		m, err := t.node(old.ino)
		if err != nil {
			return err
		}
		d2.remove(r.name2)
		t.unnamed(d2, m, r.now)
	}
	d.remove(r.name)
	d2.add(r.name2, n.ino)
	t.moved(n, d, d2, r.now)
	return nil
}

// moved settles an inode that went from one directory to another.
func (t *tree) moved(n, from, to *inode, now int64) {
	n.ctime.Store(now)
	from.touched(now)
	to.touched(now)
	if n.isDir() && from != to {
		n.parent = to.ino
		from.subdirs(-1)
		to.subdirs(+1)
	}
}

// subdirs counts directories that come into n or leave it. A directory that has
// no name has no links either, whatever it holds.
func (n *inode) subdirs(change int) {
	if n.nlink > 0 {
		n.nlink = uint32(int(n.nlink) + change)
	}
}
