package sim

import (
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// doPG begins an effect on the instance.
func (n *node) doPG(e cluster.Effect) {
	p := &n.pg
	switch x := e.(type) {
	case cluster.SetSSN:
		n.setSSN(x)
	case cluster.OpenDoor:
		n.permitNow().door = true
		n.ifRunning(func() { n.reload(func() {}, func() { n.w.doorOpened(n) }) })
	case cluster.CloseDoor:
		if p.permit.there {
			p.permit.door = false
		}
		n.ifRunning(func() { n.reload(func() {}, func() {}) })
	case cluster.SampleLSN:
		n.op(x.ID, n.w.delay(), false, func() cluster.Done {
			return cluster.Done{OK: p.running && p.primary, LSN: cluster.LSN(len(p.wal))}
		})
	case cluster.WriteRow:
		n.writeRow(x)
	case cluster.Canary:
		if p.running && p.primary {
			n.write(rec{tl: n.tl(), uid: n.w.uid()}, &waiter{can: x.ID})
		}
		n.op(x.ID, 3000, false, func() cluster.Done { return cluster.Done{} })
	case cluster.StopReceivers:
		n.stopReceivers(x)
	case cluster.StartPrimary:
		n.startPrimary(x)
	case cluster.Promote:
		n.promote(x)
	case cluster.StopPostgres:
		n.gen++
		d := n.w.rnd.between(3, 20)
		if !x.Immediate {
			d = n.w.rnd.between(20, 300)
		}
		n.op(x.ID, d, false, func() cluster.Done { n.halt(); return n.withLook(true, "") })
	case cluster.Shutdown:
		n.shutdown(x)
	case cluster.Follow:
		n.follow(x)
	case cluster.Rewind:
		n.rewind(x)
	case cluster.Reclone:
		n.reclone(x)
	case cluster.FetchWAL:
		n.fetch(x)
	case cluster.Archive:
		if p.running && p.primary {
			s := &sender{name: x.Name, from: n.i, ssn: p.pmSSN}
			p.senders = append(p.senders, s)
			n.backupStream(n, s)
		}
	case cluster.EnsureSlot:
		p.slots = append(p.slots, cluster.Slot{Name: cluster.SlotName(x.Member), Member: x.Member})
	case cluster.EndSenders:
		for _, s := range p.senders {
			if s.name == x.Member {
				s.dead = true
			}
		}
	}
}

func (n *node) tl() cluster.Timeline { return n.pg.hist[len(n.pg.hist)-1].Timeline }

func (n *node) ifRunning(fn func()) {
	if n.pg.running {
		fn()
	}
}

// permitNow is the permit file; made from the denial if it is not there.
func (n *node) permitNow() *permit {
	if !n.pg.permit.there {
		n.pg.permit = permit{there: true, ssn: n.pg.durSSN}
	}
	return &n.pg.permit
}

func (n *node) setSSN(x cluster.SetSSN) {
	p := &n.pg
	n.permitNow().ssn = x.SSN
	if !p.running {
		n.tell(1, func() { n.deliver(cluster.Done{ID: x.ID, OK: true}) })
		return
	}
	n.reload(func() { n.tell(0, func() { n.deliver(cluster.Reloaded{ID: x.ID}) }) },
		func() {
			if sameSSN(p.permit.ssn, x.SSN) && sameSSN(p.pmSSN, x.SSN) {
				n.tell(0, func() { n.deliver(cluster.Done{ID: x.ID, OK: true}) })
			}
		})
}

func (n *node) writeRow(x cluster.WriteRow) {
	p := &n.pg
	if !p.running || !p.primary {
		n.op(x.ID, 1, false, func() cluster.Done { return cluster.Done{} })
		return
	}
	p.epoch = max(p.epoch, x.Epoch)
	instance := p.instance
	n.write(rec{tl: n.tl(), uid: n.w.uid()}, &waiter{row: x.ID})
	lsn := len(p.wal)
	written := func() bool { return p.durable >= lsn && p.instance == instance }
	var poll func(left int)
	poll = func(left int) {
		if left > 0 && p.instance == instance && !written() {
			n.on(onHost, 10, func() { poll(left - 1) })
			return
		}
		n.op(x.ID, 10, false, func() cluster.Done { return cluster.Done{OK: written(), LSN: cluster.LSN(lsn)} })
	}
	poll(300)
}

func (n *node) stopReceivers(x cluster.StopReceivers) {
	p := &n.pg
	if p.permit.there {
		p.permit.up = upstream{}
	}
	n.resume()
	if !p.running {
		n.op(x.ID, 1, false, func() cluster.Done { return cluster.Done{OK: true} })
		return
	}
	n.reload(func() {}, func() {})
	var all []*receiver
	for _, r := range p.recv {
		if r.dead || r.backup {
			continue
		}
		all = append(all, r)
		d := n.w.rnd.between(5, 20)
		if n.w.rnd.chance(0.25) {
			d = n.w.rnd.between(50, 1500) // it lingers
		}
		n.on(onPG, d, func() { n.endReceiver(r) })
	}
	var poll func()
	poll = func() {
		for _, r := range all {
			if !r.dead {
				n.on(onHost, 5, poll)
				return
			}
		}
		n.replay()
		n.op(x.ID, 1, false, func() cluster.Done { return cluster.Done{OK: true} })
	}
	n.on(onHost, 1, poll)
}

// resume lets a paused replay go on; it takes its time to get to the end.
func (n *node) resume() {
	if !n.pg.lagging || n.w.quiet {
		n.pg.lagging = false
		return
	}
	n.on(onPG, n.w.rnd.between(0, 800), func() {
		n.pg.lagging = false
		n.replay()
	})
}

func (n *node) startPrimary(x cluster.StartPrimary) {
	p := &n.pg
	if p.permit.there {
		p.permit.door = false
	}
	d := n.w.rnd.between(20, 120)
	if !n.w.quiet && n.w.rnd.chance(0.2) {
		d = n.w.rnd.between(300, 2500) // there is much to recover
	}
	n.longOp(x.ID, d, func() cluster.Done {
		if !p.exists || n.diskFull {
			return n.withLook(false, "it cannot start")
		}
		n.halt()
		p.durable = len(p.wal)
		n.launch(true)
		return n.withLook(true, "")
	})
}

func (n *node) promote(x cluster.Promote) {
	p := &n.pg
	if p.permit.there {
		p.permit.door, p.permit.up = false, upstream{}
	}
	n.longOp(x.ID, n.w.rnd.between(20, 80), func() cluster.Done {
		if !p.exists || n.diskFull {
			return n.withLook(false, "it cannot start")
		}
		if p.running && p.primary {
			return n.withLook(false, "it is a primary")
		}
		if !p.running {
			p.durable = len(p.wal)
			n.launch(false)
		}
		if len(p.wal) != int(x.Fork) || p.replayable(len(p.wal)) != len(p.wal) {
			return n.withLook(false, "its WAL does not end at the fork")
		}
		for _, r := range p.recv {
			r.dead = true
		}
		p.durable, p.replayed = len(p.wal), len(p.wal)
		p.primary, p.primaryD, p.upstream = true, true, upstream{}
		p.noReplay = 0 // what it writes from here on is its own
		p.recovery, p.senders = len(p.wal), nil
		n.write(rec{tl: x.Timeline, uid: n.w.uid()}, nil)
		p.durable = len(p.wal)
		n.w.content(p.wal[len(p.wal)-1], len(p.wal))
		n.w.checkSSN()
		n.on(onHost, n.w.rnd.between(200, 4000), func() { p.controlTL = max(p.controlTL, x.Timeline) })
		return n.withLook(true, "")
	})
}

func (n *node) shutdown(x cluster.Shutdown) {
	p := &n.pg
	if !p.running || n.diskHung || p.blocked != "" {
		n.op(x.ID, ms(x.Within/time.Millisecond), false, func() cluster.Done { return n.withLook(false, "timeout") })
		return
	}
	n.write(rec{tl: n.tl(), uid: n.w.uid()}, nil)
	end := len(p.wal)
	n.op(x.ID, n.w.rnd.between(60, 300), false, func() cluster.Done {
		ok := p.running && p.durable >= end && len(p.wal) == end
		if ok {
			n.halt()
		}
		d := n.withLook(ok, "timeout")
		d.LSN = cluster.LSN(end)
		return d
	})
}

func (n *node) follow(x cluster.Follow) {
	p := &n.pg
	up := n.w.find(x.Upstream.Node)
	n.permitNow().up = upstream{set: true, to: up.i, epoch: x.Epoch, name: x.Name}
	n.permitNow().door = false
	p.cred, n.credD = up.i+1, up.i+1
	n.allowed, n.allowedTo = x.Epoch, up.i
	p.primaryD = false
	if p.running && !p.primary {
		for _, r := range p.recv {
			if !r.dead && !r.backup {
				n.endReceiver(r)
			}
		}
		n.reload(func() {}, func() {})
		n.op(x.ID, 5, false, func() cluster.Done { return n.withLook(true, "") })
		return
	}
	n.longOp(x.ID, n.w.rnd.between(20, 100), func() cluster.Done {
		if !p.exists || p.running && p.primary || n.diskFull {
			return n.withLook(false, "it cannot start")
		}
		if !p.running {
			p.durable = len(p.wal)
			n.launch(false)
		}
		return n.withLook(true, "")
	})
}

func (n *node) source(x cluster.Member) *node {
	up := n.w.find(x.Node)
	if up == nil || !n.w.both(n.i, up.i) || !up.up || up.still(onPG) || !up.pg.running || !up.pg.primary {
		return nil
	}
	return up
}

func (n *node) rewind(x cluster.Rewind) {
	p := &n.pg
	n.halt()
	p.noClone = true // half rewound is good for nothing
	n.longOp(x.ID, n.w.rnd.between(100, 800), func() cluster.Done {
		up := n.source(x.Upstream)
		if up == nil || !n.w.quiet && n.w.rnd.chance(0.15) {
			p.noClone = up != nil
			return n.withLook(false, "no source")
		}
		p.noClone = false
		common := 0
		for common < len(p.hist) && common < len(up.pg.hist) && p.hist[common] == up.pg.hist[common] {
			common++
		}
		if common == 0 {
			return n.withLook(false, "nothing in common")
		}
		end := len(p.wal)
		if common < len(p.hist) {
			end = min(end, int(p.hist[common].Fork))
		}
		if common < len(up.pg.hist) {
			end = min(end, int(up.pg.hist[common].Fork))
		}
		n.w.discards(n, end)
		p.truncate(end)
		p.primaryD = false
		p.controlTL = n.tl()
		return n.withLook(true, "")
	})
}

func (n *node) reclone(x cluster.Reclone) {
	p := &n.pg
	n.halt()
	n.w.discards(n, 0)
	p.exists, p.wal, p.hist, p.durable, p.replayed = false, nil, nil, 0, 0
	src := n.source(x.Upstream)
	var s *sender
	if src != nil {
		s = &sender{name: x.Name, from: n.i, ssn: src.pg.pmSSN}
		src.pg.senders = append(src.pg.senders, s)
		n.backupStream(src, s)
	}
	n.longOp(x.ID, n.w.rnd.between(300, 2000), func() cluster.Done {
		if s != nil {
			s.dead = true
		}
		up := n.source(x.Upstream)
		if up == nil || up != src || up.still(onPG) {
			return n.withLook(false, "no source")
		}
		old := *p
		n.pg = postgres{exists: true, durSSN: old.durSSN, permit: old.permit, instance: old.instance, cred: old.cred,
			made: old.made + 1, controlTL: up.pg.controlTL}
		p.inc = cluster.Incarnation(n.w.uid())
		for _, r := range up.pg.wal[:up.pg.durable] {
			p.append(r)
		}
		p.durable, p.replayed = len(p.wal), len(p.wal)
		n.disk.Incarnation = p.inc
		return n.withLook(true, "")
	})
}

// backupStream is pg_basebackup's WAL receiver: it confirms what it got, but
// what it got is not yet anybody's directory.
func (n *node) backupStream(src *node, s *sender) {
	src.on(onPG, 120, func() {
		if s.dead || !n.up {
			s.dead = true
			return
		}
		if n.w.both(n.i, src.i) && s.flush < src.pg.durable {
			s.flush = src.pg.durable
			src.confirm(s)
			src.seen()
		}
		n.backupStream(src, s)
	})
}

func (n *node) fetch(x cluster.FetchWAL) {
	p := &n.pg
	n.longOp(x.ID, n.w.rnd.between(20, 200), func() cluster.Done {
		from := n.w.find(x.From)
		if from == nil || !n.w.both(n.i, from.i) || !from.up || !from.pg.exists {
			return n.withLook(false, "no source")
		}
		q := &from.pg
		until := min(int(x.Until), q.durable)
		for i, b := range p.hist {
			if i >= len(q.hist) || q.hist[i] != b || i+1 == len(p.hist) && i+1 < len(q.hist) && len(p.wal) > int(q.hist[i+1].Fork) {
				return n.withLook(false, "no common history")
			}
		}
		for len(p.wal) < until {
			p.append(q.wal[len(p.wal)])
		}
		p.durable = len(p.wal)
		n.replay()
		return n.withLook(true, "")
	})
}
