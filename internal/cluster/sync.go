package cluster

import (
	"slices"
	"time"
)

// This file changes S and k, always so that for every SSN in force anywhere
// SSN ⊆ S and k_SSN ≥ k, or S is empty. Only the primary runs it, in its own
// epoch, one change at a time.

type change uint8

const (
	changeNone change = iota
	changeRemove
	changeRaise
	changeReturn
	changeAdd
	changeLower
	changeDegrade
)

var changeNames = [...]string{"none", "remove", "raise k", "return", "add", "lower k", "degrade"}

var changeMarks = [...]Mark{MarkChangeGivenUp, MarkRemove, MarkRaise, MarkReturn, MarkAdd, MarkLower, MarkDegrade}

func (c change) String() string { return changeNames[c] }

type syncStage uint8

const (
	stageNobody  syncStage = iota // return: SSN names nobody
	stageCanary                   // return: a commit is to be seen waiting
	stageSSN                      // the new SSN comes into force
	stageSample                   // L is read
	stageWait                     // members flush L
	stagePropose                  // the register is written
)

type syncing struct {
	ssn     SSN // last asked for
	set     bool
	inForce bool
	ssnID   uint64
	ssnAt   time.Duration
	change  change
	stage   syncStage
	s       []Member // S and K after the change
	k       int
	l       LSN
	id      uint64 // of the sample or canary under way
	since   time.Duration
	end     LSN           // ours, at the last look
	short   time.Duration // since when too few members confirm; 0: enough do
	links   []link
}

// link is how one standby's stream has been doing.
type link struct {
	member Member
	ok     bool
	since  time.Duration // since when it is ok, or not
	flush  LSN
	moved  time.Duration // when flush last moved or had nothing to do
	near   time.Duration // when it last held all that we had at the look before
	twice  bool
}

func (s *syncing) is(x SSN) bool {
	return s.set && s.ssn.K == x.K && slices.Equal(s.ssn.Names, x.Names)
}

// steady is the SSN that belongs to the register as it is: every member of S
// but ourselves. With S empty, nobody is waited for, unless commits must wait.
func (m *machine) steady() SSN {
	if len(m.reg.S) == 0 {
		if m.reg.Mode == Required {
			return SSN{K: 1}
		}
		return SSN{}
	}
	return SSN{K: m.reg.K, Names: m.others(m.reg.S)}
}

func (m *machine) others(s []Member) []Member {
	return without(s, func(x Member) bool { return x == m.self() })
}

func (m *machine) setSSN(x SSN) {
	m.sync.ssn, m.sync.set, m.sync.inForce = x, true, false
	m.sync.ssnID, m.sync.ssnAt = m.id(), m.now
	m.emit(SetSSN{ID: m.sync.ssnID, SSN: x})
}

// retrySSN asks again when a reload did not act.
func (m *machine) retrySSN() {
	if !m.sync.inForce && m.now-m.sync.ssnAt > m.cfg.Timing.Retry {
		m.setSSN(m.sync.ssn)
	}
}

func (m *machine) ssnInForce(id uint64) {
	if id == m.sync.ssnID && id != 0 {
		m.sync.inForce = true
	}
}

// linksSeen judges every stream. A standby that is connected but whose flush
// stands still behind ours is as good as gone; two streams under one name are
// nobody's.
func (m *machine) linksSeen() {
	if !m.pg.Primary || !m.pg.Running {
		return
	}
	links := slices.Clone(m.sync.links)
	for i := range links {
		links[i].twice = false
	}
	for _, s := range m.pg.Senders {
		if !s.Named {
			continue
		}
		i := slices.IndexFunc(links, func(l link) bool { return l.member == s.Member })
		if i < 0 {
			links = append(links, link{member: s.Member, since: m.now, moved: m.now})
		}
	}
	for i := range links {
		l := &links[i]
		n, ok := 0, false
		for _, s := range m.pg.Senders {
			if s.Named && s.Member == l.member {
				n++
				ok = s.Streaming
				if s.Flush != l.flush || s.Flush >= m.pg.End {
					l.moved = m.now
				}
				if s.Flush >= min(m.sync.end, m.pg.End) {
					l.near = m.now
				}
				l.flush = s.Flush
			}
		}
		l.twice = n > 1
		ok = ok && n == 1 && m.now-l.moved <= m.cfg.Timing.Suspect
		if ok != l.ok {
			l.ok, l.since = ok, m.now
		}
		if n == 0 {
			l.flush = 0
		}
	}
	m.sync.links, m.sync.end = links, m.pg.End
}

