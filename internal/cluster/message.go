package cluster

// Message goes from agent to agent. All may be lost, late, doubled or reordered.
type Message interface{ message() }

// Heartbeat is what every agent tells every other, each tick.
type Heartbeat struct {
	Epoch      Epoch  // the highest that the sender has heard of
	Version    uint64 // of the register as the sender knows it
	Member     Member // node, and incarnation of its data directory
	Leading    bool   // acts as the named primary of Epoch
	Healthy    bool   // its Postgres runs and takes writes, or is about to by announcement
	Disk       bool   // its disk answers and has headroom
	Qualified  bool   // replay intact, allowed and able to be promoted
	Fetching   bool   // a directory is being rebuilt
	Broken     bool   // replay cannot reach what was received
	Timeline   Timeline
	End        LSN
	Voter      uint64
	VoterIndex uint64 // last entry in the voter's log
	Seen       []Sighting
}

// Sighting is a position that a member was seen to hold on disk. It is kept in
// memory: a member that later shows less has lost what it had confirmed.
type Sighting struct {
	Member   Member
	Timeline Timeline
	LSN      LSN
}

// Recruit asks for the promise not to follow any epoch below Epoch, and for what
// the node holds. It is sent only after Epoch has committed.
type Recruit struct {
	Epoch   Epoch
	Primary Member // the last one named: it is told apart from members of S
}

// Report is a recruit's answer. When it is sent, the promise is on disk, no
// walreceiver lives and none can authenticate; End will not grow, other than by
// a CatchUp of the same epoch.
type Report struct {
	Epoch           Epoch
	Member          Member
	History         []Branch
	End             LSN // received and flushed
	Replayed        LSN
	Replayable      LSN
	ControlTimeline Timeline
	Promised        Epoch // the promise before this one
	Qualified       bool
	Headroom        bool
	Unwanted        bool // to be rebuilt or to leave: promoted only if nobody else will do
	Priority        int
	Able            bool // the last named primary: stopped for the epoch only, can go on
	Present         bool // the last named primary: its directory is whole
	Seen            []Sighting
}

// CatchUp asks a recruit to fetch WAL up to Until from another recruit.
type CatchUp struct {
	Epoch Epoch
	From  NodeID
	Until LSN
}

// Handover says that the primary of Epoch has stopped cleanly for a switchover
// and that Target holds its last record.
type Handover struct {
	Epoch  Epoch
	Target NodeID
}

// Ask forwards a person's command to the node that can carry it out.
type Ask struct{ Command Command }

// Hello asks what is remembered of a voter, before it starts.
type Hello struct{ Voter uint64 }

// Remember answers Hello: the highest index seen of it, 0 if none.
type Remember struct{ Voter, Index uint64 }

// JoinVoter asks for admission of a new voter id.
type JoinVoter struct{ Voter uint64 }

// NamedNotice is sent by FollowBeforeCommit only: a naming before it committed.
type NamedNotice struct{ Register Register }

func (Heartbeat) message()   {}
func (Recruit) message()     {}
func (Report) message()      {}
func (CatchUp) message()     {}
func (Handover) message()    {}
func (Ask) message()         {}
func (Hello) message()       {}
func (Remember) message()    {}
func (JoinVoter) message()   {}
func (NamedNotice) message() {}
