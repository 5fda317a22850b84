package disk

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"syscall"
	"time"
)

// When the disk writes back on its own, as ext4 with the kernel's flusher does.
const (
	minDirtyAge    = int64(5 * time.Second)
	maxDirtyAge    = int64(30 * time.Second)
	commitInterval = int64(5 * time.Second)
	// compactAt is the journal size beyond which a snapshot replaces it.
	compactAt = 16 << 20
	// fewPages is up to how many dirty pages an inode keeps the room for them.
	fewPages = 64
)

// scratch holds what a write-back needs for a moment.
type scratch struct {
	idx  []int64
	bufs [][]byte
}

var scratchPool = sync.Pool{New: func() any { return new(scratch) }}

// writeback makes an inode's dirty pages durable and logs what of it is new.
// Overwritten pages are durable at once, new pages and a new size with the next
// commit: data goes before size. live.mu is held.
func (s *Session) writeback(n *inode) error {
	v := n.live
	if len(v.pages) == 0 && n.size == v.logged || v.dropped {
		return nil
	}
	// What an earlier state of the file still needs must not be overwritten
	// before the operation that freed it is durable.
	if s.pending(v, v.frees) {
		if err := s.commitFor(n); err != nil {
			return err
		}
	}
	if len(v.pages) > 0 && s.failing() {
		s.lose(n)
		return errWriteBack
	}
	sc := scratchPool.Get().(*scratch)
	defer scratchPool.Put(sc)
	sc.idx = sc.idx[:0]
	for idx := range v.pages {
		sc.idx = append(sc.idx, idx)
	}
	slices.Sort(sc.idx)
	fresh, err := s.writePages(n, sc)
	if err != nil {
		return err
	}
	if len(fresh) > 0 || n.size != v.logged {
		r := &record{op: opWritten, ino: n.ino, size: n.size, runs: fresh}
		n.applyData(r)
		v.dataSeq.Store(s.append(r, n))
		v.logged = n.size
	}
	if len(sc.idx) > 0 {
		for _, idx := range sc.idx {
			pagePool.Put(v.pages[idx])
		}
		if len(sc.idx) > fewPages {
			v.pages = nil // going through a map takes as long as it ever was
		} else {
			clear(v.pages)
		}
		s.dirtyBytes.Add(-PageSize * int64(len(sc.idx)))
		s.d.stats.writebacks.Add(1)
		s.d.stats.writebackBytes.Add(PageSize * int64(len(sc.idx)))
	}
	s.wroteBack(n)
	s.cleaned(n)
	return nil
}

// writePages writes the pages of sc.idx to the object in runs, and returns the
// runs that it did not hold yet.
func (s *Session) writePages(n *inode, sc *scratch) (fresh extents, err error) {
	s.d.gate.RLock()
	defer s.d.gate.RUnlock()
	if err := s.alive(); err != nil {
		return nil, err
	}
	n.live.runs = 0
	for i := 0; i < len(sc.idx); {
		sc.bufs = sc.bufs[:0]
		first := sc.idx[i]
		j := i
		for ; j < len(sc.idx) && sc.idx[j] == first+int64(j-i) && j-i < 256; j++ {
			sc.bufs = append(sc.bufs, n.live.pages[sc.idx[j]][:])
		}
		if err := s.d.img.WriteAt(n.ino, sc.bufs, first*PageSize); err != nil {
			s.giveBack(n, sc.idx[:j])
			return nil, err
		}
		if r := (run{first, first + int64(j-i)}); !n.ext.has(r) {
			fresh.add(r)
		}
		n.live.runs += (int64(j-i)*PageSize + MaxIO - 1) / MaxIO
		i = j
	}
	return fresh, nil
}

// giveBack frees the space of pages that were written, or begun, in vain: they
// stay dirty, and if the disk is full it is needed for others.
func (s *Session) giveBack(n *inode, pages []int64) {
	var vain extents
	for _, idx := range pages {
		if r := (run{idx, idx + 1}); !n.ext.has(r) {
			vain.add(r)
		}
	}
	for _, r := range vain {
		_ = s.d.img.Discard(n.ino, r.from*PageSize, (r.to-r.from)*PageSize)
	}
}

// commit makes the whole log durable, with the times that changed since.
func (s *Session) commit() error {
	s.logMu.Lock()
	defer s.logMu.Unlock()
	for n := range s.staleTimes {
		n.live.stale.Store(false)
		s.logTimes(n)
	}
	clear(s.staleTimes)
	if len(s.log) == 0 {
		return s.alive()
	}
	s.d.gate.RLock()
	defer s.d.gate.RUnlock()
	if err := s.alive(); err != nil {
		return err
	}
	return s.persist(nil)
}

