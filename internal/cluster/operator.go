package cluster

import (
	"fmt"
	"slices"
)

// This file carries out what people ask for.

func (m *machine) answer(id uint64, ok bool, text string) {
	if id != 0 {
		m.emit(Answer{ID: id, OK: ok, Text: text})
	}
}

// command takes a person's request, here or forwarded.
func (m *machine) command(c Command) {
	switch c.Kind {
	case Switchover, Restart:
		switch {
		case m.lead.phase != leadOff:
			m.startHand(c)
		case m.known && m.reg.Primary.Node != m.cfg.Self && !c.Forwarded:
			c.Forwarded = true
			m.emit(Send{To: m.reg.Primary.Node, Message: Ask{c}})
		default:
			m.answer(c.ID, false, "there is no primary to hand over from")
		}
	case FailoverAllowDataLoss:
		m.failover(c)
	default:
		m.orders = append(slices.Clip(m.orders), c)
	}
}

// orderStep writes requests to the register, one by one. They carry S and k
// along unchanged.
func (m *machine) orderStep() {
	if m.prop.id != 0 || !m.known || !m.reg.Electing() && m.tellRebuilt() {
		return
	}
	i := m.nextOrder()
	if i < 0 {
		return
	}
	c := m.orders[i]
	m.orders = slices.Delete(slices.Clone(m.orders), i, i+1)
	next, why := m.ordered(c)
	if why != "" {
		m.answer(c.ID, false, why)
		return
	}
	text := "a person asks"
	if c.Kind == rebuildSelf {
		text = "my directory is to be rebuilt once it is not needed"
	}
	if m.propose(propAdmin, next, text) {
		m.prop.cmd = c.ID
	}
}

// nextOrder is the place of the request to be written next, -1 if none may be
// now. An election may be waiting for the very node that a person has fenced:
// what gives the cluster more to choose from is not kept waiting for its end.
func (m *machine) nextOrder() int {
	return slices.IndexFunc(m.orders, func(c Command) bool {
		return !m.reg.Electing() || c.Kind == Unfence || c.Kind == Resume
	})
}

// tellRebuilt takes the wish for a rebuild out of the register once it is met.
func (m *machine) tellRebuilt() bool {
	i := slices.IndexFunc(m.reg.Nodes, func(n Node) bool { return n.ID == m.cfg.Self })
	if i < 0 || m.cfg.Witness {
		return false
	}
	n := m.reg.Nodes[i]
	well := m.follow.epoch == m.reg.Epoch && m.pg.Upstream != "" && m.pg.Replayable >= m.pg.End
	done := n.Reinit && m.rebuilt || n.Rebuild && well && !m.pg.NeedsClone
	if !n.Reinit {
		m.rebuilt = false
	}
	if !done {
		return false
	}
	next := m.reg
	next.Nodes = slices.Clone(m.reg.Nodes)
	next.Nodes[i].Reinit, next.Nodes[i].Rebuild = n.Reinit && !m.rebuilt, false
	return m.propose(propAdmin, next, "the directory of "+string(m.cfg.Self)+" is good")
}

func (m *machine) ordered(c Command) (next Register, why string) {
	next = m.reg
	next.Nodes = slices.Clone(m.reg.Nodes)
	i := slices.IndexFunc(next.Nodes, func(n Node) bool { return n.ID == c.Node })
	primary := m.reg.Primary.Node == c.Node
	switch c.Kind {
	case Pause, Resume:
		next.Paused = c.Kind == Pause
		return next, ""
	case SetMode:
		next.Mode = c.Mode
		return next, ""
	case SetK:
		if c.K < 1 {
			return next, "k is at least 1"
		}
		next.WantK = c.K
		return next, ""
	case Join:
		if i >= 0 {
			return next, string(c.Node) + " is in the cluster already"
		}
		next.Nodes = append(next.Nodes, Node{ID: c.Node, Witness: c.Witness, Reader: c.Reader})
		return next, ""
	}
	if i < 0 {
		return next, string(c.Node) + " is not in the cluster"
	}
	switch c.Kind {
	case rebuildSelf:
		next.Nodes[i].Rebuild = true
	case Fence, Unfence:
		next.Nodes[i].Fenced = c.Kind == Fence
	case Reinit, Leave:
		if primary {
			return next, string(c.Node) + " is the primary: switch over first"
		}
		if m.reg.Mode == Required && m.neededForK(c.Node) {
			return next, string(c.Node) + " is needed for k while the mode is required: add a standby, or lower k, first"
		}
		if c.Kind == Reinit {
			next.Nodes[i].Reinit = true
			break
		}
		next.Nodes[i].Leaving = true // the primary takes it out of S, then it goes
	}
	return next, ""
}

