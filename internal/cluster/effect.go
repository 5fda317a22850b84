package cluster

import "time"

// Effect is something to be done. Effects of one step are begun in their order,
// and each file operation is complete before the next effect begins; those with
// an ID are answered by Done (Propose, ReadRegister by their own events). An
// effect that a dead agent left half done is harmless: each says what it leaves.
type Effect interface{ effect() }

// SSN is synchronous_standby_names: ANY K of Names. K 0 is the empty string:
// nobody is waited for. K above 0 with no Names waits for a name that nobody has.
type SSN struct {
	K     int
	Names []Member
}

// SaveDurable writes the configuration that holds without permits. It must
// deny: SSN nobody, no upstream, clients rejected.
type SaveDurable struct{ SSN SSN }

// ReadRegister reads linearizably: answered only with a state that was
// committed at some moment after the request, or with OK false. Local is set by a mutation only.
type ReadRegister struct {
	ID    uint64
	Local bool
}

// Propose asks for a write. Its outcome may stay unknown.
type Propose struct {
	ID       uint64
	Proposal Proposal
	Why      string
}

// TransferLeadership asks the register's leadership to move; to anybody if empty.
type TransferLeadership struct{ To NodeID }

// StartVoter lets the voter with this id take part. Fresh: with empty state.
type StartVoter struct {
	Voter uint64
	Fresh bool
}

// ReplaceVoter makes the set of voters hold New for Node and not Old (0: none;
// New 0: only remove). One voter at a time.
type ReplaceVoter struct {
	Node     NodeID
	Old, New uint64
}

// Send gives a message to the network.
type Send struct {
	To      NodeID
	Message Message
}

// SavePromise fsyncs the promise and answers then. A promise never falls.
type SavePromise struct {
	ID    uint64
	Epoch Epoch
}

// UnlinkCredential removes what a walreceiver reads when it connects and fsyncs
// the directory: no later one can authenticate, whatever the configuration says.
type UnlinkCredential struct{ ID uint64 }

// StopReceivers clears upstream and restore_command, resumes a paused replay,
// ends the sessions, signals the walreceiver, and answers when every walreceiver
// that existed at the unlink is gone as a process.
type StopReceivers struct{ ID uint64 }

// InspectWAL answers with what the directory holds, whether Postgres runs or not.
type InspectWAL struct{ ID uint64 }

// SetSSN writes the permit and reloads. Done says that it is in force: a new
// connection shows it and no process releases a waiter by an older one. On a
// stopped instance it is in force from its start on.
type SetSSN struct {
	ID  uint64
	SSN SSN
}

// SampleLSN answers with pg_current_wal_insert_lsn().
type SampleLSN struct{ ID uint64 }

// Canary begins a commit and answers once it is seen waiting in SyncRep.
type Canary struct{ ID uint64 }

// OpenDoor lets clients in; CloseDoor rejects them and ends their sessions. A
// Postgres that is started finds the door closed.
type (
	OpenDoor  struct{}
	CloseDoor struct{}
)

// StartPrimary closes the door and starts Postgres out of recovery, on the timeline it had.
type StartPrimary struct{ ID uint64 }

// Promote closes the door, starts Postgres as a standby without upstream if it
// is down, creates missing history files so that the new timeline is Timeline,
// and promotes. It refuses if WAL does not end at Fork.
type Promote struct {
	ID       uint64
	Timeline Timeline
	Fork     LSN
}

// StopPostgres stops it: fast for a bounded time, then immediately; or at once.
// A start, promotion, rewind or reclone that is under way is ended first.
type StopPostgres struct {
	ID        uint64
	Immediate bool
}

// Shutdown makes a checkpoint and stops fast within the bound; Done is OK only
// with a shutdown checkpoint written, and carries its end. If not, Postgres still runs.
type Shutdown struct {
	ID     uint64
	Within time.Duration
}

// WriteRow writes the epoch row locally. Done carries a position not below it;
// it does not wait for standbys.
type WriteRow struct {
	ID    uint64
	Epoch Epoch
}

// Follow writes a credential that admits to Upstream and to nobody else (an
// older conninfo that a rejected reload left in force gains nothing by it), the
// permit to stream from Upstream, and the restore_command that refuses segments
// beyond the register's forks, and starts Postgres as a standby called Name. It
// streams through Name's own slot, which Postgres gives to one stream at a
// time: a former stream that lingers cannot be counted beside it.
type Follow struct {
	ID       uint64
	Upstream Member
	Epoch    Epoch
	Name     Member
}

// Rewind saves WAL that Upstream lacks aside, then makes the directory follow
// it. It keeps its incarnation.
type Rewind struct {
	ID       uint64
	Upstream Member
}

