package node

import (
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// Failover is one change of primary as one node saw it; a moment that it did not
// see is zero. The nodes' records of an epoch together give all phases.
type Failover struct {
	Epoch    cluster.Epoch  `json:"epoch"`
	From     cluster.NodeID `json:"from"`
	To       cluster.NodeID `json:"to"`
	Silent   time.Time      `json:"silent,omitzero"`   // the former primary was last heard
	Began    time.Time      `json:"began,omitzero"`    // the epoch was raised
	Named    time.Time      `json:"named,omitzero"`    // the new one was named
	Promoted time.Time      `json:"promoted,omitzero"` // its Postgres takes writes; seen by itself
	Opened   time.Time      `json:"opened,omitzero"`   // k standbys confirmed, clients are let in; seen by itself
}

// kept is how many failovers are remembered.
const kept = 20

// journal is what this node has seen of the changes of primary.
type journal struct {
	all      []Failover
	promotes bool // Promote was begun for the last one
	heard    time.Time
}

func (j *journal) last() *Failover {
	if len(j.all) == 0 {
		return nil
	}
	return &j.all[len(j.all)-1]
}

// see compares two views of the core.
func (j *journal) see(before, after cluster.View, now time.Time) {
	old, r := before.Register, after.Register
	if !before.Known || !after.Known {
		return
	}
	if r.Epoch > old.Epoch {
		j.all = append(j.all, Failover{Epoch: r.Epoch, From: old.Primary.Node, Silent: j.heard, Began: now})
		if len(j.all) > kept {
			j.all = append([]Failover(nil), j.all[1:]...)
		}
		j.promotes = false
	}
	f := j.last()
	if f == nil || f.Epoch != r.Epoch {
		return
	}
	if !r.Electing() && f.Named.IsZero() {
		f.Named, f.To = now, r.Primary.Node
	}
	if after.Open && f.Opened.IsZero() {
		f.Opened = now
	}
}

// did notes the effects that mark a phase.
func (j *journal) did(e cluster.Effect, now time.Time) {
	if _, ok := e.(cluster.WriteRow); !ok {
		return
	}
	if f := j.last(); f != nil && f.Promoted.IsZero() {
		f.Promoted = now
	}
}
