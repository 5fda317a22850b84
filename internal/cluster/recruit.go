package cluster

// This file is the recruited side: a standby (or former primary) that promises
// not to follow any epoch below the election's, cuts itself off, and reports.

type recruitStage uint8

const (
	recNone      recruitStage = iota
	recPromise                // the promise goes to disk
	recUnlink                 // the credential goes
	recReceivers              // every walreceiver that existed then goes
	recInspect                // what the directory holds is read
	recDone                   // reported; nothing grows from here on
	recFetch                  // WAL is fetched from another recruit
)

type recruiting struct {
	epoch   Epoch
	stage   recruitStage
	id      uint64
	from    NodeID
	before  Epoch // the promise before this one
	report  Report
	wasWell bool // a primary that was healthy when the epoch came
	former  bool // we are the last one named
}

func (m *machine) recruit(from NodeID, r Recruit) {
	m.hears(r.Epoch)
	if m.cfg.Witness || !m.pgKnown || !m.pg.Exists || r.Epoch < m.promise || m.known && m.reg.Named >= r.Epoch {
		return
	}
	if m.rec.epoch == r.Epoch && m.rec.stage != recNone {
		m.rec.from = from
		if m.rec.stage == recDone {
			m.makeReport() // where it ends cannot have changed; what it is fit for can
			m.sendReport()
		}
		return
	}
	if m.rec.epoch > r.Epoch {
		return
	}
	well := m.cutWell || m.healthy()
	m.rec = recruiting{epoch: r.Epoch, from: from, before: m.promise,
		former: r.Primary == m.self(), wasWell: well}
	m.promise = r.Epoch
	m.follow = following{rewindFailed: m.follow.rewindFailed}
	if m.op.kind == opFollow || m.op.kind == opFetch {
		m.op = operation{} // whatever it leaves is undone by the steps below
	}
	starting := m.op.kind == opStart || m.op.kind == opPromote || m.op.kind == opShutdown
	if m.pg.Primary && m.pg.Running || starting && !m.is(StartNotStopped) {
		m.stop(true) // also what is only about to run
	}
	m.recruitEnter(recPromise)
}

func (m *machine) recruitEnter(s recruitStage) {
	m.rec.stage, m.rec.id = s, m.id()
	switch s {
	case recPromise:
		if m.is(PromiseNotSynced) {
			m.recruitEnter(recUnlink)
			return
		}
		m.emit(SavePromise{ID: m.rec.id, Epoch: m.rec.epoch})
	case recUnlink:
		if m.is(CredentialKept) {
			m.recruitEnter(recReceivers)
			return
		}
		m.emit(UnlinkCredential{ID: m.rec.id})
	case recReceivers:
		m.emit(StopReceivers{ID: m.rec.id})
		if m.is(ReportBeforeReceiversGone) {
			m.recruitEnter(recInspect)
		}
	case recInspect:
		m.emit(InspectWAL{ID: m.rec.id})
	}
}

// recruitDone moves on; a step that failed is done again from its beginning.
func (m *machine) recruitDone(e Done) {
	if !e.OK {
		m.recruitEnter(m.rec.stage)
		return
	}
	switch m.rec.stage {
	case recPromise:
		m.disk.Promise = max(m.disk.Promise, m.rec.epoch)
		m.recruitEnter(recUnlink)
	case recUnlink:
		m.recruitEnter(recReceivers)
	case recReceivers:
		m.recruitEnter(recInspect)
	case recInspect:
		if m.pg.Running && m.pg.Primary {
			m.stop(true) // it has to be down to say where it ends
		}
		if m.op.kind == opStop {
			m.recruitEnter(recInspect)
			return
		}
		m.rec.stage = recDone
		m.mark(MarkRecruited)
		m.makeReport()
		m.sendReport()
	}
}

func (m *machine) makeReport() {
	m.rec.report = Report{Epoch: m.rec.epoch, Member: m.self(), History: m.pg.History, End: m.pg.End,
		Replayed: m.pg.Replayed, Replayable: m.pg.Replayable, ControlTimeline: m.pg.ControlTimeline,
		Promised: m.rec.before, Qualified: m.qualified(), Headroom: m.pg.Headroom, Priority: m.cfg.Priority, Seen: m.seen}
	n, _ := m.reg.Node(m.cfg.Self)
	m.rec.report.Unwanted = n.Reinit || n.Rebuild || n.Leaving
	if m.rec.former {
		whole := m.qualified() && m.now >= m.lead.broken
		m.rec.report.Able, m.rec.report.Present = whole && m.rec.wasWell, whole
	}
	m.alarm(AlarmReplayBroken, m.pg.Replayable < m.pg.End, "replay cannot go on: this standby is a holder, not a candidate")
}

func (m *machine) sendReport() {
	r := m.rec.report
	if r.Member.Incarnation != m.disk.Incarnation {
		return // not the directory that this agent made
	}
	if m.rec.from == m.cfg.Self {
		m.report(r)
		return
	}
	m.emit(Send{To: m.rec.from, Message: r})
}

// catchUp fetches what another recruit holds beyond us. The promise stands:
// nothing is confirmed to a primary by it.
func (m *machine) catchUp(c CatchUp) {
	if m.rec.epoch != c.Epoch || m.rec.stage != recDone || m.known && m.reg.Named >= c.Epoch {
		return
	}
	id := m.begin(opFetch)
	if id == 0 {
		return
	}
	m.rec.stage = recFetch
	m.emit(FetchWAL{ID: id, From: c.From, Until: c.Until})
}
