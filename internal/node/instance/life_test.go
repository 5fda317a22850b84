package instance_test

import (
	"testing"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

func TestCreateStartStop(t *testing.T) {
	p := newNodes(t).node("a")
	inc, err := p.Create(t.Context())
	must(t, err)
	if inc == 0 || p.Incarnation() != inc {
		t.Fatalf("incarnation %d, remembered %d", inc, p.Incarnation())
	}
	p.watch(t)
	d := p.startPrimary(t)
	if v := d.Postgres; v == nil || !v.Running || !v.Primary || v.Foreign || v.DoorOpen || v.Incarnation != inc || v.End == 0 ||
		len(v.History) != 1 || v.History[0] != (cluster.Branch{Timeline: 1}) || !v.Headroom || v.ReloadRejected {
		t.Fatalf("after the start: %+v", v)
	}
	p.begin(cluster.OpenDoor{})
	p.looks(t, "an open door", func(v cluster.Postgres) bool { return v.DoorOpen })
	d = p.stop(t, false)
	if v := d.Postgres; v.Running || v.DoorOpen || !v.Primary {
		t.Fatalf("after the stop: %+v", v)
	}
	p.startPrimary(t)
	d = p.stop(t, true)
	if v := d.Postgres; v.Running {
		t.Fatalf("after the immediate stop: %+v", v)
	}
}