// logTimes puts an inode's times into the log; logMu is held.
func (s *Session) logTimes(n *inode) {
	s.appended++
	s.log = append(s.log, record{
		op: opAttr, ino: n.ino, mask: setAtime | setMtime | setCtime, seq: s.appended,
		attr: Attr{Atime: n.atime.Load(), Mtime: n.mtime.Load(), Ctime: n.ctime.Load()},
	})
}

// alive returns EIO when nothing may become durable any more.
func (s *Session) alive() error {
	if s.dead.Load() && !s.finishing.Load() {
		return syscall.EIO
	}
	return nil
}

// persist appends the records that keep says, all if it is nil, to the journal
// and applies them to the durable tree. logMu is held, and the gate passed.
func (s *Session) persist(keep []bool) error {
	d := s.d
	s.encode(keep)
	if err := d.img.Append(s.frame); err != nil {
		return fmt.Errorf("commit metadata: %w", err)
	}
	d.journal += int64(len(s.frame))
	d.stats.commits.Add(1)
	d.stats.journalBytes.Add(int64(len(s.frame)))
	// The journal has them: what fails now is only that space is not given back.
	var failed error
	rest := 0
	for i := range s.log {
		if keep != nil && !keep[i] {
			s.log[rest] = s.log[i]
			rest++
			continue
		}
		if err := d.applyDurable(&s.log[i]); err != nil && failed == nil {
			failed = err
		}
		s.ops.clip(&s.log[i])
	}
	clear(s.log[rest:])
	if s.log = s.log[:rest]; rest == 0 {
		s.committed.Store(s.appended)
		s.ops.committed()
	} else {
		s.committed.Store(s.log[0].seq - 1)
	}
	if cap(s.frame) > 1<<20 {
		s.frame = nil
	}
	if d.journal > compactAt && d.journal > 8*int64(len(d.durable.nodes))*100 && failed == nil {
		failed = d.compact()
	}
	return failed
}

// encode puts the records that keep says into s.frame; logMu is held.
func (s *Session) encode(keep []bool) {
	s.frame = s.frame[:0]
	start := -1
	for i := range s.log {
		if keep != nil && !keep[i] {
			continue
		}
		if start < 0 {
			start = len(s.frame)
			s.frame = beginFrame(s.frame)
		}
		s.frame = appendRecord(s.frame, &s.log[i])
		if len(s.frame)-start >= maxFrame/2 {
			s.frame = endFrame(s.frame, start)
			start = -1
		}
	}
	if start >= 0 {
		s.frame = endFrame(s.frame, start)
	}
}

// applyDurable applies a committed record and gives back the space it frees.
func (d *Disk) applyDurable(r *record) error {
	var freed extents
	switch r.op {
	case opTruncate:
		if n := d.durable.nodes[r.ino]; n != nil && len(n.ext) > 0 {
			freed.add(run{pagesFor(r.size), n.ext[len(n.ext)-1].to})
		}
	case opPunch:
		freed = r.runs
	}
	if err := d.durable.apply(r); err != nil {
		return fmt.Errorf("commit metadata: %w", err)
	}
	for _, e := range freed {
		if err := d.img.Discard(r.ino, e.from*PageSize, (e.to-e.from)*PageSize); err != nil {
			return fmt.Errorf("discard: %w", err)
		}
	}
	if r.op == opDrop {
		if err := d.img.Remove(r.ino); err != nil {
			return fmt.Errorf("remove object: %w", err)
		}
	}
	return nil
}

// Fsync makes a file or directory durable by ext4's rules: its data, and then
// the whole log if any of it concerns the inode. With dataOnly (fdatasync) only
// what is needed to find the data again counts, so that overwriting in place
// needs no commit.
func (s *Session) Fsync(ino uint64, dataOnly bool) error {
	n, err := s.node(ino)
	if err != nil {
		return err
	}
	switch {
	case n.isDir():
		s.d.stats.dirFsyncs.Add(1)
	case dataOnly:
		s.d.stats.fdatasyncs.Add(1)
	default:
		s.d.stats.fsyncs.Add(1)
	}
	if s.d.lying() {
		return s.alive()
	}
	v := n.live
	v.mu.Lock()
	err = s.writeback(n)
	v.mu.Unlock()
	if v.failed.Load() && v.failed.Swap(false) && err == nil {
		err = errWriteBack // of a write-back before
	}
	if err != nil {
		return err
	}
	need := v.dataSeq.Load()
	if !dataOnly {
		need = max(need, v.syncSeq.Load())
	}
	if s.pending(v, need) || !dataOnly && v.stale.Load() {
		return s.commitFor(n)
	}
	return s.alive()
}

