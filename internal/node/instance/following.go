package instance

import "github.com/holdfast-db/holdfast/internal/cluster"

// following makes the task of an effect about following: recruits, promotion,
// rewind, reclone.
func (i *Instance) following(e cluster.Effect) task {
	switch x := e.(type) {
	case cluster.UnlinkCredential:
		return task{id: x.ID, rest: notBuilt}
	case cluster.StopReceivers:
		return task{id: x.ID, rest: notBuilt}
	case cluster.InspectWAL:
		return task{id: x.ID, rest: notBuilt}
	case cluster.Promote:
		return task{id: x.ID, long: true, rest: notBuilt}
	case cluster.Follow:
		return task{id: x.ID, long: true, rest: notBuilt}
	case cluster.Rewind:
		return task{id: x.ID, long: true, rest: notBuilt}
	case cluster.Reclone:
		return task{id: x.ID, long: true, rest: notBuilt}
	case cluster.FetchWAL:
		return task{id: x.ID, long: true, rest: notBuilt}
	}
	return task{}
}
