package cluster

import "slices"

// Step takes one event and says what is to be done. It never changes s.
func Step(s State, ev Event) (State, []Effect) {
	m := &machine{State: s}
	switch e := ev.(type) {
	case Started:
		m.started(e)
	case Tick:
		m.now, m.wall = e.Now, e.Wall
		m.tick()
	case ReadDone:
		m.readDone(e)
	case ProposeDone:
		m.proposeDone(e)
	case Leadership:
		m.leader, m.ready = e.Leads, false
		old := m.elect.reports
		m.elect = election{}
		if m.is(StaleReport) {
			m.elect.reports = old
		}
		if e.Leads {
			m.startRead()
		}
	case Applied:
		m.hears(e.Epoch)
		m.version = max(m.version, e.Version)
		m.voter.index = max(m.voter.index, e.Index)
		if m.version > m.reg.Version && m.read.id == 0 {
			m.startRead()
		}
	case Voters:
		m.voters(e.IDs)
	case Received:
		m.peers = slices.Clone(m.peers)
		m.received(e.From, e.Message)
	case PostgresSeen:
		m.observe(e.Postgres)
	case Done:
		m.done(e)
	case Reloaded:
		if m.is(ReloadIsInForce) {
			m.ssnInForce(e.ID)
		}
	case RowCommitted:
		if m.is(RowByCommit) && m.lead.rowID == e.ID && m.lead.phase == leadConfirm {
			m.lead.byCommit = true
		}
	case Probed:
		m.probeOK = e.OK
		m.alarm(AlarmDisk, !e.OK || m.pg.Exists && !m.pg.Headroom, "a write on a fresh connection did not come back, or the disk is full")
		if !e.OK && m.leader {
			m.emit(TransferLeadership{}) // whoever leads needs a disk that answers
		}
	case Command:
		m.command(e)
	}
	m.reconcile()
	return m.State, m.out
}

// started begins a life: it denies whatever an earlier one permitted durably,
// and knows nothing until it has read the register.
func (m *machine) started(e Started) {
	m.life, m.disk, m.promise = e.Life, e.Disk, e.Disk.Promise
	m.voter.fresh = e.Fresh
	deny := SSN{K: 1}
	if m.is(DurableAllows) {
		deny = SSN{}
	}
	if !m.cfg.Witness {
		m.emit(SaveDurable{SSN: deny})
	}
	m.voterStarted()
	m.startRead()
}

func (m *machine) tick() {
	if m.contact == 0 {
		m.contact = m.now // a new life gets one self-fence time
	}
	m.sendHeartbeats()
	m.voterTick()
	if m.wantsRead() {
		m.startRead()
	}
}

// wantsRead says whether the register should be read now: always by whoever
// leads anything, otherwise when something hints that it moved.
func (m *machine) wantsRead() bool {
	if m.read.id != 0 && m.now-m.read.at < m.cfg.Timing.Suspect {
		return false
	}
	return !m.known || m.heard > m.reg.Epoch || m.version > m.reg.Version || m.reg.Version <= m.floor ||
		m.lead.phase != leadOff || m.pg.Running && m.pg.Primary || m.reg.Electing() || m.leader && !m.ready ||
		m.follow.epoch != m.reg.Epoch || m.voter.joining || m.now-m.readAt > 4*m.cfg.Timing.Suspect
}

func (m *machine) startRead() {
	m.read = request{m.id(), m.now}
	m.emit(ReadRegister{ID: m.read.id, Local: m.is(LocalRead)})
}

func (m *machine) readDone(e ReadDone) {
	if e.ID == m.destroyV && e.ID != 0 {
		m.destroyV = 0
		if e.OK {
			m.learn(e.Register)
			m.destroyConfirmed()
		}
		return
	}
	if e.ID != m.read.id {
		return
	}
	asked := m.read.at
	m.read = request{}
	if !e.OK {
		return
	}
	if !m.known {
		m.floor = e.Register.Version // a former life may have proposed against it
		if m.is(RestartForgetsWrites) {
			m.floor = 0
		}
	}
	m.contact = max(m.contact, asked)
	m.readAt = m.now
	if m.leader {
		m.ready = true
	}
	m.learn(e.Register)
}

// learn takes over a state of the register that was committed. Answers may
// overtake one another; the higher version is the later state.
func (m *machine) learn(r Register) {
	if m.known && r.Version < m.reg.Version && !m.is(LocalRead) {
		return
	}
	if m.reg.Named > r.Named && m.is(LocalRead) {
		return
	}
	m.reg, m.known = r, true
	m.hears(r.Epoch)
	m.version = max(m.version, r.Version)
}

// hears notes that an epoch exists. That is final, wherever it was heard.
func (m *machine) hears(e Epoch) { m.heard = max(m.heard, e) }

// settled says that no write proposed by this node can still take hold. Until
// then SSN may be narrowed, never widened.
func (m *machine) settled() bool {
	return m.known && m.reg.Version > m.floor && (m.prop.id == 0 || m.reg.Version > m.prop.p.Expect || m.is(InFlightForgotten))
}

// propose asks for next in place of the register that we know. One at a time.
func (m *machine) propose(kind propKind, next Register, why string) bool {
	if m.prop.id != 0 || !m.known {
		return false
	}
	m.prop = pending{id: m.id(), kind: kind, at: m.now,
		p: Proposal{Expect: m.reg.Version, ExpectEpoch: m.reg.Epoch, Next: next}}
	m.emit(Propose{ID: m.prop.id, Proposal: m.prop.p, Why: why})
	return true
}

