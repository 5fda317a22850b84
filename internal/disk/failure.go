package disk

import (
	"errors"
	"fmt"
	"syscall"
)

// errWriteBack is a write-back that was made to fail; what it was to write is lost.
var errWriteBack = fmt.Errorf("write back: %w", syscall.EIO)

// FailWriteBacks lets the next n write-backs of a file fail with EIO, once each,
// as Linux does: the pages then count as clean and are lost, and a later fsync
// finds nothing to write and succeeds. An fsync is told of its own failure, and
// once of one that happened in the background before it. Power on ends it.
func (d *Disk) FailWriteBacks(n int64) { d.fail.Store(n) }

// failing takes one of the failures that are asked for.
func (s *Session) failing() bool {
	for !s.redoing {
		n := s.d.fail.Load()
		if n <= 0 {
			return false
		}
		if s.d.fail.CompareAndSwap(n, n-1) {
			return true
		}
	}
	return false
}

// lose drops an inode's dirty pages; live.mu is held.
func (s *Session) lose(n *inode) {
	s.d.stats.failedWritebacks.Add(1)
	s.d.stats.failedBytes.Add(PageSize * int64(len(n.live.pages)))
	s.freePages(n, func(int64) bool { return true })
	if !s.ops.on.Load() {
		return
	}
	s.logMu.Lock()
	n.live.wbOp = s.ops.last
	n.live.kept()
	s.logMu.Unlock()
}

// writebackLater is a write-back that no fsync waits for: the next one is told
// of its failure. live.mu is held.
func (s *Session) writebackLater(n *inode) error {
	err := s.writeback(n)
	if errors.Is(err, errWriteBack) {
		n.live.failed.Store(true)
		return nil
	}
	return err
}

// SetSpace bounds the bytes that files may take, in whole pages; 0 is no bound.
// Names and directories take none.
func (d *Disk) SetSpace(bytes int64) { d.space.Store(bytes / PageSize) }

// Space returns the bound and how much of it is taken, in bytes. What is taken
// is known only while the disk is on.
func (d *Disk) Space() (bound, taken int64) {
	if s := d.session.Load(); s != nil {
		taken = s.used.Load() * PageSize
	}
	return d.space.Load() * PageSize, taken
}

// take reserves space for the pages of [off, off+size) that the file has neither
// on the disk nor dirty, so that what a write accepts can be written back.
// live.mu is held.
func (s *Session) take(n *inode, off, size int64) error {
	var need int64
	for idx := off / PageSize; idx < pagesFor(off+size); idx++ {
		if n.live.pages[idx] == nil && !n.ext.has(run{idx, idx + 1}) {
			need++
		}
	}
	if need == 0 {
		return nil
	}
	bound := s.d.space.Load()
	if s.used.Add(need) > bound && bound > 0 && !s.redoing {
		s.used.Add(-need)
		s.d.stats.fulls.Add(1)
		return syscall.ENOSPC
	}
	return nil
}

// changeExtents applies a record that may take pages from an inode without dirty
// pages there, and gives their space back; live.mu is held.
func (s *Session) changeExtents(n *inode, r *record) {
	before := n.ext.pages()
	n.applyData(r)
	s.used.Add(n.ext.pages() - before)
}
