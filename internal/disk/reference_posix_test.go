package disk

import "maps"

// refRec is a metadata operation that is not durable yet, with what the rules of
// Posix need to know of it.
type refRec struct {
	f       func(refTree)
	at      int          // position in the log
	wb      bool         // by write-back, not by a program
	inode   uint64       // changes this inode itself
	made    uint64       // makes this inode
	uses    []uint64     // inodes that must exist
	entries []entryKey   // places for names that it changes
	leads   [][2]uint64  // inode, directory: a name for the one in the other
	ends    uint64       // a directory or inode that is gone after it
	moves   bool         // a directory from one directory to another
	between bool         // from one directory to another
	clip    func(*refOp) // undoes a part of earlier writes
}

func (r *refRec) in(dir uint64) bool {
	for _, e := range r.entries {
		if e.dir == dir {
			return true
		}
	}
	return false
}

func (r *refRec) leadsTo(ino uint64) bool {
	for _, l := range r.leads {
		if l[0] == ino {
			return true
		}
	}
	return false
}

// concerns says whether r has anything to do with an inode.
func (r *refRec) concerns(ino uint64) bool {
	return r.inode == ino || r.made == ino || r.in(ino) || r.leadsTo(ino) || r.touches(ino)
}

func (r *refRec) touches(ino uint64) bool {
	for _, u := range r.uses {
		if u == ino {
			return true
		}
	}
	return false
}

// after says whether b cannot be durable without the earlier a. reach are
// directories to which a path must lead for b's sake.
func after(b, a *refRec, reach map[uint64]bool) bool {
	for _, x := range b.entries {
		for _, y := range a.entries {
			if x == y {
				return true
			}
		}
	}
	if a.made != 0 && (b.inode == a.made || b.touches(a.made) || b.in(a.made)) {
		return true
	}
	if a.inode != 0 && a.inode == b.inode || b.ends != 0 && a.concerns(b.ends) || a.moves && b.moves {
		return true
	}
	for ino := range reach {
		if a.leadsTo(ino) {
			return true
		}
	}
	return false
}

// paths says to which directories a path must lead when r is kept, given that
// one must lead to those of reach.
func (r *refRec) paths(reach map[uint64]bool) map[uint64]bool {
	out := map[uint64]bool{}
	for ino := range reach {
		out[ino] = true
	}
	for _, l := range r.leads {
		if r.between || reach[l[0]] {
			out[l[1]] = true
		}
	}
	return out
}

// closed adds what the kept records cannot do without, one by one until nothing
// is missing.
func (r *reference) closed(keep []bool) {
	log := r.pending
	reach := make([]map[uint64]bool, len(log))
	nameless := map[uint64]bool{} // durable directories that begin a path to one of reach
	for changed := true; changed; {
		changed = false
		for i, b := range log {
			if !keep[i] {
				continue
			}
			// What b's own kept successors want to be reached through b.
			want := maps.Clone(nameless)
			for j := i + 1; j < len(log); j++ {
				maps.Copy(want, reach[j])
			}
			now := b.paths(want)
			if len(now) != len(reach[i]) {
				reach[i], changed = now, true
			}
			for j, a := range log[:i] {
				if !keep[j] && after(b, a, now) {
					keep[j], changed = true, true
				}
			}
			for ino := range now {
				if n := r.nameless(ino); n != 0 && !nameless[n] {
					nameless[n], changed = true, true
				}
			}
		}
		for j, a := range log {
			for ino := range nameless {
				if !keep[j] && a.leadsTo(ino) {
					keep[j], changed = true, true
				}
			}
		}
	}
}

// nameless returns the directory above ino, or itself, that is durable without a
// name; 0 if the root is above it.
func (r *reference) nameless(ino uint64) uint64 {
	for ino != Root {
		n := r.durable[ino]
		switch {
		case n == nil:
			return ino // not made yet: what makes it also says where it is
		case n.nlink == 0:
			return ino
		}
		ino = n.parent
	}
	return 0
}

// commitInode makes durable what an fsync of an inode promises under Posix.
func (r *reference) commitInode(ino uint64) {
	keep := make([]bool, len(r.pending))
	for i, p := range r.pending {
		keep[i] = p.inode == ino || p.made == ino || p.in(ino)
	}
	r.closed(keep)
	r.keep(keep)
	r.done[ino] = r.appended
	delete(r.stale, ino)
	r.dropOps(ino)
}

// keep applies some of the pending records to the durable tree.
func (r *reference) keep(keep []bool) {
	var left []*refRec
	for i, p := range r.pending {
		if !keep[i] {
			left = append(left, p)
			continue
		}
		p.f(r.durable)
		r.clipOps(p)
	}
	r.pending = left
	if len(left) == 0 {
		r.committed = r.appended
	}
}

// behind says whether the log up to a position is not durable for an inode.
func (r *reference) behind(ino uint64, at int) bool {
	if at <= r.committed || at <= r.done[ino] {
		return false
	}
	return !r.posix || len(r.pending) > 0 && r.pending[0].at <= at
}
