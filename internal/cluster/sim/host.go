package sim

import (
	"math"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

func (n *node) config() cluster.Config {
	c := cluster.Config{Self: n.id, Witness: n.witness, Priority: n.i, Timing: Timing(), Mutation: n.w.sch.Mutation}
	for _, o := range n.w.nodes {
		if o != n {
			c.Peers = append(c.Peers, o.id)
		}
	}
	return c
}

// clock is the node's own monotonic time; it may run fast or slow, and jump.
func (n *node) clock() time.Duration {
	t := float64(n.w.now-n.born)*n.rate + float64(n.skew)
	return time.Duration(math.Max(t, 0)) * time.Millisecond
}

// startAgent begins a life of the agent.
func (n *node) startAgent() {
	if !n.up || n.alive {
		return
	}
	n.life = n.w.uid()
	n.alive, n.born, n.skew, n.obsDue = true, n.w.now, 0, false
	n.st = cluster.New(n.config())
	n.disk.VoterIndex = uint64(len(n.voter.log))
	n.deliver(cluster.Started{Life: n.life, Disk: n.disk, Fresh: n.w.uid()})
	if !n.witness {
		n.deliver(cluster.PostgresSeen{Postgres: n.look()})
	}
	n.on(onAgent, n.w.rnd.between(1, 100), n.tick)
}

func (n *node) stopAgent() {
	n.alive = false
	n.gen++
	n.life = n.w.uid()
	n.voterDown()
}

func (n *node) tick() {
	n.reapSenders()
	n.replay()
	if !n.witness {
		n.deliver(cluster.PostgresSeen{Postgres: n.look()})
		n.deliver(cluster.Probed{OK: n.probe()})
	}
	n.deliver(cluster.Tick{Now: n.clock(), Wall: time.Duration(n.w.now) * time.Millisecond})
	n.on(onAgent, ms(500/n.rate), n.tick)
}

// probe is the write on a fresh connection.
func (n *node) probe() bool {
	p := &n.pg
	return !n.diskHung && (!p.running || !n.pgFrozen && (!p.primary || !n.diskFull))
}

// seen shows the agent the instance soon, if something changed.
func (n *node) seen() {
	if n.obsDue || !n.alive || n.witness {
		return
	}
	n.obsDue = true
	d := ms(10)
	if n.w.now-n.seenAt < 60 {
		d = 70
	}
	n.on(onAgent, d, func() {
		n.obsDue, n.seenAt = false, n.w.now
		n.deliver(cluster.PostgresSeen{Postgres: n.look()})
	})
}

// deliver is one step of the core and the beginning of its effects. A crash may
// come between any two effects.
func (n *node) deliver(ev cluster.Event) {
	if !n.alive || n.w.broken != "" {
		return
	}
	if n.hear != nil {
		n.hear(ev)
		return
	}
	w := n.w
	w.Cover.Events[kind(ev)]++
	if w.watch != nil {
		w.watch(n.st, ev)
	}
	st, effects := cluster.Step(n.st, ev)
	n.st = st
	if w.Log != nil {
		n.tellStep(ev, effects)
	}
	for _, e := range effects {
		if !w.quiet && !w.calm && w.sch.CrashBetween > 0 && len(effects) > 1 && w.rnd.chance(w.sch.CrashBetween) {
			w.logf("%s: the agent dies between two effects", n.id)
			n.restartAgent(w.rnd.between(50, 1500))
			return
		}
		w.Cover.Effects[kind(e)]++
		n.do(e)
		if !n.alive {
			return
		}
	}
	n.afterStep()
}

func (n *node) restartAgent(d ms) {
	n.stopAgent()
	n.on(onHost, d, n.startAgent)
}

// afterStep notes a recruit's report: from here on nothing may be confirmed to
// an older epoch.
func (n *node) afterStep() {
	v := n.st.View()
	n.w.Cover.Marks |= v.Marks
	if v.Recruited != 0 && v.Recruited >= n.report.epoch {
		n.report = lastReport{v.Recruited, cluster.Member{Node: n.id, Incarnation: n.pg.inc}, n.pg.hist, n.pg.durable}
		if n.disk.Promise < v.Recruited {
			n.w.fail("%s reported to epoch %d, its promise on disk is %d", n.id, v.Recruited, n.disk.Promise)
		}
	}
}

func (n *node) send(to cluster.NodeID, m cluster.Message) {
	w := n.w
	o := w.find(to)
	if o == nil || !w.reach(n.i, o.i) {
		return
	}
	times := 1
	if !w.quiet && !w.calm {
		if w.rnd.chance(w.sch.Loss) {
			return
		}
		if w.rnd.chance(w.sch.Twice) {
			times = 2
		}
	}
	for range times {
		boot := o.boot
		w.after(w.delay(), func() {
			if o.up && o.boot == boot && w.reach(n.i, o.i) {
				o.on(onHost, 0, func() {
					if o.alive {
						o.on(onAgent, 0, func() { o.deliver(cluster.Received{From: n.id, Message: m}) })
					}
				})
			}
		})
	}
}

// op answers an effect after d, with what fn finds; a hung disk delays it where
// the effect needs one.
func (n *node) op(id uint64, d ms, disk bool, fn func() cluster.Done) {
	n.on(onHost, d, func() {
		if disk && n.diskHung {
			n.op(id, 200, disk, fn)
			return
		}
		r := fn()
		r.ID = id
		n.tell(1, func() { n.deliver(r) })
	})
}

// longOp is op for what a stop of the instance, or the agent's death, ends.
func (n *node) longOp(id uint64, d ms, fn func() cluster.Done) {
	gen := n.gen
	n.op(id, d, true, func() cluster.Done {
		if n.gen != gen {
			return cluster.Done{Why: "ended"}
		}
		return fn()
	})
}

func (n *node) withLook(ok bool, why string) cluster.Done {
	v := n.look()
	return cluster.Done{OK: ok, Postgres: &v, Why: why}
}

// do begins one effect.
func (n *node) do(e cluster.Effect) {
	w := n.w
	switch x := e.(type) {
	case cluster.SaveDurable:
		n.pg.durSSN = x.SSN
	case cluster.ReadRegister:
		n.read(x)
	case cluster.Propose:
		if !x.Proposal.Next.Electing() && len(n.st.Recruits()) > 0 {
			w.truth.rest[proposal{n.life, x.ID}] = n.st.Recruits()
		}
		n.propose(x)
		if v := n.st.View(); n.dieNext && v.Primary {
			n.dieNext = false
			w.logf("%s: the agent dies while its write is on its way", n.id)
			n.restartAgent(w.rnd.between(20, 400))
		}
	case cluster.TransferLeadership:
		n.transfer(x.To)
	case cluster.StartVoter:
		n.startVoter(x)
	case cluster.ReplaceVoter:
		n.replaceVoter(x)
	case cluster.Send:
		n.send(x.To, x.Message)
	case cluster.SavePromise:
		n.op(x.ID, n.flushTime(), true, func() cluster.Done {
			n.disk.Promise, n.disk.HasPromise = max(n.disk.Promise, x.Epoch), true
			return cluster.Done{OK: true}
		})
	case cluster.UnlinkCredential:
		n.pg.cred = 0
		n.op(x.ID, n.flushTime(), true, func() cluster.Done {
			n.credD = n.pg.cred
			return cluster.Done{OK: true}
		})
	case cluster.InspectWAL:
		n.op(x.ID, n.flushTime(), true, func() cluster.Done {
			n.pg.durable = len(n.pg.wal) // it fsyncs what it reads
			n.replay()
			return n.withLook(true, "")
		})
	case cluster.Alarm:
		if x.On {
			w.Cover.Alarms |= 1 << x.Kind
		}
	case cluster.Answer:
		w.answers = append(w.answers, x)
	default:
		n.doPG(e)
	}
}

// powerOff takes the host's power: what was not flushed is gone, and so is tmpfs.
func (n *node) powerOff() {
	if !n.up {
		return
	}
	n.end(true)
	n.stopAgent()
	n.up, n.frozen, n.agentFrozen, n.pgFrozen = false, false, false, false
	n.held = nil
	n.boot = n.w.uid()
	p := &n.pg
	p.truncate(p.durable)
	if n.w.sch.Mutation != cluster.PermitsDurable {
		p.permit = permit{}
	}
	p.cred = n.credD
	p.lagging = false
}

func (n *node) powerOn(agentAfter ms) {
	if n.up {
		return
	}
	n.up = true
	n.diskHung = false
	n.on(onHost, agentAfter, n.startAgent)
}

// wipe leaves nothing on the host's disk.
func (n *node) wipe() {
	n.powerOff()
	old := n.pg
	n.pg = postgres{instance: n.w.uid(), made: old.made}
	n.disk = cluster.Disk{}
	n.credD = 0
	n.voter = voter{}
	n.report = lastReport{}
}

// restore puts a directory from an old backup in the place of the present one,
// as a person might: it is a new incarnation, and knows less.
func (n *node) restore() {
	p := &n.pg
	if !n.up || !p.exists || p.primaryD || len(p.wal) < 8 {
		return
	}
	n.halt()
	n.stopAgent()
	p.truncate(3 + n.w.rnd.n(len(p.wal)-3))
	p.durable = len(p.wal)
	p.inc = cluster.Incarnation(n.w.uid())
	n.disk.Incarnation = p.inc
	n.on(onHost, 100, n.startAgent)
}
