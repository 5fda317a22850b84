package disk

import (
	"maps"
	"slices"
)

// crash applies the crash policy to a dead session, with power held. What
// it keeps is durable afterwards. objects are those that may be left without an
// inode.
func (d *Disk) crash(s *Session) (lost Dropped, objects []uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logMu.Lock()
	defer s.logMu.Unlock()
	lost = Dropped{Bytes: s.dirtyBytes.Load(), Operations: int64(len(s.log))}
	switch p := d.Policy(); p {
	case RandomSectors:
		err = d.crashRandom(s, &lost)
	case OperationPrefix, TornWrite:
		err = d.crashPrefix(s, p == TornWrite, &lost)
	}
	if err != nil {
		return lost, nil, err
	}
	for ino := range s.t.nodes {
		if d.durable.nodes[ino] == nil {
			objects = append(objects, ino)
		}
	}
	for i := range s.log {
		if s.log[i].op == opDrop {
			objects = append(objects, s.log[i].ino)
		}
	}
	d.stats.droppedBytes.Add(lost.Bytes - lost.Kept)
	d.stats.droppedOps.Add(lost.Operations)
	return lost, objects, nil
}

// crashRandom keeps a random prefix of the log, since the journal is written in
// order (by the rules of Posix any operations that do not need each other), and of the pages that overwrite durable ones any sectors, since those
// are not ordered among each other. New pages without their commit are not
// reachable, so none are kept.
func (d *Disk) crashRandom(s *Session, lost *Dropped) error {
	if len(s.log) > 0 {
		keep := d.crashLog(s)
		d.kept = keep
		for _, k := range keep {
			if k {
				lost.Operations--
			}
		}
		if lost.Operations < int64(len(s.log)) {
			if err := s.persist(keep); err != nil {
				return err
			}
		}
	}
	s.dirtyMu.Lock()
	nodes := slices.SortedFunc(maps.Keys(s.dirty), func(a, b *inode) int { return int(int64(a.ino) - int64(b.ino)) })
	s.dirtyMu.Unlock()
	for _, n := range nodes {
		kept, err := d.crashPages(s, n)
		if err != nil {
			return err
		}
		lost.Kept += kept
	}
	return nil
}

// crashLog chooses which records of the log are kept.
func (d *Disk) crashLog(s *Session) []bool {
	keep := make([]bool, len(s.log))
	count := int(d.random() % uint64(len(s.log)+1))
	if d.profile != Posix {
		for i := range count {
			keep[i] = true
		}
		return keep
	}
	for i := range keep {
		keep[i] = int(d.random()%uint64(len(keep))) < count
	}
	d.durable.closure(s.log, keep)
	return keep
}

func (d *Disk) crashPages(s *Session, n *inode) (kept int64, err error) {
	n.live.mu.Lock()
	defer n.live.mu.Unlock()
	to := d.durable.nodes[n.ino]
	if to == nil || s.blocked(n, n.live.frees) {
		return 0, nil
	}
	for _, idx := range slices.Sorted(maps.Keys(n.live.pages)) {
		if !to.ext.has(run{idx, idx + 1}) {
			continue
		}
		mask := d.random()
		for i := range PageSize / SectorSize {
			if mask>>i&1 == 0 {
				continue
			}
			at := i * SectorSize
			if err := d.img.WriteAt(n.ino, [][]byte{n.live.pages[idx][at : at+SectorSize]}, idx*PageSize+int64(at)); err != nil {
				return kept, err
			}
			kept += SectorSize
		}
	}
	return kept, nil
}
