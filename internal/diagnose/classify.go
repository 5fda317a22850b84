package diagnose

import (
	"slices"
	"strings"
)

// Backend types of pg_stat_activity.
const (
	clientBackend = "client backend"
	checkpointer  = "checkpointer"
	autovacuum    = "autovacuum worker"
)

// The parts that wait events belong to, in lower case: PostgreSQL 17 changed
// the case of many of them. What is in no list goes by its type.
var (
	readEvents = []string{
		"datafileread", "datafileprefetch", "slruread", "relationmapread", "bufferio",
		"aioiocompletion", "aioiouringexecution", "aioiouringsubmit", // 18
	}
	flushEvents = []string{"walsync", "walwrite", "walsyncmethodassign"}
	writeEvents = []string{
		"datafilewrite", "datafileflush", "datafileextend", "datafilesync", "datafileimmediatesync", "datafiletruncate",
		"slruwrite", "slruflushsync", "slrusync", "buffileread", "buffilewrite", "buffiletruncate",
		"checkpointstart", "checkpointdone", "checkpointwritedelay", "registersyncrequest", "checkpointcomm",
		"controlfilesync", "controlfilesyncupdate", "controlfilewrite", "controlfilewriteupdate",
	}
	walEvents = []string{"walinsert", "walbufmapping", "walbufferinit"}
)

// partOf classifies what a client's backend in a statement waits for.
func partOf(typ, event string) string {
	e := strings.ToLower(event)
	switch {
	case typ == "" && event == "":
		return CPU
	// Followers of a group commit wait in the lock WALWrite for the leader's
	// flush, and the leader writes before it flushes: all of it is the flush.
	// (WALWriteLock until 12.)
	case slices.Contains(flushEvents, e), e == "walwritelock":
		return CommitFlush
	case slices.Contains(readEvents, e):
		return PageReads
	case e == "syncrep":
		return Replication
	case slices.Contains(writeEvents, e):
		return DataWrites
	case slices.Contains(walEvents, e), typ == "IO" && strings.HasPrefix(e, "wal"):
		return OtherWAL
	case typ == "Lock" && e == "extend": // of a table's file, not of a row
		return OtherLocks
	case typ == "Lock":
		return RowLocks
	case typ == "LWLock", typ == "BufferPin", typ == "Buffer", e == "spindelay", e == "procarraygroupupdate", e == "xactgroupupdate", e == "cloggroupupdate":
		return OtherLocks
	case typ == "Client":
		return Client
	}
	return Unexplained
}

// eventName is how a wait is shown.
func eventName(typ, event string) string {
	if typ == "" {
		return "CPU"
	}
	return typ + ":" + event
}

// inStatement says whether a session is in a statement.
func inStatement(state string) bool { return state == "active" || state == "fastpath function call" }

// inTransaction says whether it waits for its client in the middle of a transaction.
func inTransaction(state string) bool { return strings.HasPrefix(state, "idle in transaction") }