func (m *machine) link(x Member) link {
	for _, l := range m.sync.links {
		if l.member == x {
			return l
		}
	}
	return link{member: x}
}

// flushed counts the members of s that have confirmed l, ourselves included
// where s names us: then our own disk holds it.
func (m *machine) flushed(s []Member, l LSN) int {
	n := 0
	if m.is(OwnDiskAlways) && !slices.Contains(s, m.self()) && m.pg.End >= l {
		n++
	}
	for _, x := range s {
		if x == m.self() {
			if m.pg.End >= l {
				n++
			}
			continue
		}
		k := m.link(x)
		if k.ok && !k.twice && k.flush >= l {
			n++
		}
	}
	return n
}

// okay counts the members of s, other than ourselves, that can confirm now.
func (m *machine) okay(s []Member) int {
	n := 0
	for _, x := range m.others(s) {
		if m.link(x).ok {
			n++
		}
	}
	return n
}

func (m *machine) syncStep() {
	if m.lead.phase < leadConfirm || m.hand.phase != handNone || m.lead.epoch != m.reg.Epoch || !m.pg.Running {
		return
	}
	m.tellStall()
	if m.prop.id != 0 {
		return
	}
	if m.sync.change == changeNone {
		if !m.sync.is(m.steady()) {
			// This may widen SSN, so nothing that we proposed may still be under way.
			if m.settled() {
				m.setSSN(m.steady())
			} else {
				m.settle()
			}
			return
		}
		if !m.sync.inForce {
			m.retrySSN()
			return
		}
		m.nextChange()
	}
	if m.sync.change != changeNone {
		m.advance()
	}
}

// tellStall keeps the time for which too few members confirm, and says so.
func (m *machine) tellStall() {
	short := len(m.reg.S) > 0 && m.okay(m.reg.S) < m.reg.K
	if !short {
		m.sync.short = 0
	} else if m.sync.short == 0 {
		m.sync.short = max(m.now, 1)
	}
	if stalled := short && m.now-m.sync.short >= m.cfg.Timing.Heartbeat; stalled != (m.alarms&(1<<AlarmStalled) != 0) {
		m.alarm(AlarmStalled, stalled, "commits wait for "+SSN{K: m.reg.K, Names: m.others(m.reg.S)}.String())
	}
	m.alarm(AlarmDegraded, len(m.reg.S) == 0 && m.sync.is(SSN{}), "commits are confirmed by this primary alone")
}

// nextChange picks what to do next, if anything.
func (m *machine) nextChange() {
	if len(m.reg.S) == 0 {
		m.considerReturn()
		return
	}
	stay := m.staying()
	left, wanted := m.letGo()
	switch {
	case len(stay) < len(m.reg.S) && (m.okay(stay) >= m.reg.K || slices.Contains(stay, m.self()) && m.flushed(stay, m.pg.End) >= m.reg.K):
		m.start(changeRemove, stageSSN, stay, m.reg.K)
	case m.considerAdd():
	case m.reg.WantK >= 1 && m.reg.K > m.reg.WantK:
		m.start(changeLower, stagePropose, m.reg.S, m.reg.WantK)
	case m.reg.K < m.reg.WantK && m.okay(m.reg.S) > m.reg.K:
		m.start(changeRaise, stageSSN, m.reg.S, m.reg.K+1)
	case wanted:
		m.goShort(left)
	case m.sync.short != 0 && m.mayGoShort():
		m.goShort(m.okay(m.reg.S))
	}
}

// goShort makes do with n confirmations, fewer than k.
func (m *machine) goShort(n int) {
	if n > 0 {
		m.start(changeLower, stagePropose, m.reg.S, n)
	} else {
		m.start(changeDegrade, stagePropose, nil, 0)
	}
}

// staying is S without those that should leave it: ourselves once others hold
// our epoch row, the silent, those of a former incarnation; and, if the rest is
// enough for k, those that a person or their own broken replay wants rebuilt.
// While our door is still closed, silence need not last.
func (m *machine) staying() []Member {
	stay := without(m.reg.S, m.gone)
	if rest := without(stay, func(x Member) bool { return m.wantedOut(x) || m.brokenReplay(x) || m.toRebuild(x) }); m.okay(rest) >= m.reg.K {
		stay = rest
	}
	if m.reg.InS(m.self()) {
		rest := m.others(stay)
		if m.okay(rest) >= m.reg.K && (m.lead.byCommit || m.flushed(rest, m.lead.row) >= m.reg.K) {
			return rest
		}
		if m.now-m.lead.since < m.cfg.Timing.Remove {
			return m.reg.S // they have had no time to connect
		}
	}
	return stay
}

