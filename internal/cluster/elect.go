package cluster

import (
	"slices"
	"time"
)

// This file is the raft leader's part: suspect, raise the epoch, recruit, name.
// It never proposes S or k.

type election struct {
	epoch    Epoch
	since    time.Duration
	reports  []Report
	sentAt   time.Duration
	hint     NodeID
	hintFor  Epoch // the epoch that the hint wants to end
	hintAt   time.Duration
	vetoAt   time.Duration
	nextAt   time.Duration
	tries    int
	force    *Announcement // a person accepted this loss
	forceFor Epoch
	forceCmd uint64
	calmAt   time.Duration // since when the primary has been well and elsewhere
}

func (m *machine) electStep() {
	if !m.leader || !m.ready || !m.known {
		return
	}
	if m.reg.Electing() {
		m.runElection()
		return
	}
	if m.elect.epoch != 0 {
		old := m.elect.reports
		m.elect = election{nextAt: m.now + m.cfg.Timing.Retry}
		if m.is(StaleReport) {
			m.elect.reports = old
		}
		m.alarm(AlarmNoPromotion, false, "")
	}
	switch {
	case m.prop.id != 0 || m.now < m.elect.nextAt:
	case m.elect.force != nil && m.elect.forceFor == m.reg.Epoch+1:
		m.bump("a person accepts the loss")
	case m.hinted():
		m.bump("switchover to " + string(m.elect.hint))
	case m.suspects():
		m.bump("the primary is suspected")
	default:
		m.finishLeaving()
		m.giveLeadership()
		if m.is(LeaderEditsS) {
			m.editS()
		}
	}
}

// hinted says whether a switchover waits for its election: lately, or the old
// primary has gone on by itself; and not while only it may lead.
func (m *machine) hinted() bool {
	return m.elect.hint != "" && m.elect.hintFor == m.reg.Epoch && m.now-m.elect.hintAt <= m.cfg.Timing.Handover &&
		slices.ContainsFunc(m.reg.S, func(s Member) bool { return s.Node == m.elect.hint })
}

// suspects says whether the primary should be replaced, and can be.
func (m *machine) suspects() bool {
	n, known := m.reg.Node(m.reg.Primary.Node)
	if m.reg.Paused || known && n.Fenced {
		return false
	}
	if len(m.reg.S) == 0 && !m.is(BumpWhileDegraded) {
		return false // only this primary may lead: raising the epoch would only stop it
	}
	if !m.suspicious() {
		m.elect.vetoAt = 0
		return false
	}
	if m.vetoed() {
		return false
	}
	need, _ := m.reg.Quorum()
	for _, s := range m.reg.S {
		if m.fresh(s.Node) {
			need--
		}
	}
	return need <= 0
}

// suspicious is silence, or bad news first-hand that lasts longer than a
// restart in place would take.
func (m *machine) suspicious() bool {
	t := m.cfg.Timing
	if m.reg.Primary.Node == m.cfg.Self {
		switch {
		case m.pg.Incarnation != m.reg.Primary.Incarnation:
			m.deadAt = 0
			return m.pgKnown
		case m.healthy():
			m.deadAt = 0
			return false
		case m.deadAt == 0:
			m.deadAt = max(m.now, 1)
		}
		return m.now-m.deadAt > t.Grace
	}
	p := m.peer(m.reg.Primary.Node)
	if p == nil {
		return true
	}
	if !p.heard {
		return m.now > t.Suspect
	}
	if m.now-p.heardAt > t.Suspect {
		return true
	}
	if p.hb.Member != m.reg.Primary {
		return p.hb.Member.Incarnation != 0 || p.hb.Version >= m.reg.Version
	}
	return p.sickAt != 0 && m.now-p.sickAt > t.Grace
}

// vetoed says whether a standby's WAL is seen to grow; that holds an election
// up for a bounded time. Open connections are no evidence.
func (m *machine) vetoed() bool {
	t := m.cfg.Timing
	if m.elect.vetoAt != 0 && m.now-m.elect.vetoAt > t.Veto {
		return false
	}
	for _, s := range m.reg.S {
		p := m.peer(s.Node)
		if p != nil && p.grew && s.Node != m.reg.Primary.Node && m.now-p.grewAt <= t.Heartbeat && m.fresh(s.Node) {
			m.mark(MarkVeto)
			if m.elect.vetoAt == 0 {
				m.elect.vetoAt = max(m.now, 1)
			}
			return true
		}
	}
	return false
}

