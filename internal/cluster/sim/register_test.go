package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/quorum"
	"github.com/holdfast-db/holdfast/internal/quorum/quorumtest"
)

// TestRegisterConforms: the register that the core is played against does what
// the real one has to do.
func TestRegisterConforms(t *testing.T) {
	quorumtest.Run(t, func(t testing.TB, founders, others int) quorumtest.Cluster {
		return newModelRegister(t, founders, others)
	})
}

// speed is how many simulated milliseconds pass in a real one.
const speed = 10

// modelRegister is a World in which only the register runs. Its clock goes on by
// itself, since the suite waits in real time.
type modelRegister struct {
	mu    sync.Mutex
	w     *World
	nodes []*modelVoter
}

// modelVoter is one node's way to the register, in place of its agent.
type modelVoter struct {
	m        *modelRegister
	n        *node
	id       uint64
	proposes map[uint64]chan<- cluster.ProposeDone
	reads    map[uint64]chan<- cluster.ReadDone
	leads    chan bool
	changed  chan struct{}
}

var _ quorum.Register = (*modelVoter)(nil)

func newModelRegister(t testing.TB, founders, others int) *modelRegister {
	m := &modelRegister{w: NewWorld(Schedule{Seed: 1, Nodes: founders + others, K: 1})}
	m.w.calm = true // no weather: the suite makes its own faults
	first := entry{term: 1, ok: true, from: -1, id: 1}
	for i := range founders {
		first.voters = append(first.voters, uint64(i+1))
	}
	m.w.raft.committed = []entry{first}
	for i, n := range m.w.nodes {
		v := &modelVoter{
			m: m, n: n, id: uint64(i + 1), proposes: map[uint64]chan<- cluster.ProposeDone{}, reads: map[uint64]chan<- cluster.ReadDone{},
			leads: make(chan bool, 1), changed: make(chan struct{}, 1),
		}
		m.nodes = append(m.nodes, v)
		n.hear = v.hear
		n.voter = voter{}
		if i < founders {
			n.voter = voter{id: v.id, log: []entry{first}, term: 1, commit: 1}
			m.Start(i)
		}
	}
	m.w.after(50, m.w.raftTick)
	stop := make(chan struct{})
	var clock sync.WaitGroup
	clock.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.mu.Lock()
				m.w.until(m.w.now + speed)
				m.mu.Unlock()
			case <-stop:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		clock.Wait()
		if m.w.broken != "" {
			t.Errorf("the model's own invariant: %s", m.w.broken)
		}
	})
	return m
}

func (m *modelRegister) locked(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *modelRegister) Register(i int) quorum.Register { return m.nodes[i] }

func (m *modelRegister) Voter(i int) quorum.Voter { return m.voter(m.nodes[i].id) }

func (m *modelRegister) voter(id uint64) quorum.Voter {
	return quorum.Voter{ID: id, Address: fmt.Sprint("sim:", id)}
}

func (m *modelRegister) cut(i int, cut bool) {
	m.locked(func() {
		for j := range m.w.nodes {
			m.w.cut[i][j], m.w.cut[j][i] = cut, cut
		}
	})
}

func (m *modelRegister) Cut(i int)  { m.cut(i, true) }
func (m *modelRegister) Heal(i int) { m.cut(i, false) }

func (m *modelRegister) Stop(i int) { m.locked(m.nodes[i].n.stopAgent) }

func (m *modelRegister) Start(i int) {
	m.locked(func() {
		v := m.nodes[i]
		v.n.life, v.n.alive = m.w.uid(), true
		v.n.startVoter(cluster.StartVoter{Voter: v.id, Fresh: v.n.voter.id == 0})
	})
}

// hear takes what the register tells the agent; under the lock, as all that the
// world does.
func (v *modelVoter) hear(ev cluster.Event) {
	switch e := ev.(type) {
	case cluster.ProposeDone:
		if done := v.proposes[e.ID]; done != nil {
			delete(v.proposes, e.ID)
			done <- e
		}
	case cluster.ReadDone:
		if done := v.reads[e.ID]; done != nil {
			delete(v.reads, e.ID)
			done <- e
		}
	case cluster.Leadership:
		select {
		case <-v.leads:
		default:
		}
		v.leads <- e.Leads
	case cluster.Applied:
		select {
		case v.changed <- struct{}{}:
		default:
		}
	}
}

// The value stands in the register as the name of its only node; the epoch
// counts as named, as there is nobody to elect a primary.
func valueOf(r cluster.Register) quorum.Value {
	v := quorum.Value{Epoch: uint64(r.Epoch), Version: r.Version}
	if len(r.Nodes) > 0 {
		v.Data = []byte(r.Nodes[0].ID)
	}
	return v
}

