package sim

import "github.com/holdfast-db/holdfast/internal/cluster"

// tellStep writes what a reader of the log would want to follow.
func (n *node) tellStep(ev cluster.Event, effects []cluster.Effect) {
	if d, ok := ev.(cluster.Done); ok && !d.OK {
		if d.Why != "" {
			n.w.logf("%s: that failed: %s", n.id, d.Why)
		}
	}
	for _, e := range effects {
		if s := cluster.Describe(e); s != "" {
			n.w.logf("%s: %s", n.id, s)
		}
	}
}