// bump ends the epoch: whoever led it can no longer change S.
func (m *machine) bump(why string) {
	m.elect.tries++
	m.mark(MarkBump)
	m.elect.nextAt = m.now + m.cfg.Timing.Retry*time.Duration(min(m.elect.tries, 4))
	if m.is(NoRecruit) {
		m.nameUnrecruited()
		return
	}
	next := m.reg
	next.Epoch++
	m.propose(propBump, next, why)
}

// giveLeadership keeps the register's leadership with the primary, so that the
// loss of one host costs one election.
func (m *machine) giveLeadership() {
	p := m.peer(m.reg.Primary.Node)
	well := p != nil && m.fresh(p.id) && p.hb.Healthy && p.hb.Disk && p.hb.Voter != 0
	if !well {
		m.elect.calmAt = 0
		return
	}
	if m.elect.calmAt == 0 {
		m.elect.calmAt = max(m.now, 1)
	}
	if m.now-m.elect.calmAt > 2*m.cfg.Timing.Suspect {
		m.elect.calmAt = 0
		m.emit(TransferLeadership{To: p.id})
	}
}

// runElection recruits until somebody may be named.
func (m *machine) runElection() {
	if m.elect.epoch != m.reg.Epoch {
		e := election{epoch: m.reg.Epoch, since: m.now, sentAt: -1, tries: m.elect.tries}
		if m.elect.hintFor == m.reg.Epoch-1 {
			e.hint = m.elect.hint
			m.mark(MarkHint)
		}
		if m.elect.forceFor == m.reg.Epoch {
			e.force, e.forceFor, e.forceCmd = m.elect.force, m.elect.forceFor, m.elect.forceCmd
		}
		if m.is(StaleReport) {
			e.reports = m.elect.reports
		}
		m.elect = e
	}
	if m.elect.sentAt < 0 || m.now-m.elect.sentAt >= m.cfg.Timing.Heartbeat {
		m.elect.sentAt = m.now
		m.sendRecruits()
	}
	if m.prop.id == 0 {
		m.decide()
	}
}

func (m *machine) sendRecruits() {
	r := Recruit{Epoch: m.reg.Epoch, Primary: m.reg.Primary}
	for _, n := range m.reg.Nodes {
		if n.Witness {
			continue
		}
		inS := slices.ContainsFunc(m.reg.S, func(s Member) bool { return s.Node == n.ID })
		if !inS && n.ID != m.reg.Primary.Node && m.elect.force == nil {
			continue
		}
		if n.ID == m.cfg.Self {
			m.recruit(n.ID, r)
		} else {
			m.emit(Send{To: n.ID, Message: r})
		}
	}
}

// report takes a recruit's answer. Of another epoch it says nothing about now.
func (m *machine) report(r Report) {
	if !m.leader || r.Epoch != m.elect.epoch && !m.is(StaleReport) {
		return
	}
	for _, s := range r.Seen {
		m.sees(s)
	}
	reports := dropReports(m.elect.reports, func(x Report) bool { return x.Member.Node == r.Member.Node })
	reports = append(reports, r)
	m.elect.reports = reports
}

func dropReports(s []Report, drop func(Report) bool) []Report {
	out := make([]Report, 0, len(s)+1)
	for _, r := range s {
		if !drop(r) {
			out = append(out, r)
		}
	}
	return out
}

func (m *machine) decide() {
	if len(m.elect.reports) == 0 {
		m.alarm(AlarmNoPromotion, m.now-m.elect.since > m.cfg.Timing.Retry, "no recruit answers")
		return
	}
	c := m.choose(m.elect.reports, m.elect.hint)
	m.mark([...]Mark{MarkTooFew, MarkName, MarkRename, MarkCatchUp, MarkBlocked}[c.verdict])
	switch c.verdict {
	case rename:
		next := m.reg
		next.Epoch++
		next.Named = next.Epoch
		m.propose(propName, next, "the last named primary goes on")
	case name:
		m.nameX(c)
	case catchUp:
		if m.elect.sentAt == m.now {
			m.elect.reports = dropReports(m.elect.reports, func(r Report) bool { return r.Member == c.member }) // it will report anew
			x := CatchUp{Epoch: m.reg.Epoch, From: c.holder, Until: c.until}
			if c.member.Node == m.cfg.Self {
				m.catchUp(x)
			} else {
				m.emit(Send{To: c.member.Node, Message: x})
			}
		}
	default:
		if m.elect.force != nil {
			m.nameForced()
			return
		}
	}
	m.alarm(AlarmNoPromotion, (c.verdict == tooFew || c.verdict == blocked) && m.now-m.elect.since > m.cfg.Timing.Retry, c.why)
}

