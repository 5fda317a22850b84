package sim

import (
	"fmt"
	"slices"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// chaos ends here; after that, everything is repaired and writes must come back.
const (
	chaosEnds = 34000
	calmLimit = 45000
)

// Result of one run.
type Result struct {
	Broken string // the invariant that did not hold; empty: all did
	At     int64  // when, in simulated milliseconds
	Cover  Coverage
}

// NewWorld makes a formed cluster: a leads, the others stream and are in S.
func NewWorld(s Schedule) *World {
	w := &World{sch: s, rnd: random{s: s.Seed ^ 0xabcdef}, Cover: NewCoverage(), nextUID: 1000}
	w.truth.content = map[place]uint64{}
	w.truth.liars = map[cluster.Member]bool{}
	w.truth.spent = 1
	w.truth.rest = map[proposal][]cluster.Report{}
	reg := cluster.Register{Version: 1, Epoch: 1, Named: 1, Timeline: 1, LastTimeline: 1, K: s.K, WantK: s.K, Mode: s.Mode,
		Chain: []cluster.Branch{{Epoch: 1, Timeline: 1}}}
	var voters []uint64
	base := []rec{{1, 1, false}, {1, 2, false}, {1, 3, false}}
	for i := range s.Nodes {
		n := &node{w: w, i: i, id: cluster.NodeID('a' + rune(i)), up: true, rate: 1, boot: w.uid()}
		n.witness = s.Witness && i == s.Nodes-1
		n.reader = s.Reader && i == s.Nodes-1
		if s.Absent && i == s.Nodes-1 {
			n.pg = postgres{durSSN: cluster.SSN{K: 1}}
			w.nodes = append(w.nodes, n)
			continue
		}
		id := uint64(i + 1)
		voters = append(voters, id)
		n.disk = cluster.Disk{HasPromise: true, HasVoter: true, Voter: id, Promise: 1}
		reg.Nodes = append(reg.Nodes, cluster.Node{ID: n.id, Voter: id, Witness: n.witness, Reader: n.reader})
		if !n.witness {
			inc := cluster.Incarnation(i + 1)
			n.disk.Incarnation = inc
			n.pg = postgres{exists: true, inc: inc, wal: slices.Clone(base), durable: 3, replayed: 3, primaryD: i == 0, controlTL: 1,
				durSSN: cluster.SSN{K: 1}}
			n.pg.hist = historyOf(n.pg.wal)
			m := cluster.Member{Node: n.id, Incarnation: inc}
			if i == 0 {
				reg.Primary = m
			} else if !n.reader {
				reg.S = append(reg.S, m)
			}
		}
		w.nodes = append(w.nodes, n)
	}
	for i, r := range base {
		w.content(r, i+1)
	}
	if s.K > len(reg.S) {
		reg.K = len(reg.S)
	}
	first := entry{term: 1, reg: reg, ok: true, voters: voters, from: -1, id: 1}
	w.raft.committed = []entry{first}
	for _, n := range w.nodes {
		if n.disk.HasVoter {
			n.voter = voter{id: uint64(n.i + 1), log: []entry{first}, term: 1, commit: 1}
		}
	}
	return w
}

func (w *World) begin() {
	for _, n := range w.nodes {
		n.on(onHost, w.rnd.between(0, 20), n.startAgent)
	}
	w.after(50, w.raftTick)
	w.after(1000, w.tellVoters)
}

// clients write wherever a door is open, all the time.
func (w *World) clients() {
	n := w.nodes[w.rnd.n(len(w.nodes))]
	if p := w.find(w.register().Primary.Node); w.rnd.chance(0.4) {
		n = p
	}
	if n.up && !n.still(onPG) && n.pg.running && n.pg.primary && n.pg.door && !n.diskFull {
		w.client(n)
	}
	w.after(w.rnd.between(10, 90), w.clients)
}

func (w *World) client(n *node) {
	uid := w.uid()
	n.write(rec{tl: n.tl(), uid: uid}, &waiter{uid: uid})
}

// Run plays a schedule to its end, or to the first violation.
func Run(s Schedule, log func(at int64, text string)) Result {
	w := NewWorld(s)
	w.Log = log
	w.begin()
	w.after(100, w.clients)
	for _, f := range s.Faults {
		w.after(f.At, func() { w.apply(f) })
	}
	w.until(chaosEnds)
	if w.broken == "" {
		w.repair()
		w.until(chaosEnds + 1000)
		w.truth.first = 0
		for end := w.now + calmLimit; w.broken == "" && w.now < end && w.truth.first < 3; {
			w.until(w.now + 500)
		}
		if w.broken == "" && w.truth.first < 3 && w.canWrite() {
			w.fail("no write is accepted although faults are over: %s", w.why())
		}
	}
	w.Cover.Steps = w.steps
	return Result{Broken: w.broken, At: w.now, Cover: w.Cover}
}

func (w *World) until(t ms) {
	for w.broken == "" && w.step(t) {
	}
}

// repair ends all faults.
func (w *World) repair() {
	w.logf("faults are over")
	w.calm = true
	w.cut = [8][8]bool{}
	for _, n := range w.nodes {
		n.diskFull, n.diskHung, n.diskSlow, n.rejectLoad = false, false, false, false
		n.rate, n.deaf, n.pg.lagging, n.pg.blocked = 1, 0, false, ""
		n.dieNext, n.lateNext = false, false // who was to die over a write of its own may never have had one
		n.powerOn(50)
		if !n.alive {
			n.on(onHost, 50, n.startAgent)
		}
		w.unfreeze(n)
	}
	at := w.nodes[0]
	w.after(3000, func() {
		r := w.register()
		w.give(at, cluster.Command{Kind: cluster.Resume})
		for _, n := range r.Nodes {
			if n.Fenced {
				w.give(at, cluster.Command{Kind: cluster.Unfence, Node: n.ID})
			}
		}
	})
	w.after(9000, func() { // once more: the first may have met another write
		for _, n := range w.register().Nodes {
			if n.Fenced || w.register().Paused {
				w.give(at, cluster.Command{Kind: cluster.Resume})
				w.give(at, cluster.Command{Kind: cluster.Unfence, Node: n.ID})
			}
		}
	})
}

func (w *World) give(n *node, c cluster.Command) {
	w.orders++
	c.ID = w.orders
	n.on(onAgent, 1, func() { n.deliver(c) })
}

// canWrite says whether the claim of liveness applies: the primary's directory
// is there, or a promotion quorum is, with somebody who can replay everything.
func (w *World) canWrite() bool {
	r := w.register()
	intact := func(m cluster.Member) bool {
		n := w.find(m.Node)
		_, member := r.Node(m.Node)
		return member && n.pg.exists && n.pg.inc == m.Incarnation && !w.truth.liars[m] && n.disk.Incarnation == n.pg.inc
	}
	others := 0
	for _, n := range r.Nodes {
		if !n.Witness && !n.Reader && !n.Leaving {
			others++
		}
	}
	if r.Mode == cluster.Required && others-1 < max(r.K, r.WantK) {
		return false
	}
	if p := &w.find(r.Primary.Node).pg; intact(r.Primary) {
		return p.primaryD || p.replayable(len(p.wal)) == len(p.wal)
	}
	need, ok := r.Quorum()
	able := 0
	for _, m := range r.S {
		if intact(m) {
			need--
			if p := &w.find(m.Node).pg; p.replayable(len(p.wal)) == len(p.wal) {
				able++
			}
		}
	}
	return ok && need <= 0 && able == len(r.S)
}

// why describes a cluster that does not move.
func (w *World) why() string {
	r := w.register()
	out := fmt.Sprintf("epoch %d, named %d, primary %s, S = %s, k = %d;", r.Epoch, r.Named, r.Primary.Node, members(r.S), r.K)
	for _, n := range w.nodes {
		v := n.st.View()
		out += fmt.Sprintf(" %s: %s end %d epoch %d alarms %v;", n.id, v.Phase, n.pg.durable, v.Register.Epoch, v.Alarms)
	}
	return out
}

// Shrink drops faults and weather from a failing schedule for as long as it
// still fails.
func Shrink(s Schedule) Schedule {
	fails := func(t Schedule) bool { return Run(t, nil).Broken != "" }
	for again := true; again; {
		again = false
		for i := range s.Faults {
			t := s
			t.Faults = slices.Delete(slices.Clone(s.Faults), i, i+1)
			if fails(t) {
				s, again = t, true
				break
			}
		}
		for _, calm := range []func(*Schedule){
			func(t *Schedule) { t.Loss = 0 }, func(t *Schedule) { t.Twice = 0 }, func(t *Schedule) { t.Slow = 0 },
			func(t *Schedule) { t.CrashBetween = 0 },
		} {
			t := s
			calm(&t)
			if (t.Loss != s.Loss || t.Twice != s.Twice || t.Slow != s.Slow || t.CrashBetween != s.CrashBetween) && fails(t) {
				s, again = t, true
			}
		}
	}
	return s
}

// Watch plays a schedule and shows every step of every agent before it is made.
func Watch(s Schedule, see func(cluster.State, cluster.Event)) {
	w := NewWorld(s)
	w.watch = see
	w.begin()
	w.after(100, w.clients)
	for _, f := range s.Faults {
		w.after(f.At, func() { w.apply(f) })
	}
	w.until(chaosEnds)
}
