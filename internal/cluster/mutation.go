package cluster

// Mutation makes the core wrong in one known way. The zero value is the
// correct core; only tests set another one, to prove that the simulator would
// notice the mistake. Each names the rule that it breaks.
type Mutation uint8

// The wrong versions. SAFETY.md lists them; what each leaves out is said in
// the place where it acts.
const (
	Correct                   Mutation = iota
	NamingDropsX                       // S := S∖{X} when X is named
	DoorBeforeS                        // the door opens before S' is registered
	RemoveWithoutWait                  // a member leaves S before the rest hold what it confirmed
	RaiseWithoutWait                   // K is raised in the register first
	SampleBeforeInForce                // L is read before the new SSN acts
	RowByCommit                        // the epoch row counts when its COMMIT returns
	ReloadIsInForce                    // a reload that returned is taken for an SSN in force everywhere
	CASWithoutVersion                  // the register compares the epoch only
	UnknownMeansFailed                 // a write of unknown outcome is taken for one that failed
	RetryOnConflict                    // a refused write is sent again against the new version
	RestartForgetsWrites               // a restarted agent ignores writes of its former life
	LeaderEditsS                       // the raft leader removes dead standbys from S
	WidenBeforeRegister                // a standby enters SSN before it is in S
	LowerBeforeRegister                // k falls in SSN before it falls in the register
	HolderIgnored                      // a recruit that cannot be promoted is not a holder either
	ChoiceByReplay                     // the highest replayed LSN wins
	ChoiceByPromise                    // the epoch of the promise is taken for that of the last record
	ChoiceByControlFile                // the timeline is read from pg_control
	TimelineReused                     // the new timeline is the candidate's plus one
	StaleReport                        // late recruit reports count
	RecloneInS                         // a member is rebuilt while S names it
	IncarnationIgnored                 // S is compared by node
	DuplicateNames                     // the archiver streams under a member's name
	ReportBeforeReceiversGone          // a recruit reports while a walreceiver lives
	CredentialKept                     // a recruit relies on the reload alone
	DurableAllows                      // without its permits Postgres runs without SSN
	LocalRead                          // decisions are made on the local FSM
	VoterUnchecked                     // a voter starts without asking what its peers remember
	PermitsDurable                     // permits survive a reboot
	BumpWhileDegraded                  // an election begins although S is empty
	FollowBeforeCommit                 // a naming is acted upon before it has committed
	NoRecruit                          // a primary is named from heartbeats
	PromiseNotSynced                   // a recruit reports before its promise is on disk
	QuorumOffByOne                     // n-k recruits are enough
	PriorityFirst                      // the preferred node wins over the one with more WAL
	DegradeWithoutRegister             // SSN is emptied before S
	ReturnEarly                        // S is registered before its members caught up
	RestartOpensDoor                   // a restarted primary serves at once
	NoCanary                           // returning from degraded trusts pg_stat_replication
	AmnesiacCounted                    // a member that lost confirmed WAL still counts
	InFlightForgotten                  // a write on its way is forgotten when the register was lost meanwhile
	StartNotStopped                    // a recruit reports although a start is under way
	AmnesiacLeads                      // a primary that lost confirmed WAL goes on
	OwnDiskAlways                      // the primary's own disk counts though S does not name it
	ReaderInS                          // a reader enters S as any other standby does
	MutationEnd
)

var mutationNames = [MutationEnd]string{
	"correct", "naming-drops-x", "door-before-s", "remove-without-wait", "raise-without-wait", "sample-before-in-force",
	"row-by-commit", "reload-is-in-force", "cas-without-version", "unknown-means-failed", "retry-on-conflict",
	"restart-forgets-writes", "leader-edits-s", "widen-before-register", "lower-before-register", "holder-ignored",
	"choice-by-replay", "choice-by-promise", "choice-by-control-file", "timeline-reused", "stale-report", "reclone-in-s",
	"incarnation-ignored", "duplicate-names", "report-before-receivers-gone", "credential-kept", "durable-allows",
	"local-read", "voter-unchecked", "permits-durable", "bump-while-degraded", "follow-before-commit", "no-recruit",
	"promise-not-synced", "quorum-off-by-one", "priority-first", "degrade-without-register", "return-early",
	"restart-opens-door", "no-canary", "amnesiac-counted", "in-flight-forgotten", "start-not-stopped", "amnesiac-leads",
	"own-disk-always", "reader-in-s",
}

func (m Mutation) String() string {
	if m < MutationEnd {
		return mutationNames[m]
	}
	return "unknown mutation"
}