// nameX makes the chosen recruit primary on a timeline never used. S and k stay.
func (m *machine) nameX(c choice) {
	next := m.named(c.member, c.chain, c.fork)
	if m.is(NamingDropsX) {
		next.S = without(next.S, func(x Member) bool { return x == c.member })
	}
	if m.is(TimelineReused) {
		next.Timeline = c.chain[len(c.chain)-1].Timeline + 1
		next.LastTimeline = next.Timeline
		next.Chain = append(slices.Clone(c.chain), Branch{next.Epoch, next.Timeline, c.fork})
	}
	if m.propose(propName, next, "name "+string(c.member.Node)) && m.is(FollowBeforeCommit) {
		next.Version++
		for _, p := range m.cfg.Peers {
			m.emit(Send{To: p, Message: NamedNotice{next}})
		}
	}
}

func (m *machine) named(x Member, chain []Branch, fork LSN) Register {
	next := m.reg
	for _, r := range m.elect.reports {
		next.LastTimeline = max(next.LastTimeline, lastTimeline(r.History))
	}
	next.LastTimeline++
	next.Timeline, next.Named, next.Primary = next.LastTimeline, next.Epoch, x
	next.Chain = append(slices.Clone(chain), Branch{next.Epoch, next.Timeline, fork})
	return next
}

func (m *machine) electProposed(kind propKind, o Outcome) {
	if kind == propBump && o == Conflict {
		m.elect.nextAt = m.now + m.cfg.Timing.Heartbeat
	}
}

// nameForced names the best that can be had, after a person accepted the loss:
// never below what was announced. S is emptied: the others may hold anything.
func (m *machine) nameForced() {
	if m.now-m.elect.since < m.cfg.Timing.Suspect {
		return // whoever is alive should have answered
	}
	var best holder
	chain := m.held(m.elect.reports)
	for _, h := range m.place(m.elect.reports, chain) {
		if h.common == 0 || h.diverged || !h.Qualified || h.Replayable < h.pos.LSN {
			continue
		}
		if best.Member.Node == "" || best.pos.Less(h.pos) {
			best = h
		}
	}
	if best.Member.Node == "" {
		return
	}
	tl := chain[best.common-1].Timeline
	if a := m.elect.force; tl < a.Timeline || tl == a.Timeline && best.pos.LSN < a.LSN {
		m.mark(MarkForcedRefused)
		m.answer(m.elect.forceCmd, false, "nobody who answers holds what was announced as safe; ask again for a new announcement")
		m.elect.force = nil
		return
	}
	next := m.named(best.Member, chain[:best.common], best.pos.LSN)
	m.mark(MarkForced)
	next.S, next.K = nil, 0
	next.Degraded = Degraded{LSN: best.pos.LSN, Wall: m.wall}
	m.propose(propName, next, "name "+string(best.Member.Node)+" although data may be lost")
}

// nameUnrecruited is what NoRecruit does: the highest heartbeat is named.
func (m *machine) nameUnrecruited() {
	var best Heartbeat
	for _, s := range m.reg.S {
		hb := Heartbeat{Member: m.self(), Timeline: lastTimeline(m.pg.History), End: m.pg.End}
		if s.Node != m.cfg.Self {
			hb = m.peer(s.Node).hb
		}
		if hb.Member == s && m.fresh(s.Node) && (best.Member.Node == "" || hb.End > best.End) {
			best = hb
		}
	}
	if best.Member.Node == "" {
		return
	}
	next := m.reg
	next.Epoch++
	next.LastTimeline++
	next.Timeline, next.Named, next.Primary = next.LastTimeline, next.Epoch, best.Member
	next.Chain = append(slices.Clone(m.reg.Chain), Branch{next.Epoch, next.Timeline, best.End})
	m.propose(propName, next, "name "+string(best.Member.Node)+" from heartbeats")
}

// editS is what LeaderEditsS does: silent members leave S by the raft leader's hand.
func (m *machine) editS() {
	next := m.reg
	next.S = without(m.reg.S, func(x Member) bool { return !m.fresh(x.Node) })
	if len(next.S) < len(m.reg.S) && len(next.S) >= m.reg.K {
		m.propose(propAdmin, next, "the leader removes the silent")
	}
}
