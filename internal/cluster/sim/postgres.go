package sim

import (
	"slices"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// rec is one WAL record; its LSN is its index in the WAL plus one.
type rec struct {
	tl  cluster.Timeline
	uid uint64
	bad bool // its bytes are corrupt: replay ends before it
}

// postgres models one data directory and the processes that run on it.
type postgres struct {
	exists    bool
	inc       cluster.Incarnation
	wal       []rec
	hist      []cluster.Branch
	durable   int // records that a power loss leaves
	replayed  int
	lagging   bool // replay is held up
	noReplay  int  // replay cannot apply this record, though it is intact; 0: none
	noClone   bool // upstream lacks WAL that we need
	primaryD  bool // the directory is a primary's: no standby.signal
	controlTL cluster.Timeline
	made      uint64 // counts directories

	running  bool
	instance uint64
	primary  bool
	foreign  bool
	epoch    cluster.Epoch // that it leads
	recovery int           // end of recovery of this run
	durSSN   cluster.SSN   // what holds without a permit
	permit   permit        // on tmpfs
	pmSSN    cluster.SSN   // of the postmaster: what a new connection shows
	defined  bool          // the checkpointer's flag: commits wait at all
	door     bool
	upstream upstream // in force
	cred     int      // the node that it admits to, plus one; 0: unlinked
	recv     []*receiver
	senders  []*sender
	waiting  []waiter
	canaryID uint64
	slots    []cluster.Slot
	blocked  string
	loads    uint64
	cancels  int
}

// permit is the file in the runtime directory.
type permit struct {
	there bool
	ssn   cluster.SSN
	door  bool
	up    upstream
}

type upstream struct {
	set   bool
	to    int
	epoch cluster.Epoch
	name  cluster.Member
}

// receiver is a walreceiver process, or a base backup's stream.
type receiver struct {
	up        upstream
	streaming bool
	dead      bool
	send      *sender
	lastHeard ms
	backup    bool
	pumping   bool
}

// sender is a walsender process.
type sender struct {
	name   cluster.Member
	from   int
	ssn    cluster.SSN // its own reading of the settings
	flush  int
	dead   bool
	recv   *receiver
	quitAt ms
}

type waiter struct {
	lsn int
	uid uint64
	row uint64 // not a client's: the epoch row's id
	can uint64 // a canary's id
}

func historyOf(wal []rec) []cluster.Branch {
	var h []cluster.Branch
	for i, r := range wal {
		if len(h) == 0 || h[len(h)-1].Timeline != r.tl {
			h = append(h, cluster.Branch{Timeline: r.tl, Fork: cluster.LSN(i)})
		}
	}
	return h
}

func (p *postgres) append(r rec) {
	if n := len(p.hist); n == 0 || p.hist[n-1].Timeline != r.tl {
		p.hist = append(slices.Clip(p.hist), cluster.Branch{Timeline: r.tl, Fork: cluster.LSN(len(p.wal))})
	}
	p.wal = append(p.wal, r)
}

func (p *postgres) truncate(to int) {
	if to < len(p.wal) {
		p.wal = slices.Clone(p.wal[:to])
		p.hist = historyOf(p.wal)
	}
	p.durable = min(p.durable, to)
	p.replayed = min(p.replayed, to)
}

// replayable is how far replay can get over what is there.
func (p *postgres) replayable(end int) int {
	for i := p.replayed; i < end; i++ {
		if p.wal[i].bad || p.noReplay == i+1 {
			return i
		}
	}
	return end
}

func (p *postgres) holds(lsn int, uid uint64) bool {
	return lsn <= p.durable && lsn <= len(p.wal) && p.wal[lsn-1].uid == uid
}

// look is what the agent sees.
func (n *node) look() cluster.Postgres {
	p := &n.pg
	if !p.exists {
		return cluster.Postgres{Headroom: !n.diskFull, NeedsClone: true}
	}
	end := p.durable
	hist := p.hist
	if end < len(p.wal) {
		hist = historyOf(p.wal[:end])
	}
	v := cluster.Postgres{Exists: true, Incarnation: p.inc, Running: p.running, Primary: p.running && p.primary || !p.running && p.primaryD,
		Foreign: p.foreign, DoorOpen: p.door, History: hist, End: cluster.LSN(end), Replayed: cluster.LSN(min(p.replayed, end)),
		Replayable: cluster.LSN(p.replayable(end)), ControlTimeline: p.controlTL, Headroom: !n.diskFull,
		ReloadRejected: n.rejectLoad, NeedsClone: p.noClone, ShutdownBlocked: p.blocked, WaitsCancelled: p.cancels,
		Slots: slices.Clone(p.slots)}
	for _, r := range p.recv {
		if r.streaming && !r.dead && !r.backup {
			v.Upstream = n.w.nodes[r.up.to].id
		}
	}
	if p.running && p.primary {
		for _, s := range p.senders {
			if !s.dead {
				v.Senders = append(v.Senders, cluster.Sender{Member: s.name, Named: s.name.Incarnation != 0,
					Streaming: true, Flush: cluster.LSN(s.flush)})
			}
		}
	}
	return v
}

// launch starts processes on the directory.
func (n *node) launch(primary bool) {
	p := &n.pg
	n.w.nextUID++
	p.instance = n.w.nextUID
	p.running, p.primary, p.foreign = true, primary, false
	p.recv, p.senders, p.waiting, p.canaryID = nil, nil, nil, 0
	p.pmSSN, p.upstream, p.door = p.durSSN, upstream{}, false
	if p.permit.there {
		p.pmSSN = p.permit.ssn
		if !primary {
			p.upstream = p.permit.up
		}
		p.door = p.permit.door && primary
	}
	p.defined = p.pmSSN.K > 0
	p.recovery = len(p.wal)
	if primary {
		p.primaryD = true
		p.recovery = p.durable
		if p.door {
			n.w.doorOpened(n)
		}
		n.write(rec{tl: p.hist[len(p.hist)-1].Timeline, uid: n.w.uid()}, nil) // end of recovery
	} else {
		n.replay()
		n.connect()
	}
}

// halt ends the processes. What was written stays written: only a power loss
// takes what was not flushed. The other side of a connection notices at once,
// unless the end was silent.
func (n *node) halt() { n.end(false) }

func (n *node) end(silent bool) {
	p := &n.pg
	if !p.running {
		return
	}
	p.running, p.door, p.foreign = false, false, false
	p.blocked = ""
	for _, r := range p.recv {
		r.dead = true
		if r.send != nil {
			r.send.quitAt = n.w.now + 20
			if silent || !n.w.both(n.i, r.up.to) {
				r.send.quitAt = n.w.now + 2000
			}
		}
	}
	for _, s := range p.senders {
		s.dead = true
	}
	p.recv, p.senders, p.waiting, p.canaryID = nil, nil, nil, 0
	n.w.nextUID++
	p.instance = n.w.nextUID
}

func (w *World) uid() uint64 {
	w.nextUID++
	return w.nextUID
}

// write appends a record of the primary and flushes it; then it is sent, and
// who waits for it waits.
func (n *node) write(r rec, wait *waiter) {
	p := &n.pg
	p.append(r)
	lsn := len(p.wal)
	n.flushTo(lsn, func() {
		n.w.content(r, lsn)
		p.replayed = p.durable
		n.sendAll()
		if wait != nil {
			wait.lsn = lsn
			n.wait(*wait)
		}
		n.seen()
	})
}

// flushTo makes the WAL durable up to lsn, whenever the disk answers.
func (n *node) flushTo(lsn int, then func()) {
	p := &n.pg
	n.on(onPG, n.flushTime(), func() {
		if n.diskHung {
			n.on(onPG, 200, func() { n.flushTo(lsn, then) })
			return
		}
		if lsn <= len(p.wal) {
			p.durable = max(p.durable, lsn)
		}
		then()
	})
}

// wait is SyncRepWaitForLSN.
func (n *node) wait(x waiter) {
	p := &n.pg
	if !p.defined {
		n.release(x)
		return
	}
	p.waiting = append(p.waiting, x)
	if x.can != 0 {
		n.tell(5, func() { n.deliver(cluster.Done{ID: x.can, OK: true}) })
	}
}

func (n *node) release(x waiter) {
	switch {
	case x.row != 0:
		n.tell(1, func() { n.deliver(cluster.RowCommitted{ID: x.row}) })
	case x.can != 0:
	default:
		n.w.acked(n, x.lsn, x.uid)
	}
}

// tell gives the agent something, a little later.
func (n *node) tell(d ms, fn func()) { n.on(onAgent, d, fn) }

// confirm is SyncRepReleaseWaiters in one walsender, by its own reading.
func (n *node) confirm(s *sender) {
	p := &n.pg
	if s.ssn.K == 0 || !slices.Contains(s.ssn.Names, s.name) {
		return
	}
	var at []int
	for _, x := range p.senders {
		if !x.dead && slices.Contains(s.ssn.Names, x.name) {
			at = append(at, x.flush)
		}
	}
	if len(at) < s.ssn.K {
		return
	}
	slices.Sort(at)
	upTo := at[len(at)-s.ssn.K]
	keep := p.waiting[:0]
	var go_ []waiter
	for _, x := range p.waiting {
		if x.lsn <= upTo {
			go_ = append(go_, x)
		} else {
			keep = append(keep, x)
		}
	}
	p.waiting = keep
	for _, x := range go_ {
		n.release(x)
	}
}

// reload makes every process read the settings again, each in its own time.
// shown is called when a new connection shows them and no process acts on older ones.
func (n *node) reload(returned, shown func()) {
	p := &n.pg
	w := n.w
	p.loads++
	gap := func() ms {
		if w.quiet {
			return 2
		}
		if w.rnd.chance(0.2) {
			return w.rnd.between(20, 600)
		}
		return w.rnd.between(1, 10)
	}
	n.on(onPG, 1, func() { returned() })
	n.on(onPG, gap(), func() {
		p.door = p.permit.there && p.permit.door && p.primary // pg_hba is read all the same
		if n.rejectLoad {
			return
		}
		read := func() (cluster.SSN, upstream, bool) {
			if p.permit.there {
				return p.permit.ssn, p.permit.up, p.permit.door
			}
			return p.durSSN, upstream{}, false
		}
		p.pmSSN, p.upstream, _ = read()
		if p.primary {
			p.upstream = upstream{}
		}
		last := ms(0)
		for _, s := range p.senders {
			d := gap()
			last = max(last, d)
			n.on(onPG, d, func() {
				s.ssn, _, _ = read()
				w.checkSSN()
			})
		}
		n.on(onPG, gap()+gap(), func() { // the checkpointer, which may be busy
			x, _, _ := read()
			was := p.defined
			p.defined = x.K > 0
			if was && !p.defined {
				all := p.waiting
				p.waiting = nil
				for _, y := range all {
					n.release(y)
				}
			}
		})
		n.connect()
		w.checkSSN()
		n.on(onPG, last+1, func() { shown() })
	})
}

// connect has the postmaster of a standby start a walreceiver if none is there.
func (n *node) connect() {
	p := &n.pg
	if !p.running || p.primary || !p.upstream.set {
		return
	}
	for _, r := range p.recv {
		if !r.dead && !r.backup {
			return
		}
	}
	if p.cred != p.upstream.to+1 {
		n.on(onPG, 500, n.connect)
		return
	}
	r := &receiver{up: p.upstream, lastHeard: n.w.now}
	p.recv = append(slices.DeleteFunc(p.recv, func(x *receiver) bool { return x.dead }), r)
	d := n.w.rnd.between(5, 40)
	if n.w.quiet {
		d = 10
	} else if n.w.rnd.chance(0.1) {
		d = n.w.rnd.between(100, 1500)
	}
	n.on(onPG, d, func() { n.handshake(r) })
}

func (n *node) endReceiver(r *receiver) {
	if r.dead {
		return
	}
	r.dead = true
	if r.send != nil {
		r.send.quitAt = n.w.now + 20
		if !n.w.both(n.i, r.up.to) {
			r.send.quitAt = n.w.now + 2000
		}
	}
	n.on(onPG, 100, n.connect)
	n.seen()
}

// handshake is START_REPLICATION.
func (n *node) handshake(r *receiver) {
	if r.dead {
		return
	}
	up := n.w.nodes[r.up.to]
	q := &up.pg
	if !n.w.both(n.i, up.i) || !up.up || up.still(onPG) || !q.running || !q.primary || !n.fits(up) {
		n.endReceiver(r)
		return
	}
	for _, s := range q.senders {
		if !s.dead && s.recv != nil && s.name == r.up.name {
			n.endReceiver(r) // its slot is in use by the former stream
			return
		}
	}
	r.streaming, r.lastHeard = true, n.w.now
	r.send = &sender{name: r.up.name, from: n.i, ssn: q.pmSSN, recv: r}
	q.senders = append(slices.DeleteFunc(q.senders, func(s *sender) bool { return s.dead }), r.send)
	n.w.checkSSN()
	r.send.flush = min(n.pg.durable, q.durable)
	up.seen()
	n.seen()
	n.pump(r)
	n.watch(r)
}

// fits says whether upstream would let us stream: our last timeline is in its
// history and we are not past where it left it. Contents are not compared.
func (n *node) fits(up *node) bool {
	mine, theirs := &n.pg, &up.pg
	tl := mine.hist[len(mine.hist)-1].Timeline
	for i, b := range theirs.hist {
		if b.Timeline != tl {
			continue
		}
		if i+1 < len(theirs.hist) {
			return cluster.LSN(len(mine.wal)) <= theirs.hist[i+1].Fork
		}
		return len(mine.wal) <= len(theirs.wal)
	}
	return false
}

// watch ends a stream that has been silent for too long, on either side.
func (n *node) watch(r *receiver) {
	n.on(onPG, 500, func() {
		if r.dead {
			return
		}
		up := n.w.nodes[r.up.to]
		if n.w.reach(up.i, n.i) && up.up && !up.still(onPG) && up.pg.running && !r.send.dead {
			r.lastHeard = n.w.now
		}
		if n.w.now-r.lastHeard >= 2000 || r.send.dead && n.w.both(n.i, up.i) {
			n.endReceiver(r)
			return
		}
		n.watch(r)
	})
}

// sendAll lets the walsenders send what is new.
func (n *node) sendAll() {
	for _, s := range n.pg.senders {
		if !s.dead && s.recv != nil && !s.recv.dead {
			n.w.nodes[s.from].pump(s.recv)
		}
	}
}

// pump moves WAL over one connection, then has it flushed and confirmed.
func (n *node) pump(r *receiver) {
	if r.pumping {
		return
	}
	r.pumping = true
	n.on(onPG, n.w.delay(), func() {
		r.pumping = false
		n.receive(r)
	})
}

func (n *node) receive(r *receiver) {
	up := n.w.nodes[r.up.to]
	p, q := &n.pg, &up.pg
	if r.dead || r.send.dead {
		return
	}
	if !n.w.reach(up.i, n.i) || !up.up || up.still(onPG) || !q.running {
		r.pumping = true
		n.on(onPG, 200, func() { r.pumping = false; n.receive(r) })
		return
	}
	r.lastHeard = n.w.now
	if len(p.wal) < q.durable {
		n.w.received(n, r)
		if len(p.wal) > 0 && len(p.wal) <= len(q.wal) {
			for _, x := range q.wal[len(p.wal):q.durable] {
				p.append(x)
			}
		}
	}
	end := len(p.wal)
	n.flushTo(end, func() {
		n.replay()
		n.reply(r, min(end, p.durable))
	})
}

// reply confirms a flush to the primary.
func (n *node) reply(r *receiver, lsn int) {
	up := n.w.nodes[r.up.to]
	s := r.send
	d := n.w.delay()
	if !n.w.reach(n.i, up.i) {
		return
	}
	up.on(onPG, d, func() {
		if s.dead {
			return
		}
		if lsn > s.flush {
			s.flush = lsn
			up.confirm(s)
			up.seen()
		}
		if len(n.pg.wal) < up.pg.durable && !r.dead {
			n.pump(r)
		}
	})
}

func (n *node) replay() {
	p := &n.pg
	if p.primary || p.lagging {
		return
	}
	if end := p.replayable(p.durable); end > p.replayed {
		p.replayed = end
		if end > 0 {
			p.controlTL = max(p.controlTL, 1)
		}
	}
}

// reapSenders drops walsenders whose peer has been gone for long enough.
func (n *node) reapSenders() {
	p := &n.pg
	changed := false
	for _, s := range p.senders {
		switch {
		case s.dead:
		case s.quitAt != 0 && n.w.now >= s.quitAt:
			s.dead, changed = true, true
		case s.recv != nil && s.quitAt == 0 && (s.recv.dead || !n.w.both(n.i, s.from)):
			s.quitAt = n.w.now + 2000
		case s.recv != nil && !s.recv.dead && n.w.both(n.i, s.from):
			s.quitAt = 0
			if s.flush < p.durable {
				n.w.nodes[s.from].pump(s.recv)
			}
		}
	}
	p.senders = slices.DeleteFunc(p.senders, func(s *sender) bool { return s.dead })
	if changed {
		n.seen()
	}
}
