// Package quorumtest holds what every quorum.Register has to do, as tests that
// run over any implementation, with an in-memory model and a network that can
// be cut.
package quorumtest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/quorum"
)

// Cluster is a set of nodes under test. Nodes are counted from 0; those that
// founded it are voters, the rest are not yet.
type Cluster interface {
	Register(node int) quorum.Register // of a node that runs
	Voter(node int) quorum.Voter
	Cut(node int)   // nothing reaches the node or leaves it; connections stay
	Heal(node int)  // undoes Cut
	Stop(node int)  // ends the node; what it confirmed is on its disk
	Start(node int) // brings it back, or begins one that never ran
}

// Make returns a running cluster of so many founders, and nodes beyond them
// that were never started. It cleans up after the test.
type Make func(t testing.TB, founders, others int) Cluster

// patience is how long anything may take that has to happen.
const patience = 20 * time.Second

// Run checks one implementation.
func Run(t *testing.T, newCluster Make) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Make)
	}{
		{"compare-and-swap", compareAndSwap},
		{"concurrent proposers", concurrent},
		{"every node reads and writes", everyNode},
		{"unknown outcome", unknown},
		{"no stale read", staleRead},
		{"no majority", noMajority},
		{"transfer", transfer},
		{"membership", membership},
		{"restart", restart},
		{"changes are told", told},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, newCluster) })
	}
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// Until waits for a condition.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %s in vain: %s", patience, what)
		}
	}
}

// Leader waits until exactly one of these nodes believes that it leads.
func Leader(t testing.TB, c Cluster, nodes ...int) int {
	t.Helper()
	leader := -1
	Until(t, fmt.Sprintf("one leader among %v", nodes), func() bool {
		leader = -1
		for _, i := range nodes {
			if c.Register(i).Status().Leads {
				if leader >= 0 {
					return false
				}
				leader = i
			}
		}
		return leader >= 0
	})
	return leader
}

// followers of three.
func followers(leader int) []int {
	var out []int
	for i := range 3 {
		if i != leader {
			out = append(out, i)
		}
	}
	return out
}

// write replaces the value at node i, whatever it is, and returns the new one.
func write(t testing.TB, r quorum.Register, data string) quorum.Value {
	t.Helper()
	ctx := soon(t)
	for range 20 {
		v, err := r.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		res := r.Propose(ctx, quorum.Proposal{Epoch: v.Epoch, Version: v.Version, NextEpoch: v.Epoch, Data: []byte(data)})
		if res.Outcome == quorum.Applied {
			return res.Value
		}
	}
	t.Fatalf("20 attempts to write %q, none applied", data)
	return quorum.Value{}
}

func same(a, b quorum.Value) bool {
	return a.Epoch == b.Epoch && a.Version == b.Version && bytes.Equal(a.Data, b.Data)
}

