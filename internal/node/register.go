package node

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/quorum"
)

// content is what the register's bytes hold.
type content struct {
	Cluster string           `json:"cluster"`
	System  string           `json:"system"` // Postgres's system identifier, the same in every data directory of the cluster
	State   cluster.Register `json:"register"`
}

// unpack reads the register; ok is false for one that was never written.
func unpack(v quorum.Value) (c content, ok bool, err error) {
	if v.Version == 0 {
		return c, false, nil
	}
	if err := json.Unmarshal(v.Data, &c); err != nil {
		return c, false, fmt.Errorf("read the register: %w", err)
	}
	c.State.Version, c.State.Epoch = v.Version, cluster.Epoch(v.Epoch)
	return c, true, nil
}

// founderID is the id that a node's voter has if it founds the cluster; the same
// on every node, since all of them hold the authority's certificate.
func founderID(ca []byte, node string) uint64 {
	h := sha256.New()
	h.Write(ca)
	h.Write([]byte("\x00founder\x00" + node))
	return max(1, binary.BigEndian.Uint64(h.Sum(nil))>>1)
}

// register is this agent's way to the replicated register: through its own voter,
// or, while it has none, through a peer's.
type register struct {
	cluster string
	self    cluster.NodeID
	address map[cluster.NodeID]string
	open    func(voter uint64, fresh bool, founders []quorum.Voter) (*quorum.Node, error)
	ask     *asker
	tell    func(cluster.Event)
	log     *slog.Logger
	check   func(system string) // the first time that the register was read
	poll    time.Duration       // between looks at the set of voters and at the log's end
	within  time.Duration       // how long a read or a write may take

	ctx  context.Context
	end  context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	voter   *quorum.Node
	id      uint64
	opening bool
	system  string
}

func (r *register) now() *quorum.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.voter
}

// take makes n this agent's voter, and tells what happens at it.
func (r *register) take(n *quorum.Node, id uint64) {
	r.mu.Lock()
	r.voter, r.id = n, id
	r.mu.Unlock()
	r.work.Go(func() { r.watch(n) })
}

func (r *register) watch(n *quorum.Node) {
	tick := time.NewTicker(r.poll)
	defer tick.Stop()
	var last quorum.Status
	for {
		select {
		case l := <-n.Leadership():
			r.tell(cluster.Leadership{Leads: l})
		case <-n.Changed():
			last = r.applied(n, last)
		case <-tick.C:
			last = r.applied(n, last)
			if last.Leads {
				r.voters(n)
			}
		case <-r.ctx.Done():
			return
		}
	}
}

func (r *register) applied(n *quorum.Node, last quorum.Status) quorum.Status {
	s := n.Status()
	if s.Value.Version != last.Value.Version || s.Last != last.Last {
		r.tell(cluster.Applied{Version: s.Value.Version, Epoch: cluster.Epoch(s.Value.Epoch), Index: s.Last})
	}
	return s
}

func (r *register) voters(n *quorum.Node) {
	ctx, cancel := context.WithTimeout(r.ctx, r.within)
	defer cancel()
	vs, err := n.Voters(ctx)
	if err != nil {
		return
	}
	var ids []uint64
	for _, v := range vs {
		ids = append(ids, v.ID)
	}
	r.tell(cluster.Voters{IDs: ids})
}

// value reads linearizably, by the own voter or through the first peer that can.
func (r *register) value(ctx context.Context) (quorum.Value, error) {
	if n := r.now(); n != nil {
		return n.Read(ctx)
	}
	return r.ask.read(ctx)
}

func (r *register) read(e cluster.ReadRegister) {
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, r.within)
		defer cancel()
		done := cluster.ReadDone{ID: e.ID}
		if v, err := r.value(ctx); err == nil {
			c, ok, err := unpack(v)
			if err != nil {
				r.log.Error("the register cannot be read", "err", err)
			}
			if done.OK = ok && err == nil && c.Cluster == r.cluster; done.OK {
				done.Register = c.State
				r.mu.Lock()
				first := r.system == ""
				r.system = c.System
				r.mu.Unlock()
				if first && r.check != nil {
					r.check(c.System)
				}
			}
		}
		r.tell(done)
	})
}

// knownSystem is the system identifier of the cluster, empty before the first read.
func (r *register) knownSystem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.system
}

func (r *register) propose(e cluster.Propose) {
	r.work.Go(func() {
		done := cluster.ProposeDone{ID: e.ID}
		defer func() { r.tell(done) }()
		data, err := json.Marshal(content{r.cluster, r.knownSystem(), e.Proposal.Next})
		if err != nil {
			r.log.Error("a proposal cannot be encoded", "err", err)
			return
		}
		ctx, cancel := context.WithTimeout(r.ctx, r.within)
		defer cancel()
		p := quorum.Proposal{Epoch: uint64(e.Proposal.ExpectEpoch), Version: e.Proposal.Expect, NextEpoch: uint64(e.Proposal.Next.Epoch), Data: data}
		res := r.put(ctx, p)
		c, ok, err := unpack(res.Value)
		switch {
		case res.Outcome == quorum.Unknown || err != nil || !ok:
			r.log.Info("a write to the register has no known outcome", "why", e.Why, "err", errors.Join(res.Err, err))
		case res.Outcome == quorum.Applied:
			done.Outcome, done.Register = cluster.Committed, c.State
		default:
			done.Outcome, done.Register = cluster.Conflict, c.State
		}
	})
}

func (r *register) put(ctx context.Context, p quorum.Proposal) quorum.Result {
	if n := r.now(); n != nil {
		return n.Propose(ctx, p)
	}
	return r.ask.propose(ctx, p)
}

func (r *register) transfer(to uint64) {
	n := r.now()
	if n == nil {
		return
	}
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, 2*r.within)
		defer cancel()
		if err := n.Transfer(ctx, to); err != nil {
			r.log.Info("the register's leadership did not move", "to", to, "err", err)
		}
	})
}

// start has the voter take part; it is tried until it works.
func (r *register) start(e cluster.StartVoter) {
	r.mu.Lock()
	skip := r.opening || r.voter != nil && r.id == e.Voter
	old := r.voter
	if !skip {
		r.opening, r.voter = true, nil
	}
	r.mu.Unlock()
	if skip {
		return
	}
	r.work.Go(func() {
		defer func() {
			r.mu.Lock()
			r.opening = false
			r.mu.Unlock()
		}()
		if old != nil {
			_ = old.Close()
		}
		for {
			n, err := r.open(e.Voter, e.Fresh, nil)
			if err == nil {
				r.take(n, e.Voter)
				return
			}
			r.log.Error("the voter does not start", "voter", e.Voter, "err", err)
			select {
			case <-r.ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	})
}

func (r *register) replace(e cluster.ReplaceVoter) {
	n := r.now()
	if n == nil {
		return
	}
	r.work.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, 2*r.within)
		defer cancel()
		var err error
		if e.Old != 0 {
			err = n.RemoveVoter(ctx, e.Old)
		}
		if err == nil && e.New != 0 {
			err = n.AddVoter(ctx, quorum.Voter{ID: e.New, Address: r.address[e.Node]})
		}
		r.log.Info("the voters change", "goes", e.Old, "comes", e.New, "of", e.Node, "err", err)
	})
}

func (r *register) close() {
	r.end()
	r.work.Wait()
	if n := r.now(); n != nil {
		if err := n.Close(); err != nil {
			r.log.Warn("the voter did not close well", "err", err)
		}
	}
}

// registerDial is how voters reach one another.
func registerDial(ctx context.Context, address string) (net.Conn, error) {
	return dial(ctx, address, forRegister)
}
