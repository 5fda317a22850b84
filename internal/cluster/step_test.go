package cluster_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/cluster/sim"
)

// TestStepIsPure replays what every agent of some runs saw: Step must leave the
// State it is given as it was, and give the same State and effects again.
func TestStepIsPure(t *testing.T) {
	steps := 0
	for seed := uint64(1); seed <= 12; seed++ {
		sim.Watch(sim.Generate(seed), func(s cluster.State, ev cluster.Event) {
			if steps++; steps%7 != 0 {
				return
			}
			before := fmt.Sprintf("%+v", s)
			s1, e1 := cluster.Step(s, ev)
			if after := fmt.Sprintf("%+v", s); after != before {
				t.Fatalf("%T changed the State that it was given:\n%s\n%s", ev, before, after)
			}
			s2, e2 := cluster.Step(s, ev)
			if !reflect.DeepEqual(s1, s2) || !reflect.DeepEqual(e1, e2) {
				t.Fatalf("%T gave two different results", ev)
			}
		})
	}
	if steps < 10000 {
		t.Fatalf("%d steps seen only", steps)
	}
}

func TestLocate(t *testing.T) {
	b := func(e cluster.Epoch, tl cluster.Timeline, fork cluster.LSN) cluster.Branch {
		return cluster.Branch{Epoch: e, Timeline: tl, Fork: fork}
	}
	chain := []cluster.Branch{b(1, 1, 0), b(4, 2, 100), b(7, 5, 200)}
	for _, c := range []struct {
		what     string
		history  []cluster.Branch
		end      cluster.LSN
		pos      cluster.Position
		common   int
		diverged bool
	}{
		{"the newest timeline", []cluster.Branch{b(0, 1, 0), b(0, 2, 100), b(0, 5, 200)}, 250, cluster.Position{Epoch: 7, LSN: 250}, 3, false},
		{"behind the last fork", []cluster.Branch{b(0, 1, 0), b(0, 2, 100)}, 150, cluster.Position{Epoch: 4, LSN: 150}, 2, false},
		{"exactly at the fork", []cluster.Branch{b(0, 1, 0), b(0, 2, 100)}, 200, cluster.Position{Epoch: 4, LSN: 200}, 2, false},
		{"beyond the fork", []cluster.Branch{b(0, 1, 0), b(0, 2, 100)}, 201, cluster.Position{Epoch: 4, LSN: 200}, 2, true},
		{"another timeline", []cluster.Branch{b(0, 1, 0), b(0, 2, 100), b(0, 3, 180)}, 190, cluster.Position{Epoch: 4, LSN: 180}, 2, true},
		{"the same number, another fork", []cluster.Branch{b(0, 1, 0), b(0, 2, 90)}, 150, cluster.Position{Epoch: 1, LSN: 90}, 1, true},
		{"another cluster", []cluster.Branch{b(0, 9, 0)}, 10, cluster.Position{}, 0, true},
		{"nothing", nil, 0, cluster.Position{}, 0, true},
	} {
		pos, common, diverged := cluster.Locate(chain, c.history, c.end)
		if pos != c.pos || common != c.common || diverged != c.diverged {
			t.Errorf("%s: %v, %d in common, diverged %t; want %v, %d, %t", c.what, pos, common, diverged, c.pos, c.common, c.diverged)
		}
	}
}

// TestQuorumsMeet checks by enumeration that every commit quorum meets every
// promotion quorum, for every n and k in use.
func TestQuorumsMeet(t *testing.T) {
	for n := 1; n <= 7; n++ {
		for k := 1; k <= n; k++ {
			r := cluster.Register{K: k}
			for i := range n {
				r.S = append(r.S, cluster.Member{Node: cluster.NodeID(rune('a' + i)), Incarnation: 1})
			}
			need, ok := r.Quorum()
			if !ok {
				t.Fatalf("n=%d k=%d: no quorum", n, k)
			}
			for commit := range 1 << n {
				for recruits := range 1 << n {
					if ones(commit) >= k && ones(recruits) >= need && commit&recruits == 0 {
						t.Fatalf("n=%d k=%d: commit %b and recruits %b do not meet", n, k, commit, recruits)
					}
				}
			}
		}
	}
	if _, ok := (cluster.Register{}).Quorum(); ok {
		t.Error("an empty S has a promotion quorum")
	}
}

func ones(x int) int {
	n := 0
	for ; x != 0; x &= x - 1 {
		n++
	}
	return n
}

func TestApply(t *testing.T) {
	r := cluster.Register{Version: 5, Epoch: 3}
	next := r
	next.Epoch = 4
	for _, c := range []struct {
		what string
		p    cluster.Proposal
		ok   bool
	}{
		{"as it is", cluster.Proposal{Expect: 5, ExpectEpoch: 3, Next: next}, true},
		{"an older version", cluster.Proposal{Expect: 4, ExpectEpoch: 3, Next: next}, false},
		{"a later version", cluster.Proposal{Expect: 6, ExpectEpoch: 3, Next: next}, false},
		{"another epoch", cluster.Proposal{Expect: 5, ExpectEpoch: 2, Next: next}, false},
		{"an epoch that falls", cluster.Proposal{Expect: 5, ExpectEpoch: 3, Next: cluster.Register{Epoch: 2}}, false},
	} {
		got, ok := r.Apply(c.p, cluster.Correct)
		if ok != c.ok {
			t.Errorf("%s: %t", c.what, ok)
		}
		if ok && got.Version != 6 || !ok && got.Version != 5 {
			t.Errorf("%s: version %d", c.what, got.Version)
		}
	}
}
