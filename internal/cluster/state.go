package cluster

import (
	"slices"
	"time"
)

// Config is constant within a life of the agent.
type Config struct {
	Self     NodeID
	Peers    []NodeID // every other node
	Witness  bool
	Priority int // breaks ties only
	Timing   Timing
	Mutation Mutation // Correct, except in tests
}

// Timing decides when things are tried; no safety rests on it.
type Timing struct {
	Heartbeat  time.Duration // ticks come about this often
	Suspect    time.Duration // silence of the primary before an election
	Veto       time.Duration // how long advancing WAL may hold an election up
	Grace      time.Duration // a dead Postgres may be restarted in place for so long
	SelfFence  time.Duration // a primary without the register stops after this
	Remove     time.Duration // a silent standby leaves S after this
	Steady     time.Duration // a standby streams for this long before it enters S
	Degrade    time.Duration // preferred: commits wait for so long before the primary goes on alone
	Retry      time.Duration // between attempts
	Handover   time.Duration // bound of each part of a switchover
	BackupStop time.Duration // bound of a fast stop
}

// State is everything that a node's agent knows. It is a value: Step never
// changes the one it is given.
type State struct {
	cfg  Config
	now  time.Duration
	wall time.Duration
	life uint64
	seq  uint64

	disk    Disk
	promise Epoch // in memory; on disk once SavePromise was done
	reg     Register
	known   bool  // reg was read or written in this life
	heard   Epoch // highest epoch heard of from anybody
	version uint64
	// floor is the version that the register must exceed before nothing that this
	// node may have proposed with unknown outcome can still take hold.
	floor   uint64
	contact time.Duration // when the last answered read or write was asked for
	read    request
	readAt  time.Duration
	prop    pending

	pg      Postgres
	pgKnown bool
	op      operation
	probeOK bool

	leader   bool
	ready    bool // the register was read since leadership began
	peers    []peer
	seen     []Sighting
	lead     lead
	sync     syncing
	follow   following
	rec      recruiting
	elect    election
	hand     handover
	voter    voting
	alarms   uint32
	askedAt  time.Duration
	deadAt   time.Duration // since when our Postgres has been down although we lead; 0: up
	orders   []Command
	destroyV uint64 // id of the read that must confirm a rebuild
	destroyR rebuild
	rebuilt  bool     // a person's reinit is done, the register is to be told
	cutWell  bool     // our healthy primary was stopped for a higher epoch
	slots    []Member // asked for lately
	slotsAt  time.Duration
	marks    uint64 // places reached in this life
}

type request struct {
	id uint64
	at time.Duration
}

type propKind uint8

const (
	propNone propKind = iota
	propBump
	propName
	propSettle
	propSync
	propAdmin
)

type pending struct {
	id   uint64
	kind propKind
	at   time.Duration
	p    Proposal
	cmd  uint64
}

type opKind uint8

const (
	opNone opKind = iota
	opStart
	opPromote
	opStop
	opShutdown
	opFollow
	opRewind
	opReclone
	opFetch
)

type operation struct {
	id   uint64
	kind opKind
	at   time.Duration
	hard bool // an immediate stop
}

type peer struct {
	id       NodeID
	heardAt  time.Duration
	heard    bool
	hb       Heartbeat
	grewAt   time.Duration // its WAL was last seen to grow
	grew     bool
	sickAt   time.Duration // since when it has called itself unhealthy; 0: healthy
	voterID  uint64        // the voter it last spoke for, and the highest
	voterIdx uint64        // index seen of that voter's log
}

// machine is one step in progress.
type machine struct {
	State
	out []Effect
}

func (m *machine) emit(e Effect) { m.out = append(m.out, e) }

func (m *machine) id() uint64 {
	m.seq++
	return m.life<<24 | m.seq
}

func (m *machine) is(x Mutation) bool { return m.cfg.Mutation == x }

func (m *machine) self() Member { return Member{m.cfg.Self, m.pg.Incarnation} }

func (m *machine) peer(id NodeID) *peer {
	for i := range m.peers {
		if m.peers[i].id == id {
			return &m.peers[i]
		}
	}
	return nil
}

// fresh says whether id was heard of lately enough to count on it.
func (m *machine) fresh(id NodeID) bool {
	if id == m.cfg.Self {
		return true
	}
	p := m.peer(id)
	return p != nil && p.heard && m.now-p.heardAt <= m.cfg.Timing.Suspect
}

// New is the state of an agent before its Started event.
func New(cfg Config) State {
	s := State{cfg: cfg, probeOK: true}
	for _, p := range cfg.Peers {
		s.peers = append(s.peers, peer{id: p})
	}
	return s
}

// sees remembers the highest position of a member.
func (m *machine) sees(s Sighting) {
	if s.Member.Incarnation == 0 {
		return
	}
	for i, old := range m.seen {
		if old.Member == s.Member {
			if old.Timeline < s.Timeline || old.Timeline == s.Timeline && old.LSN < s.LSN {
				m.seen = slices.Clone(m.seen)
				m.seen[i] = s
			}
			return
		}
	}
	m.seen = append(slices.Clip(m.seen), s)
}

// sighting returns what is remembered of a member.
func sighting(seen []Sighting, mb Member) Sighting {
	for _, s := range seen {
		if s.Member == mb {
			return s
		}
	}
	return Sighting{}
}

// timelineAt is the timeline of the last record before l: a standby that streams
// from a new primary holds nothing of its timeline until it is past the fork.
func timelineAt(h []Branch, l LSN) Timeline {
	for i := len(h) - 1; i > 0; i-- {
		if l > h[i].Fork {
			return h[i].Timeline
		}
	}
	return lastTimeline(h[:min(len(h), 1)])
}

func lastTimeline(h []Branch) Timeline {
	if len(h) == 0 {
		return 0
	}
	return h[len(h)-1].Timeline
}

// View is what status shows, and what the simulator looks at.
type View struct {
	Register  Register
	Known     bool
	Leads     bool // raft leader
	Primary   bool // acts as the named primary
	Open      bool // holds its door open
	Phase     string
	Promise   Epoch
	Recruited Epoch // reported to this epoch's election; 0: none
	Alarms    []AlarmKind
	Marks     uint64 // bits by Mark
}

// View returns what can be told about s.
func (s State) View() View {
	v := View{Register: s.reg, Known: s.known, Leads: s.leader, Primary: s.lead.phase != leadOff,
		Open: s.lead.phase == leadOpen, Phase: s.lead.phase.String(), Promise: s.promise, Marks: s.marks}
	if s.rec.stage == recDone {
		v.Recruited = s.rec.epoch
	}
	for k := AlarmKind(0); k < alarmEnd; k++ {
		if s.alarms&(1<<k) != 0 {
			v.Alarms = append(v.Alarms, k)
		}
	}
	return v
}

// Remembers returns the highest position of m that this agent has heard of.
func (s State) Remembers(m Member) (Timeline, LSN) {
	x := sighting(s.seen, m)
	return x.Timeline, x.LSN
}

// RemembersVoter returns the highest log index heard of id's voter.
func (s State) RemembersVoter(id NodeID) uint64 {
	for _, p := range s.peers {
		if p.id == id {
			return p.voterIdx
		}
	}
	return 0
}

// Recruits returns the reports that this agent's present election rests on.
func (s State) Recruits() []Report { return s.elect.reports }
