package disk

import "syscall"

// NewNode describes an inode to be made.
type NewNode struct {
	Mode   uint32 // type and permission bits, umask applied
	UID    uint32
	GID    uint32
	Rdev   uint32
	Target string // of a symbolic link
}

// inherit applies the set-group-id rule of directories.
func (s *Session) inherit(d *inode, v *NewNode) {
	if d.mode&syscall.S_ISGID != 0 {
		v.GID = d.gid
		if v.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			v.Mode |= syscall.S_ISGID
		}
	}
}

// writableDir finds a directory that can take or give up a name; s.mu is held.
func (s *Session) writableDir(dir uint64, names ...string) (*inode, error) {
	for _, name := range names {
		if len(name) > maxName {
			return nil, syscall.ENAMETOOLONG
		}
		if name == "" || name == "." || name == ".." {
			return nil, syscall.EINVAL
		}
	}
	d, err := s.dirNode(dir)
	if err != nil {
		return nil, err
	}
	if d.nlink == 0 {
		return nil, syscall.ENOENT // removed, but still somebody's working directory
	}
	return d, nil
}

// apply carries out a record on the live tree and logs it; s.mu is held for
// writing and the record was checked, so that it cannot be refused.
func (s *Session) apply(r *record, nodes ...*inode) uint64 {
	if err := s.t.apply(r); err != nil {
		panic("disk: checked operation refused: " + err.Error())
	}
	return s.append(r, nodes...)
}

