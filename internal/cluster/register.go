// Package cluster is the pure decision core of a holdfast cluster: what one
// node's agent does next, as Step(State, Event) (State, []Effect). It does no
// I/O, starts no goroutine and reads no clock; time arrives as an event, and
// the same events always give the same effects. DESIGN.md beside this file says
// why each part is there, docs/SAFETY.md gives the argument.
package cluster

import (
	"slices"
	"time"
)

// NodeID is a host's name in the cluster; it outlives what stands on its disk.
type NodeID string

// Incarnation names one data directory from its making (base backup, restore,
// init) to its end. It is drawn when the directory is made and never reused; 0
// means that there is none.
type Incarnation uint64

// Epoch is a term of leadership. It only grows.
type Epoch uint64

// Timeline is a Postgres timeline. The register allocates them; none is used twice.
type Timeline uint32

// LSN is a position in the WAL of one timeline, in bytes.
type LSN uint64

// Member is one data directory on one node: what S names, and what a standby
// calls itself towards a primary.
type Member struct {
	Node        NodeID
	Incarnation Incarnation
}

// Mode says what a primary does when nobody is left who can confirm a commit.
type Mode uint8

const (
	// Preferred waits for a set time, then goes on alone and says so.
	Preferred Mode = iota
	// Required lets commits wait for as long as it takes.
	Required
)

// Branch is one timeline of a history: Timeline began at Fork on the branch
// before it, and was named in Epoch. A history observed on a disk has no epochs.
type Branch struct {
	Epoch    Epoch
	Timeline Timeline
	Fork     LSN
}

// Degraded says since when, and from which position on, the primary has been alone.
type Degraded struct {
	LSN  LSN
	Wall time.Duration // since 1970, by the primary's wall clock: for people only
}

// Node is what the register says of one node.
type Node struct {
	ID         NodeID
	Voter      uint64 // its id among the voters of the register; 0: not admitted
	Witness    bool   // votes, holds no data
	NoFailover bool   // holds data, is never promoted
	Reader     bool   // holds data, never enters S: nothing waits for it, nothing rests on it
	Reinit     bool   // a person wants its data directory made anew
	Rebuild    bool   // its agent wants that too, once it is not needed for k
	Leaving    bool   // a person wants it out of the cluster
	Fenced     bool   // a person wants its Postgres down
}

// Register is the replicated truth. Every field changes by compare-and-swap on
// (Epoch, Version) only. Slices in it are never changed in place.
type Register struct {
	Version uint64 // grows by one with every write
	Epoch   Epoch
	Named   Epoch  // the epoch in which Primary was named; below Epoch: an election is under way
	Primary Member // the last one named
	// Timeline is Primary's; LastTimeline the highest ever allocated.
	Timeline, LastTimeline Timeline
	// S may satisfy a commit, K of it must. Nobody is promoted without n-K+1
	// recruits out of S; with S empty only Primary may lead.
	S        []Member
	K        int
	WantK    int // what K returns to when enough members are there
	Mode     Mode
	Degraded Degraded // set while S is empty
	Chain    []Branch // the ancestry of Timeline, oldest first
	Nodes    []Node
	Paused   bool // no election and no degrading of its own accord
}

// Proposal is a write to the register, conditional on what it was made from.
type Proposal struct {
	Expect      uint64
	ExpectEpoch Epoch
	Next        Register
}

// Apply is the compare-and-swap: the register after p, and whether p took hold.
// It runs at every voter on every committed entry, in the order of the log.
func (r Register) Apply(p Proposal, m Mutation) (Register, bool) {
	if p.ExpectEpoch != r.Epoch || p.Next.Epoch < r.Epoch {
		return r, false
	}
	if p.Expect != r.Version && m != CASWithoutVersion {
		return r, false
	}
	next := p.Next
	next.Version = r.Version + 1
	return next, true
}

// Quorum is R, how many members of S a promotion needs; it meets every set of
// K members that may have confirmed a commit. An empty S has none.
func (r Register) Quorum() (need int, possible bool) {
	if len(r.S) == 0 {
		return 0, false
	}
	return max(1, len(r.S)-r.K+1), true
}

// Electing says whether the present epoch has no primary yet.
func (r Register) Electing() bool { return r.Named < r.Epoch }

// Node returns what the register says of id.
func (r Register) Node(id NodeID) (Node, bool) {
	for _, n := range r.Nodes {
		if n.ID == id {
			return n, true
		}
	}
	return Node{}, false
}

// InS says whether exactly this data directory may satisfy a commit.
func (r Register) InS(m Member) bool { return slices.Contains(r.S, m) }

// Fork is where Timeline began, and whether it has a parent at all.
func (r Register) Fork() (LSN, bool) {
	if len(r.Chain) < 2 {
		return 0, false
	}
	return r.Chain[len(r.Chain)-1].Fork, true
}

// Position is a place on the register's chain: the epoch of the last record
// held, then the LSN. It is the order in which candidates are compared.
type Position struct {
	Epoch Epoch
	LSN   LSN
}

// Less orders positions along the chain.
func (p Position) Less(q Position) bool {
	return p.Epoch < q.Epoch || p.Epoch == q.Epoch && p.LSN < q.LSN
}

// Locate compares a history as found on a disk, with its end, to the register's
// chain. It returns how far the two agree, the number of branches in common,
// and whether the disk holds anything that the chain does not: then it can
// follow only after a rewind. Equal timeline numbers alone prove nothing, so
// forks are compared too; without a common beginning, common is 0.
func Locate(chain, history []Branch, end LSN) (pos Position, common int, diverged bool) {
	for common < len(chain) && common < len(history) &&
		chain[common].Timeline == history[common].Timeline && chain[common].Fork == history[common].Fork {
		common++
	}
	if common == 0 {
		return Position{}, 0, true
	}
	held := end
	if common < len(history) {
		held, diverged = history[common].Fork, true
	}
	if common < len(chain) && held > chain[common].Fork {
		held, diverged = chain[common].Fork, true
	}
	return Position{chain[common-1].Epoch, held}, common, diverged
}

// with returns s with m added, in a stable order.
func with(s []Member, m Member) []Member {
	if slices.Contains(s, m) {
		return s
	}
	out := append(slices.Clone(s), m)
	slices.SortFunc(out, compareMembers)
	return out
}

// without returns s less the members for which drop holds.
func without(s []Member, drop func(Member) bool) []Member {
	var out []Member
	for _, m := range s {
		if !drop(m) {
			out = append(out, m)
		}
	}
	return out
}

func compareMembers(a, b Member) int {
	switch {
	case a.Node < b.Node:
		return -1
	case a.Node > b.Node:
		return 1
	case a.Incarnation < b.Incarnation:
		return -1
	case a.Incarnation > b.Incarnation:
		return 1
	}
	return 0
}