func writeOf(p quorum.Proposal) cluster.Proposal {
	epoch := cluster.Epoch(p.NextEpoch)
	return cluster.Proposal{Expect: p.Version, ExpectEpoch: cluster.Epoch(p.Epoch), Next: cluster.Register{
		Epoch: epoch, Named: epoch, Nodes: []cluster.Node{{ID: cluster.NodeID(p.Data)}},
	}}
}

var errModel = errors.New("the register does not answer")

func (v *modelVoter) Read(ctx context.Context) (quorum.Value, error) {
	for {
		done := make(chan cluster.ReadDone, 1)
		v.m.locked(func() {
			id := v.m.w.uid()
			v.reads[id] = done
			v.n.read(cluster.ReadRegister{ID: id})
		})
		select {
		case r := <-done:
			if r.OK {
				return valueOf(r.Register), nil
			}
		case <-ctx.Done():
			return quorum.Value{}, ctx.Err()
		}
	}
}

func (v *modelVoter) Propose(ctx context.Context, p quorum.Proposal) quorum.Result {
	done := make(chan cluster.ProposeDone, 1)
	v.m.locked(func() {
		id := v.m.w.uid()
		v.proposes[id] = done
		v.n.propose(cluster.Propose{ID: id, Proposal: writeOf(p)})
	})
	select {
	case r := <-done:
		switch r.Outcome {
		case cluster.Committed:
			return quorum.Result{Outcome: quorum.Applied, Value: valueOf(r.Register)}
		case cluster.Conflict:
			return quorum.Result{Outcome: quorum.Conflict, Value: valueOf(r.Register)}
		}
		return quorum.Result{Err: errModel}
	case <-ctx.Done():
		return quorum.Result{Err: ctx.Err()}
	}
}

func (v *modelVoter) Status() (s quorum.Status) {
	v.m.locked(func() {
		x := &v.n.voter
		s = quorum.Status{Term: uint64(x.term), Last: uint64(len(x.log)), Applied: uint64(x.commit), Leads: x.leader && x.running, Reserved: true}
		if x.commit > 0 {
			s.Value = valueOf(x.log[x.commit-1].reg)
		}
		if l := v.m.w.leaderFor(v.n); l != nil {
			s.Leader = l.voter.id
		}
	})
	return s
}

func (v *modelVoter) Changed() <-chan struct{}  { return v.changed }
func (v *modelVoter) Leadership() <-chan bool   { return v.leads }
func (v *modelVoter) Close() error              { v.m.locked(v.n.stopAgent); return nil }
func (v *modelVoter) committed() (ids []uint64) { return v.n.voter.log[v.n.voter.commit-1].voters }

// asLeader repeats do until it reports success, as the agent does: the model
// drops what cannot be done at once.
func (v *modelVoter) asLeader(ctx context.Context, do func() (done bool)) error {
	for first := true; ; first = false {
		var ok, leads bool
		v.m.locked(func() {
			if leads = v.n.voter.leader; leads || !first {
				ok = do()
			}
		})
		switch {
		case ok:
			return nil
		case !leads:
			return quorum.ErrNotLeader
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (v *modelVoter) Transfer(ctx context.Context, to uint64) error {
	id := cluster.NodeID("")
	for _, o := range v.m.nodes {
		if o.id == to {
			id = o.n.id
		}
	}
	return v.asLeader(ctx, func() bool {
		if !v.n.voter.leader {
			return true // somebody else does by now
		}
		v.n.transfer(id)
		return false
	})
}

func (v *modelVoter) AddVoter(ctx context.Context, x quorum.Voter) error {
	return v.change(ctx, cluster.ReplaceVoter{New: x.ID}, func() bool { return slices.Contains(v.committed(), x.ID) })
}

func (v *modelVoter) RemoveVoter(ctx context.Context, id uint64) error {
	return v.change(ctx, cluster.ReplaceVoter{Old: id}, func() bool { return !slices.Contains(v.committed(), id) })
}

// change asks for a change of the voters until it is committed.
func (v *modelVoter) change(ctx context.Context, x cluster.ReplaceVoter, done func() bool) error {
	return v.asLeader(ctx, func() bool {
		if done() {
			return true
		}
		v.n.replaceVoter(x)
		return false
	})
}

func (v *modelVoter) Voters(context.Context) (vs []quorum.Voter, err error) {
	v.m.locked(func() {
		for _, id := range v.n.voter.last().voters {
			vs = append(vs, v.m.voter(id))
		}
	})
	slices.SortFunc(vs, func(a, b quorum.Voter) int { return cmp.Compare(a.ID, b.ID) })
	return vs, nil
}
