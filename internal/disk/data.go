package disk

import (
	"sync"
	"syscall"
)

// Fallocate modes, as in fallocate(2).
const (
	FallocKeepSize  = 0x01
	FallocPunchHole = 0x02
	FallocZeroRange = 0x10
)

// maxSize keeps page arithmetic within int64 and is what ext4 allows.
const maxSize = 16 << 40

var pagePool = sync.Pool{New: func() any { return new(page) }}

// regular finds a regular file.
func (s *Session) regular(ino uint64) (*inode, error) {
	n, err := s.node(ino)
	if err != nil {
		return nil, err
	}
	if n.isDir() {
		return nil, syscall.EISDIR
	}
	if !n.isReg() {
		return nil, syscall.EINVAL
	}
	return n, nil
}

// Read fills p from offset off and returns how much there was before the end
// of the file, and how many bytes of it came from the device.
func (s *Session) Read(ino uint64, p []byte, off int64) (n int, device int, err error) {
	node, err := s.regular(ino)
	if err != nil {
		return 0, 0, err
	}
	node.live.mu.RLock()
	defer node.live.mu.RUnlock()
	if off < 0 {
		return 0, 0, syscall.EINVAL
	}
	if off >= node.size {
		return 0, 0, nil
	}
	p = p[:min(int64(len(p)), node.size-off)]
	device, err = s.readRange(node, p, off)
	if err == nil && s.dead.Load() {
		err = syscall.EIO
	}
	if err != nil {
		return 0, 0, err
	}
	s.d.stats.reads.Add(1)
	s.d.stats.readBytes.Add(int64(len(p)))
	if device > 0 {
		s.d.stats.deviceReads.Add(1)
	}
	return len(p), device, nil
}

// readRange fills p with the live content at off, which may lie beyond the end
// of the file only within the last page. live.mu is held.
func (s *Session) readRange(n *inode, p []byte, off int64) (device int, err error) {
	if len(n.live.pages) == 0 && n.ext.has(run{off / PageSize, pagesFor(off + int64(len(p)))}) {
		return len(p), s.d.img.ReadAt(n.ino, p, off)
	}
	from := -1 // start in p of a stretch that the object has
	flush := func(to int) error {
		if from < 0 || err != nil {
			return err
		}
		err = s.d.img.ReadAt(n.ino, p[from:to], off+int64(from))
		device += to - from
		from = -1
		return err
	}
	for at := 0; at < len(p); {
		pos := off + int64(at)
		idx, in := pos/PageSize, int(pos%PageSize)
		end := min(len(p), at+PageSize-in)
		if pg := n.live.pages[idx]; pg != nil {
			if err := flush(at); err != nil {
				return device, err
			}
			copy(p[at:end], pg[in:])
		} else if n.ext.has(run{idx, idx + 1}) {
			if from < 0 {
				from = at
			}
		} else {
			if err := flush(at); err != nil {
				return device, err
			}
			clear(p[at:end])
		}
		at = end
	}
	return device, flush(len(p))
}

// dirtyPage returns the page idx for writing. If whole, its old content does
// not matter; otherwise it is there, with zeros beyond the end of the file.
func (s *Session) dirtyPage(n *inode, idx int64, whole bool) (*page, error) {
	if pg := n.live.pages[idx]; pg != nil {
		return pg, nil
	}
	pg := pagePool.Get().(*page)
	if !whole {
		if n.ext.has(run{idx, idx + 1}) {
			if err := s.d.img.ReadAt(n.ino, pg[:], idx*PageSize); err != nil {
				pagePool.Put(pg)
				return nil, err
			}
			if end := n.size - idx*PageSize; end < PageSize {
				clear(pg[max(end, 0):])
			}
		} else {
			clear(pg[:])
		}
	}
	if len(n.live.pages) == 0 {
		if n.live.pages == nil {
			n.live.pages = map[int64]*page{}
		}
		wait := minDirtyAge + int64(s.d.random()%uint64(maxDirtyAge-minDirtyAge))
		s.dirtyMu.Lock()
		if _, already := s.dirty[n]; !already {
			n.live.due = s.now.Load() + wait
			s.dirty[n] = struct{}{}
		}
		s.dirtyMu.Unlock()
	}
	n.live.pages[idx] = pg
	s.dirtyBytes.Add(PageSize)
	return pg, nil
}

// freePages drops the dirty pages that drop says; live.mu is held.
func (s *Session) freePages(n *inode, drop func(idx int64) bool) {
	for idx, pg := range n.live.pages {
		if drop(idx) {
			if delete(n.live.pages, idx); !n.ext.has(run{idx, idx + 1}) {
				s.used.Add(-1)
			}
			pagePool.Put(pg)
			s.dirtyBytes.Add(-PageSize)
		}
	}
	s.cleaned(n)
}

// cleaned takes an inode that has nothing to write back from the dirty ones. A
// size that the log does not know is something, too: its pages may have been
// punched out since.
func (s *Session) cleaned(n *inode) {
	if n.live.dropped || len(n.live.pages) == 0 && n.size == n.live.logged {
		s.dirtyMu.Lock()
		delete(s.dirty, n)
		s.dirtyMu.Unlock()
	}
}