// finishLeaving strikes off a node that is to go and is no longer in S; its voter
// follows. The raft leader does it: S and k stay as they are.
func (m *machine) finishLeaving() {
	i := slices.IndexFunc(m.reg.Nodes, func(n Node) bool {
		return n.Leaving && n.ID != m.reg.Primary.Node &&
			!slices.ContainsFunc(m.reg.S, func(x Member) bool { return x.Node == n.ID })
	})
	if i < 0 {
		return
	}
	next := m.reg
	next.Nodes = slices.Delete(slices.Clone(m.reg.Nodes), i, i+1)
	m.mark(MarkLeft)
	m.propose(propAdmin, next, string(m.reg.Nodes[i].ID)+" has left")
}

// neededForK says whether S without the node could not confirm a commit.
func (m *machine) neededForK(id NodeID) bool {
	rest := without(m.reg.S, func(x Member) bool { return x.Node == id })
	return len(rest) < len(m.reg.S) && len(rest) < m.reg.K
}

func (m *machine) adminProposed(id uint64, o Outcome) {
	switch o {
	case Committed:
		m.answer(id, true, "done")
	case Conflict:
		m.answer(id, false, "something else changed meanwhile: look at status and ask again")
	case Unknown:
		m.answer(id, false, "the outcome is not known: look at status")
	}
}

// failover by a person, with fewer recruits than safety asks for: first what it
// may cost, then, with that given back, the election.
func (m *machine) failover(c Command) {
	if !m.leader || !m.ready {
		for _, p := range m.cfg.Peers {
			if !c.Forwarded && m.fresh(p) {
				fw := c
				fw.Forwarded = true // only a leader acts on it
				m.emit(Send{To: p, Message: Ask{fw}})
			}
		}
		return
	}
	if c.Confirm == nil {
		m.announce(c)
		return
	}
	m.elect.force, m.elect.forceCmd = c.Confirm, c.ID
	m.elect.forceFor = m.reg.Epoch
	if !m.reg.Electing() {
		m.elect.forceFor++
		m.elect.nextAt = 0
	}
}

// announce says what a forced failover would keep, from what is known now.
func (m *machine) announce(c Command) {
	var a Announcement
	better := func(s Sighting, t Timeline, l LSN) bool { return t < s.Timeline || t == s.Timeline && l < s.LSN }
	consider := func(id NodeID, s Sighting, fit bool) {
		if s.Member.Incarnation == 0 || id == m.reg.Primary.Node {
			return
		}
		if fit && m.fresh(id) && (c.Node == "" || c.Node == id) && (a.Candidate == "" || better(s, a.Timeline, a.LSN)) {
			a.Candidate, a.Timeline, a.LSN = id, s.Timeline, s.LSN
		}
	}
	for _, p := range m.peers {
		consider(p.id, Sighting{p.hb.Member, p.hb.Timeline, p.hb.End}, p.hb.Qualified)
	}
	consider(m.cfg.Self, Sighting{m.self(), lastTimeline(m.pg.History), m.pg.End}, m.qualified())
	for _, s := range m.seen {
		if !m.fresh(s.Member.Node) && better(s, a.Known.Timeline, a.Known.LSN) {
			a.Known = s
		}
	}
	if a.Candidate == "" {
		m.answer(c.ID, false, "nobody who could be promoted answers")
		return
	}
	m.mark(MarkAnnounce)
	text := fmt.Sprintf("%s would lead. Everything written after %d on timeline %d may be lost.", a.Candidate, a.LSN, a.Timeline)
	if a.Known.Member.Node != "" {
		text += fmt.Sprintf(" Of those who are missing, %s was last seen at %d on timeline %d; it may have gone further.",
			a.Known.Member.Node, a.Known.LSN, a.Known.Timeline)
	}
	if len(m.reg.S) == 0 {
		text += fmt.Sprintf(" The primary had been confirming alone since %d.", m.reg.Degraded.LSN)
	}
	m.emit(Answer{ID: c.ID, OK: true, Text: text, Announcement: &a})
}
