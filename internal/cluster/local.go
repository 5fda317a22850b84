package cluster

// This file is about the local instance: who may have it run, and as what.

// done takes the answer to an effect.
func (m *machine) done(e Done) {
	if e.ID == 0 {
		return
	}
	if e.Postgres != nil {
		m.observe(*e.Postgres)
	}
	switch e.ID {
	case m.op.id:
		kind := m.op.kind
		m.op = operation{}
		m.opDone(kind, e)
	case m.rec.id:
		m.rec.id = 0
		m.recruitDone(e)
	case m.lead.rowID:
		if e.OK && m.lead.phase == leadRow {
			m.lead.row, m.lead.phase = e.LSN, leadConfirm
		} else if m.lead.phase == leadRow {
			m.lead.rowID = 0
		}
	case m.sync.ssnID:
		if e.OK {
			m.ssnInForce(e.ID)
		}
	case m.sync.id:
		m.syncDone(e)
	}
}

func (m *machine) opDone(kind opKind, e Done) {
	switch kind {
	case opStart, opPromote:
		m.leadStarted(kind, e)
	case opShutdown:
		m.shutdownDone(e)
	case opFollow:
		if !e.OK {
			m.follow.epoch, m.follow.retryAt = 0, m.now+m.cfg.Timing.Heartbeat
		}
	case opRewind:
		m.follow.rewindFailed = !e.OK
		m.follow.epoch = 0
	case opReclone:
		m.follow.epoch = 0
		if e.OK {
			m.follow.rewindFailed = false
			n, _ := m.reg.Node(m.cfg.Self)
			m.rebuilt = n.Reinit
			m.disk.Incarnation = m.pg.Incarnation
		}
	case opFetch:
		m.rec.stage, m.rec.id = recInspect, m.id()
		m.emit(InspectWAL{ID: m.rec.id})
	}
}

// begin starts an operation on the instance, if none is under way.
func (m *machine) begin(kind opKind) uint64 {
	if m.op.id != 0 {
		return 0
	}
	m.op = operation{id: m.id(), kind: kind, at: m.now}
	return m.op.id
}

// stop stops Postgres. An immediate stop does not wait for what is under way.
func (m *machine) stop(immediate bool) {
	if m.op.kind == opStop && (!immediate || m.op.hard && m.now-m.op.at <= m.cfg.Timing.Retry) {
		return
	}
	if m.op.id != 0 && !immediate {
		return
	}
	m.op = operation{id: m.id(), kind: opStop, at: m.now, hard: immediate}
	m.emit(CloseDoor{})
	m.emit(StopPostgres{ID: m.op.id, Immediate: immediate})
}

// fence stops a Postgres that may not run, or not as a primary. It waits for
// nothing and needs no disk of the agent's.
func (m *machine) fence() {
	if m.cfg.Witness || !m.pgKnown || !m.pg.Running {
		return
	}
	m.alarm(AlarmForeign, m.pg.Foreign, "Postgres was not started by this agent: mask the distribution's unit")
	n, member := m.reg.Node(m.cfg.Self)
	if m.known && !member {
		m.stop(false) // it has left the cluster
		return
	}
	if m.known && n.Fenced {
		m.mark(MarkFenced)
		m.stop(m.pg.Primary && m.heard > m.reg.Epoch)
		return
	}
	if !m.pg.Primary {
		return
	}
	superseded := m.heard > m.promisedEpoch() || m.known && (m.reg.Electing() || m.reg.Primary != m.self())
	switch {
	case superseded:
		m.mark(MarkFenceEpoch)
		m.cutWell = m.cutWell || m.healthy()
		m.stop(true)
	case m.lost():
		m.mark(MarkFenceLost)
		m.stop(false)
	}
}

// promisedEpoch is the epoch that this node believes to be led.
func (m *machine) promisedEpoch() Epoch {
	if !m.known {
		return m.heard // nothing to compare with yet: the self-fence time runs
	}
	return m.reg.Epoch
}

// lost says that the register has not been reached for the self-fence time.
func (m *machine) lost() bool { return m.now-m.contact > m.cfg.Timing.SelfFence }
