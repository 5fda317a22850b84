package instance

import (
	"context"
	"path/filepath"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// Begin begins an effect; false says that it does not concern the instance. It
// returns at once and touches no disk. Each effect with an ID is answered once
// through tell, from any goroutine.
//
// What needs no disk and is always safe goes past the queue: CloseDoor, and a
// StopPostgres that is immediate.
func (i *Instance) Begin(e cluster.Effect, tell func(cluster.Event)) bool {
	var t task
	switch x := e.(type) {
	case cluster.CloseDoor:
		i.closeDoor()
		return true
	case cluster.StopPostgres:
		t = i.stopPostgres(x, i.work.stop())
	case cluster.SaveDurable:
		t = i.saveDurable(x)
	case cluster.OpenDoor:
		t = i.openDoor()
	case cluster.SetSSN:
		t = i.setSSN(x, tell)
	case cluster.SampleLSN:
		t = i.sampleLSN(x.ID)
	case cluster.Canary:
		t = i.canaryTask(x.ID)
	case cluster.WriteRow:
		t = i.writeRow(x)
	case cluster.StartPrimary:
		t = i.startPrimary(x.ID)
	case cluster.Shutdown:
		t = i.shutdown(x)
	case cluster.EnsureSlot:
		t = i.ensureSlot(x)
	case cluster.EndSenders:
		t = i.endSenders(x)
	case cluster.Archive:
		i.log.Info("WAL is not archived: this version has no archive", "epoch", x.Epoch)
		return true
	case cluster.UnlinkCredential, cluster.StopReceivers, cluster.InspectWAL, cluster.Promote, cluster.Follow,
		cluster.Rewind, cluster.Reclone, cluster.FetchWAL:
		t = i.following(e)
	default:
		return false
	}
	t.tell, t.order = tell, &i.order
	i.work.add(t)
	i.changed()
	return true
}

// saveDurable writes the configuration that holds without permits. Without a
// directory, the one that is made has it.
func (i *Instance) saveDurable(x cluster.SaveDurable) task {
	return task{files: func(context.Context) error {
		i.mu.Lock()
		i.durSSN = x.SSN
		i.mu.Unlock()
		if !exists(filepath.Join(i.cfg.DataDir, "PG_VERSION")) || i.Incarnation() == 0 {
			return nil
		}
		if err := i.writeConfig(x.SSN); err != nil {
			i.log.Error("write the durable configuration", "error", err)
		}
		return nil
	}}
}
