package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// Script drives one cluster by commands, in calm weather and without chance, so
// that what happens can be read aloud. Commands are listed in DESIGN.md.
type Script struct {
	w     *World
	out   strings.Builder
	last  map[string]bool // what was said since the last command
	offer *cluster.Announcement
	slots bool // slots are of interest
}

// NewScript returns a script without a cluster; its first command makes one.
func NewScript() *Script { return &Script{} }

// Do carries out one command and returns what there is to read.
func (s *Script) Do(line string) (string, error) {
	s.out.Reset()
	s.last = map[string]bool{}
	f := strings.Fields(line)
	if len(f) == 0 {
		return "", fmt.Errorf("empty command")
	}
	if f[0] != "cluster" && s.w == nil {
		return "", fmt.Errorf("%s: there is no cluster yet", f[0])
	}
	if err := s.do(f[0], f[1:]); err != nil {
		return "", fmt.Errorf("%s: %w", line, err)
	}
	if s.w.broken != "" {
		return "", fmt.Errorf("%s: %s", line, s.w.broken)
	}
	return s.out.String(), nil
}

func (s *Script) say(format string, a ...any) { fmt.Fprintf(&s.out, format+"\n", a...) }

// hear takes a line of the log; what repeats itself within a command is left out.
func (s *Script) hear(at int64, text string) {
	if strings.Contains(text, "keep a slot") && !s.slots {
		return
	}
	if s.last[text] {
		return
	}
	s.last[text] = true
	s.say("%6.2f  %s", float64(at)/1000, text)
}

func (s *Script) do(cmd string, args []string) error {
	switch cmd {
	case "cluster":
		return s.cluster(args)
	case "run":
		d, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		s.w.until(s.w.now + d.Milliseconds())
		return nil
	case "wait":
		return s.wait(args)
	case "write":
		return s.write(args)
	case "status":
		s.status()
		return nil
	case "check":
		s.check()
		return nil
	case "show-slots":
		s.slots = true
		return nil
	case "heal":
		s.w.cut = [8][8]bool{}
		for _, n := range s.w.nodes {
			n.diskFull, n.diskHung, n.diskSlow, n.rejectLoad = false, false, false, false
			n.pg.lagging, n.pg.blocked = false, ""
			s.w.unfreeze(n)
		}
		return nil
	case "person":
		return s.person(args)
	}
	return s.fault(cmd, args)
}

// cluster makes a formed one and lets it come to rest.
func (s *Script) cluster(args []string) error {
	sch := Schedule{Seed: 1, Nodes: 3, K: 1}
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		n, err := strconv.Atoi(v)
		switch k {
		case "nodes":
			sch.Nodes = n
		case "k":
			sch.K = n
		case "witness":
			sch.Witness, err = true, nil
		case "required":
			sch.Mode, err = cluster.Required, nil
		case "absent":
			sch.Absent, err = true, nil
		case "reader":
			sch.Reader, err = true, nil
		default:
			return fmt.Errorf("cluster has no %s", k)
		}
		if err != nil {
			return err
		}
	}
	s.w = NewWorld(sch)
	s.w.quiet, s.w.rnd.fixed = true, true
	s.w.begin()
	s.w.until(8000)
	s.w.Log = s.hear
	s.status()
	return nil
}

func (s *Script) node(name string) (*node, error) {
	if name == "primary" {
		name = string(s.w.register().Primary.Node)
	}
	if n := s.w.find(cluster.NodeID(name)); n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("there is no node %s", name)
}

