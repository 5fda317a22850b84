package disk

import (
	"sync"
	"sync/atomic"
	"syscall"
)

// Rename flags, as in renameat2.
const (
	RenameNoReplace uint32 = 1
	RenameExchange  uint32 = 2
)

// page is one page of data that is not durable yet.
type page [PageSize]byte

// live is what an inode has only while the disk is on.
type live struct {
	mu      sync.RWMutex // guards size and ext of the inode, and what follows
	pages   map[int64]*page
	logged  int64  // the size that the log knows
	frees   uint64 // log position of the last record that freed pages
	runs    int64  // transfers of the last write-back
	wbOp    uint64 // the last data operation that was written back; see opLog
	dropped bool   // without a name and a user: nothing may be written any more
	due     int64  // when background write-back takes the pages; under dirtyMu

	dataSeq atomic.Uint64 // log position that data needs to be found again
	syncSeq atomic.Uint64 // log position of the last record of this inode
	done    atomic.Uint64 // log position up to which this inode's part is durable, under Posix
	durOp   atomic.Uint64 // the last data operation that is durable
	failed  atomic.Bool   // a write-back in the background failed: the next fsync has to say so
	stale   atomic.Bool   // times changed since they were logged
	lookups atomic.Int64
}

// Session is the disk between power on and the next cut: the live name space,
// dirty pages and the log of metadata operations that are not durable yet.
//
// Locks, in this order: mu, an inode's live.mu, logMu or dirtyMu, the gate.
type Session struct {
	d    *Disk
	dead atomic.Bool

	// mu guards the tree. Whoever changes volatile data holds its read side, so
	// that the write side sees one moment of everything.
	mu sync.RWMutex
	t  *tree

	logMu      sync.Mutex
	log        []record
	appended   uint64
	committed  atomic.Uint64
	ops        opLog
	staleTimes map[*inode]struct{}
	frame      []byte
	lastCommit int64

	dirtyMu    sync.Mutex
	dirty      map[*inode]struct{}
	dirtyBytes atomic.Int64
	used       atomic.Int64 // pages that files have on the disk or dirty
	now        atomic.Int64 // of the last Tick
	reclaimMu  sync.Mutex

	syncing   atomic.Bool // a lying disk's destage has begun, and not ended
	finishing atomic.Bool // see finish
	redoing   bool        // of a crash policy: nobody else has it, and nothing fails
}

func newSession(d *Disk, t *tree, now int64) *Session {
	s := &Session{d: d, t: t, staleTimes: map[*inode]struct{}{}, dirty: map[*inode]struct{}{}, lastCommit: now}
	s.now.Store(now)
	for _, n := range t.nodes {
		n.live = &live{logged: n.size}
		s.used.Add(n.ext.pages())
	}
	return s
}

// Cut makes the session dead, at once: whatever is called from now on, or has
// not come to its end yet, fails with EIO and keeps nothing.
func (s *Session) Cut() {
	if !s.dead.Swap(true) {
		s.d.stats.cuts.Add(1)
	}
}

// Dead says whether the power was cut.
func (s *Session) Dead() bool { return s.dead.Load() }

// node finds a live inode.
func (s *Session) node(ino uint64) (*inode, error) {
	if s.dead.Load() {
		return nil, syscall.EIO
	}
	s.mu.RLock()
	n := s.t.nodes[ino]
	s.mu.RUnlock()
	if n == nil {
		return nil, syscall.ENOENT
	}
	return n, nil
}

// dirNode finds a live directory; s.mu is held.
func (s *Session) dirNode(ino uint64) (*inode, error) {
	if s.dead.Load() {
		return nil, syscall.EIO
	}
	n := s.t.nodes[ino]
	if n == nil {
		return nil, syscall.ENOENT
	}
	if !n.isDir() {
		return nil, syscall.ENOTDIR
	}
	return n, nil
}

// attrs reads an inode's attributes; s.mu is held.
func (s *Session) attrs(n *inode) Attr {
	n.live.mu.RLock()
	defer n.live.mu.RUnlock()
	a := n.attr()
	a.Blocks = min(n.ext.pages()+int64(len(n.live.pages)), pagesFor(n.size)) * (PageSize / 512)
	if n.isDir() {
		a.Size = PageSize
	}
	return a
}

