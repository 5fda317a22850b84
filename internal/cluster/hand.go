package cluster

import "time"

// This file is the primary's side of what is announced: switchover and restart.
// While it lasts, heartbeats call the primary well, for a bounded time.

type handPhase uint8

const (
	handNone handPhase = iota
	handStop           // door closed, checkpoint, bounded fast stop
	handWait           // the target is to hold the shutdown checkpoint
	handSent           // the raft leader has been asked for the election
)

type handover struct {
	phase   handPhase
	target  NodeID
	restart bool
	id      uint64 // of the command
	end     LSN    // of the shutdown checkpoint
	at      time.Duration
	until   time.Duration
}

func (h handover) announced(now time.Duration) bool { return h.phase != handNone && now < h.until }

// startHand begins a switchover or a restart, if this is a moment for one.
func (m *machine) startHand(c Command) {
	if m.lead.phase != leadOpen || m.hand.phase != handNone || m.op.id != 0 {
		m.answer(c.ID, false, "the primary is not open yet: try again when status shows it as open")
		return
	}
	if m.sync.change != changeNone || m.prop.id != 0 {
		m.answer(c.ID, false, "a change of S is under way: try again in a moment")
		return
	}
	target := c.Node
	if c.Kind == Switchover {
		if target == "" {
			target = m.bestTarget()
		}
		if why := m.unfit(target); why != "" {
			m.answer(c.ID, false, why)
			return
		}
	}
	t := m.cfg.Timing
	m.hand = handover{phase: handStop, target: target, restart: c.Kind == Restart, id: c.ID, at: m.now,
		until: m.now + t.BackupStop + 3*t.Handover}
	id := m.begin(opShutdown)
	m.emit(CloseDoor{})
	m.emit(Shutdown{ID: id, Within: t.BackupStop})
}

func (m *machine) bestTarget() NodeID {
	for _, s := range m.reg.S {
		if m.unfit(s.Node) == "" {
			return s.Node
		}
	}
	return ""
}

// unfit says why a node cannot take over now; empty if it can.
func (m *machine) unfit(id NodeID) string {
	for _, s := range m.reg.S {
		if s.Node != id {
			continue
		}
		l, p := m.link(s), m.peer(id)
		switch {
		case p == nil || !m.fresh(id) || !p.hb.Qualified:
			return string(id) + " cannot be promoted now"
		case !l.ok || m.now-l.near > m.cfg.Timing.Suspect:
			return string(id) + " has not caught up"
		}
		return ""
	}
	if id == "" {
		return "no standby has caught up and can be promoted now"
	}
	return string(id) + " is not in S: only a standby that confirms commits can take over"
}

func (m *machine) shutdownDone(e Done) {
	if m.hand.phase != handStop {
		return
	}
	switch {
	case !e.OK:
		m.endHand(false, "the stop took too long: "+e.Why+"; the old primary goes on")
	case m.hand.restart:
		m.endHand(true, "stopped; starting again")
	default:
		m.hand.phase, m.hand.end, m.hand.at = handWait, e.LSN, m.now
	}
}

// endHand gives the instance back to the ordinary flow, which starts it if need
// be and opens the door behind a confirmation.
func (m *machine) endHand(ok bool, text string) {
	if m.hand.restart {
		m.mark(MarkRestartAnnounced)
	} else {
		m.mark(MarkSwitchoverGivenUp)
	}
	m.answer(m.hand.id, ok, text)
	m.hand = handover{}
	if m.lead.phase > leadUp {
		m.lead.phase = leadUp
	}
}

func (m *machine) handStep() {
	if m.hand.phase == handNone {
		return
	}
	if !m.mayLead() {
		m.answer(m.hand.id, m.reg.Epoch > m.lead.epoch, "the election has begun")
		m.hand = handover{}
		return
	}
	late := m.now-m.hand.at > m.cfg.Timing.Handover
	switch m.hand.phase {
	case handStop:
		if m.op.kind != opShutdown && m.op.kind != opNone {
			m.endHand(false, "stopped for another reason")
		}
	case handWait:
		p := m.peer(m.hand.target)
		switch {
		case p != nil && p.hb.Timeline == m.reg.Timeline && p.hb.End >= m.hand.end:
			m.hand.phase, m.hand.at = handSent, m.now
			m.sendHandover()
		case late:
			m.endHand(false, string(m.hand.target)+" did not receive the last record; the old primary goes on")
		}
	case handSent:
		if late {
			m.endHand(false, "no election began; the old primary goes on")
		}
	}
}

func (m *machine) sendHandover() {
	h := Handover{Epoch: m.reg.Epoch, Target: m.hand.target}
	if m.leader {
		m.handover(h)
		return
	}
	for _, p := range m.cfg.Peers {
		m.emit(Send{To: p, Message: h})
	}
}

// handover makes the raft leader hold the ordinary election, with a hint.
func (m *machine) handover(h Handover) {
	if m.leader && m.known && h.Epoch == m.reg.Epoch && !m.reg.Electing() {
		m.elect.hint, m.elect.hintFor, m.elect.hintAt = h.Target, h.Epoch, m.now
	}
}