// Sync makes everything durable that was done before, whatever the policy.
func (s *Session) Sync() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.syncAll()
}

// syncAll is Sync with s.mu held for writing.
func (s *Session) syncAll() error {
	if s.dead.Load() && !s.finishing.Load() {
		return syscall.EIO
	}
	s.syncing.Store(s.d.lying())
	for _, n := range s.dirtyNodes() {
		n.live.mu.Lock()
		err := s.writebackLater(n)
		n.live.mu.Unlock()
		if err != nil {
			return err
		}
	}
	if err := s.commit(); err != nil {
		return err
	}
	s.syncing.Store(false)
	s.logMu.Lock()
	s.ops.committed()
	s.logMu.Unlock()
	return nil
}

// finish brings a destage to its end that a cut interrupted. A lying disk
// destages all or nothing: half of it would be a mixture that never was.
func (s *Session) finish() error {
	s.finishing.Store(true)
	defer s.finishing.Store(false)
	return s.Sync()
}

// dirtyNodes returns the inodes with dirty pages, the longest due first.
func (s *Session) dirtyNodes() []*inode {
	s.dirtyMu.Lock()
	nodes := make([]*inode, 0, len(s.dirty))
	due := make(map[*inode]int64, len(s.dirty))
	for n := range s.dirty {
		nodes = append(nodes, n)
		due[n] = n.live.due
	}
	s.dirtyMu.Unlock()
	slices.SortFunc(nodes, func(a, b *inode) int {
		if d := due[a] - due[b]; d != 0 {
			return int(d>>1) | 1
		}
		return int(int64(a.ino) - int64(b.ino))
	})
	return nodes
}

// Tick lets time pass: background write-back of what was dirty for 5 to 30 s,
// and a journal commit every 5 s. A lying disk destages everything in order
// every 5 s instead.
func (s *Session) Tick(now int64) error {
	s.now.Store(now)
	s.logMu.Lock()
	due := now-s.lastCommit >= commitInterval
	if due {
		s.lastCommit = now
	}
	s.logMu.Unlock()
	if s.d.lying() {
		if due {
			return s.Sync()
		}
		return s.alive()
	}
	s.dirtyMu.Lock()
	var nodes []*inode
	for n := range s.dirty {
		if n.live.due <= now {
			nodes = append(nodes, n)
		}
	}
	s.dirtyMu.Unlock()
	slices.SortFunc(nodes, func(a, b *inode) int { return int(int64(a.ino) - int64(b.ino)) })
	for _, n := range nodes {
		if err := s.writebackNode(n); err != nil {
			return err
		}
	}
	if due {
		return s.commit()
	}
	return s.alive()
}

func (s *Session) writebackNode(n *inode) error {
	n.live.mu.Lock()
	defer n.live.mu.Unlock()
	pages := len(n.live.pages)
	err := s.writebackLater(n)
	s.d.stats.backOps.Add(n.live.runs)
	s.d.stats.backBytes.Add(int64(pages) * PageSize)
	n.live.runs = 0
	return err
}

// DirtyPages is how much an fsync of the inode would have to write, in pages;
// very much while somebody else writes it back. It does not wait.
func (s *Session) DirtyPages(ino uint64) int {
	n, err := s.node(ino)
	if err != nil {
		return 0
	}
	if !n.live.mu.TryRLock() {
		return math.MaxInt
	}
	defer n.live.mu.RUnlock()
	return len(n.live.pages)
}

// Full says whether the next write has to wait for write-back.
func (s *Session) Full() bool {
	return max(s.dirtyBytes.Load(), s.ops.bytes.Load()) > s.d.limit.Load()
}

// reclaim writes back until a quarter of the dirty limit is free again. One
// writer does it, the others wait: that is the back-pressure.
func (s *Session) reclaim() error {
	s.reclaimMu.Lock()
	defer s.reclaimMu.Unlock()
	limit := s.d.limit.Load()
	if !s.Full() {
		return nil
	}
	s.d.stats.stalls.Add(1)
	if s.d.lying() || s.ops.on.Load() {
		return s.Sync()
	}
	for _, n := range s.dirtyNodes() {
		if s.dirtyBytes.Load() <= limit*3/4 {
			break
		}
		if err := s.writebackNode(n); err != nil {
			return err
		}
	}
	return nil
}