// Lookup finds a name and counts one more reference to its inode.
func (s *Session) Lookup(dir uint64, name string) (Attr, error) {
	if len(name) > maxName {
		return Attr{}, syscall.ENAMETOOLONG
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	d, err := s.dirNode(dir)
	if err != nil {
		return Attr{}, err
	}
	ino := uint64(0)
	switch name {
	case ".":
		ino = d.ino
	case "..":
		ino = max(d.parent, Root)
	default:
		if e := d.kids[name]; e != nil {
			ino = e.ino
		}
	}
	n := s.t.nodes[ino]
	if n == nil {
		return Attr{}, syscall.ENOENT
	}
	n.live.lookups.Add(1)
	return s.attrs(n), nil
}

// GetAttr returns an inode's attributes.
func (s *Session) GetAttr(ino uint64) (Attr, error) {
	if s.dead.Load() {
		return Attr{}, syscall.EIO
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := s.t.nodes[ino]
	if n == nil {
		return Attr{}, syscall.ENOENT
	}
	return s.attrs(n), nil
}

// Readlink returns a symbolic link's target.
func (s *Session) Readlink(ino uint64) (string, error) {
	n, err := s.node(ino)
	if err != nil {
		return "", err
	}
	if n.kind != syscall.S_IFLNK {
		return "", syscall.EINVAL
	}
	return n.target, nil
}

// Entry is one name of a directory's listing.
type Entry struct {
	Name   string
	Ino    uint64
	Mode   uint32
	Cookie uint64 // where to go on after this entry
}

// ReadDir calls yield for the entries after cookie (0 at first, . and .. come
// first) until it returns false. An entry that exists all the while is given
// exactly once.
func (s *Session) ReadDir(ino, cookie uint64, yield func(Entry) bool) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n, err := s.dirNode(ino)
	if err != nil {
		return err
	}
	const dots = 2 // cookies 1 and 2 are . and ..
	if cookie < 1 && !yield(Entry{".", n.ino, n.mode, 1}) {
		return nil
	}
	if cookie < 2 && !yield(Entry{"..", max(n.parent, Root), syscall.S_IFDIR, 2}) {
		return nil
	}
	lo, hi := 0, len(n.list)
	for lo < hi {
		mid := (lo + hi) / 2
		if n.list[mid].cookie+dots > cookie {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	for _, e := range n.list[lo:] {
		if e.gone {
			continue
		}
		var mode uint32
		if c := s.t.nodes[e.ino]; c != nil {
			mode = c.mode
		}
		if !yield(Entry{e.name, e.ino, mode, e.cookie + dots}) {
			return nil
		}
	}
	return nil
}

// Forget gives back n references. An inode without names and references is gone.
func (s *Session) Forget(ino, n uint64) {
	s.mu.RLock()
	node := s.t.nodes[ino]
	gone := node != nil && node.live.lookups.Add(-int64(n)) <= 0 && node.nlink == 0
	s.mu.RUnlock()
	if gone {
		s.mu.Lock()
		s.reap(node)
		s.mu.Unlock()
	}
}

// reap drops an inode that nobody can reach; s.mu is held for writing.
func (s *Session) reap(n *inode) {
	if n.nlink > 0 || n.live.lookups.Load() > 0 || s.t.nodes[n.ino] != n {
		return
	}
	n.live.mu.Lock()
	defer n.live.mu.Unlock()
	n.live.dropped = true
	s.freePages(n, func(int64) bool { return true })
	s.used.Add(-n.ext.pages())
	delete(s.t.nodes, n.ino)
	s.logMu.Lock()
	delete(s.staleTimes, n)
	s.logMu.Unlock()
	s.append(&record{op: opDrop, ino: n.ino})
}

// append puts a record at the end of the log and returns its position. The
// inodes that it concerns need it for an fsync to be complete.
func (s *Session) append(r *record, nodes ...*inode) uint64 {
	s.logMu.Lock()
	s.appended++
	seq := s.appended
	s.log = append(s.log, *r)
	s.log[len(s.log)-1].seq = seq
	for _, n := range nodes {
		n.live.syncSeq.Store(seq)
	}
	s.logMu.Unlock()
	s.d.stats.metadata.Add(1)
	return seq
}

// commitSoon marks that an inode's times are to go with the next commit.
func (s *Session) commitSoon(n *inode) {
	if n.live.stale.Load() {
		return
	}
	s.logMu.Lock()
	if !n.live.stale.Swap(true) {
		s.staleTimes[n] = struct{}{}
	}
	s.logMu.Unlock()
}