// gone says whether a member of S can confirm no more.
func (m *machine) gone(x Member) bool {
	if x == m.self() {
		return false
	}
	if _, known := m.reg.Node(x.Node); !known || x.Node == m.cfg.Self {
		return true
	}
	if p := m.peer(x.Node); p != nil && p.heard && p.hb.Member.Incarnation != 0 && p.hb.Member != x {
		return true
	}
	l := m.link(x)
	return !l.ok && (m.reg.InS(m.self()) || m.now-l.since >= m.cfg.Timing.Remove)
}

// wantedOut says whether a person wants a member rebuilt or gone.
func (m *machine) wantedOut(x Member) bool {
	n, _ := m.reg.Node(x.Node)
	return n.Reinit || n.Leaving
}

// toRebuild says whether a member's agent waits for it not to be needed.
func (m *machine) toRebuild(x Member) bool {
	n, _ := m.reg.Node(x.Node)
	return n.Rebuild
}

// brokenReplay says whether a member confirms, but could not be promoted.
func (m *machine) brokenReplay(x Member) bool {
	p := m.peer(x.Node)
	return p != nil && p.heard && p.hb.Broken
}

// letGo is for a member that a person wants out although k needs it: preferred
// lets it go all the same. It returns how many can still confirm without it.
func (m *machine) letGo() (left int, ok bool) {
	if m.reg.Mode != Preferred || m.reg.InS(m.self()) || !slices.ContainsFunc(m.reg.S, m.wantedOut) {
		return 0, false
	}
	left = m.okay(without(m.reg.S, m.wantedOut))
	return left, left < m.reg.K
}

// considerAdd enters the first standby that has streamed steadily and caught up.
func (m *machine) considerAdd() bool {
	for _, l := range m.sync.links {
		if !m.reg.InS(l.member) && m.steadily(l) && l.flush >= m.pg.End {
			m.start(changeAdd, stagePropose, with(m.reg.S, l.member), m.reg.K)
			return true
		}
	}
	return false
}

func (m *machine) steadily(l link) bool {
	n, known := m.reg.Node(l.member.Node)
	if m.brokenReplay(l.member) {
		return false
	}
	return l.ok && !l.twice && m.now-l.since >= m.cfg.Timing.Steady && known && !n.Witness && !n.Reinit && !n.Rebuild && !n.Leaving &&
		(!n.Reader || m.is(ReaderInS)) && !n.Fenced && l.member.Node != m.cfg.Self && l.member.Incarnation != 0
}

// mayGoShort says whether fewer confirmations than k may be waited for now.
func (m *machine) mayGoShort() bool {
	if m.reg.Mode != Preferred || m.reg.Paused {
		return false
	}
	if m.now-m.sync.short >= m.cfg.Timing.Degrade {
		return true
	}
	// Just promoted with nobody left who could ever confirm: no use waiting.
	return m.reg.InS(m.self()) && m.now >= m.cfg.Timing.Suspect &&
		!slices.ContainsFunc(m.reg.Nodes, func(n Node) bool {
			return n.ID != m.cfg.Self && !n.Witness && !n.Reader && m.fresh(n.ID)
		})
}

// considerReturn begins the way back from S = ∅.
func (m *machine) considerReturn() {
	var s []Member
	for _, l := range m.sync.links {
		if m.steadily(l) && (l.flush >= m.pg.End || m.is(ReturnEarly)) {
			s = with(s, l.member)
		}
	}
	if len(s) == 0 || m.reg.Mode == Required && len(s) < m.reg.WantK {
		return
	}
	k := max(1, min(m.reg.WantK, len(s)))
	if m.is(NoCanary) {
		m.start(changeReturn, stageSSN, s, k)
		return
	}
	m.start(changeReturn, stageNobody, s, k)
}

