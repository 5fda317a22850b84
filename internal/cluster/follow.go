package cluster

import (
	"slices"
	"time"
)

// This file makes a node follow the named primary, rebuilding its directory
// where that cannot be done otherwise.

type following struct {
	epoch        Epoch // the epoch for which Follow was asked; 0: none
	rewindFailed bool
	retryAt      time.Duration
	loneAt       time.Duration // since when no stream is seen; 0: there is one
}

type rebuild uint8

const (
	rebuildNone rebuild = iota
	rebuildRewind
	rebuildClone
)

// mayFollow says whether the register, as read, names somebody that the
// promise allows us to follow.
func (m *machine) mayFollow() bool {
	n, member := m.reg.Node(m.cfg.Self)
	return m.known && m.pgKnown && member && !n.Fenced && !m.reg.Electing() && m.reg.Primary.Node != m.cfg.Self &&
		m.reg.Epoch >= m.promise && m.heard <= m.reg.Epoch
}

func (m *machine) followStep() {
	if m.cfg.Witness {
		return
	}
	if m.rec.epoch != 0 && m.known && m.reg.Named >= m.rec.epoch {
		m.rec, m.cutWell = recruiting{}, false // that election is over
	}
	if !m.mayFollow() || m.op.id != 0 || m.destroyV != 0 {
		return
	}
	if want := m.wantsRebuild(); want != rebuildNone {
		if m.mayRebuild() || m.is(RecloneInS) {
			m.askRebuild(want)
			return
		}
		m.mark(MarkRebuildRefused)
		if m.astray() {
			return // it cannot follow as it is: the primary takes us out of S first
		}
		m.announceRebuild() // and it goes on confirming until it is out of S
	}
	if m.follow.epoch != m.reg.Epoch || !m.pg.Running {
		if m.now < m.follow.retryAt {
			return
		}
		if id := m.begin(opFollow); id != 0 {
			m.follow.epoch = m.reg.Epoch
			m.mark(MarkFollow)
			m.emit(Follow{ID: id, Upstream: m.reg.Primary, Epoch: m.reg.Epoch, Name: m.self()})
		}
		return
	}
	switch {
	case m.pg.Upstream != "":
		m.follow.loneAt = 0
	case m.follow.loneAt == 0:
		m.follow.loneAt = max(m.now, 1)
	case m.now-m.follow.loneAt > m.cfg.Timing.Retry:
		m.follow.epoch, m.follow.loneAt = 0, 0 // the reload may not have acted: ask again
	}
	m.standbySSN()
}

// standbySSN keeps the permit of a member that may be promoted within S, so
// that it acts from its first commit on.
func (m *machine) standbySSN() {
	if !m.reg.InS(m.self()) {
		return
	}
	if x := m.steady(); !m.sync.is(x) {
		m.setSSN(x)
	} else {
		m.retrySSN()
	}
}

// astray says whether the directory can follow nobody as it is.
func (m *machine) astray() bool {
	_, common, diverged := Locate(m.reg.Chain, m.pg.History, m.pg.End)
	return common == 0 || diverged
}

// mayRebuild says whether the directory may be thrown away, by the register as
// last read: S does not name it, and cannot come to name it meanwhile. It could,
// while it streams well; so then the register has to say first that it is to be
// rebuilt, and no primary adds such a member.
func (m *machine) mayRebuild() bool {
	if !m.pg.Exists {
		return true
	}
	n, _ := m.reg.Node(m.cfg.Self)
	return !m.reg.InS(m.self()) && (n.Reinit || n.Rebuild || m.astray())
}

// announceRebuild has the register say that this directory is to be rebuilt once
// the rest of S is enough.
func (m *machine) announceRebuild() {
	n, _ := m.reg.Node(m.cfg.Self)
	if n.Reinit || n.Rebuild || m.now < m.askedAt || len(m.orders) > 0 {
		return
	}
	m.askedAt = m.now + m.cfg.Timing.Retry
	m.orders = append(slices.Clip(m.orders), Command{Kind: rebuildSelf, Node: m.cfg.Self})
}

// wantsRebuild says what has to be done to the directory before it can follow.
func (m *machine) wantsRebuild() rebuild {
	if !m.pg.Exists || m.disk.Incarnation != m.pg.Incarnation {
		return rebuildClone
	}
	if n, _ := m.reg.Node(m.cfg.Self); n.Reinit && !m.rebuilt {
		return rebuildClone
	}
	_, common, diverged := Locate(m.reg.Chain, m.pg.History, m.pg.End)
	switch {
	case common == 0, m.pg.NeedsClone:
		return rebuildClone
	case diverged && m.follow.rewindFailed:
		return rebuildClone
	case diverged:
		return rebuildRewind
	case m.pg.Replayable < m.pg.End:
		return rebuildClone
	}
	return rebuildNone
}

// askRebuild has the wish confirmed by a read that began after it: WAL of a
// member of S is never thrown away.
func (m *machine) askRebuild(r rebuild) {
	if m.now < m.askedAt {
		return
	}
	m.askedAt = m.now + m.cfg.Timing.Heartbeat
	m.destroyV, m.destroyR = m.id(), r
	m.emit(ReadRegister{ID: m.destroyV, Local: m.is(LocalRead)})
}

func (m *machine) destroyConfirmed() {
	if !m.mayFollow() || m.op.id != 0 || m.wantsRebuild() != m.destroyR {
		return
	}
	if !m.mayRebuild() && !m.is(RecloneInS) {
		return
	}
	if m.destroyR == rebuildRewind {
		if id := m.begin(opRewind); id != 0 {
			m.mark(MarkRewind)
			m.emit(Rewind{ID: id, Upstream: m.reg.Primary})
		}
		return
	}
	if id := m.begin(opReclone); id != 0 {
		m.mark(MarkReclone)
		m.emit(Reclone{ID: id, Upstream: m.reg.Primary, Name: Member{Node: m.cfg.Self}})
	}
}