// Write puts p at off. It waits for write-back when too much is dirty.
func (s *Session) Write(ino uint64, p []byte, off int64, now int64) error {
	if off < 0 {
		return syscall.EINVAL
	}
	if off > maxSize-int64(len(p)) {
		return syscall.EFBIG
	}
	if s.Full() {
		if err := s.reclaim(); err != nil {
			return err
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := s.t.nodes[ino]
	if s.dead.Load() {
		return syscall.EIO
	}
	if n == nil {
		return syscall.ENOENT
	}
	if !n.isReg() {
		return syscall.EINVAL
	}
	n.live.mu.Lock()
	defer n.live.mu.Unlock()
	if err := s.take(n, off, int64(len(p))); err != nil {
		return err
	}
	if off > n.size {
		if err := s.growTail(n); err != nil {
			return err
		}
	}
	s.d.stats.writes.Add(1)
	s.d.stats.writeBytes.Add(int64(len(p)))
	s.written(n, p, off, 0)
	for len(p) > 0 {
		idx, in := off/PageSize, int(off%PageSize)
		pg, err := s.dirtyPage(n, idx, in == 0 && len(p) >= PageSize)
		if err != nil {
			return err
		}
		k := copy(pg[in:], p)
		p = p[k:]
		off += int64(k)
		n.size = max(n.size, off)
	}
	n.touched(now)
	s.commitSoon(n)
	return nil
}

// growTail prepares the last page for the file to grow beyond it: what the
// object holds behind the end of the file must never be seen. live.mu is held.
func (s *Session) growTail(n *inode) error {
	if n.size%PageSize == 0 {
		return nil
	}
	idx := n.size / PageSize
	if n.live.pages[idx] != nil || !n.ext.has(run{idx, idx + 1}) {
		return nil
	}
	_, err := s.dirtyPage(n, idx, false)
	return err
}

// change runs a data operation on a regular file with all its locks held.
func (s *Session) change(ino uint64, f func(n *inode) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.dead.Load() {
		return syscall.EIO
	}
	n := s.t.nodes[ino]
	switch {
	case n == nil:
		return syscall.ENOENT
	case n.isDir():
		return syscall.EISDIR
	case !n.isReg():
		return syscall.EINVAL
	}
	n.live.mu.Lock()
	defer n.live.mu.Unlock()
	return f(n)
}

func (s *Session) truncate(ino uint64, size, now int64) error {
	if size < 0 {
		return syscall.EINVAL
	}
	if size > maxSize {
		return syscall.EFBIG
	}
	return s.change(ino, func(n *inode) error { return s.resize(n, size, now) })
}

// resize cuts a file off or lets it grow by a hole; live.mu is held.
func (s *Session) resize(n *inode, size, now int64) error {
	r := &record{op: opTruncate, ino: n.ino, size: size}
	if size > n.size {
		if err := s.growTail(n); err != nil {
			return err
		}
	}
	shrinks := size < n.size
	if shrinks {
		last := pagesFor(size)
		s.freePages(n, func(idx int64) bool { return idx >= last })
		if in := size % PageSize; in != 0 {
			if pg := n.live.pages[size/PageSize]; pg != nil {
				clear(pg[in:])
			}
		}
	}
	s.changeExtents(n, r)
	seq := s.append(r, n)
	n.live.logged = size
	s.cleaned(n)
	n.live.dataSeq.Store(seq)
	if shrinks {
		n.live.frees = seq
	}
	n.touched(now)
	s.commitSoon(n)
	return nil
}

// Fallocate reserves, punches or zeroes a range. Reserved space reads as zeros
// and stays a hole in the durable image, as unwritten extents do in ext4.
func (s *Session) Fallocate(ino uint64, mode uint32, off, length, now int64) error {
	if off < 0 || length <= 0 {
		return syscall.EINVAL
	}
	if off > maxSize-length {
		return syscall.EFBIG
	}
	return s.change(ino, func(n *inode) error {
		var err error
		switch mode {
		case 0, FallocKeepSize:
		case FallocPunchHole | FallocKeepSize, FallocZeroRange, FallocZeroRange | FallocKeepSize:
			err = s.punch(n, off, off+length)
		default:
			return syscall.EOPNOTSUPP
		}
		if err == nil && mode&FallocKeepSize == 0 && off+length > n.size {
			err = s.resize(n, off+length, now)
		}
		n.touched(now)
		s.commitSoon(n)
		return err
	})
}

// punch makes [from, to) read as zeros; live.mu is held.
func (s *Session) punch(n *inode, from, to int64) error {
	to = min(to, pagesFor(n.size)*PageSize)
	if from >= to {
		return nil
	}
	s.written(n, nil, from, to-from)
	whole := run{pagesFor(from), to / PageSize}
	zero := func(from, to int64) error { // within one page
		idx := from / PageSize
		if from >= to || n.live.pages[idx] == nil && !n.ext.has(run{idx, idx + 1}) {
			return nil
		}
		pg, err := s.dirtyPage(n, idx, false)
		if err == nil {
			clear(pg[from-idx*PageSize : to-idx*PageSize])
		}
		return err
	}
	if err := zero(from, min(to, pagesFor(from)*PageSize)); err != nil {
		return err
	}
	if err := zero(max(from, to/PageSize*PageSize), to); err != nil {
		return err
	}
	if whole.from >= whole.to {
		return nil
	}
	s.freePages(n, func(idx int64) bool { return whole.from <= idx && idx < whole.to })
	if !n.ext.meets(whole) {
		return nil
	}
	r := &record{op: opPunch, ino: n.ino, runs: extents{whole}}
	s.changeExtents(n, r)
	seq := s.append(r, n)
	n.live.dataSeq.Store(seq)
	n.live.frees = seq
	return nil
}
