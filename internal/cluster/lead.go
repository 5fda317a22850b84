package cluster

import "time"

// This file is the primary's way from being named to an open door.

type leadPhase uint8

const (
	leadOff     leadPhase = iota
	leadSettle            // writes of unknown outcome are settled before SSN is chosen
	leadSSN               // SSN within S comes into force
	leadUp                // Postgres is started or promoted
	leadRow               // the epoch row is written
	leadConfirm           // k members hold the row, S' is registered
	leadOpen              // clients are let in
)

var leadNames = [...]string{"off", "settling", "setting SSN", "starting", "writing the epoch row", "confirming", "open"}

func (p leadPhase) String() string { return leadNames[p] }

type lead struct {
	phase    leadPhase
	epoch    Epoch
	row      LSN
	rowID    uint64
	byCommit bool
	broken   time.Duration // until then we hold that our directory does not fit; 0: it does
	tries    int
	retryAt  time.Duration
	since    time.Duration
	outrunAt time.Duration // since when others are seen to hold more than we do, while Postgres runs; 0: they are not
	openedAt time.Duration
}

// mayLead says whether this node is the primary as far as anybody can know.
func (m *machine) mayLead() bool {
	n, _ := m.reg.Node(m.cfg.Self)
	return m.known && m.pgKnown && m.pg.Exists && !m.reg.Electing() && m.reg.Primary == m.self() &&
		m.disk.Incarnation == m.pg.Incarnation &&
		m.reg.Epoch >= m.promise && m.heard <= m.reg.Epoch && !n.Fenced && !m.lost() && m.rec.epoch <= m.reg.Epoch
}

func (m *machine) leadStep() {
	if m.cfg.Witness {
		return
	}
	if !m.mayLead() {
		m.leadEnd()
		return
	}
	if m.lead.epoch != m.reg.Epoch {
		m.lead = lead{phase: leadSettle, epoch: m.reg.Epoch, since: m.now}
		// What a standby set beforehand acts from its first commit on. Streams are
		// judged anew: what was flushed to us before was another timeline.
		was := m.sync
		m.sync = syncing{ssn: was.ssn, set: was.set, inForce: was.inForce, ssnID: was.ssnID, ssnAt: was.ssnAt}
		m.follow = following{}
	}
	if m.lead.phase == leadOff {
		m.lead.phase = leadSettle
	}
	if m.hand.phase != handNone {
		return // a switchover or restart has the instance
	}
	if m.lead.phase > leadUp && (!m.pg.Running || !m.pg.Primary) {
		m.emit(CloseDoor{})
		m.lead.phase, m.lead.byCommit = leadUp, false
		m.sync.change = changeNone
	}
	switch m.lead.phase {
	case leadSettle:
		if m.settled() {
			m.lead.phase = leadSSN
			if !m.sync.is(m.steady()) {
				m.setSSN(m.steady())
			} else if m.sync.inForce {
				m.lead.phase = leadUp
				m.bringUp()
			}
		} else {
			m.settle()
		}
	case leadSSN:
		if m.sync.inForce {
			m.lead.phase = leadUp
			m.bringUp()
		} else {
			m.retrySSN()
		}
	case leadUp:
		m.bringUp()
	case leadRow:
		if m.lead.rowID == 0 {
			m.writeRow()
		}
	case leadConfirm:
		if m.confirmed() {
			m.lead.phase = leadOpen
			m.mark(MarkOpen)
			m.openDoor()
			m.archive()
		}
	case leadOpen:
		if !m.pg.DoorOpen && m.now-m.lead.openedAt > m.cfg.Timing.Retry {
			m.openDoor() // it was asked for, and is not seen
		}
	}
}

// archive streams under a name that no member has.
func (m *machine) archive() {
	stranger := Member{Node: m.cfg.Self}
	if m.is(DuplicateNames) && len(m.reg.S) > 0 {
		stranger = m.reg.S[0]
	}
	m.emit(Archive{Epoch: m.reg.Epoch, Name: stranger})
}

func (m *machine) openDoor() {
	m.lead.openedAt = m.now
	m.emit(OpenDoor{})
}

// leadEnd is for a node that no longer leads. Its Postgres is stopped by fence.
func (m *machine) leadEnd() {
	if m.lead.phase == leadOff {
		return
	}
	m.emit(CloseDoor{})
	m.lead = lead{broken: m.lead.broken}
	m.sync = syncing{}
	m.alarm(AlarmStalled, false, "")
	m.alarm(AlarmDegraded, false, "")
}

// settle writes the register unchanged: once that is committed or refused,
// nothing older can take hold.
func (m *machine) settle() {
	m.mark(MarkSettle)
	m.propose(propSettle, m.reg, "settle writes of unknown outcome")
}

