package instance

import (
	"context"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// Begin begins an effect; false says that it does not concern the instance. It
// returns at once and touches no disk. Each effect with an ID is answered once
// through tell, from any goroutine.
//
// What needs no disk and is always safe goes past the queue: CloseDoor, and a
// StopPostgres that is immediate.
func (i *Instance) Begin(e cluster.Effect, tell func(cluster.Event)) bool {
	t := task{tell: tell}
	switch x := e.(type) {
	case cluster.SaveDurable, cluster.OpenDoor, cluster.CloseDoor, cluster.EnsureSlot, cluster.EndSenders, cluster.Archive:
		i.log.Warn("not built yet", "effect", e)
		return true
	case cluster.SetSSN:
		t.id = x.ID
	case cluster.SampleLSN:
		t.id = x.ID
	case cluster.Canary:
		t.id = x.ID
	case cluster.WriteRow:
		t.id = x.ID
	case cluster.StartPrimary:
		t.id, t.long = x.ID, true
	case cluster.StopPostgres:
		t.id = x.ID
		i.work.stop()
	case cluster.Shutdown:
		t.id = x.ID
	case cluster.UnlinkCredential, cluster.StopReceivers, cluster.InspectWAL, cluster.Promote, cluster.Follow,
		cluster.Rewind, cluster.Reclone, cluster.FetchWAL:
		t = i.following(e)
		t.tell = tell
	default:
		return false
	}
	if t.rest == nil {
		t.rest = notBuilt
	}
	i.work.add(t)
	return true
}

func notBuilt(context.Context) cluster.Done { return cluster.Done{Why: "not built yet"} }
