package cluster

import (
	"fmt"
	"strings"
)

// Describe says in words what an effect does; empty for what happens all the
// time (heartbeats, reads, looks).
func Describe(e Effect) string {
	switch x := e.(type) {
	case Propose:
		return fmt.Sprintf("propose: %s", x.Why)
	case TransferLeadership:
		return "give the register's leadership to " + orAnybody(x.To)
	case StartVoter:
		if x.Fresh {
			return "start a new voter, with nothing"
		}
		return "start the voter"
	case ReplaceVoter:
		return fmt.Sprintf("change the voters: %d goes, %d comes", x.Old, x.New)
	case Send:
		return describeMessage(x)
	case SavePromise:
		return fmt.Sprintf("promise on disk: follow nobody below epoch %d", x.Epoch)
	case UnlinkCredential:
		return "unlink the replication credential"
	case StopReceivers:
		return "end the walreceivers"
	case InspectWAL:
		return "read what WAL there is"
	case SetSSN:
		return "SSN = " + x.SSN.String()
	case SampleLSN:
		return "L is where WAL ends now"
	case Canary:
		return "a canary commit, to be seen waiting"
	case OpenDoor:
		return "open the door to clients"
	case CloseDoor:
		return "close the door to clients"
	case StartPrimary:
		return "start Postgres as the primary it was, door closed"
	case Promote:
		return fmt.Sprintf("promote to timeline %d, door closed", x.Timeline)
	case StopPostgres:
		if x.Immediate {
			return "stop Postgres immediately"
		}
		return "stop Postgres, fast, then immediately"
	case Shutdown:
		return "checkpoint and stop Postgres cleanly, within bounds"
	case WriteRow:
		return fmt.Sprintf("write the row of epoch %d", x.Epoch)
	case Follow:
		return fmt.Sprintf("follow %s in epoch %d", x.Upstream.Node, x.Epoch)
	case Rewind:
		return fmt.Sprintf("save what %s lacks aside, and rewind to it", x.Upstream.Node)
	case Reclone:
		return fmt.Sprintf("make a new directory from %s, as a new incarnation", x.Upstream.Node)
	case FetchWAL:
		return fmt.Sprintf("fetch WAL from %s, confirming nothing", x.From)
	case Archive:
		return fmt.Sprintf("archive WAL under epoch %d", x.Epoch)
	case EnsureSlot:
		return "keep a slot for " + string(x.Member.Node)
	case EndSenders:
		return "end the streams under the name of " + string(x.Member.Node)
	case Alarm:
		if x.On {
			return fmt.Sprintf("alarm %s: %s", x.Kind, x.Text)
		}
		return fmt.Sprintf("no longer: %s", x.Kind)
	case Answer:
		return "answer: " + x.Text
	}
	return ""
}

func describeMessage(x Send) string {
	switch m := x.Message.(type) {
	case Recruit:
		return fmt.Sprintf("to %s: recruit for epoch %d", x.To, m.Epoch)
	case Report:
		what := "recruited"
		if !m.Qualified {
			what = "recruited, no candidate"
		}
		return fmt.Sprintf("to %s: %s for epoch %d", x.To, what, m.Epoch)
	case CatchUp:
		return fmt.Sprintf("to %s: fetch what %s holds", x.To, m.From)
	case Handover:
		return fmt.Sprintf("to %s: elect %s, I have stopped", x.To, m.Target)
	case JoinVoter:
		return fmt.Sprintf("to %s: admit my new voter", x.To)
	}
	return ""
}

func orAnybody(n NodeID) string {
	if n == "" {
		return "anybody"
	}
	return string(n)
}

// String writes the setting with node names only.
func (s SSN) String() string {
	switch {
	case s.K == 0:
		return "'' (wait for nobody)"
	case len(s.Names) == 0:
		return "ANY 1 (a name that nobody has)"
	}
	var names []string
	for _, m := range s.Names {
		names = append(names, string(m.Node))
	}
	return fmt.Sprintf("ANY %d (%s)", s.K, strings.Join(names, ", "))
}
