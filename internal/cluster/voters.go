package cluster

import (
	"slices"
	"time"
)

// This file decides whether this node's voter may take part, and keeps the set
// of voters as the register has it. A voter that lost its log, or part of it,
// could undo what was committed; it comes back under a new id, with nothing.

type voting struct {
	id      uint64 // of the voter that takes part; 0: none
	index   uint64
	fresh   uint64 // the id to take if the old one is not good
	joining bool
	asking  bool
	heard   []NodeID // peers that said what they remember
	replAt  time.Duration
}

func (m *machine) voterStarted() {
	d := m.disk
	switch {
	case !d.HasVoter || !d.HasPromise || d.Voter == 0:
		m.voter.joining = true // a blank host never returns under its former id
	case m.is(VoterUnchecked) || len(m.cfg.Peers) == 0:
		m.startVoter(d.Voter, false)
	default:
		m.voter.asking = true
	}
}

func (m *machine) startVoter(id uint64, fresh bool) {
	m.voter.id, m.voter.index = id, m.disk.VoterIndex
	m.voter.asking, m.voter.joining = false, false
	m.alarm(AlarmVoterBehind, false, "")
	m.emit(StartVoter{Voter: id, Fresh: fresh})
}

func (m *machine) voterTick() {
	switch {
	case m.voter.asking:
		for _, p := range m.cfg.Peers {
			m.emit(Send{To: p, Message: Hello{Voter: m.disk.Voter}})
		}
	case m.voter.joining:
		if n, ok := m.reg.Node(m.cfg.Self); m.known && ok && n.Voter == m.voter.fresh {
			m.startVoter(m.voter.fresh, true)
			return
		}
		for _, p := range m.cfg.Peers {
			m.emit(Send{To: p, Message: JoinVoter{Voter: m.voter.fresh}})
		}
	}
}

func (m *machine) hello(from NodeID, h Hello) {
	r := Remember{Voter: h.Voter}
	if p := m.peer(from); p != nil && p.voterID == h.Voter {
		r.Index = p.voterIdx
	}
	m.emit(Send{To: from, Message: r})
}

// remember starts the voter once enough peers have said that they remember
// nothing beyond what it holds.
func (m *machine) remember(from NodeID, r Remember) {
	if !m.voter.asking || r.Voter != m.disk.Voter {
		return
	}
	if r.Index > m.disk.VoterIndex {
		m.mark(MarkVoterBehind)
		m.alarm(AlarmVoterBehind, true, "this voter's files are older than what its peers remember; it comes back under a new id")
		m.voter.asking, m.voter.joining = false, true
		return
	}
	if !slices.Contains(m.voter.heard, from) {
		m.voter.heard = append(slices.Clip(m.voter.heard), from)
	}
	if 2*(len(m.voter.heard)+1) > len(m.cfg.Peers)+1 {
		m.startVoter(m.disk.Voter, false)
	}
}

// joinVoter admits a new voter id for a node of the cluster: the register
// first, then the set of voters.
func (m *machine) joinVoter(from NodeID, j JoinVoter) {
	n, ok := m.reg.Node(from)
	if !m.leader || !m.ready || !ok || n.Voter == j.Voter || m.prop.id != 0 {
		return
	}
	next := m.reg
	next.Nodes = slices.Clone(m.reg.Nodes)
	for i := range next.Nodes {
		if next.Nodes[i].ID == from {
			next.Nodes[i].Voter = j.Voter
		}
	}
	m.mark(MarkVoterJoin)
	m.propose(propAdmin, next, "admit a new voter for "+string(from))
}

// voters compares the committed set of voters to the register's, one change at a time.
func (m *machine) voters(ids []uint64) {
	if !m.leader || !m.ready {
		return
	}
	if m.now < m.voter.replAt {
		return
	}
	for _, id := range ids {
		if !slices.ContainsFunc(m.reg.Nodes, func(n Node) bool { return n.Voter == id }) {
			m.voter.replAt = m.now + m.cfg.Timing.Heartbeat
			m.emit(ReplaceVoter{Old: id})
			return
		}
	}
	for _, n := range m.reg.Nodes {
		if n.Voter != 0 && !slices.Contains(ids, n.Voter) {
			m.voter.replAt = m.now + m.cfg.Timing.Heartbeat
			m.emit(ReplaceVoter{Node: n.ID, New: n.Voter})
			return
		}
	}
}