func (m *machine) start(c change, at syncStage, s []Member, k int) {
	m.sync.change, m.sync.s, m.sync.k = c, s, k
	m.sync.since = m.now
	m.mark(changeMarks[c])
	switch {
	case m.is(RemoveWithoutWait) && c == changeRemove, m.is(RaiseWithoutWait) && c == changeRaise:
		at = stagePropose
	case m.is(WidenBeforeRegister) && c == changeAdd:
		m.setSSN(SSN{K: k, Names: m.others(s)})
	case m.is(LowerBeforeRegister) && c == changeLower:
		m.setSSN(SSN{K: k, Names: m.others(s)})
	case m.is(DegradeWithoutRegister) && c == changeDegrade:
		m.setSSN(SSN{})
	}
	m.enter(at)
}

func (m *machine) enter(at syncStage) {
	m.sync.stage, m.sync.id = at, 0
	switch at {
	case stageNobody:
		m.setSSN(SSN{K: 1})
	case stageCanary:
		m.mark(MarkCanary)
		m.sync.id = m.id()
		m.emit(Canary{ID: m.sync.id})
	case stageSSN:
		x := SSN{K: m.sync.k, Names: m.others(m.sync.s)}
		if m.sync.is(x) && m.sync.inForce {
			m.enter(stageSample)
			return
		}
		m.setSSN(x)
		if m.is(SampleBeforeInForce) {
			m.sync.id = m.id()
			m.emit(SampleLSN{ID: m.sync.id})
		}
	case stageSample:
		m.sync.id = m.id()
		m.emit(SampleLSN{ID: m.sync.id})
	case stagePropose:
		if !m.stillWanted() {
			m.mark(MarkChangeGivenUp)
			m.sync.change, m.sync.l = changeNone, 0
			return
		}
		next := m.reg
		next.S, next.K = m.sync.s, m.sync.k
		next.Degraded = Degraded{}
		if m.sync.change == changeDegrade {
			next.Degraded = Degraded{LSN: m.pg.End, Wall: m.wall}
		}
		m.propose(propSync, next, m.sync.change.String())
	}
}

// stillWanted says whether the register, as it is by now, lets all those in whom
// the change under way would add: since it began, one may have had it said there
// that its directory is to be rebuilt, and relies on not being added any more.
func (m *machine) stillWanted() bool {
	return !slices.ContainsFunc(m.sync.s, func(x Member) bool {
		n, known := m.reg.Node(x.Node)
		return x != m.self() && !m.reg.InS(x) && (!known || n.Reinit || n.Rebuild || n.Leaving)
	})
}

// advance moves the change under way on, or gives it up.
func (m *machine) advance() {
	switch m.sync.stage {
	case stageNobody:
		if m.sync.inForce {
			m.enter(stageCanary)
		}
	case stageSSN:
		if m.sync.inForce && m.sync.l != 0 && m.is(SampleBeforeInForce) {
			m.sync.stage = stageWait
		} else if m.sync.inForce && (!m.is(SampleBeforeInForce) || m.sync.id == 0) {
			m.enter(stageSample)
		}
	case stageWait:
		if m.flushed(m.sync.s, m.sync.l) >= m.sync.k || m.lead.byCommit || m.is(ReturnEarly) && m.sync.change == changeReturn {
			m.sync.l = 0
			m.enter(stagePropose)
			return
		}
	case stagePropose:
		if m.prop.id == 0 {
			m.enter(stagePropose) // another write was in the way
		}
		return
	}
	m.retrySSN()
	// Nothing has been proposed yet, so SSN may go back to what the register says.
	if m.now-m.sync.since > m.cfg.Timing.Remove && m.sync.stage != stagePropose {
		m.mark(MarkChangeGivenUp)
		m.sync.change, m.sync.id, m.sync.l = changeNone, 0, 0
	}
}

// syncDone takes the sampled position, or the canary's appearance.
func (m *machine) syncDone(e Done) {
	m.sync.id = 0
	if !e.OK {
		m.sync.change, m.sync.l = changeNone, 0
		return
	}
	switch m.sync.stage {
	case stageCanary:
		m.enter(stageSSN)
	case stageSample:
		m.sync.l, m.sync.stage = e.LSN, stageWait
	case stageSSN:
		m.sync.l = e.LSN
	}
}

// syncProposed ends a change. After an unknown outcome SSN stays as it is: by
// the order of each change it is valid whether the write took hold or not.
func (m *machine) syncProposed(Outcome) {
	m.sync.change, m.sync.l, m.sync.id = changeNone, 0, 0
}
