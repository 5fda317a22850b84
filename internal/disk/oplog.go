package disk

import (
	"slices"
	"sync/atomic"
)

// dataOp is one change of a file's bytes in the order of all operations: b at
// off, or zeros where b is nil.
type dataOp struct {
	n     *inode
	id    uint64
	after uint64 // position of the last record of the log before it
	off   int64
	zeros int64
	b     []byte
}

// opLog remembers what was written, in order, until it is durable: for the crash
// policies that keep a prefix of the operations. Under others it is off.
type opLog struct {
	on    atomic.Bool
	ops   []dataOp // guarded by the session's logMu, as is all but on and bytes
	last  uint64
	bytes atomic.Int64
	wrote map[*inode]struct{} // written back, and perhaps not durable
}

// written remembers a change; n's live.mu is held.
func (s *Session) written(n *inode, b []byte, off, zeros int64) {
	if !s.ops.on.Load() {
		return
	}
	b = slices.Clone(b)
	s.logMu.Lock()
	defer s.logMu.Unlock()
	s.ops.last++
	s.ops.ops = append(s.ops.ops, dataOp{n: n, id: s.ops.last, after: s.appended, off: off, zeros: zeros, b: b})
	s.ops.bytes.Add(int64(len(b)))
}

// wroteBack remembers that all that was written to n so far has been written
// back, and is durable if the log is; n's live.mu is held.
func (s *Session) wroteBack(n *inode) {
	if !s.ops.on.Load() {
		return
	}
	s.logMu.Lock()
	defer s.logMu.Unlock()
	n.live.wbOp = s.ops.last
	if s.pending(n.live, n.live.dataSeq.Load()) {
		s.ops.wrote[n] = struct{}{}
	} else {
		n.live.kept()
	}
}

// kept marks what was written back as durable.
func (v *live) kept() { v.durOp.Store(v.wbOp) }

// committed is told that the whole log is durable; logMu is held.
func (l *opLog) committed() {
	if !l.on.Load() {
		return
	}
	for n := range l.wrote {
		n.live.kept()
	}
	clear(l.wrote)
	l.ops = slices.DeleteFunc(l.ops, func(o dataOp) bool {
		done := o.id <= o.n.live.durOp.Load()
		if done {
			l.bytes.Add(-int64(len(o.b)))
		}
		return done
	})
}

// clip takes from the operations before r, which is durable now, what r undid.
func (l *opLog) clip(r *record) {
	if !l.on.Load() || r.op != opTruncate && r.op != opPunch {
		return
	}
	holes := []run{{r.size, maxSize}} // in bytes
	if r.op == opPunch {
		holes = make([]run, len(r.runs))
		for i, e := range r.runs {
			holes[i] = run{e.from * PageSize, e.to * PageSize}
		}
	}
	for _, h := range holes {
		left := make([]dataOp, 0, len(l.ops))
		for _, o := range l.ops {
			end := o.off + int64(len(o.b))
			if o.n.ino != r.ino || o.after >= r.seq || o.b == nil || end <= h.from || o.off >= h.to {
				left = append(left, o)
				continue
			}
			if o.off < h.from {
				head := o
				head.b = o.b[:h.from-o.off]
				left = append(left, head)
			}
			if end > h.to {
				tail := o
				tail.off, tail.b = h.to, o.b[h.to-o.off:]
				left = append(left, tail)
			}
			l.bytes.Add(-(min(end, h.to) - max(o.off, h.from)))
		}
		l.ops = left
	}
}

// record switches the operation log on or off. What was written before it is on
// becomes durable first: its order is not known.
func (s *Session) record(on bool) error {
	if s.ops.on.Load() == on {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if on {
		if err := s.syncAll(); err != nil {
			return err
		}
	}
	s.logMu.Lock()
	defer s.logMu.Unlock()
	s.ops.on.Store(on)
	s.ops.ops, s.ops.wrote = nil, map[*inode]struct{}{}
	s.ops.bytes.Store(0)
	return nil
}

// step is one operation of a prefix: a record of the log, or a change of data.
type step struct {
	r *record
	o *dataOp
}

// steps returns what is not durable, in the order in which it was done; logMu is
// held. Write-back is no operation of its own, nor are the parts of one that
// data and log both have.
func (s *Session) steps() []step {
	var all []step
	next := 0
	data := func(before uint64) {
		for ; next < len(s.ops.ops) && s.ops.ops[next].after < before; next++ {
			if o := &s.ops.ops[next]; o.id > o.n.live.durOp.Load() {
				all = append(all, step{o: o})
			}
		}
	}
	for i := range s.log {
		r := &s.log[i]
		data(r.seq)
		if r.op != opWritten && r.op != opPunch {
			all = append(all, step{r: r})
		}
	}
	data(^uint64(0))
	return all
}

// crashPrefix keeps a random number of the first operations; with torn, also
// the first sectors of a write that follows them. They are done again on what
// is durable.
func (d *Disk) crashPrefix(s *Session, torn bool, lost *Dropped) error {
	if !s.ops.on.Load() {
		return nil
	}
	steps := s.steps()
	count := int(d.random() % uint64(len(steps)+1))
	sectors := int64(0)
	if torn {
		count, sectors = d.tear(steps, count)
	}
	again := newSession(d, d.durable.clone(), s.now.Load())
	again.redoing = true
	for i, st := range steps {
		o := st.o
		if i == count && sectors > 0 {
			cut := *o
			cut.b = o.b[:(o.off/SectorSize+sectors)*SectorSize-o.off]
			o = &cut
		} else if i >= count {
			break
		}
		if err := again.redo(st.r, o); err != nil {
			return err
		}
		if o != nil {
			lost.Kept += int64(len(o.b))
		} else {
			lost.Operations--
		}
	}
	lost.Kept = min(lost.Kept, lost.Bytes)
	return again.Sync()
}

// tear chooses a write of more than one sector to be cut in its middle, and
// after how many sectors; the first one from count on, or else the last before.
func (d *Disk) tear(steps []step, count int) (at int, sectors int64) {
	long := func(st step) bool { return st.o != nil && spans(st.o.off, int64(len(st.o.b))) > 1 }
	at = slices.IndexFunc(steps[count:], long) + count
	if at < count {
		for at = count - 1; at >= 0 && !long(steps[at]); at-- {
		}
	}
	if at < 0 {
		return count, 0
	}
	o := steps[at].o
	return at, 1 + int64(d.random()%uint64(spans(o.off, int64(len(o.b)))-1))
}

// spans is how many sectors n bytes at off touch.
func spans(off, n int64) int64 {
	if n == 0 {
		return 0
	}
	return (off+n-1)/SectorSize - off/SectorSize + 1
}

// redo does one operation again in a session that nobody else has.
func (s *Session) redo(r *record, o *dataOp) error {
	now := s.now.Load()
	if o != nil {
		n := s.t.nodes[o.n.ino]
		if n == nil {
			return nil
		}
		if o.b == nil {
			return s.punch(n, o.off, o.off+o.zeros)
		}
		return s.Write(n.ino, o.b, o.off, now)
	}
	if r.op == opTruncate {
		return s.resize(s.t.nodes[r.ino], r.size, now)
	}
	if n := s.t.nodes[r.ino]; r.op == opDrop && n != nil {
		n.live.dropped = true
		s.freePages(n, func(int64) bool { return true })
		delete(s.staleTimes, n)
	}
	if err := s.t.apply(r); err != nil {
		return err
	}
	if n := s.t.nodes[r.ino]; n != nil && n.live == nil {
		n.live = &live{logged: n.size}
	}
	s.append(r)
	return nil
}