// wait runs until a condition holds: open NODE, follows NODE, in-s NODE, not-in-s
// NODE, degraded, electing. It gives up after a minute.
func (s *Script) wait(args []string) error {
	var n *node
	if len(args) > 1 {
		var err error
		if n, err = s.node(args[1]); err != nil {
			return err
		}
	}
	hold := func() bool {
		r := s.w.register()
		switch args[0] {
		case "open":
			for _, x := range s.w.nodes {
				if x.pg.door && x.pg.running && (n == nil || x == n) && r.Primary.Node == x.id && !r.Electing() {
					return true
				}
			}
		case "follows":
			return slices.ContainsFunc(n.pg.recv, func(r *receiver) bool { return r.streaming && !r.dead })
		case "in-s":
			return r.InS(cluster.Member{Node: n.id, Incarnation: n.pg.inc})
		case "not-in-s":
			return !slices.ContainsFunc(r.S, func(m cluster.Member) bool { return m.Node == n.id })
		case "degraded":
			return len(r.S) == 0
		case "electing":
			return r.Electing()
		}
		return false
	}
	for end := s.w.now + 60000; s.w.now < end && s.w.broken == ""; {
		if hold() {
			return nil
		}
		s.w.until(s.w.now + 10)
	}
	return fmt.Errorf("it did not come within a minute")
}

// write sends commits to a node, as a client there would.
func (s *Script) write(args []string) error {
	n, err := s.node(args[0])
	if err != nil {
		return err
	}
	times := 1
	if len(args) > 1 {
		if times, err = strconv.Atoi(args[1]); err != nil {
			return err
		}
	}
	if !n.up || !n.pg.running || !n.pg.door {
		s.say("%s lets no client in", n.id)
		return nil
	}
	if n.diskFull {
		s.say("%s refuses to write: its disk is full", n.id)
		return nil
	}
	before := s.w.Cover.Acked
	for range times {
		s.w.client(n)
		s.w.until(s.w.now + 20)
	}
	s.w.until(s.w.now + 200)
	acked := s.w.Cover.Acked - before
	s.say("%s acknowledges %d of %d", n.id, acked, times)
	return nil
}

func (s *Script) status() {
	r := s.w.register()
	state := fmt.Sprintf("led by %s", r.Primary.Node)
	if r.Electing() {
		state = "without a primary"
	}
	s.say("epoch %d %s, timeline %d, S = %s, k = %d", r.Epoch, state, r.Timeline, members(r.S), r.K)
	for _, n := range s.w.nodes {
		s.say("  %s: %s", n.id, s.describe(n))
	}
}

func (s *Script) describe(n *node) string {
	p := &n.pg
	switch {
	case !n.up:
		return "no power"
	case n.witness:
		return "witness"
	case !p.exists:
		return "blank"
	}
	what := "stopped"
	if p.running && p.primary {
		what = "primary, door closed"
		if p.door {
			what = "primary, door open"
		}
	} else if p.running {
		what = "standby of nobody"
		for _, r := range p.recv {
			if r.streaming && !r.dead {
				what = "standby of " + string(s.w.nodes[r.up.to].id)
			}
		}
	}
	what += fmt.Sprintf(", timeline %d", n.tl())
	if !n.alive {
		what += ", no agent"
	}
	for _, k := range n.st.View().Alarms {
		what += ", " + k.String()
	}
	return what
}

// check compares what was acknowledged to what the primary holds.
func (s *Script) check() {
	r := s.w.register()
	p := s.w.find(r.Primary.Node)
	lost := 0
	for _, a := range s.w.truth.acks {
		if !p.pg.holds(a.lsn, a.uid) {
			lost++
		}
	}
	s.say("%d acknowledged, %d of them not on %s", len(s.w.truth.acks), lost, p.id)
}

// person gives a command to a node: person NODE KIND [ARGUMENT].
func (s *Script) person(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("person needs a node and what is asked")
	}
	at, err := s.node(args[0])
	if err != nil {
		return err
	}
	arg := ""
	if len(args) > 2 {
		arg = args[2]
	}
	s.w.orders++
	c := cluster.Command{ID: s.w.orders, Node: cluster.NodeID(arg)}
	kinds := map[string]cluster.CommandKind{"switchover": cluster.Switchover, "restart": cluster.Restart, "pause": cluster.Pause,
		"resume": cluster.Resume, "fence": cluster.Fence, "unfence": cluster.Unfence, "reinit": cluster.Reinit, "join": cluster.Join,
		"leave": cluster.Leave, "required": cluster.SetMode, "preferred": cluster.SetMode, "k": cluster.SetK,
		"failover": cluster.FailoverAllowDataLoss, "failover-confirmed": cluster.FailoverAllowDataLoss}
	kind, ok := kinds[args[1]]
	if !ok {
		return fmt.Errorf("nobody can ask for %s", args[1])
	}
	c.Kind = kind
	switch args[1] {
	case "required":
		c.Mode = cluster.Required
	case "k":
		c.K, err = strconv.Atoi(arg)
	case "failover-confirmed":
		c.Confirm = s.offer
		s.w.sch.announced = s.offer
		s.w.sch.Faults = append(s.w.sch.Faults, Fault{What: "force"})
	}
	before := len(s.w.answers)
	at.deliver(c)
	for _, a := range s.w.answers[before:] {
		if a.Announcement != nil {
			s.offer = a.Announcement
		}
	}
	return err
}

