package sim

import (
	"slices"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// raft is the model of the replicated register: logs, terms, elections and
// membership as in Raft, with whole logs copied at once.
type raft struct {
	committed []entry // what any leader ever committed; it must never change
}

type entry struct {
	term   int
	reg    cluster.Register // after this entry
	ok     bool             // the compare-and-swap took hold
	voters []uint64
	from   int // who proposed it; -1: nobody
	life   uint64
	id     uint64
}

// voter is one node's part in it. Log and term are durable.
type voter struct {
	id   uint64
	log  []entry
	term int
	running,
	leader bool
	commit  int
	told    int // commit that the agent has been told of
	heard   ms  // from a leader
	tried   ms  // its last campaign
	quorum  ms  // as leader: when a majority last answered
	timeout ms
}

func (v *voter) last() entry {
	if len(v.log) == 0 {
		return entry{}
	}
	return v.log[len(v.log)-1]
}

func (w *World) voterByID(id uint64) *node {
	for _, n := range w.nodes {
		if n.voter.running && n.voter.id == id {
			return n
		}
	}
	return nil
}

func (n *node) voterDown() {
	n.voter.running, n.voter.leader = false, false
}

func (n *node) startVoter(x cluster.StartVoter) {
	v := &n.voter
	if x.Fresh {
		*v = voter{id: x.Voter}
		n.disk.Voter, n.disk.HasVoter, n.disk.HasPromise = x.Voter, true, true
	}
	v.running, v.leader, v.heard = true, false, n.w.now
	v.timeout = n.w.rnd.between(500, 1000)
	v.commit = max(0, min(v.commit, len(v.log))-3) // the local copy begins stale
	v.told = 0
}

// raftTick moves every voter; it runs all the time.
func (w *World) raftTick() {
	for _, n := range w.nodes {
		v := &n.voter
		if !n.up || !n.alive || !v.running || n.asleep() {
			continue
		}
		if v.leader {
			w.replicate(n)
			if w.now-v.quorum > 700 {
				n.stepDown()
			}
		} else if w.now-max(v.heard, v.tried) > v.timeout {
			w.campaign(n)
		}
		if v.commit > v.told {
			v.told = v.commit
			e := v.log[v.commit-1]
			index := uint64(len(v.log))
			n.tell(w.delay(), func() {
				n.deliver(cluster.Applied{Version: e.reg.Version, Epoch: e.reg.Epoch, Index: index})
			})
		}
	}
	w.after(100, w.raftTick)
}

func (n *node) stepDown() {
	if n.voter.leader {
		n.voter.leader = false
		n.voter.heard = n.w.now
		n.tell(1, func() { n.deliver(cluster.Leadership{Leads: false}) })
	}
}

func (w *World) hears(a, b *node) bool {
	return a.deaf <= w.now && b.deaf <= w.now && b.up && !b.asleep() && b.alive && b.voter.running && w.both(a.i, b.i)
}

func (w *World) campaign(n *node) {
	v := &n.voter
	v.tried, v.timeout = w.now, w.rnd.between(500, 1000)
	voters := v.last().voters
	if n.diskHung || !slices.Contains(voters, v.id) {
		return
	}
	for _, o := range w.nodes { // pre-vote: somebody still hears a leader
		if o != n && w.hears(n, o) && (o.voter.leader || w.now-o.voter.heard < 400) && slices.Contains(voters, o.voter.id) {
			return
		}
	}
	v.term++
	votes, higher := 0, 0
	for _, id := range voters {
		o := w.voterByID(id)
		if o == nil || o != n && !w.hears(n, o) || o.diskHung {
			continue
		}
		f := &o.voter
		if o != n {
			if f.term >= v.term {
				higher = max(higher, f.term)
				continue
			}
			f.term = v.term
			o.stepDown()
		}
		if f.last().term > v.last().term || f.last().term == v.last().term && len(f.log) > len(v.log) {
			continue
		}
		votes++
	}
	if 2*votes <= len(voters) {
		v.term = max(v.term, higher)
		return
	}
	v.leader, v.quorum = true, w.now
	prev := v.last()
	v.append(entry{term: v.term, reg: prev.reg, ok: true, voters: prev.voters, from: -1})
	w.logf("%s leads the register in term %d", n.id, v.term)
	n.tell(1, func() { n.deliver(cluster.Leadership{Leads: true}) })
	w.replicate(n)
}

func (v *voter) append(e entry) { v.log = append(slices.Clip(v.log), e) }

// replicate is one round of AppendEntries to everybody.
func (w *World) replicate(n *node) {
	v := &n.voter
	if !v.leader || n.asleep() || !n.up {
		return
	}
	voters := v.last().voters
	acks, contact := 0, 0
	for _, o := range w.nodes {
		f := &o.voter
		if !f.running {
			continue
		}
		member := slices.Contains(voters, f.id)
		if o == n {
			if member {
				contact++
				if !n.diskHung {
					acks++
				}
			}
			continue
		}
		if !w.hears(n, o) || !w.quiet && !w.calm && w.rnd.chance(0.1+w.sch.Loss) {
			continue
		}
		if f.term > v.term {
			n.stepDown()
			v.term = f.term
			return
		}
		if !member {
			continue
		}
		if f.term < v.term || f.leader {
			o.stepDown()
			f.term = v.term
		}
		f.heard = w.now
		if !o.diskHung {
			f.log = v.log
			f.commit = max(f.commit, min(v.commit, len(f.log)))
			acks++
		}
		contact++
	}
	if 2*contact > len(voters) {
		v.quorum = w.now
	}
	if 2*acks > len(voters) && v.last().term == v.term && v.commit < len(v.log) {
		w.commit(n)
	}
}

// commit makes the leader's log the truth.
func (w *World) commit(n *node) {
	v := &n.voter
	r := &w.raft
	for i := range v.log {
		e := v.log[i]
		if i < len(r.committed) {
			if c := r.committed[i]; i >= v.commit && (c.term != e.term || c.id != e.id || c.from != e.from) {
				w.fail("the register lost what it had committed: entry %d", i)
				return
			}
			continue
		}
		r.committed = append(r.committed, e)
		w.registerChanged(e)
	}
	from := v.commit
	v.commit = len(v.log)
	for _, e := range v.log[from:] {
		w.result(n, e)
	}
	n.tell(w.delay(), func() { n.deliver(cluster.Voters{IDs: v.last().voters}) })
}

// result tells the proposer what became of its write, if the way is open.
func (w *World) result(leader *node, e entry) {
	if e.from < 0 || e.id == 0 {
		return
	}
	p := w.nodes[e.from]
	if p.life != e.life || !p.up || !w.reach(leader.i, p.i) || !w.quiet && !w.calm && p != leader && w.rnd.chance(0.05+w.sch.Loss) {
		return
	}
	out := cluster.Conflict
	if e.ok {
		out = cluster.Committed
	}
	life := e.life
	p.on(onHost, w.delay(), func() {
		if p.life == life {
			p.on(onAgent, 0, func() { p.deliver(cluster.ProposeDone{ID: e.id, Outcome: out, Register: e.reg}) })
		}
	})
}

// leaderFor is the leader that a request from n reaches; perhaps a former one.
func (w *World) leaderFor(n *node) *node {
	var found []*node
	if n.deaf > w.now {
		return nil
	}
	for _, o := range w.nodes {
		if o.up && !o.asleep() && o.alive && o.voter.running && o.voter.leader && w.both(n.i, o.i) && (o == n || o.deaf <= w.now) {
			found = append(found, o)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return found[w.rnd.n(len(found))]
}

func (n *node) propose(x cluster.Propose) {
	w := n.w
	life := n.life
	n.tell(w.rnd.between(1500, 4000), func() { n.deliver(cluster.ProposeDone{ID: x.ID, Outcome: cluster.Unknown}) })
	d := w.delay()
	if !w.quiet && !w.calm && w.rnd.chance(0.03) {
		d = w.rnd.between(500, 4000) // it waits in a queue
	}
	if n.dieNext {
		d = w.rnd.between(100, 3000)
	}
	if n.lateNext && n.st.View().Primary && x.Why != "" && x.Proposal.Next.Epoch == x.Proposal.ExpectEpoch {
		n.lateNext = false
		n.deaf = w.now + w.rnd.between(2200, 3400)
		d = n.deaf - w.now + w.rnd.between(50, 900)
	} else if n.deaf > w.now && w.rnd.chance(0.5) {
		d = n.deaf - w.now + w.rnd.between(100, 1500) // it is sent again when the way is open
	}
	w.after(d, func() {
		l := w.leaderFor(n)
		if l == nil || !w.quiet && !w.calm && w.rnd.chance(w.sch.Loss) || l.diskHung {
			return
		}
		times := 1
		if !w.quiet && !w.calm && w.rnd.chance(w.sch.Twice) {
			times = 2 // the transport sent it again
		}
		for range times {
			v := &l.voter
			prev := v.last()
			reg, ok := prev.reg.Apply(x.Proposal, w.sch.Mutation)
			v.append(entry{term: v.term, reg: reg, ok: ok, voters: prev.voters, from: n.i, life: life, id: x.ID})
		}
		l.on(onHost, w.delay(), func() { w.replicate(l) })
	})
}

func (n *node) read(x cluster.ReadRegister) {
	w := n.w
	life := n.life
	answer := func(d ms, ok bool, r cluster.Register) {
		n.on(onHost, d, func() {
			if n.life == life {
				n.on(onAgent, 0, func() { n.deliver(cluster.ReadDone{ID: x.ID, OK: ok, Register: r}) })
			}
		})
	}
	if x.Local && n.voter.running && n.voter.commit > 0 {
		answer(1, true, n.voter.log[n.voter.commit-1].reg)
		return
	}
	w.after(w.delay(), func() {
		l := w.leaderFor(n)
		if l == nil {
			answer(400, false, cluster.Register{})
			return
		}
		v := &l.voter
		contact := 0
		voters := v.last().voters
		for _, id := range voters {
			if o := w.voterByID(id); o != nil && (o == l || w.hears(l, o) && o.voter.term <= v.term) {
				contact++
			}
		}
		if 2*contact <= len(voters) || v.commit == 0 || v.log[v.commit-1].term != v.term {
			answer(400, false, cluster.Register{})
			return
		}
		r := v.log[v.commit-1].reg
		if !w.reach(l.i, n.i) {
			answer(400, false, cluster.Register{})
			return
		}
		answer(w.delay(), true, r)
	})
}

func (n *node) transfer(to cluster.NodeID) {
	w := n.w
	if !n.voter.leader {
		return
	}
	for _, o := range w.nodes {
		if o != n && (to == "" || o.id == to) && w.hears(n, o) && !o.diskHung && slices.Contains(n.voter.last().voters, o.voter.id) {
			if len(o.voter.log) == len(n.voter.log) {
				o.on(onHost, w.delay(), func() {
					if o.alive && o.voter.running && !o.voter.leader {
						n.stepDown()
						for _, x := range w.nodes {
							x.voter.heard = min(x.voter.heard, w.now-500)
						}
						w.campaign(o)
					}
				})
				return
			}
		}
	}
}

func (n *node) replaceVoter(x cluster.ReplaceVoter) {
	v := &n.voter
	if !v.leader || v.commit < len(v.log) || v.log[v.commit-1].term != v.term {
		return // one change at a time, and only after an entry of this term
	}
	prev := v.last()
	voters := slices.Clone(prev.voters)
	if x.Old != 0 {
		voters = slices.DeleteFunc(voters, func(id uint64) bool { return id == x.Old })
	}
	if x.New != 0 && !slices.Contains(voters, x.New) {
		voters = append(voters, x.New)
	}
	if len(voters) == 0 {
		return
	}
	v.append(entry{term: v.term, reg: prev.reg, ok: true, voters: voters, from: -1, id: n.w.uid()})
	n.on(onHost, n.w.delay(), func() { n.w.replicate(n) })
}

// voterTold tells leaders the set of voters now and then.
func (w *World) tellVoters() {
	for _, n := range w.nodes {
		if n.voter.leader && n.voter.commit > 0 && n.alive && n.up {
			ids := n.voter.log[n.voter.commit-1].voters
			n.tell(1, func() { n.deliver(cluster.Voters{IDs: ids}) })
		}
	}
	w.after(1000, w.tellVoters)
}

// rollback restores the voter's files from a snapshot older than what its peers
// remember of it.
func (n *node) rollback(keep int) {
	v := &n.voter
	if keep < len(v.log) {
		v.log = slices.Clip(v.log[:keep])
		v.term = v.last().term
		v.commit = min(v.commit, keep)
	}
}
