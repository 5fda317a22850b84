package cluster

import "time"

// Event is something that happened to a node. Whoever drives the core hands
// them over one at a time, in the order in which they were seen.
type Event interface{ event() }

// Started begins a life of the agent: first event of every State. It promises
// that nothing of an earlier life reaches this one: what it had begun on the
// instance is ended, only writes that it proposed may still take hold.
type Started struct {
	Life uint64 // never used before on this node
	Disk Disk
	// Fresh is a number never drawn before: the voter id taken if a new one is needed.
	Fresh uint64
}

// Disk is what the agent found in its own state directory, all of it fsynced.
type Disk struct {
	Incarnation Incarnation // of the data directory that the agent last made; 0: none
	Promise     Epoch
	HasPromise  bool // the file is there
	Voter       uint64
	HasVoter    bool   // the voter's files are there
	VoterIndex  uint64 // last entry of its log
}

// Tick carries time: Now is monotonic on this node within this life and only
// decides when something is tried; Wall is for people.
type Tick struct{ Now, Wall time.Duration }

// ReadDone answers ReadRegister. With OK, Register was the committed state at
// some moment after the read was asked for.
type ReadDone struct {
	ID       uint64
	OK       bool
	Register Register
}

// Outcome of a Propose.
type Outcome uint8

const (
	Unknown   Outcome = iota // it may hold now, later or never
	Committed                // it holds; Register is the state it made
	Conflict                 // it never will; Register is what was in its way
)

// ProposeDone answers Propose, always and once within a life.
type ProposeDone struct {
	ID       uint64
	Outcome  Outcome
	Register Register
}

// Leadership says whether this node's voter believes that it leads. A belief:
// whatever follows from it is confirmed by reads and writes.
type Leadership struct{ Leads bool }

// Applied says that the local copy of the register, maybe stale, shows this. It
// is cause to read, never to decide.
type Applied struct {
	Version uint64
	Epoch   Epoch
	Index   uint64 // last entry in this voter's log, on disk
}

// Voters is the committed set of voters, told to the node that leads.
type Voters struct{ IDs []uint64 }

// Received is a message from another node's agent: maybe late, twice or out of order.
type Received struct {
	From    NodeID
	Message Message
}

// PostgresSeen is a fresh look at the local instance.
type PostgresSeen struct{ Postgres Postgres }

// Postgres is what can be seen of one instance.
type Postgres struct {
	Exists      bool
	Incarnation Incarnation // as written inside the data directory
	Running     bool
	Primary     bool // out of recovery
	Foreign     bool // started by somebody else
	DoorOpen    bool
	Upstream    NodeID // a walreceiver streams from it; empty: none
	// History ends in the timeline of the last record in WAL (never pg_control's).
	History []Branch
	// End is the end of the last whole record that is on disk: flushed by a
	// primary, received and flushed by a standby. What looks like the beginning of
	// a record is not counted; pg_waldump decides, not elapsed time.
	End LSN
	// Replayed is what replay has applied, Replayable how far it can ever get
	// (pg_waldump); below End, replay is broken.
	Replayed, Replayable LSN
	ControlTimeline      Timeline // pg_control's: shown to people, never decides
	Senders              []Sender
	Headroom             bool // space to go on as a primary
	ReloadRejected       bool // pg_file_settings shows an error: reloads apply nothing
	NeedsClone           bool // upstream no longer has the WAL that we need
	Slots                []Slot
	ShutdownBlocked      string // who holds up a stop that is under way
	WaitsCancelled       int    // sessions seen to end a synchronous wait by cancelling, so far
}

// Sender is one walsender of the local instance: what it calls itself, what it
// has confirmed. Named is false for names that are no member's.
type Sender struct {
	Member    Member
	Named     bool
	Streaming bool
	Flush     LSN
}

// Slot is a replication slot on the local instance.
type Slot struct {
	Name    string
	Member  Member // whose it is; zero: none of ours
	Logical bool
	Kept    int64 // bytes of WAL held back for it
	Lost    bool  // invalidated, or recreated with a gap
}

// Done answers every effect that carries an ID, once and within the life that
// asked. With OK false, the effect had no result that may be relied on.
type Done struct {
	ID       uint64
	OK       bool
	LSN      LSN       // SampleLSN, WriteRow: the position; Shutdown: the end of the checkpoint
	Postgres *Postgres // what the instance looks like after it, where that changed
	Why      string
}

// Reloaded says that the reload for SetSSN returned. It proves nothing.
type Reloaded struct{ ID uint64 }

// RowCommitted says that COMMIT of the epoch row returned. It proves nothing either.
type RowCommitted struct{ ID uint64 }

// Probed is the outcome of a write on a fresh connection with
// synchronous_commit = local, within its deadline.
type Probed struct{ OK bool }

// CommandKind is what a person may ask for.
type CommandKind uint8

const (
	Switchover            CommandKind = iota + 1 // to Node, or to the best one
	FailoverAllowDataLoss                        // Confirm empty: only say what it may cost
	Restart                                      // of the primary's Postgres, announced
	Pause
	Resume
	Fence   // Node
	Unfence // Node
	Reinit  // Node
	Join    // Node; Witness, Reader
	Leave   // Node
	SetMode
	SetK
	rebuildSelf // an agent's own wish, never a person's
)

// Command is a person's request, given to any node.
type Command struct {
	ID      uint64
	Kind    CommandKind
	Node    NodeID
	Witness bool
	Reader  bool
	Mode    Mode
	K       int
	Confirm *Announcement // what was announced, given back
	// Forwarded is set by an agent that passes a command on: it travels once.
	Forwarded bool
}

// Announcement is what FailoverAllowDataLoss may cost: everything beyond LSN on
// Timeline may be lost, nothing at or below it will be.
type Announcement struct {
	Candidate NodeID
	Timeline  Timeline
	LSN       LSN
	// Known is the highest position that anybody remembers of those who are
	// missing; the true loss may go beyond it.
	Known Sighting
}

func (Started) event()      {}
func (Tick) event()         {}
func (ReadDone) event()     {}
func (ProposeDone) event()  {}
func (Leadership) event()   {}
func (Applied) event()      {}
func (Voters) event()       {}
func (Received) event()     {}
func (PostgresSeen) event() {}
func (Done) event()         {}
func (Reloaded) event()     {}
func (RowCommitted) event() {}
func (Probed) event()       {}
func (Command) event()      {}