// bringUp makes Postgres run as the primary on the register's timeline.
func (m *machine) bringUp() {
	if m.op.id != 0 || m.now < m.lead.retryAt {
		return
	}
	pos, common, diverged := Locate(m.reg.Chain, m.pg.History, m.pg.End)
	if lastTimeline(m.pg.History) == m.reg.Timeline && (diverged || common != len(m.reg.Chain)) {
		m.cannotLead("its timeline has the register's number, but not its history")
		return
	}
	if outrun(m.seen, m.reg.Timeline, lastTimeline(m.pg.History), m.pg.End) && !m.is(AmnesiacLeads) {
		// A running one may only have been looked at before others were.
		if m.pg.Running && m.lead.outrunAt == 0 {
			m.lead.outrunAt = max(m.now, 1)
		}
		if !m.pg.Running || m.now-m.lead.outrunAt > m.cfg.Timing.Suspect {
			m.cannotLead("more of its timeline was seen than it holds: its disk lost what it had confirmed")
		}
		return
	}
	m.lead.outrunAt = 0
	if !m.pg.Running && !m.asked() {
		return
	}
	if lastTimeline(m.pg.History) == m.reg.Timeline {
		if m.pg.Running && m.pg.Primary {
			m.mark(MarkAdopt)
			m.writeRow()
			return
		}
		if id := m.begin(opStart); id != 0 {
			m.mark(MarkRestartInPlace)
			m.emit(StartPrimary{ID: id})
		}
		if m.is(RestartOpensDoor) {
			m.emit(OpenDoor{})
		}
		return
	}
	fork, ok := m.reg.Fork()
	if !ok || diverged || common != len(m.reg.Chain)-1 || pos.LSN != fork || m.pg.Running && m.pg.Primary {
		m.cannotLead("its WAL does not end where the register has the new timeline begin")
		return
	}
	if id := m.begin(opPromote); id != 0 {
		m.mark(MarkPromote)
		m.emit(Promote{ID: id, Timeline: m.reg.Timeline, Fork: fork})
	}
}

// asked says whether somebody with data has had time to say what he remembers of
// us since this life began. It is not waited for long: he may be gone.
func (m *machine) asked() bool {
	alone := true
	for _, n := range m.reg.Nodes {
		if n.ID == m.cfg.Self || n.Witness {
			continue
		}
		if p := m.peer(n.ID); p != nil && p.heard {
			return true
		}
		alone = false
	}
	return alone || m.now > m.cfg.Timing.Suspect
}

func (m *machine) cannotLead(why string) {
	m.lead.broken = m.now + 4*m.cfg.Timing.Retry // then it is looked at again
	m.mark(MarkCannotLead)
	m.alarm(AlarmCannotLead, true, why)
}

func (m *machine) leadStarted(kind opKind, e Done) {
	if !e.OK {
		m.lead.tries++
		m.lead.retryAt = m.now + m.cfg.Timing.Retry
		if m.lead.tries >= 3 {
			m.cannotLead("Postgres does not start: " + e.Why)
		}
		return
	}
	m.lead.tries = 0
	if kind == opPromote && m.lead.phase == leadUp {
		fork, _ := m.reg.Fork()
		n := len(m.pg.History)
		if lastTimeline(m.pg.History) != m.reg.Timeline || n == 0 || m.pg.History[n-1].Fork != fork {
			m.cannotLead("it was promoted elsewhere than the register says")
			m.stop(true)
			return
		}
	}
	m.lead.broken = 0
	m.alarm(AlarmCannotLead, false, "")
}

func (m *machine) writeRow() {
	if m.lead.rowID != 0 && m.lead.phase == leadRow {
		return
	}
	m.lead.phase, m.lead.rowID, m.lead.byCommit = leadRow, m.id(), false
	m.emit(WriteRow{ID: m.lead.rowID, Epoch: m.reg.Epoch})
}

// confirmed says whether the door may open: S is without us, and k of it hold
// the epoch row, so everything before it too; or we are alone by the register.
func (m *machine) confirmed() bool {
	if m.is(DoorBeforeS) {
		return m.flushed(m.sync.ssn.Names, m.lead.row) >= m.reg.K
	}
	if m.reg.InS(m.self()) || m.sync.change != changeNone || !m.sync.inForce || !m.sync.is(m.steady()) {
		return false
	}
	if len(m.reg.S) == 0 {
		return m.reg.Mode == Preferred
	}
	return m.lead.byCommit || m.flushed(m.reg.S, m.lead.row) >= m.reg.K
}