// fault makes something go wrong: WHAT NODE [NODE]; it lasts until it is undone.
func (s *Script) fault(what string, args []string) error {
	var n, o *node
	var err error
	if len(args) > 0 {
		if n, err = s.node(args[0]); err != nil {
			return err
		}
	}
	if len(args) > 1 {
		if o, err = s.node(args[1]); err != nil {
			return err
		}
	}
	if n == nil {
		return fmt.Errorf("which node?")
	}
	switch what {
	case "power-off":
		n.powerOff()
		s.w.promises()
	case "power-on":
		n.powerOn(50)
	case "wipe":
		n.wipe()
	case "restore":
		n.restore()
	case "kill-agent":
		n.stopAgent()
	case "start-agent":
		n.startAgent()
	case "kill-postgres":
		n.halt()
	case "keep-postgres-down":
		n.halt()
		n.pgFrozen, n.diskFull = true, true
	case "freeze":
		n.frozen = true
	case "freeze-agent":
		n.agentFrozen = true
	case "freeze-postgres":
		n.pgFrozen = true
	case "thaw":
		s.w.unfreeze(n)
		n.diskFull = false
	case "isolate":
		for _, x := range s.w.nodes {
			if x != n {
				s.w.cut[n.i][x.i], s.w.cut[x.i][n.i] = true, true
			}
		}
	case "cut":
		s.w.cut[n.i][o.i], s.w.cut[o.i][n.i] = true, true
	case "join-up":
		s.w.cut[n.i][o.i], s.w.cut[o.i][n.i] = false, false
	default:
		return s.lesser(what, n, o)
	}
	return nil
}

// lesser faults leave the node standing.
func (s *Script) lesser(what string, n, o *node) error {
	switch what {
	case "hang-disk":
		n.diskHung = true
	case "full-disk":
		n.diskFull = true
	case "reject-reload":
		n.rejectLoad = true
	case "break-replay":
		n.pg.noReplay = n.pg.replayed + 1
	case "foreign-start":
		n.launch(n.pg.primaryD)
		n.pg.foreign = true
	case "cancel-wait":
		n.pg.waiting, n.pg.cancels = nil, n.pg.cancels+1
	case "rollback":
		n.stopAgent()
		n.rollback(max(1, len(n.voter.log)-3))
		n.on(onHost, 50, n.startAgent)
	case "drop-slots":
		n.pg.slots = nil
	case "heavy-slot":
		n.pg.slots = append(n.pg.slots, cluster.Slot{Name: "unused", Kept: 3 << 30})
	case "gap-in-slot":
		n.pg.slots = append(n.pg.slots, cluster.Slot{Name: "cdc", Logical: true, Lost: true})
	case "block-stop":
		n.pg.blocked = "a logical walsender"
	case "twin":
		q := &o.pg
		q.senders = append(q.senders, &sender{name: cluster.Member{Node: n.id, Incarnation: n.pg.inc}, from: n.i, ssn: q.pmSSN})
		o.seen()
	case "stranger":
		q := &o.pg
		x := &sender{from: n.i, ssn: q.pmSSN}
		q.senders = append(q.senders, x)
		n.backupStream(o, x)
	default:
		return fmt.Errorf("there is no such fault")
	}
	return nil
}
