// Package quorum keeps the cluster's register: one small value, replicated by
// Raft among the agents, that changes by compare-and-swap and is read
// linearizably. What the value means is the business of others; here it is
// bytes, with the epoch and version that writes are conditional on.
package quorum

import (
	"context"
	"errors"
)

// Value is the content of the register. The zero Value is a register that was
// never written.
type Value struct {
	Epoch   uint64 // only grows
	Version uint64 // grows by one with every write
	Data    []byte
}

// Proposal is a write that is conditional on the epoch and version that it was
// made from.
type Proposal struct {
	Epoch, Version uint64 // what must hold for the write to take hold
	NextEpoch      uint64 // not below Epoch
	Data           []byte
}

// Apply is the compare-and-swap: the value after p, and whether p took hold. It
// runs at every voter on every committed entry, in the order of the log.
func (v Value) Apply(p Proposal) (Value, bool) {
	if p.Epoch != v.Epoch || p.Version != v.Version || p.NextEpoch < v.Epoch {
		return v, false
	}
	return Value{Epoch: p.NextEpoch, Version: v.Version + 1, Data: p.Data}, true
}

// Outcome of a proposal.
type Outcome uint8

const (
	// Unknown: it may hold now, later or never.
	Unknown Outcome = iota
	// Applied: it holds, on a majority of disks.
	Applied
	// Conflict: it never will.
	Conflict
)

func (o Outcome) String() string {
	switch o {
	case Applied:
		return "applied"
	case Conflict:
		return "conflict"
	}
	return "unknown"
}

// Result tells what became of a proposal. Value is the register that it made
// (Applied), or what stood in its way (Conflict); Err says why nothing more is
// known (Unknown).
type Result struct {
	Outcome Outcome
	Value   Value
	Err     error
}

// Voter is a member of the quorum. Its ID is drawn when its files are made and
// never used again once they are lost.
type Voter struct {
	ID      uint64
	Address string // host:port
}

// Status is what this node knows without asking anybody. It may be stale: it is
// cause to read, never to decide.
type Status struct {
	Value    Value
	Term     uint64
	Last     uint64 // last entry in this voter's log, on disk
	Applied  uint64 // last entry that Value contains
	Leader   uint64 // the voter that is believed to lead; 0: none
	Leads    bool   // this one believes that it does
	Reserved bool   // the reserved space on disk is whole
}

// ErrNotLeader is returned for what only the leader can do.
var ErrNotLeader = errors.New("this voter does not lead")

// Register is one node's way to the register. All methods are safe for
// concurrent use and end when their context does.
type Register interface {
	// Read returns a committed state of some moment after the call began, through
	// the leader, wherever that is. It writes nothing. Without a majority it
	// fails when the context ends.
	Read(ctx context.Context) (Value, error)
	// Propose asks for a write, through the leader, wherever that is. A proposal
	// that certainly did not reach a log is tried again until the context ends;
	// one that may have is not.
	Propose(ctx context.Context, p Proposal) Result
	// Status is the local view.
	Status() Status
	// Changed gets a signal after Status().Value changed; several may be merged.
	Changed() <-chan struct{}
	// Leadership tells whether this node leads, each time that this changes; a
	// reader that is late gets the newest only.
	Leadership() <-chan bool
	Membership
	Close() error
}

// Membership is what the leader alone can do; others return ErrNotLeader. After
// any other error the change may or may not hold; repeating it does no harm.
type Membership interface {
	// Transfer hands leadership to the voter to; 0: to whoever is best placed.
	Transfer(ctx context.Context, to uint64) error
	AddVoter(ctx context.Context, v Voter) error
	RemoveVoter(ctx context.Context, id uint64) error
	// Voters returns the set of voters by ID, as this node's log has it.
	Voters(ctx context.Context) ([]Voter, error)
}