// Reclone saves the old directory's WAL aside if there is one and makes a new
// directory from a base backup, with an incarnation never used before. The
// backup's own stream uses Name, which must be no member's.
type Reclone struct {
	ID       uint64
	Upstream Member
	Name     Member
}

// FetchWAL appends WAL up to Until from another recruit. Nothing is confirmed
// to anybody by it.
type FetchWAL struct {
	ID    uint64
	From  NodeID
	Until LSN
}

// EnsureSlot keeps a physical slot for Member, with a cap on what it may hold back.
type EnsureSlot struct{ Member Member }

// Archive streams the primary's WAL to the bucket, under a path that carries the
// epoch, and as Name, which must be no member's: a receiver that is no directory
// must not satisfy a commit. It ends with this run of Postgres.
type Archive struct {
	Epoch Epoch
	Name  Member
}

// EndSenders ends the walsenders under a name.
type EndSenders struct{ Member Member }

// Alarm tells people that something holds, or no longer does.
type Alarm struct {
	Kind AlarmKind
	On   bool
	Text string
}

// Answer replies to a Command.
type Answer struct {
	ID           uint64
	OK           bool
	Text         string
	Announcement *Announcement
}

func (SaveDurable) effect()        {}
func (ReadRegister) effect()       {}
func (Propose) effect()            {}
func (TransferLeadership) effect() {}
func (StartVoter) effect()         {}
func (ReplaceVoter) effect()       {}
func (Send) effect()               {}
func (SavePromise) effect()        {}
func (UnlinkCredential) effect()   {}
func (StopReceivers) effect()      {}
func (InspectWAL) effect()         {}
func (SetSSN) effect()             {}
func (SampleLSN) effect()          {}
func (Canary) effect()             {}
func (OpenDoor) effect()           {}
func (CloseDoor) effect()          {}
func (StartPrimary) effect()       {}
func (Promote) effect()            {}
func (StopPostgres) effect()       {}
func (Shutdown) effect()           {}
func (WriteRow) effect()           {}
func (Follow) effect()             {}
func (Rewind) effect()             {}
func (Reclone) effect()            {}
func (FetchWAL) effect()           {}
func (EnsureSlot) effect()         {}
func (Archive) effect()            {}
func (EndSenders) effect()         {}
func (Alarm) effect()              {}
func (Answer) effect()             {}

// AlarmKind is one condition that people are told of.
type AlarmKind uint8

const (
	AlarmDegraded        AlarmKind = iota // commits are confirmed by this primary alone
	AlarmStalled                          // commits wait: whom for is in the text
	AlarmAmnesiac                         // a member holds less than it had confirmed
	AlarmDuplicateName                    // two receivers under one name, or a stranger under a member's
	AlarmReloadRejected                   // an error in the settings: reloads apply nothing
	AlarmNoPromotion                      // an election cannot end: why is in the text
	AlarmReplayBroken                     // this standby's replay cannot go on
	AlarmDisk                             // the disk does not answer, or is full
	AlarmCannotLead                       // named, but the directory does not fit the register
	AlarmSlotLost                         // a logical slot has a gap: its consumer must start anew
	AlarmSlotHoldsWAL                     // a slot holds back a lot
	AlarmShutdownBlocked                  // a stop is held up
	AlarmWaitCancelled                    // sessions made commits visible that are not confirmed
	AlarmForeign                          // Postgres was started by somebody else
	AlarmVoterBehind                      // this voter lost what its peers remember
	alarmEnd
)

var alarmNames = [alarmEnd]string{"degraded", "stalled", "amnesiac", "duplicate-name", "reload-rejected", "no-promotion",
	"replay-broken", "disk", "cannot-lead", "slot-lost", "slot-holds-wal", "shutdown-blocked", "wait-cancelled", "foreign",
	"voter-behind"}

func (k AlarmKind) String() string {
	if k < alarmEnd {
		return alarmNames[k]
	}
	return "unknown alarm"
}

// Effects returns one of each kind, for whoever wants to list them.
func Effects() []Effect {
	return []Effect{SaveDurable{}, ReadRegister{}, Propose{}, TransferLeadership{}, StartVoter{}, ReplaceVoter{}, Send{},
		SavePromise{}, UnlinkCredential{}, StopReceivers{}, InspectWAL{}, SetSSN{}, SampleLSN{}, Canary{}, OpenDoor{},
		CloseDoor{}, StartPrimary{}, Promote{}, StopPostgres{}, Shutdown{}, WriteRow{}, Follow{}, Rewind{}, Reclone{},
		FetchWAL{}, EnsureSlot{}, Archive{}, EndSenders{}, Alarm{}, Answer{}}
}

// Alarms returns every kind of alarm.
func Alarms() []AlarmKind {
	var out []AlarmKind
	for k := AlarmKind(0); k < alarmEnd; k++ {
		out = append(out, k)
	}
	return out
}
