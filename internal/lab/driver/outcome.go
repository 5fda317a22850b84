package driver

import (
	"cmp"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/holdfast-db/holdfast/internal/history"
)

// answer is what a server said to one autocommit INSERT.
type answer struct {
	completed     bool   // CommandComplete came: an error after it came from the commit
	inserted      bool   // and it was for one row
	ready         bool   // ReadyForQuery came, outside a transaction
	syncCancelled bool   // the warning that the wait for synchronous replication was given up
	failed        bool   // an ErrorResponse came
	severity      string // of it, not translated
	code          string // its SQLSTATE
	err           error  // of the connection
}

// Codes beside SQLSTATEs.
const (
	codeSyncCancelled = "sync-cancelled"
	codeSwitched      = "switched"
	codeProtocol      = "protocol"
	codeNoRow         = "no-row"
	codeNoState       = "no-sqlstate"
)

// judge applies rule 1 of the rules of evidence to one autocommit INSERT that
// was sent, at least in part. In doubt the outcome is unknown.
//
// The commit of such an INSERT happens on Sync, after CommandComplete. So:
//
//	answer                                            outcome
//	complete, ready, no warning                       acked
//	complete, ready, "canceling [the] wait for        unknown
//	synchronous replication"
//	connection broken, deadline passed, anything      unknown
//	out of order, FATAL, PANIC, class 08 57P 58 XX,
//	40003, a class that is not in the lists
//	ERROR before CommandComplete, of a class in       refused: the statement failed, and with
//	refusedBefore                                     it its transaction
//	ERROR after CommandComplete, of a class in        refused: raised only before the commit
//	refusedAtCommit                                   record is written
func judge(a *answer) (history.Outcome, string) {
	switch {
	case a.failed && a.ready && a.severity == "ERROR" && rulesOut(a.code, a.completed):
		return history.Refused, a.code
	case a.failed:
		return history.Unknown, cmp.Or(a.code, codeNoState)
	case a.err != nil:
		return history.Unknown, netCode(a.err)
	case a.syncCancelled:
		return history.Unknown, codeSyncCancelled
	case !a.completed || !a.ready:
		return history.Unknown, codeProtocol
	case !a.inserted:
		return history.Unknown, codeNoRow
	}
	return history.Acked, ""
}

// rulesOut says whether an ERROR with this SQLSTATE rules the commit out.
func rulesOut(code string, completed bool) bool {
	if len(code) != 5 || code == "40003" {
		return false
	}
	if completed {
		return refusedAtCommit(code[:2])
	}
	return code == "57014" || refusedBefore(code[:2])
}

// refusedBefore lists the classes that a server raises while it parses, plans
// or executes. 57 is not among them: 57P is a server going down.
func refusedBefore(class string) bool {
	switch class {
	case "0A", // feature not supported
		"21", // cardinality
		"22", // data exception
		"23", // constraint
		"25", // invalid transaction state, read-only among them
		"26", // no such prepared statement
		"28", // authorization
		"2D", // invalid transaction termination
		"34", // no such portal
		"3D", // no such database
		"3F", // no such schema
		"40", // rollback: serialization, deadlock (not 40003)
		"42", // syntax or access rule
		"44", // check option
		"53", // insufficient resources
		"54", // program limit
		"55", // object state, lock not available
		"P0": // raised by a function
		return true
	}
	return false
}

// refusedAtCommit lists those that a commit raises before its record is
// written: deferred constraints and serialization. Others may come, after the
// record, from what follows a commit.
func refusedAtCommit(class string) bool { return class == "23" || class == "40" }

// isSyncCancelled recognises both texts of the warning by which a server says
// that a commit is not known to be replicated. It has no SQLSTATE of its own,
// which is why the sessions have lc_messages=C.
func isSyncCancelled(severity, message string) bool {
	return severity == "WARNING" &&
		(strings.HasPrefix(message, "canceling wait for synchronous replication") ||
			strings.HasPrefix(message, "canceling the wait for synchronous replication"))
}

// netCode is a short name for what happened to a connection.
func netCode(err error) string {
	var ne net.Error
	for _, c := range []struct {
		err  error
		code string
	}{
		{errSwitched, codeSwitched},
		{errProtocol, codeProtocol},
		{syscall.ECONNREFUSED, "connection-refused"},
		{syscall.ECONNRESET, "reset"},
		{syscall.EPIPE, "broken-pipe"},
		{syscall.ETIMEDOUT, "timeout"},
		{syscall.EHOSTUNREACH, "unreachable"},
		{syscall.ENETUNREACH, "unreachable"},
		{io.EOF, "closed"},
		{io.ErrUnexpectedEOF, "closed"},
		{net.ErrClosed, "closed"},
	} {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	if errors.As(err, &ne) && ne.Timeout() {
		return "timeout"
	}
	return "io"
}

var (
	errSwitched = errors.New("another server is writable")
	errProtocol = errors.New("unexpected message")
)
