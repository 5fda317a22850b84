package sim

import (
	"slices"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// truth is what an observer who sees everything knows.
type truth struct {
	acks    []ack // acknowledged to clients and not forgiven
	content map[place]uint64
	forced  cluster.Epoch // the last epoch named with a person's consent to loss
	first   int           // acknowledgements since calm began
	liars   map[cluster.Member]bool
	spent   cluster.Timeline
	rest    map[proposal][]cluster.Report // what a naming rests on
}

type proposal struct{ life, id uint64 }

type ack struct {
	lsn int
	tl  cluster.Timeline
	uid uint64
}

type place struct {
	tl  cluster.Timeline
	lsn int
}

func (w *World) register() cluster.Register {
	c := w.raft.committed
	return c[len(c)-1].reg
}

// content checks that (timeline, LSN) names one record in the whole cluster.
func (w *World) content(r rec, lsn int) {
	at := place{r.tl, lsn}
	if old, ok := w.truth.content[at]; ok && old != r.uid {
		w.fail("timeline %d has two records at %d", r.tl, lsn)
		return
	}
	w.truth.content[at] = r.uid
}

// acked is a client's COMMIT returning without a warning.
func (w *World) acked(n *node, lsn int, uid uint64) {
	if w.truth.forced != 0 && n.pg.epoch < w.truth.forced {
		return // announced as lost: it was written by a primary that a person gave up
	}
	a := ack{lsn, n.pg.wal[lsn-1].tl, uid}
	w.truth.acks = append(w.truth.acks, a)
	w.Cover.Acked++
	if w.calm {
		w.truth.first++
	}
	r := w.register()
	if !r.Electing() {
		if p := w.find(r.Primary.Node); p.pg.inc == r.Primary.Incarnation && !p.pg.holds(lsn, uid) {
			w.fail("%s acknowledged %d, which the primary %s does not hold", n.id, lsn, p.id)
		}
	}
	w.quorums(r, w.truth.acks[len(w.truth.acks)-1:])
}

// quorums checks by counting that every promotion quorum of S would hold acks:
// fewer than R existing members lack each of them.
func (w *World) quorums(r cluster.Register, acks []ack) {
	need, ok := r.Quorum()
	if !ok {
		p := w.find(r.Primary.Node)
		for _, a := range acks {
			if p.pg.inc == r.Primary.Incarnation && p.pg.exists && !p.pg.holds(a.lsn, a.uid) && !w.truth.liars[r.Primary] {
				w.fail("S is empty and %s lacks the acknowledged %d", p.id, a.lsn)
				return
			}
		}
		return
	}
	for _, a := range acks {
		lack := 0
		for _, s := range r.S {
			if n := w.find(s.Node); n.pg.exists && n.pg.inc == s.Incarnation && !w.truth.liars[s] && !n.pg.holds(a.lsn, a.uid) {
				lack++
			}
		}
		if lack >= need {
			w.fail("%d members of S lack the acknowledged record %d of timeline %d, and %d may promote", lack, a.lsn, a.tl, need)
			return
		}
	}
}

// registerChanged checks a committed write.
func (w *World) registerChanged(e entry) {
	c := w.raft.committed
	if len(c) < 2 {
		return
	}
	old, now := c[len(c)-2].reg, e.reg
	if !e.ok || now.Version == old.Version {
		return
	}
	if now.Epoch < old.Epoch || now.Version != old.Version+1 || now.Named < old.Named {
		w.fail("the register went back: epoch %d to %d", old.Epoch, now.Epoch)
	}
	if now.Named > old.Named && now.Primary != old.Primary || now.Timeline != old.Timeline {
		w.named(old, now, w.truth.rest[proposal{e.life, e.id}])
	}
	if !sameMembers(old.S, now.S) || old.K != now.K {
		w.logf("register: S = %s, k = %d", members(now.S), now.K)
		w.quorums(now, w.truth.acks)
		for _, s := range now.S {
			if n, ok := now.Node(s.Node); ok && n.Reader {
				w.fail("S names %s, a reader", s.Node)
			}
		}
	}
	if len(now.Nodes) != len(old.Nodes) {
		w.logf("register: %d nodes", len(now.Nodes))
	}
	if now.Epoch > old.Epoch && now.Electing() {
		w.logf("register: epoch %d, an election", now.Epoch)
		if len(now.S) == 0 && !w.sch.forcing() {
			w.fail("an election began although S is empty")
		}
	}
	w.checkSSN()
}

// named checks a naming when it commits.
func (w *World) named(old, now cluster.Register, rest []cluster.Report) {
	w.logf("register: %s is named in epoch %d, on timeline %d", now.Primary.Node, now.Named, now.Timeline)
	if now.Timeline != old.Timeline {
		if now.Timeline <= w.truth.spent {
			w.fail("timeline %d is allocated twice", now.Timeline)
		}
		w.truth.spent = max(w.truth.spent, now.Timeline)
	}
	x := w.find(now.Primary.Node)
	if x.pg.inc != now.Primary.Incarnation || !x.pg.exists {
		return // it was wiped meanwhile: the next election will see
	}
	if w.truth.liars[now.Primary] {
		return // its disk lost what it had reported: it must not open its door, and doorOpened checks that
	}
	forced := len(now.S) == 0 && len(old.S) > 0 || len(old.S) == 0
	if forced && w.sch.forcing() {
		w.forgive(now, x)
		return
	}
	for _, a := range w.truth.acks {
		if !x.pg.holds(a.lsn, a.uid) {
			w.fail("%s is named in epoch %d and lacks the acknowledged record %d of timeline %d", x.id, now.Named, a.lsn, a.tl)
			return
		}
	}
	fork, ok := now.Fork()
	for _, r := range rest {
		if !ok || !old.InS(r.Member) || now.Timeline == old.Timeline {
			continue
		}
		if p, common, _ := cluster.Locate(old.Chain, r.History, r.End); common > len(now.Chain)-1 || p.LSN > fork {
			w.fail("%s reported %d of epoch %d, beyond the fork %d", r.Member.Node, p.LSN, p.Epoch, fork)
		}
	}
}

// forgive drops the acknowledgements that a person gave up: those beyond what
// was announced, and no others.
func (w *World) forgive(now cluster.Register, x *node) {
	a := w.sch.announced
	w.truth.forced = now.Named
	var keep []ack
	for _, k := range w.truth.acks {
		switch {
		case x.pg.holds(k.lsn, k.uid):
			keep = append(keep, k)
		case a != nil && (k.tl < a.Timeline || k.tl == a.Timeline && k.lsn <= int(a.LSN)):
			w.fail("record %d of timeline %d is lost, announced was %d of %d", k.lsn, k.tl, a.LSN, a.Timeline)
		}
	}
	w.truth.acks = keep
}

// checkSSN checks every SSN in force at the registered primary: within S and no
// weaker than k, unless S is empty.
func (w *World) checkSSN() {
	r := w.register()
	if r.Electing() || len(r.S) == 0 {
		return
	}
	n := w.find(r.Primary.Node)
	p := &n.pg
	if !p.running || !p.primary || p.inc != r.Primary.Incarnation || p.epoch != r.Named {
		return
	}
	check := func(x cluster.SSN, where string) {
		if x.K > len(x.Names) {
			return // nobody can satisfy it
		}
		if x.K < r.K {
			w.fail("%s of %s waits for %d, the register says %d", where, n.id, x.K, r.K)
		}
		for _, m := range x.Names {
			if !r.InS(m) {
				w.fail("%s of %s waits for %s, which is not in S", where, n.id, m.Node)
			}
		}
	}
	if p.door && !p.defined {
		w.fail("commits on %s do not wait at all", n.id)
	}
	check(p.pmSSN, "the postmaster")
	for _, s := range p.senders {
		if !s.dead {
			check(s.ssn, "a walsender")
		}
	}
}

// doorOpened checks what the first client would read.
func (w *World) doorOpened(n *node) {
	p := &n.pg
	if !p.door || !p.running || !p.primary {
		return
	}
	r := w.register()
	if r.Electing() || r.Primary != (cluster.Member{Node: n.id, Incarnation: p.inc}) {
		return // its clients may read what is old; that is not claimed
	}
	for _, a := range w.truth.acks {
		if !p.holds(a.lsn, a.uid) {
			w.fail("%s lets clients in and lacks the acknowledged record %d", n.id, a.lsn)
			return
		}
	}
	if r.InS(r.Primary) {
		w.fail("%s lets clients in while S names it", n.id)
	}
	need, ok := r.Quorum()
	if !ok {
		return
	}
	if p.recovery < 1 {
		return
	}
	end := p.recovery
	lack := 0
	for _, s := range r.S {
		if m := w.find(s.Node); m.pg.exists && m.pg.inc == s.Incarnation && !w.truth.liars[s] && !m.pg.holds(end, p.wal[end-1].uid) {
			lack++
		}
	}
	if lack >= need {
		w.fail("%s lets clients read what only it holds: %d members of S lack the end of its recovery", n.id, lack)
	}
}

// received checks WAL that a standby takes in: only from whom it was last told
// to follow, in an epoch not below its promise.
func (w *World) received(n *node, r *receiver) {
	if r.backup || r.up.to == n.allowedTo && n.allowed >= n.report.epoch || n.report.member != (cluster.Member{Node: n.id, Incarnation: n.pg.inc}) {
		return
	}
	w.fail("%s takes WAL in epoch %d after its report to epoch %d", n.id, r.up.epoch, n.report.epoch)
}

// discards checks that no member of S loses WAL.
func (w *World) discards(n *node, to int) {
	m := cluster.Member{Node: n.id, Incarnation: n.pg.inc}
	if n.pg.exists && to < n.pg.durable && w.register().InS(m) {
		w.fail("%s throws WAL away while S names it", n.id)
	}
}

// promises checks that what was promised is still on disk.
func (w *World) promises() {
	for _, n := range w.nodes {
		if n.report.epoch > n.disk.Promise {
			w.fail("%s promised epoch %d and has %d on disk", n.id, n.report.epoch, n.disk.Promise)
		}
	}
}

func sameMembers(a, b []cluster.Member) bool { return slices.Equal(a, b) }

func sameSSN(a, b cluster.SSN) bool { return a.K == b.K && slices.Equal(a.Names, b.Names) }

func members(s []cluster.Member) string {
	if len(s) == 0 {
		return "nobody"
	}
	out := ""
	for i, m := range s {
		if i > 0 {
			out += ", "
		}
		out += string(m.Node)
	}
	return "{" + out + "}"
}