func (m *machine) proposeDone(e ProposeDone) {
	if e.ID != m.prop.id || e.ID == 0 {
		return
	}
	done := m.prop
	m.prop = pending{}
	switch e.Outcome {
	case Committed:
		m.contact = max(m.contact, done.at)
		m.learn(e.Register)
	case Conflict:
		m.mark(MarkConflict)
		m.contact = max(m.contact, done.at)
		m.learn(e.Register)
		if m.is(RetryOnConflict) && m.prop.id == 0 {
			m.prop = pending{id: m.id(), kind: done.kind, at: m.now, p: done.p}
			m.prop.p.Expect, m.prop.p.ExpectEpoch = m.reg.Version, m.reg.Epoch
			if m.prop.p.Next.Epoch < m.reg.Epoch {
				m.prop.p.Next.Epoch = m.reg.Epoch
			}
			m.emit(Propose{ID: m.prop.id, Proposal: m.prop.p})
			return
		}
	case Unknown:
		m.mark(MarkUnknown)
		if !m.is(UnknownMeansFailed) {
			m.floor = max(m.floor, done.p.Expect)
		}
		m.startRead()
	}
	switch done.kind {
	case propSync:
		m.syncProposed(e.Outcome)
	case propBump, propName:
		m.electProposed(done.kind, e.Outcome)
	case propAdmin:
		m.adminProposed(done.cmd, e.Outcome)
	}
}

// reconcile compares what should be with what is, after every event. The order
// matters: fencing first.
func (m *machine) reconcile() {
	m.fence()
	m.leadStep()
	m.syncStep()
	m.followStep()
	m.electStep()
	m.handStep()
	m.orderStep()
	m.upkeep()
}

func (m *machine) alarm(k AlarmKind, on bool, text string) {
	if on == (m.alarms&(1<<k) != 0) {
		return
	}
	m.alarms ^= 1 << k
	if !on {
		text = ""
	}
	m.emit(Alarm{Kind: k, On: on, Text: text})
}

// alarmf is alarm with a text that is put together only when it is told.
func (m *machine) alarmf(k AlarmKind, on bool, text, what string) {
	if on != (m.alarms&(1<<k) != 0) {
		m.alarm(k, on, text+what)
	}
}

// received takes in a message.
func (m *machine) received(from NodeID, msg Message) {
	switch x := msg.(type) {
	case Heartbeat:
		m.heartbeat(from, x)
	case Recruit:
		m.recruit(from, x)
	case Report:
		m.report(x)
	case CatchUp:
		m.catchUp(x)
	case Handover:
		m.handover(x)
	case Ask:
		m.command(x.Command)
	case Hello:
		m.hello(from, x)
	case Remember:
		m.remember(from, x)
	case JoinVoter:
		m.joinVoter(from, x)
	case NamedNotice:
		if m.is(FollowBeforeCommit) && x.Register.Version > m.reg.Version && m.known {
			m.reg = x.Register
			m.hears(x.Register.Epoch)
		}
	}
}

func (m *machine) sendHeartbeats() {
	hb := Heartbeat{Epoch: m.heard, Version: m.reg.Version, Member: m.self(), Leading: m.lead.phase != leadOff,
		Healthy: m.healthy(), Disk: m.probeOK && m.pg.Headroom, Timeline: lastTimeline(m.pg.History), End: m.pg.End,
		Qualified: m.qualified(), Broken: m.pg.Exists && m.pg.Replayable < m.pg.End, Fetching: m.op.kind == opReclone || m.op.kind == opRewind,
		Voter: m.voter.id, VoterIndex: m.voter.index, Seen: m.seen}
	for _, p := range m.cfg.Peers {
		m.emit(Send{To: p, Message: hb})
	}
}

// healthy is what the primary's agent says first-hand of its Postgres.
func (m *machine) healthy() bool {
	if m.cfg.Witness {
		return true
	}
	if !m.probeOK || m.now < m.lead.broken {
		return false
	}
	return m.pg.Running || m.hand.announced(m.now)
}

// qualified says whether this node's directory could be promoted.
func (m *machine) qualified() bool {
	n, _ := m.reg.Node(m.cfg.Self)
	return m.pg.Exists && m.pg.Replayable >= m.pg.End && !n.NoFailover && !n.Fenced && !m.cfg.Witness && m.probeOK && m.disk.Incarnation == m.pg.Incarnation
}

func (m *machine) heartbeat(from NodeID, hb Heartbeat) {
	p := m.peer(from)
	if p == nil {
		return
	}
	if p.heard && p.hb.Member == hb.Member && hb.End > p.hb.End {
		p.grewAt, p.grew = m.now, true
	}
	switch {
	case hb.Healthy:
		p.sickAt = 0
	case p.sickAt == 0:
		p.sickAt = max(m.now, 1)
	}
	p.heard, p.heardAt, p.hb = true, m.now, hb
	if hb.Voter != 0 {
		if p.voterID != hb.Voter {
			p.voterID, p.voterIdx = hb.Voter, 0
		}
		p.voterIdx = max(p.voterIdx, hb.VoterIndex)
	}
	m.hears(hb.Epoch)
	m.version = max(m.version, hb.Version)
	m.sees(Sighting{hb.Member, hb.Timeline, hb.End})
	for _, s := range hb.Seen {
		m.sees(s)
	}
}

// observe takes in a look at the local instance.
func (m *machine) observe(pg Postgres) {
	m.pg, m.pgKnown = pg, true
	if !pg.Exists {
		return
	}
	m.sees(Sighting{m.self(), lastTimeline(pg.History), pg.End})
	for _, s := range pg.Senders {
		if s.Named && pg.Primary {
			m.sees(Sighting{s.Member, timelineAt(pg.History, s.Flush), s.Flush})
		}
	}
	m.linksSeen()
}
