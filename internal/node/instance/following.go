package instance

import (
	"context"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// following makes the task of an effect about following: recruits, promotion,
// rewind, reclone.
func (i *Instance) following(e cluster.Effect) task {
	switch x := e.(type) {
	case cluster.UnlinkCredential:
		i.fence.raise(i.ctx)
		return task{id: x.ID, files: i.unlinkCredential}
	case cluster.StopReceivers:
		i.fence.raise(i.ctx)
		return task{id: x.ID, files: func(context.Context) error { return i.noUpstream() }, rest: i.stopReceivers}
	case cluster.InspectWAL:
		return task{id: x.ID, rest: i.inspectWAL}
	case cluster.Promote:
		return i.promote(x)
	case cluster.Follow:
		return i.follow(x)
	case cluster.Rewind:
		return i.rewind(x)
	case cluster.Reclone:
		return i.reclone(x)
	case cluster.FetchWAL:
		return i.fetchWAL(x)
	}
	return task{}
}

// inspectWAL answers with what the directory holds, all of it on disk.
func (i *Instance) inspectWAL(ctx context.Context) cluster.Done {
	w := i.ready(ctx)
	defer i.giveBack(w)
	look := i.lookWith(ctx, w)
	if look.Running && look.Primary {
		nap(ctx, 25*time.Millisecond) // it is asked again until that is down
	}
	if !look.Exists || look.Running && look.Primary {
		return cluster.Done{OK: true, Postgres: &look}
	}
	s := serverWAL{running: look.Running}
	if w.conn != nil {
		var err error
		if s, _, err = i.askStandby(ctx, w.conn); err != nil {
			return cluster.Done{Postgres: &look, Why: err.Error()}
		}
	}
	rep, err := i.holds(ctx, s, confirmed)
	if err != nil {
		return cluster.Done{Postgres: &look, Why: err.Error()}
	}
	describe(&look, rep)
	look.Replayed = min(look.Replayed, rep.End)
	return cluster.Done{OK: true, Postgres: &look}
}
