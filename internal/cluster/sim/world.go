// Package sim runs whole clusters of the decision core against model Postgres
// instances, a model of the replicated register and a model network, with every
// kind of fault, and checks the invariants of SAFETY.md after every step. A run
// is determined by its Schedule.
package sim

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// ms is the unit of the simulated clock.
type ms = int64

// Timing that all simulated agents use: the defaults' proportions.
func Timing() cluster.Timing {
	return cluster.Timing{
		Heartbeat: 500 * time.Millisecond, Suspect: 1200 * time.Millisecond, Veto: 2500 * time.Millisecond,
		Grace: 1500 * time.Millisecond, SelfFence: 2500 * time.Millisecond, Remove: 2 * time.Second,
		Steady: 800 * time.Millisecond, Degrade: 3 * time.Second, Retry: 1500 * time.Millisecond,
		Handover: 2 * time.Second, BackupStop: time.Second,
	}
}

// random is a small generator whose sequence never changes between Go versions.
type random struct {
	s     uint64
	fixed bool // always the least: for scripts, which must not change with the model's use of chance
}

func (r *random) next() uint64 {
	r.s += 0x9e3779b97f4a7c15
	z := r.s
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (r *random) n(n int) int {
	if n <= 0 || r.fixed {
		return 0
	}
	return int(r.next() >> 33 % uint64(n))
}

func (r *random) between(lo, hi int) ms { return ms(lo + r.n(hi-lo+1)) }

func (r *random) chance(p float64) bool { return !r.fixed && float64(r.next()>>11)/(1<<53) < p }

type layer uint8

const (
	onWorld layer = iota
	onHost        // dies with the host's power
	onAgent       // dies with the agent's life
	onPG          // dies with the Postgres process
)

type item struct {
	at   ms
	seq  uint64
	node int
	on   layer
	tag  uint64
	fn   func()
}

type queue []item

// before orders by time, then by the order in which things were planned.
func (x *item) before(y *item) bool { return x.at < y.at || x.at == y.at && x.seq < y.seq }

// push and pop keep the earliest item first: a binary heap of values, since this
// is what a run does most of the time.
func (q *queue) push(x item) {
	h := append(*q, x)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !x.before(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = x
	*q = h
}

func (q *queue) pop() item {
	h := *q
	first, last := h[0], h[len(h)-1]
	h[len(h)-1] = item{}
	h = h[:len(h)-1]
	for i := 0; len(h) > 0; {
		c := 2*i + 1
		if c+1 < len(h) && h[c+1].before(&h[c]) {
			c++
		}
		if c >= len(h) || !h[c].before(&last) {
			h[i] = last
			break
		}
		h[i] = h[c]
		i = c
	}
	*q = h
	return first
}

// World is one simulated cluster.
type World struct {
	sch   Schedule
	rnd   random
	now   ms
	seq   uint64
	q     queue
	nodes []*node
	cut   [8][8]bool // cut[i][j]: nothing gets from i to j
	calm  bool       // faults are over
	whole ms         // until when the network is not to be cut
	steps int

	raft    raft
	truth   truth
	broken  string // the first violation; empty: none
	nextUID uint64
	answers []cluster.Answer
	orders  uint64

	Cover Coverage
	// Log, if set, gets a line for everything that a reader would want to follow.
	Log   func(at int64, text string)
	watch func(cluster.State, cluster.Event)
	quiet bool // fixed delays, no noise: for scripts
}

// node is one host with what is on it.
type node struct {
	w       *World
	i       int
	id      cluster.NodeID
	witness bool
	reader  bool

	up          bool
	boot        uint64
	frozen      bool // everything on the host stands still
	agentFrozen bool
	pgFrozen    bool
	held        []item // what waits for a thaw
	diskHung    bool
	diskSlow    bool
	diskFull    bool
	rejectLoad  bool
	skew        ms // of its monotonic clock
	rate        float64

	// the agent
	alive     bool
	life      uint64
	st        cluster.State
	born      ms
	disk      cluster.Disk
	credD     int                 // the credential, durably
	deaf      ms                  // until when its register's connections are cut, though the rest works
	lateNext  bool                // its next change of S is on its way for longer than it keeps the register
	dieNext   bool                // the agent dies right after its next proposal as the primary
	hear      func(cluster.Event) // if set, takes events in the core's place
	gen       uint64              // of operations on the instance; a stop ends those under way
	allowed   cluster.Epoch       // of the last Follow
	allowedTo int

	pg     postgres
	voter  voter
	report lastReport
	seenAt ms
	obsDue bool
}

type lastReport struct {
	epoch  cluster.Epoch
	member cluster.Member
	hist   []cluster.Branch
	end    int
}

func (w *World) logf(format string, a ...any) {
	if w.Log != nil {
		w.Log(w.now, fmt.Sprintf(format, a...))
	}
}

func (w *World) fail(format string, a ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, a...)
		w.logf("VIOLATION %s", w.broken)
	}
}

