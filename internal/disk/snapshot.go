package disk

import (
	"fmt"
	"maps"
	"slices"
)

// check says whether the tree is whole: every entry leads to an inode, every
// inode has as many names as it says, every directory hangs below the root or
// below one that has no name.
func (t *tree) check() error {
	if _, err := t.dir(Root); err != nil {
		return err
	}
	names := map[uint64]uint32{}
	below := []uint64{Root}
	dirs := map[uint64]bool{Root: true}
	for ino, n := range t.nodes {
		if n.isDir() && n.nlink == 0 { // its own name is not durable, but what it holds may be
			below = append(below, ino)
			dirs[ino] = true
		}
	}
	for len(below) > 0 {
		ino := below[0]
		below = below[1:]
		n := t.nodes[ino]
		subdirs := uint32(0)
		for name, e := range n.kids {
			c := t.nodes[e.ino]
			if c == nil {
				return fmt.Errorf("entry %q in inode %d leads nowhere", name, ino)
			}
			names[e.ino]++
			if !c.isDir() {
				continue
			}
			if dirs[e.ino] || c.parent != ino {
				return fmt.Errorf("directory %d is in two places", e.ino)
			}
			dirs[e.ino] = true
			below = append(below, e.ino)
			subdirs++
		}
		if n.nlink != 2+subdirs && n.nlink > 0 {
			return fmt.Errorf("directory %d has %d links, not %d", ino, n.nlink, 2+subdirs)
		}
	}
	for ino, n := range t.nodes {
		if n.isDir() && n.nlink > 0 && !dirs[ino] || !n.isDir() && n.nlink != names[ino] {
			return fmt.Errorf("inode %d has %d links, but %d names", ino, n.nlink, names[ino])
		}
		if n.size < 0 || n.size > maxSize || n.kind == 0 {
			return fmt.Errorf("inode %d is not sound", ino)
		}
	}
	return nil
}

// snapshot encodes the tree as a journal of its own.
func (t *tree) snapshot() []byte {
	b := []byte(journalMagic)
	start := len(b)
	b = beginFrame(b)
	put := func(r *record) {
		if len(b)-start > 1<<20 {
			b = endFrame(b, start)
			start = len(b)
			b = beginFrame(b)
		}
		b = appendRecord(b, r)
	}
	put(&record{op: opFormat, a: int64(t.base), b: int64(t.next)})
	inos := slices.Sorted(maps.Keys(t.nodes))
	for _, ino := range inos {
		n := t.nodes[ino]
		put(&record{op: opInode, ino: ino, dir: n.parent, target: n.target, size: n.size, attr: n.attr(), runs: n.ext})
	}
	for _, ino := range inos {
		for _, e := range t.nodes[ino].list {
			if !e.gone {
				put(&record{op: opEntry, dir: ino, name: e.name, ino: e.ino})
			}
		}
	}
	return endFrame(b, start)
}

// attr returns the attributes but for what a live inode keeps in memory.
func (n *inode) attr() Attr {
	return Attr{
		Ino: n.ino, Mode: n.mode, Nlink: n.nlink, UID: n.uid, GID: n.gid, Rdev: n.rdev,
		Size: n.size, Atime: n.atime.Load(), Mtime: n.mtime.Load(), Ctime: n.ctime.Load(),
	}
}

// clone copies the tree for a new session.
func (t *tree) clone() *tree {
	c := &tree{nodes: make(map[uint64]*inode, len(t.nodes)), next: t.next, base: t.base}
	for ino, n := range t.nodes {
		a := n.attr()
		m := &inode{
			ino: ino, kind: n.kind, mode: n.mode, nlink: n.nlink, uid: n.uid, gid: n.gid, rdev: n.rdev, target: n.target,
			size: n.size, ext: slices.Clone(n.ext), parent: n.parent,
		}
		m.setTimes(&a)
		if n.isDir() {
			m.kids = make(map[string]*dirent, len(n.kids))
			for _, e := range n.list {
				if !e.gone {
					m.add(e.name, e.ino)
				}
			}
		}
		c.nodes[ino] = m
	}
	return c
}
