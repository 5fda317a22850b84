package node

import (
	"testing"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// TestUnknownIsNotEmpty: a look that could not read the WAL never reaches the core,
// which would throw the directory away.
func TestUnknownIsNotEmpty(t *testing.T) {
	unread := cluster.Postgres{Exists: true, Running: true}
	read := cluster.Postgres{Exists: true, History: []cluster.Branch{{Timeline: 1}}}
	if e := knownOnly(cluster.PostgresSeen{Postgres: unread}); e != nil {
		t.Errorf("an unread directory reaches the core: %+v", e)
	}
	if e := knownOnly(cluster.Done{ID: 1, OK: true, Postgres: &unread}); e.(cluster.Done).Postgres != nil || !e.(cluster.Done).OK {
		t.Errorf("an answer with an unread directory: %+v", e)
	}
	for _, p := range []cluster.Postgres{read, {}, {Exists: true, NeedsClone: true}} {
		if e := knownOnly(cluster.PostgresSeen{Postgres: p}); e == nil {
			t.Errorf("the core is not told of %+v", p)
		}
	}
}
