package quorumtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/holdfast-db/holdfast/internal/quorum"
)

// Model is a Cluster in memory, of the shape that the simulator of decisions
// has: elections and whole logs are copied at once, and nothing takes time.
type Model struct {
	mu     sync.Mutex
	voters []quorum.Voter
	nodes  []*modelNode
	leader int // -1: nobody
	term   uint64
	moved  chan struct{} // closed and replaced at every change
}

type modelNode struct {
	m       *Model
	i       int
	voter   quorum.Voter
	up, cut bool
	value   quorum.Value // with index its disk
	index   uint64
	term    uint64
	leads   chan bool
	changed chan struct{}
}

var (
	_ Cluster         = (*Model)(nil)
	_ Cluster         = (*Nodes)(nil)
	_ quorum.Register = (*modelNode)(nil)
)

var errDown = errors.New("the node is down")

// NewModel starts the founders.
func NewModel(_ testing.TB, founders, others int) Cluster {
	m := &Model{leader: -1, moved: make(chan struct{})}
	for i := range founders + others {
		n := &modelNode{
			m: m, i: i, voter: quorum.Voter{ID: uint64(i + 1), Address: fmt.Sprint("model:", i)},
			leads: make(chan bool, 1), changed: make(chan struct{}, 1),
		}
		m.nodes = append(m.nodes, n)
		if i < founders {
			n.up = true
			m.voters = append(m.voters, n.voter)
		}
	}
	m.change(func() {})
	return m
}

// Register implements Cluster.
func (m *Model) Register(i int) quorum.Register { return m.nodes[i] }

// Voter implements Cluster.
func (m *Model) Voter(i int) quorum.Voter { return m.nodes[i].voter }

// Cut implements Cluster.
func (m *Model) Cut(i int) { m.change(func() { m.nodes[i].cut = true }) }

// Heal implements Cluster.
func (m *Model) Heal(i int) { m.change(func() { m.nodes[i].cut = false }) }

// Stop implements Cluster.
func (m *Model) Stop(i int) { m.change(func() { m.nodes[i].up = false }) }

// Start implements Cluster.
func (m *Model) Start(i int) { m.change(func() { m.nodes[i].up = true }) }

// change does f, and then what follows from it.
func (m *Model) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed(f)
}

func (m *Model) changed(f func()) {
	f()
	m.elect()
	if m.leader >= 0 {
		l := m.nodes[m.leader]
		for _, n := range m.nodes {
			if n.reachable() {
				n.take(l.value, l.index, m.term)
			}
		}
	}
	close(m.moved)
	m.moved = make(chan struct{})
}

func (n *modelNode) reachable() bool { return n.up && !n.cut }

func (n *modelNode) votes() bool { return slices.Contains(n.m.voters, n.voter) }

// elect keeps a leader that has a majority, or finds one with the longest log.
func (m *Model) elect() {
	var there []*modelNode
	for _, n := range m.nodes {
		if n.votes() && n.reachable() {
			there = append(there, n)
		}
	}
	majority := 2*len(there) > len(m.voters)
	if m.leader >= 0 && majority && slices.Contains(there, m.nodes[m.leader]) {
		return
	}
	m.lead(-1)
	if majority {
		best := slices.MaxFunc(there, func(a, b *modelNode) int { return cmp.Compare(a.index, b.index) })
		m.lead(best.i)
	}
}

func (m *Model) lead(i int) {
	if m.leader >= 0 {
		m.nodes[m.leader].tell(false)
	}
	m.leader = i
	if i >= 0 {
		m.term++
		m.nodes[i].tell(true)
	}
}

func (n *modelNode) tell(leads bool) {
	select {
	case <-n.leads:
	default:
	}
	n.leads <- leads
}

func (n *modelNode) take(v quorum.Value, index, term uint64) {
	n.term = term
	if n.index == index {
		return
	}
	n.value, n.index = v, index
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// when runs do as soon as the node is there and can reach a leader.
func (n *modelNode) when(ctx context.Context, do func(leader *modelNode)) error {
	for {
		n.m.mu.Lock()
		if !n.up {
			n.m.mu.Unlock()
			return errDown
		}
		if n.m.leader >= 0 && n.reachable() {
			do(n.m.nodes[n.m.leader])
			n.m.mu.Unlock()
			return nil
		}
		moved := n.m.moved
		n.m.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *modelNode) Read(ctx context.Context) (v quorum.Value, err error) {
	err = n.when(ctx, func(l *modelNode) { v = l.value })
	return v, err
}

func (n *modelNode) Propose(ctx context.Context, p quorum.Proposal) (r quorum.Result) {
	err := n.when(ctx, func(l *modelNode) {
		next, ok := l.value.Apply(p)
		r = quorum.Result{Outcome: quorum.Conflict, Value: next}
		if ok {
			r.Outcome = quorum.Applied
		}
		n.m.changed(func() { l.take(next, l.index+1, n.m.term) })
	})
	if err != nil {
		return quorum.Result{Err: err}
	}
	return r
}

func (n *modelNode) Status() quorum.Status {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	s := quorum.Status{Value: n.value, Term: n.term, Last: n.index, Applied: n.index, Leads: n.m.leader == n.i, Reserved: true}
	if n.m.leader >= 0 && n.reachable() {
		s.Leader = n.m.nodes[n.m.leader].voter.ID
	}
	return s
}

func (n *modelNode) Changed() <-chan struct{} { return n.changed }

func (n *modelNode) Leadership() <-chan bool { return n.leads }

// asLeader runs do if the node leads.
func (n *modelNode) asLeader(ctx context.Context, do func() error) error {
	var err error
	if e := n.when(ctx, func(l *modelNode) {
		if err = quorum.ErrNotLeader; l == n {
			err = do()
		}
	}); e != nil {
		return e
	}
	return err
}

func (n *modelNode) Transfer(ctx context.Context, to uint64) error {
	return n.asLeader(ctx, func() error {
		for _, o := range n.m.nodes {
			if o != n && o.reachable() && o.votes() && (to == 0 || o.voter.ID == to) {
				n.m.changed(func() { n.m.lead(o.i) })
				return nil
			}
		}
		return fmt.Errorf("voter %d cannot take over", to)
	})
}

func (n *modelNode) AddVoter(ctx context.Context, v quorum.Voter) error {
	return n.asLeader(ctx, func() error {
		if !slices.Contains(n.m.voters, v) {
			n.m.changed(func() { n.m.voters = append(slices.Clone(n.m.voters), v) })
		}
		return nil
	})
}

func (n *modelNode) RemoveVoter(ctx context.Context, id uint64) error {
	return n.asLeader(ctx, func() error {
		n.m.changed(func() {
			n.m.voters = slices.DeleteFunc(slices.Clone(n.m.voters), func(v quorum.Voter) bool { return v.ID == id })
		})
		return nil
	})
}

func (n *modelNode) Voters(ctx context.Context) (vs []quorum.Voter, err error) {
	err = n.when(ctx, func(*modelNode) { vs = slices.Clone(n.m.voters) })
	slices.SortFunc(vs, func(a, b quorum.Voter) int { return cmp.Compare(a.ID, b.ID) })
	return vs, err
}

func (n *modelNode) Close() error {
	n.m.Stop(n.i)
	return nil
}
