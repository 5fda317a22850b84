package cluster

// Mark is a place in the core that the simulator wants to see reached.
type Mark uint8

// The marks; names say what they mean.
const (
	MarkSettle Mark = iota
	MarkPromote
	MarkRestartInPlace
	MarkAdopt
	MarkOpen
	MarkCannotLead
	MarkRemove
	MarkRaise
	MarkReturn
	MarkAdd
	MarkLower
	MarkDegrade
	MarkCanary
	MarkChangeGivenUp
	MarkUnknown
	MarkConflict
	MarkBump
	MarkVeto
	MarkName
	MarkRename
	MarkCatchUp
	MarkTooFew
	MarkBlocked
	MarkForced
	MarkForcedRefused
	MarkAnnounce
	MarkHint
	MarkRecruited
	MarkFenceEpoch
	MarkFenceLost
	MarkFenced
	MarkFollow
	MarkRewind
	MarkReclone
	MarkRebuildRefused
	MarkSwitchoverGivenUp
	MarkRestartAnnounced
	MarkVoterBehind
	MarkVoterJoin
	MarkAmnesiac
	MarkLeft
	MarkEnd
)

var markNames = [MarkEnd]string{"settle", "promote", "restart-in-place", "adopt", "open", "cannot-lead", "remove", "raise",
	"return", "add", "lower", "degrade", "canary", "change-given-up", "unknown", "conflict", "bump", "veto", "name", "rename",
	"catch-up", "too-few", "blocked", "forced", "forced-refused", "announce", "hint", "recruited", "fence-epoch", "fence-lost",
	"fenced", "follow", "rewind", "reclone", "rebuild-refused", "switchover-given-up", "restart-announced", "voter-behind",
	"voter-join", "amnesiac", "left"}

func (k Mark) String() string { return markNames[k] }

func (m *machine) mark(k Mark) { m.marks |= 1 << k }
