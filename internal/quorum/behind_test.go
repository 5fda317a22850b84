package quorum_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/quorum"
	"github.com/holdfast-db/holdfast/internal/quorum/quorumtest"
)

// TestLeaderLostWhileOneCatchesUp: the follower whose turn is the second cannot
// win, and the first has been refused by then: it has to ask again, or an
// election timeout passes.
func TestLeaderLostWhileOneCatchesUp(t *testing.T) {
	c := quorumtest.NewNodes(t, 3, 0, quorum.DefaultTimers())
	data := bytes.Repeat([]byte("much"), 2<<10)
	var took []time.Duration
	for round := 0; len(took) < 5; round++ {
		if round == 15 {
			t.Fatalf("in %d rounds only %d times a follower was behind and heard the leader", round, len(took))
		}
		old := quorumtest.Leader(t, c, 0, 1, 2)
		rest := slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == old })
		ahead, behind := rest[0], rest[1] // in the order of their turns
		c.Stop(behind)
		v := put(t, c.Register(old), "x")
		for range 400 {
			r := c.Register(old).Propose(within(t, 20*time.Second), quorum.Proposal{Epoch: v.Epoch, Version: v.Version, NextEpoch: v.Epoch, Data: data})
			if r.Outcome != quorum.Applied {
				t.Fatalf("write: %v (%v)", r.Outcome, r.Err)
			}
			v = r.Value
		}
		last := c.Register(old).Status().Last
		c.Start(behind)
		quorumtest.Until(t, "the follower hears the leader", func() bool { return c.Register(behind).Status().Leader == c.Voter(old).ID })
		c.Cut(old)
		began := time.Now()
		missed := c.Register(behind).Status().Last < last
		leader := quorumtest.Leader(t, c, rest...)
		if missed {
			if leader != ahead {
				t.Errorf("node %d leads, with a log that ends at %d instead of %d", leader, c.Register(leader).Status().Last, last)
			}
			took = append(took, time.Since(began))
		}
		c.Heal(old)
		quorumtest.Until(t, "all hear the leader", func() bool {
			return !slices.ContainsFunc([]int{0, 1, 2}, func(i int) bool {
				s := c.Register(i).Status()
				return s.Leader != c.Voter(leader).ID || s.Last != c.Register(leader).Status().Last
			})
		})
	}
	slices.Sort(took)
	t.Logf("leader lost to leader found: %v", took)
	if m := took[len(took)/2]; m > 850*time.Millisecond {
		t.Errorf("median %s: an election timeout was waited for", m)
	}
}