func mustRead(t testing.TB, r quorum.Register, want quorum.Value) {
	t.Helper()
	got, err := r.Read(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if !same(got, want) {
		t.Fatalf("read %+v, want %+v", got, want)
	}
}

func compareAndSwap(t *testing.T, newCluster Make) {
	c := newCluster(t, 3, 0)
	r := c.Register(Leader(t, c, 0, 1, 2))
	mustRead(t, r, quorum.Value{})
	first := quorum.Value{Epoch: 3, Version: 1, Data: []byte("a")}
	steps := []struct {
		name    string
		p       quorum.Proposal
		outcome quorum.Outcome
		value   quorum.Value
	}{
		{"first", quorum.Proposal{NextEpoch: 3, Data: []byte("a")}, quorum.Applied, first},
		{"the same again", quorum.Proposal{NextEpoch: 3, Data: []byte("a")}, quorum.Conflict, first},
		{"right epoch, old version", quorum.Proposal{Epoch: 3, NextEpoch: 3, Data: []byte("b")}, quorum.Conflict, first},
		{"right version, old epoch", quorum.Proposal{Epoch: 2, Version: 1, NextEpoch: 3, Data: []byte("b")}, quorum.Conflict, first},
		{"an epoch that goes back", quorum.Proposal{Epoch: 3, Version: 1, NextEpoch: 2, Data: []byte("b")}, quorum.Conflict, first},
		{"a version to come", quorum.Proposal{Epoch: 3, Version: 2, NextEpoch: 3, Data: []byte("b")}, quorum.Conflict, first},
		{"right", quorum.Proposal{Epoch: 3, Version: 1, NextEpoch: 3, Data: []byte("b")}, quorum.Applied, quorum.Value{Epoch: 3, Version: 2, Data: []byte("b")}},
		{"next epoch", quorum.Proposal{Epoch: 3, Version: 2, NextEpoch: 4, Data: []byte("c")}, quorum.Applied, quorum.Value{Epoch: 4, Version: 3, Data: []byte("c")}},
	}
	for _, s := range steps {
		got := r.Propose(soon(t), s.p)
		if got.Outcome != s.outcome || !same(got.Value, s.value) || got.Err != nil {
			t.Fatalf("%s: %v %+v (%v), want %v %+v", s.name, got.Outcome, got.Value, got.Err, s.outcome, s.value)
		}
		mustRead(t, r, s.value)
	}
}

// concurrent: of all proposals made from one state, exactly one holds.
func concurrent(t *testing.T, newCluster Make) {
	c := newCluster(t, 3, 0)
	Leader(t, c, 0, 1, 2)
	const proposers, writes = 6, 5
	won := make(map[uint64][]string)
	var mu sync.Mutex
	var all sync.WaitGroup
	for p := range proposers {
		all.Go(func() {
			r := c.Register(p % 3)
			var v quorum.Value
			for done := 0; done < writes; {
				data := fmt.Sprintf("%d.%d", p, done)
				res := r.Propose(soon(t), quorum.Proposal{Version: v.Version, Data: []byte(data)})
				switch {
				case res.Outcome == quorum.Unknown:
					t.Errorf("proposer %d: unknown without a fault: %v", p, res.Err)
					return
				case res.Outcome == quorum.Conflict && res.Value.Version == v.Version:
					t.Errorf("proposer %d: a conflict with what it expected: %+v", p, res.Value)
					return
				case res.Outcome == quorum.Applied:
					mu.Lock()
					won[res.Value.Version] = append(won[res.Value.Version], data)
					mu.Unlock()
					done++
				}
				v = res.Value
			}
		})
	}
	all.Wait()
	for v := uint64(1); v <= proposers*writes; v++ {
		if len(won[v]) != 1 {
			t.Errorf("version %d was won by %v, want exactly one", v, won[v])
		}
	}
	if len(won) != proposers*writes {
		t.Errorf("%d versions, want %d", len(won), proposers*writes)
	}
}

func everyNode(t *testing.T, newCluster Make) {
	c := newCluster(t, 3, 0)
	Leader(t, c, 0, 1, 2)
	for i := range 3 {
		want := write(t, c.Register(i), fmt.Sprint("from ", i))
		for j := range 3 {
			mustRead(t, c.Register(j), want)
		}
	}
}

// unknown: a leader that is cut off with a proposal cannot say what becomes of
// it, and afterwards everybody agrees on one history.
func unknown(t *testing.T, newCluster Make) {
	c := newCluster(t, 3, 0)
	old := Leader(t, c, 0, 1, 2)
	before := write(t, c.Register(old), "before")
	c.Cut(old)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	res := c.Register(old).Propose(ctx, quorum.Proposal{Epoch: before.Epoch, Version: before.Version, NextEpoch: before.Epoch, Data: []byte("lost?")})
	if res.Outcome != quorum.Unknown || res.Err == nil {
		t.Fatalf("a proposal at a leader without a majority: %v %+v (%v), want unknown and why", res.Outcome, res.Value, res.Err)
	}
	rest := followers(old)
	after := write(t, c.Register(rest[0]), "after")
	if after.Version != before.Version+1 {
		t.Errorf("version %d after %d: something else was written", after.Version, before.Version)
	}
	c.Heal(old)
	for i := range 3 {
		mustRead(t, c.Register(i), after)
	}
	again := c.Register(old).Propose(soon(t), quorum.Proposal{Epoch: before.Epoch, Version: before.Version, NextEpoch: before.Epoch, Data: []byte("lost?")})
	if again.Outcome != quorum.Conflict || !same(again.Value, after) {
		t.Errorf("the old proposal again: %v %+v, want a conflict with %+v", again.Outcome, again.Value, after)
	}
}

// staleRead: from the moment that a leader is cut off until it is back, none of
// its reads may return what was overwritten elsewhere.
func staleRead(t *testing.T, newCluster Make) {
	c := newCluster(t, 3, 0)
	old := Leader(t, c, 0, 1, 2)
	write(t, c.Register(old), "old")
	c.Cut(old)
	rest := followers(old)
	newer := write(t, c.Register(rest[0]), "new")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			v, err := c.Register(old).Read(soon(t))
			if err != nil {
				t.Errorf("a read that outlasts the cut: %v", err)
			} else if !same(v, newer) {
				t.Errorf("stale read: %+v, want %+v", v, newer)
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if v, err := c.Register(old).Read(ctx); err == nil {
		t.Errorf("a read without a majority returned %+v", v)
	}
	c.Heal(old)
	all.Wait()
}

func noMajority(t *testing.T, newCluster Make) {
	c := newCluster(t, 3, 0)
	leader := Leader(t, c, 0, 1, 2)
	have := write(t, c.Register(leader), "x")
	rest := followers(leader)
	c.Stop(rest[0])
	want := write(t, c.Register(leader), "y")
	c.Stop(rest[1])
	ctx, cancel := context.WithTimeout(context.Background(), 1500*time.Millisecond)
	defer cancel()
	if v, err := c.Register(leader).Read(ctx); err == nil {
		t.Errorf("one of three alone read %+v", v)
	}
	ctx, cancel = context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if res := c.Register(leader).Propose(ctx, quorum.Proposal{Epoch: have.Epoch, Version: have.Version, NextEpoch: have.Epoch}); res.Outcome != quorum.Unknown {
		t.Errorf("one of three alone wrote: %v", res.Outcome)
	}
	c.Start(rest[0])
	mustRead(t, c.Register(rest[0]), want)
}

func transfer(t *testing.T, newCluster Make) {
	c := newCluster(t, 3, 0)
	leader := Leader(t, c, 0, 1, 2)
	want := write(t, c.Register(leader), "x")
	to := followers(leader)[1]
	if err := c.Register(to).Transfer(soon(t), c.Voter(to).ID); err == nil {
		t.Error("a follower handed over a lead that it does not have")
	}
	if err := c.Register(leader).Transfer(soon(t), c.Voter(to).ID); err != nil {
		t.Fatal(err)
	}
	Until(t, "the lead arrives", func() bool {
		return c.Register(to).Status().Leads && !c.Register(leader).Status().Leads
	})
	for i := range 3 {
		mustRead(t, c.Register(i), want)
	}
	write(t, c.Register(leader), "after")
	if err := c.Register(to).Transfer(soon(t), 0); err != nil {
		t.Fatal(err)
	}
	Until(t, "anybody else leads", func() bool { return !c.Register(to).Status().Leads })
	Leader(t, c, 0, 1, 2)
}

// membership: a lost voter is replaced by one under a new id, which then counts.
func membership(t *testing.T, newCluster Make) {
	c := newCluster(t, 3, 1)
	leader := Leader(t, c, 0, 1, 2)
	r := c.Register(leader)
	write(t, r, "x")
	rest := followers(leader)
	lost, stays := rest[0], rest[1]
	if err := c.Register(stays).RemoveVoter(soon(t), c.Voter(lost).ID); err == nil {
		t.Error("a follower removed a voter")
	}
	c.Stop(lost)
	if err := r.RemoveVoter(soon(t), c.Voter(lost).ID); err != nil {
		t.Fatal(err)
	}
	c.Start(3)
	for range 2 { // harmless when repeated
		if err := r.AddVoter(soon(t), c.Voter(3)); err != nil {
			t.Fatal(err)
		}
	}
	want := []quorum.Voter{c.Voter(leader), c.Voter(stays), c.Voter(3)}
	slices.SortFunc(want, func(a, b quorum.Voter) int { return int(a.ID) - int(b.ID) })
	got, err := r.Voters(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("voters are %v, want %v", got, want)
	}
	c.Stop(stays) // now the new one is needed
	last := write(t, r, "with the new voter")
	mustRead(t, c.Register(3), last)
}

// restart: what was confirmed is there after all have been down, whoever starts first.
func restart(t *testing.T, newCluster Make) {
	c := newCluster(t, 3, 0)
	leader := Leader(t, c, 0, 1, 2)
	for i := range 3 {
		write(t, c.Register(leader), fmt.Sprint("w", i))
	}
	rest := followers(leader)
	c.Stop(rest[0])
	want := write(t, c.Register(leader), "without the first")
	for _, i := range []int{leader, rest[1]} {
		c.Stop(i)
	}
	c.Start(rest[0]) // the stalest first
	c.Start(rest[1])
	mustRead(t, c.Register(rest[0]), want)
	c.Start(leader)
	mustRead(t, c.Register(leader), want)
}

func told(t *testing.T, newCluster Make) {
	c := newCluster(t, 3, 0)
	leader := Leader(t, c, 0, 1, 2)
	select {
	case l := <-c.Register(leader).Leadership():
		if !l {
			t.Error("the leader is told that it does not lead")
		}
	case <-soon(t).Done():
		t.Fatal("the leader is not told")
	}
	follower := c.Register(followers(leader)[0])
	want := write(t, c.Register(leader), "x")
	ctx := soon(t)
	for !same(follower.Status().Value, want) {
		select {
		case <-follower.Changed():
		case <-ctx.Done():
			t.Fatalf("a follower's view stays at %+v", follower.Status().Value)
		}
	}
	c.Cut(leader)
	select {
	case l := <-c.Register(leader).Leadership():
		if l {
			t.Error("a leader that was cut off is told that it leads")
		}
	case <-soon(t).Done():
		t.Fatal("a leader that was cut off is not told")
	}
}
