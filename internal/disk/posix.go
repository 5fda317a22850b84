package disk

import (
	"fmt"
	"maps"
)

// Profile says by which file system's rules something becomes durable.
type Profile string

const (
	// Ext4 commits metadata in order: an fsync that needs the journal makes
	// every earlier operation durable, names too.
	Ext4 Profile = "ext4"
	// Posix promises no more than the standard: an fsync of a file makes its
	// data, size and attributes durable, its name only an fsync of the directory.
	Posix Profile = "posix"
)

// Profiles returns all profiles, the default first.
func Profiles() []Profile { return []Profile{Ext4, Posix} }

// ParseProfile checks a profile's name; an empty one is Ext4.
func ParseProfile(s string) (Profile, error) {
	switch p := Profile(s); p {
	case "", Ext4:
		return Ext4, nil
	case Posix:
		return p, nil
	}
	return "", fmt.Errorf("unknown profile %q: use %s or %s", s, Ext4, Posix)
}

// entryKey is a place for a name.
type entryKey struct {
	dir  uint64
	name string
}

// needs collects what the records that are kept require of earlier ones. It is
// filled from the log's end to its beginning, so that what is in it concerns
// earlier records only.
type needs struct {
	entries map[entryKey]bool
	exists  map[uint64]bool // the inode has been made
	inode   map[uint64]bool // all that changed the inode itself
	whole   map[uint64]bool // all that concerns the inode, names in it too
	named   map[uint64]bool // all that leads to the directory
	moves   bool            // moves of directories, which together could make a ring
}

// meets says whether r is among what is needed.
func (n *needs) meets(r *record) bool {
	if n.whole[r.ino] && r.op != opDrop {
		return true
	}
	switch r.op {
	case opCreate:
		return n.exists[r.ino] || n.inode[r.ino]
	case opLink:
		return n.entries[entryKey{r.dir, r.name}] || n.whole[r.dir] || n.named[r.ino]
	case opUnlink, opRmdir:
		return n.entries[entryKey{r.dir, r.name}] || n.whole[r.dir]
	case opRename:
		return n.entries[entryKey{r.dir, r.name}] || n.entries[entryKey{r.dir2, r.name2}] ||
			n.whole[r.dir] || n.whole[r.dir2] || n.whole[r.old()] || n.moves && r.moves ||
			n.named[r.ino] || n.named[r.old()] && r.mask&RenameExchange != 0
	case opAttr, opTruncate, opPunch, opWritten:
		return n.inode[r.ino]
	}
	return false
}

// add takes in what r requires.
func (n *needs) add(r *record) {
	switch r.op {
	case opCreate:
	case opLink:
		n.entries[entryKey{r.dir, r.name}] = true
		n.exists[r.ino], n.exists[r.dir] = true, true
		if n.named[r.ino] {
			n.named[r.dir] = true
		}
	case opUnlink:
		n.entries[entryKey{r.dir, r.name}] = true
		n.exists[r.dir] = true
	case opRmdir:
		n.entries[entryKey{r.dir, r.name}] = true
		n.exists[r.dir], n.whole[r.ino] = true, true
	case opRename:
		n.addRename(r)
	case opDrop:
		n.whole[r.ino] = true
	default:
		n.inode[r.ino] = true
	}
}

// addRename also requires that what had a name is never moved to where no name
// leads: a rename from one directory to another needs the other's own name.
func (n *needs) addRename(r *record) {
	exchange := r.mask&RenameExchange != 0
	n.entries[entryKey{r.dir, r.name}], n.entries[entryKey{r.dir2, r.name2}] = true, true
	n.exists[r.dir], n.exists[r.dir2] = true, true
	n.moves = n.moves || r.moves
	if r.dir != r.dir2 || n.named[r.ino] {
		n.named[r.dir2] = true
	}
	if exchange && (r.dir != r.dir2 || n.named[r.old()]) {
		n.named[r.dir] = true
	}
	if !exchange && r.old() != 0 {
		n.whole[r.old()] = true
	}
}

// closure adds to the records of the log that are to be kept those that they
// cannot do without. What is left out can be applied later: it commutes with
// all that is kept.
func (t *tree) closure(log []record, keep []bool) {
	lost := map[uint64]bool{} // durable directories without a name that need one
	for again := true; again; {
		n := needs{
			entries: map[entryKey]bool{}, exists: map[uint64]bool{}, inode: map[uint64]bool{}, whole: map[uint64]bool{}, named: maps.Clone(lost),
		}
		for i := len(log) - 1; i >= 0; i-- {
			if keep[i] || n.meets(&log[i]) {
				keep[i] = true
				n.add(&log[i])
			}
		}
		again = false
		for ino := range n.named {
			if top := t.top(ino); top != Root && !lost[top] {
				lost[top], again = true, true
			}
		}
	}
}

// top is the directory that a durable path to the directory begins at: the root,
// or one that has no name.
func (t *tree) top(ino uint64) uint64 {
	for n := t.nodes[ino]; n != nil && n.nlink > 0 && ino != Root; n = t.nodes[ino] {
		ino = n.parent
	}
	return ino
}

// flushes says whether an fsync of the inode is to make r durable: what changed
// the inode itself and, of a directory, the names in it.
func (r *record) flushes(ino uint64) bool {
	switch r.op {
	case opLink, opUnlink, opRmdir:
		return r.dir == ino
	case opRename:
		return r.dir == ino || r.dir2 == ino
	case opDrop:
		return false
	}
	return r.ino == ino
}

// commitInode makes durable what an fsync of n promises by the rules of Posix.
func (s *Session) commitInode(n *inode) error {
	s.logMu.Lock()
	defer s.logMu.Unlock()
	if n.live.stale.Swap(false) {
		delete(s.staleTimes, n)
		s.logTimes(n)
	}
	keep, some := make([]bool, len(s.log)), false
	for i := range s.log {
		keep[i] = s.log[i].flushes(n.ino)
		some = some || keep[i]
	}
	if !some {
		n.live.done.Store(s.appended)
		return s.alive()
	}
	s.d.durable.closure(s.log, keep)
	s.d.gate.RLock()
	defer s.d.gate.RUnlock()
	if err := s.alive(); err != nil {
		return err
	}
	if err := s.persist(keep); err != nil {
		return err
	}
	n.live.done.Store(s.appended)
	n.live.kept()
	return nil
}

// commitFor makes durable what of the log an fsync of n needs.
func (s *Session) commitFor(n *inode) error {
	if s.d.profile == Posix {
		return s.commitInode(n)
	}
	return s.commit()
}

// pending says whether the log at position seq, of what concerns the inode, is
// not durable yet.
func (s *Session) pending(v *live, seq uint64) bool {
	return seq > s.committed.Load() && seq > v.done.Load()
}

// blocked says whether a record up to position seq that frees pages of n is not
// durable. It must be asked after a crash policy has kept what it keeps.
func (s *Session) blocked(n *inode, seq uint64) bool {
	if s.d.profile != Posix {
		return s.pending(n.live, seq)
	}
	for i := range s.log {
		if r := &s.log[i]; r.ino == n.ino && r.seq <= seq && (r.op == opTruncate || r.op == opPunch) {
			return true
		}
	}
	return false
}
