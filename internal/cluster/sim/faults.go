package sim

import (
	"slices"
	"strings"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// apply makes a fault happen.
func (w *World) apply(f Fault) {
	n := w.nodes[f.Node%len(w.nodes)]
	o := w.nodes[f.To%len(w.nodes)]
	primary := w.find(w.register().Primary.Node)
	if w.now < w.whole && (strings.HasPrefix(f.What, "cut") || strings.HasPrefix(f.What, "isolate") || f.What == "split") {
		return
	}
	w.logf("fault: %s %s (%s) for %d ms", f.What, n.id, o.id, f.For)
	switch f.What {
	case "power-off":
		w.off(n, f.For)
	case "power-primary":
		w.off(primary, f.For)
	case "second-failover":
		w.off(primary, f.For)
		w.after(w.rnd.between(1200, 3500), func() { w.off(w.find(w.register().Primary.Node), f.For) })
	case "late-removal":
		if n != primary && !n.witness {
			n.halt()
			w.freeze(n, &n.pgFrozen, f.For+3000)
			primary.lateNext = true
		}
	case "register-cut":
		primary.deaf = w.now + 1200 + f.For/2
	case "lag-then-fail": // one standby misses the last writes, then the primary goes
		if n != primary {
			w.cut[primary.i][n.i] = true
			for _, x := range w.nodes {
				x.pg.lagging = x != n && w.rnd.chance(0.4) // and whoever has them has not replayed them
			}
			w.after(w.rnd.between(300, 1000), func() {
				w.off(w.find(w.register().Primary.Node), f.For)
				w.cut[primary.i][n.i] = false
			})
		}
	case "power-all":
		for _, x := range w.nodes {
			w.off(x, w.rnd.between(100, int(f.For)+200))
		}
	case "standbys-down":
		for _, x := range w.nodes {
			if x != primary && !x.witness {
				x.halt()
				x.pgFrozen = true
			}
		}
		w.after(f.For+3000, func() {
			for _, x := range w.nodes {
				w.unfreeze(x)
			}
		})
	case "freeze-host":
		w.freeze(n, &n.frozen, f.For)
	case "freeze-primary":
		w.freeze(primary, &primary.frozen, f.For)
	case "freeze-agent":
		w.freeze(n, &n.agentFrozen, f.For)
	case "freeze-standby":
		if n != primary {
			w.freeze(n, &n.pgFrozen, f.For)
		}
	case "freeze-postgres":
		w.freeze(n, &n.pgFrozen, f.For)
	case "isolate":
		w.isolate(n, f.For)
	case "isolate-primary":
		w.isolate(primary, f.For)
	case "cut", "cut-one-way":
		w.cut[n.i][o.i] = true
		if f.What == "cut" {
			w.cut[o.i][n.i] = true
		}
		w.after(f.For, func() { w.cut[n.i][o.i], w.cut[o.i][n.i] = false, false })
	case "split":
		w.split(f)
	default:
		w.applyProcess(f, n, primary)
	}
}

func (w *World) applyProcess(f Fault, n, primary *node) {
	switch f.What {
	case "wipe":
		left := 0
		voters := w.raft.committed[len(w.raft.committed)-1].voters
		for _, x := range w.nodes {
			if x != n && w.votes(x) {
				left++
			}
		}
		if 2*left <= len(voters) {
			return // a majority of the voters' disks has to remain
		}
		n.wipe()
		w.after(f.For, func() { n.powerOn(w.rnd.between(100, 500)) })
	case "kill-agent":
		if n.alive {
			n.restartAgent(w.rnd.between(50, int(f.For)))
		}
	case "die-proposing":
		primary.dieNext = true
	case "kill-postgres":
		n.halt()
	case "kill-primary":
		primary.halt()
	default:
		w.applyDisk(f, n, primary)
	}
}

func (w *World) applyDisk(f Fault, n, primary *node) {
	switch f.What {
	case "slow-disk":
		n.diskSlow = true
		w.after(f.For, func() { n.diskSlow = false })
	case "hang-disk":
		n.diskHung = true
		w.after(f.For, func() { n.diskHung = false })
	case "full-disk":
		n.diskFull = true
		w.after(f.For, func() { n.diskFull = false })
	case "reject-reload":
		n.rejectLoad = true
		w.after(f.For, func() { n.rejectLoad = false })
	case "break-replay":
		if !n.pg.primary && n.pg.exists && !n.pg.primaryD {
			n.pg.noReplay = n.pg.replayed + 1
		}
	case "corrupt":
		if p := &n.pg; !p.primary && p.exists && !p.primaryD && p.replayed < len(p.wal) {
			p.wal[len(p.wal)-1].bad = true
		} else if !p.primary && p.exists && !p.primaryD {
			p.noReplay = len(p.wal) + 1
		}
	case "lag-replay":
		n.pg.lagging = true
		w.after(f.For, func() { n.pg.lagging = false })
	case "foreign-start":
		w.off(n, 300)
		w.after(320, func() {
			if n.up && n.pg.exists && !n.pg.running && !n.alive {
				n.launch(n.pg.primaryD)
				n.pg.foreign = true
			}
		})
	case "clock":
		n.skew += f.For - 3000
		n.rate = 0.7 + float64(w.rnd.n(7))/10
	case "cancel-waits":
		primary.pg.waiting = nil
		primary.pg.cancels++
	case "restore":
		n.restore()
		if f.To%2 == 0 {
			w.after(w.rnd.between(50, 1500), func() { w.off(w.find(w.register().Primary.Node), f.For) })
		}
	case "no-slot", "lose-slot":
		if f.What == "lose-slot" {
			n.pg.slots = append(n.pg.slots, cluster.Slot{Name: "cdc", Logical: true, Lost: true, Kept: 2 << 30})
		} else {
			n.pg.slots = nil
		}
	case "block-stop":
		n.pg.blocked = "a logical walsender"
		w.after(f.For, func() { n.pg.blocked = "" })
	case "twin":
		w.twin(n, primary, f.For)
	case "lie-primary":
		w.lie(primary, f.For)
	case "lie":
		w.lie(n, f.For)
	case "rollback":
		w.rollbackVoter(n)
	case "transfer":
		for _, x := range w.nodes {
			x.transfer("")
		}
	default:
		w.person(f, n)
	}
}

// person is a command.
func (w *World) person(f Fault, n *node) {
	at := w.nodes[w.rnd.n(len(w.nodes))]
	give := func(c cluster.Command) {
		w.orders++
		c.ID = w.orders
		at.on(onAgent, 1, func() { at.deliver(c) })
	}
	switch f.What {
	case "switchover":
		give(cluster.Command{Kind: cluster.Switchover})
		if w.rnd.chance(0.5) {
			primary := w.find(w.register().Primary.Node)
			primary.on(onAgent, 1, func() { primary.deliver(cluster.Command{ID: w.orders, Kind: cluster.Switchover}) })
		}
	case "restart":
		primary := w.find(w.register().Primary.Node)
		primary.on(onAgent, 1, func() { primary.deliver(cluster.Command{ID: w.orders, Kind: cluster.Restart}) })
	case "pause":
		give(cluster.Command{Kind: cluster.Pause})
		w.after(f.For, func() { give(cluster.Command{Kind: cluster.Resume}) })
	case "fence":
		give(cluster.Command{Kind: cluster.Fence, Node: n.id})
		w.after(f.For, func() { give(cluster.Command{Kind: cluster.Unfence, Node: n.id}) })
	case "reinit":
		give(cluster.Command{Kind: cluster.Reinit, Node: n.id})
	case "set-k":
		give(cluster.Command{Kind: cluster.SetK, K: 1 + f.To%2})
	case "leave":
		if w.sch.Nodes == 5 && !n.witness {
			give(cluster.Command{Kind: cluster.Leave, Node: n.id})
		}
	case "join":
		give(cluster.Command{Kind: cluster.Join, Node: n.id})
	case "force":
		w.force()
	}
}

// force asks the raft leader what a failover would cost, and accepts.
func (w *World) force() {
	for _, x := range w.nodes {
		if !x.alive || x.asleep() || !x.voter.leader {
			continue
		}
		w.orders++
		before := len(w.answers)
		x.deliver(cluster.Command{ID: w.orders, Kind: cluster.FailoverAllowDataLoss})
		for _, a := range w.answers[before:] {
			if a.Announcement != nil {
				w.logf("announced: %s", a.Text)
				w.sch.announced = a.Announcement
				w.orders++
				if w.rnd.chance(0.5) {
					w.off(w.find(a.Announcement.Candidate), 5000) // what was announced holds all the same
				}
				x.deliver(cluster.Command{ID: w.orders, Kind: cluster.FailoverAllowDataLoss, Confirm: a.Announcement})
				return
			}
		}
	}
}

func (w *World) off(n *node, d ms) {
	if n == nil || !n.up {
		return
	}
	n.powerOff()
	w.promises()
	w.after(d, func() { n.powerOn(w.rnd.between(50, 600)) })
}

func (w *World) freeze(n *node, what *bool, d ms) {
	if !n.up {
		return
	}
	*what = true
	boot := n.boot
	w.after(d, func() {
		if n.boot == boot {
			w.unfreeze(n)
		}
	})
}

func (w *World) unfreeze(n *node) {
	n.frozen, n.agentFrozen, n.pgFrozen = false, false, false
	n.thaw()
}

func (w *World) isolate(n *node, d ms) {
	for _, o := range w.nodes {
		if o != n {
			w.cut[n.i][o.i], w.cut[o.i][n.i] = true, true
		}
	}
	w.after(d, func() {
		for _, o := range w.nodes {
			w.cut[n.i][o.i], w.cut[o.i][n.i] = false, false
		}
	})
}

// split parts the nodes in two, or joins some only by way of others.
func (w *World) split(f Fault) {
	side := w.rnd.next()
	for _, a := range w.nodes {
		for _, b := range w.nodes {
			if side>>a.i&1 != side>>b.i&1 {
				w.cut[a.i][b.i] = true
			}
		}
	}
	w.after(f.For, func() { w.cut = [8][8]bool{} })
}

// twin is a clone of a standby that a tool started under the standby's name; it
// takes WAL until the primary ends it.
func (w *World) twin(n, primary *node, d ms) {
	if n == primary || !n.pg.exists || !primary.pg.running || primary.pg.senders == nil {
		return
	}
	s := &sender{name: cluster.Member{Node: n.id, Incarnation: n.pg.inc}, from: n.i, ssn: primary.pg.pmSSN}
	primary.pg.senders = append(primary.pg.senders, s)
	w.after(d, func() { s.dead = true })
	primary.seen()
}

// lie takes the power of a host whose disk had confirmed flushes that never
// happened. What is lost lies below what every other agent remembers, or the
// loss could not be noticed and is not claimed to be.
func (w *World) lie(n *node, d ms) {
	if !n.up || !n.pg.exists {
		return
	}
	if n.pg.primary || n.pg.primaryD {
		if w.sch.Loss > 0 || w.sch.Slow > 0 {
			return
		}
		// Who starts it again has to be told what others remember, in time.
		w.whole = w.now + d + 2500
		w.after(d, func() { w.cut = [8][8]bool{} })
	}
	m := cluster.Member{Node: n.id, Incarnation: n.pg.inc}
	low := n.pg.durable
	for _, o := range w.nodes {
		if o == n {
			continue
		}
		if !o.alive || o.asleep() {
			return
		}
		tl, lsn := o.st.Remembers(m)
		if tl != n.tl() {
			return
		}
		low = min(low, int(lsn))
	}
	if low < 4 {
		return
	}
	n.powerOff()
	n.pg.truncate(low - 1 - w.rnd.n(3))
	w.truth.liars[m] = true
	w.after(d, func() { n.powerOn(100) })
}

// rollbackVoter restores a voter's files to before what all others remember.
func (w *World) rollbackVoter(n *node) {
	if !n.up || !n.alive || !n.voter.running {
		return
	}
	low := len(n.voter.log)
	for _, o := range w.nodes {
		if o == n {
			continue
		}
		if !o.up || !o.alive || o.asleep() || !o.voter.running || !w.votes(o) {
			return
		}
		low = min(low, int(o.st.RemembersVoter(n.id)))
	}
	if low < 3 {
		return
	}
	n.stopAgent()
	n.rollback(max(1, low-1-w.rnd.n(6)))
	n.on(onHost, w.rnd.between(20, 200), n.startAgent)
}

// votes says whether the node's disk holds a voter of the committed set.
func (w *World) votes(n *node) bool {
	return n.voter.id != 0 && len(n.voter.log) > 0 && slices.Contains(w.raft.committed[len(w.raft.committed)-1].voters, n.voter.id)
}