func (w *World) push(x item) {
	w.seq++
	x.seq = w.seq
	w.q.push(x)
}

func (w *World) after(d ms, fn func()) { w.push(item{at: w.now + d, node: -1, fn: fn}) }

// on schedules fn on the node, to be dropped if what it belongs to dies first,
// and to wait if that is frozen.
func (n *node) on(l layer, d ms, fn func()) {
	n.w.push(item{at: n.w.now + d, node: n.i, on: l, tag: n.tag(l), fn: fn})
}

func (n *node) tag(l layer) uint64 {
	switch l {
	case onAgent:
		return n.life
	case onPG:
		return n.pg.instance
	}
	return n.boot
}

func (n *node) asleep() bool { return n.frozen || n.agentFrozen }

func (n *node) still(l layer) bool {
	return n.frozen || l == onAgent && n.agentFrozen || l == onPG && n.pgFrozen
}

// step runs the next thing that happens; false when there is none before until.
func (w *World) step(until ms) bool {
	if len(w.q) == 0 || w.q[0].at > until {
		w.now = until
		return false
	}
	x := w.q.pop()
	w.now = x.at
	w.steps++
	if x.node >= 0 {
		n := w.nodes[x.node]
		if x.tag != n.tag(x.on) || !n.up || x.on == onAgent && !n.alive || x.on == onPG && !n.pg.running {
			return true
		}
		if n.still(x.on) {
			n.held = append(n.held, x)
			return true
		}
	}
	x.fn()
	return true
}

// thaw lets go what waited.
func (n *node) thaw() {
	held := n.held
	n.held = nil
	for _, x := range held {
		x.at = n.w.now
		n.w.push(x)
	}
}

func (w *World) reach(i, j int) bool {
	return i == j || !w.cut[i][j]
}

func (w *World) both(i, j int) bool { return w.reach(i, j) && w.reach(j, i) }

func (w *World) find(id cluster.NodeID) *node {
	for _, n := range w.nodes {
		if n.id == id {
			return n
		}
	}
	return nil
}

// delay of a message or a hop; in calm weather short.
func (w *World) delay() ms {
	if w.quiet {
		return 1
	}
	if !w.calm && w.rnd.chance(w.sch.Slow) {
		return w.rnd.between(50, 2500)
	}
	return w.rnd.between(1, 8)
}

// flushTime of the node's disk.
func (n *node) flushTime() ms {
	switch {
	case n.diskSlow:
		return n.w.rnd.between(100, 900)
	case n.w.quiet:
		return 1
	}
	return n.w.rnd.between(1, 4)
}

// Coverage counts what was reached over many runs.
type Coverage struct {
	Effects map[string]int
	Events  map[string]int
	Marks   uint64
	Alarms  uint64
	Steps   int
	Acked   int
}

// NewCoverage returns an empty one.
func NewCoverage() Coverage {
	return Coverage{Effects: map[string]int{}, Events: map[string]int{}}
}

// Add sums another run's into c.
func (c *Coverage) Add(o Coverage) {
	for k, v := range o.Effects {
		c.Effects[k] += v
	}
	for k, v := range o.Events {
		c.Events[k] += v
	}
	c.Marks |= o.Marks
	c.Alarms |= o.Alarms
	c.Steps += o.Steps
	c.Acked += o.Acked
}

func kind(x any) string {
	return reflect.TypeOf(x).Name()
}

// Report lists what was reached how often, and what never.
func (c Coverage) Report() string {
	var b strings.Builder
	for _, part := range []struct {
		what   string
		counts map[string]int
	}{{"events", c.Events}, {"effects", c.Effects}} {
		names := slices.Sorted(maps.Keys(part.counts))
		fmt.Fprintf(&b, "%s:", part.what)
		for _, k := range names {
			fmt.Fprintf(&b, " %s=%d", k, part.counts[k])
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "never reached: %v", c.Missing())
	return b.String()
}

// Missing names the effects, alarms and places of the core that no run reached.
func (c Coverage) Missing() []string {
	var out []string
	for _, e := range cluster.Effects() {
		if c.Effects[kind(e)] == 0 {
			out = append(out, "effect "+kind(e))
		}
	}
	for k := cluster.Mark(0); k < cluster.MarkEnd; k++ {
		if c.Marks&(1<<k) == 0 {
			out = append(out, "place "+k.String())
		}
	}
	for _, k := range cluster.Alarms() {
		if c.Alarms&(1<<k) == 0 {
			out = append(out, "alarm "+k.String())
		}
	}
	return out
}