// Create makes an inode of any type under a name; with dir 0 one without a name
// (O_TMPFILE). It counts one reference.
func (s *Session) Create(dir uint64, name string, v NewNode, now int64) (Attr, error) {
	if len(v.Target) > maxTarget {
		return Attr{}, syscall.ENAMETOOLONG
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead.Load() {
		return Attr{}, syscall.EIO
	}
	var d *inode
	if dir != 0 {
		var err error
		if d, err = s.writableDir(dir, name); err != nil {
			return Attr{}, err
		}
		if d.kids[name] != nil {
			return Attr{}, syscall.EEXIST
		}
		s.inherit(d, &v)
	}
	r := &record{
		op: opCreate, ino: s.t.next, dir: dir, name: name, target: v.Target, now: now,
		attr: Attr{Mode: v.Mode, UID: v.UID, GID: v.GID, Rdev: v.Rdev, Atime: now, Mtime: now, Ctime: now},
	}
	byName := d != nil && s.d.profile == Posix // the inode and its name become durable apart
	if byName {
		r.dir, r.name = 0, ""
	}
	seq := s.apply(r)
	if byName {
		seq = s.apply(&record{op: opLink, ino: r.ino, dir: dir, name: name, now: now})
	}
	n := s.t.nodes[r.ino]
	n.live = &live{logged: n.size}
	n.live.syncSeq.Store(seq)
	n.live.dataSeq.Store(seq)
	if d != nil {
		d.live.syncSeq.Store(seq)
	}
	n.live.lookups.Add(1)
	return s.attrs(n), nil
}

// Link gives an inode one more name and counts one more reference.
func (s *Session) Link(ino, dir uint64, name string, now int64) (Attr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, err := s.writableDir(dir, name)
	if err != nil {
		return Attr{}, err
	}
	n := s.t.nodes[ino]
	switch {
	case n == nil:
		return Attr{}, syscall.ENOENT
	case n.isDir():
		return Attr{}, syscall.EPERM
	case d.kids[name] != nil:
		return Attr{}, syscall.EEXIST
	}
	s.apply(&record{op: opLink, ino: ino, dir: dir, name: name, now: now}, n, d)
	n.live.lookups.Add(1)
	return s.attrs(n), nil
}

// Unlink takes a name from a file.
func (s *Session) Unlink(dir uint64, name string, now int64) error {
	return s.unlink(&record{op: opUnlink, dir: dir, name: name, now: now})
}

// Rmdir removes an empty directory.
func (s *Session) Rmdir(dir uint64, name string, now int64) error {
	return s.unlink(&record{op: opRmdir, dir: dir, name: name, now: now})
}

func (s *Session) unlink(r *record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, err := s.writableDir(r.dir, r.name)
	if err != nil {
		return err
	}
	e := d.kids[r.name]
	if e == nil {
		return syscall.ENOENT
	}
	n := s.t.nodes[e.ino]
	switch {
	case r.op == opUnlink && n.isDir():
		return syscall.EISDIR
	case r.op == opRmdir && !n.isDir():
		return syscall.ENOTDIR
	case n.isDir() && len(n.kids) > 0:
		return syscall.ENOTEMPTY
	}
	r.ino = n.ino
	s.apply(r, n, d)
	s.reap(n)
	return nil
}

// Rename moves a name. With RenameNoReplace an existing target is an error,
// with RenameExchange the two change places. When a file takes the place of
// another one, its data is written back first, unless the profile is Posix:
// programs rely on that.
func (s *Session) Rename(dir uint64, name string, dir2 uint64, name2 string, flags uint32, now int64) error {
	if flags&^(RenameNoReplace|RenameExchange) != 0 || flags == RenameNoReplace|RenameExchange {
		return syscall.EINVAL
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d, err := s.writableDir(dir, name)
	if err != nil {
		return err
	}
	d2, err := s.writableDir(dir2, name2)
	if err != nil {
		return err
	}
	e, e2 := d.kids[name], d2.kids[name2]
	if e == nil {
		return syscall.ENOENT
	}
	n := s.t.nodes[e.ino]
	var old *inode
	if e2 != nil {
		old = s.t.nodes[e2.ino]
	}
	if err := s.checkRename(n, old, d, d2, flags); err != nil {
		return err
	}
	if old == n {
		return nil
	}
	r := &record{op: opRename, mask: flags, ino: n.ino, dir: dir, name: name, dir2: dir2, name2: name2, now: now}
	r.moves = d != d2 && (n.isDir() || old != nil && old.isDir() && flags == RenameExchange)
	if old == nil {
		s.apply(r, n, d, d2)
		return nil
	}
	r.b = int64(old.ino)
	if flags == 0 && n.isReg() && !s.d.lying() && s.d.profile != Posix {
		n.live.mu.Lock()
		err := s.writebackLater(n)
		n.live.mu.Unlock()
		if err != nil {
			return err
		}
	}
	s.apply(r, n, old, d, d2)
	s.reap(old)
	return nil
}

func (s *Session) checkRename(n, old, d, d2 *inode, flags uint32) error {
	if flags == RenameExchange {
		if old == nil {
			return syscall.ENOENT
		}
		if s.within(d2, n) || s.within(d, old) {
			return syscall.EINVAL
		}
		return nil
	}
	if n.isDir() && s.within(d2, n) {
		return syscall.EINVAL
	}
	if old == nil {
		return nil
	}
	switch {
	case flags == RenameNoReplace:
		return syscall.EEXIST
	case old == n:
		return nil
	case n.isDir() && !old.isDir():
		return syscall.ENOTDIR
	case !n.isDir() && old.isDir():
		return syscall.EISDIR
	case old.isDir() && len(old.kids) > 0:
		return syscall.ENOTEMPTY
	}
	return nil
}

// within says whether directory d is n or lies below it.
func (s *Session) within(d, n *inode) bool {
	for d != nil {
		if d == n {
			return true
		}
		if d.ino == Root {
			return false
		}
		d = s.t.nodes[d.parent]
	}
	return false
}

// SetAttr says which attributes to change; nil leaves one as it is.
type SetAttr struct {
	Mode, UID, GID      *uint32
	Size                *int64
	Atime, Mtime, Ctime *int64
}

// SetAttr changes attributes; a change of size truncates or extends.
func (s *Session) SetAttr(ino uint64, v SetAttr, now int64) (Attr, error) {
	if v.Size != nil {
		if err := s.truncate(ino, *v.Size, now); err != nil {
			return Attr{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead.Load() {
		return Attr{}, syscall.EIO
	}
	n := s.t.nodes[ino]
	if n == nil {
		return Attr{}, syscall.ENOENT
	}
	r := &record{op: opAttr, ino: ino, mask: setCtime, attr: Attr{Ctime: now}}
	for _, f := range []struct {
		bit  uint32
		from *uint32
		to   *uint32
	}{{setMode, v.Mode, &r.attr.Mode}, {setUID, v.UID, &r.attr.UID}, {setGID, v.GID, &r.attr.GID}} {
		if f.from != nil {
			*f.to = *f.from
			r.mask |= f.bit
		}
	}
	for _, f := range []struct {
		bit  uint32
		from *int64
		to   *int64
	}{{setAtime, v.Atime, &r.attr.Atime}, {setMtime, v.Mtime, &r.attr.Mtime}, {setCtime, v.Ctime, &r.attr.Ctime}} {
		if f.from != nil {
			*f.to = *f.from
			r.mask |= f.bit
		}
	}
	if r.mask != setCtime || v.Ctime != nil {
		s.apply(r, n)
	}
	return s.attrs(n), nil
}
