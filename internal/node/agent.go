// Package node is the agent of one host of a cluster: it feeds the decision core
// what happens, and carries out what the core decides. It decides nothing itself.
// DESIGN.md beside this file says which promise is kept where.
package node

import (
	"context"
	crand "crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/node/instance"
	"github.com/holdfast-db/holdfast/internal/quorum"
)

// Options of one life of the agent.
type Options struct {
	Config  *config.Node
	BinDir  string // of the PostgreSQL programs
	Exe     string // this program
	Version string
	OSUser  string // runs Postgres when the agent is root; empty otherwise
	Log     *slog.Logger
	Notify  func(state string) // tells the service manager: READY=1, WATCHDOG=1, STATUS=…; may be nil
}

// ErrRefused marks a start that a safety check refused: nothing was touched.
var ErrRefused = errors.New("refused")

// agent is one life.
type agent struct {
	o      Options
	c      *config.Node
	self   cluster.NodeID
	member config.Member
	log    *slog.Logger
	start  time.Time
	ticked time.Time // the core was told the time
	life   uint64
	timing cluster.Timing
	ca     []byte // the authority's certificate

	promises *promises
	saving   sync.Mutex
	inst     *instance.Instance // nil on a witness
	reg      *register
	peers    *peers
	ask      *asker
	events   chan cluster.Event
	ctx      context.Context
	cancel   context.CancelCauseFunc
	work     sync.WaitGroup

	mu          sync.Mutex
	held        cluster.Disk // as found at the start
	looked      bool
	view        cluster.View
	pg          cluster.Postgres // as last seen
	heard       map[cluster.NodeID]cluster.Heartbeat
	heardAt     map[cluster.NodeID]time.Time
	alarms      map[string]string
	credentials map[cluster.NodeID]instance.Credential
	answers     map[uint64]chan cluster.Answer
	orders      uint64
	journal     journal
	steppedAt   time.Time
}

// errAgain ends a life because the next one finds more on its disk.
var errAgain = errors.New("begin anew")

// Run is the agent. It ends when ctx does; Postgres goes on running.
func Run(ctx context.Context, o Options) error {
	if err := CheckDirectory(ctx, o); err != nil {
		return err
	}
	for {
		if err := live(ctx, o); !errors.Is(err, errAgain) {
			return err
		}
	}
}

// live is one life of the agent.
func live(ctx context.Context, o Options) (err error) {
	a, err := newAgent(o)
	if err != nil {
		return err
	}
	defer func() {
		if a.promises != nil {
			err = errors.Join(err, a.promises.close())
		}
	}()
	id, err := quorum.LoadIdentity(o.Config.Identity)
	if err != nil {
		return err
	}
	conf, err := id.TLS()
	if err != nil {
		return err
	}
	if n := nodeName(conf); n != o.Config.Node {
		return fmt.Errorf("%w: the certificate in %s is of node %q, the configuration of node %q", ErrRefused, o.Config.Identity, n, o.Config.Node)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer func() {
		cancel(nil)
		a.work.Wait()
	}()
	a.ctx, a.cancel = ctx, cancel
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", a.member.Address)
	if err != nil {
		return fmt.Errorf("listen for the other agents: %w", err)
	}
	m := newMux(l)
	defer m.Close() //nolint:errcheck // closed at the end of this life
	if err := a.assemble(m, conf); err != nil {
		return err
	}
	defer func() {
		cancel(nil)
		a.disassemble()
	}()

	requests := &http.Server{Handler: a.serve(), TLSConfig: conf, ReadHeaderTimeout: firstByteWithin, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug)}
	a.work.Go(func() { _ = requests.Serve(tls.NewListener(m.lend(forRequests), conf)) })
	defer requests.Close() //nolint:errcheck // at the end of this life
	closeAdmin, err := a.listenAdmin()
	if err != nil {
		return err
	}
	defer closeAdmin()
	closeHTTP, err := a.listenHTTP()
	if err != nil {
		return err
	}
	defer closeHTTP()

	a.ca = id.CAPEM
	disk, err := a.begin(ctx, id.CAPEM)
	if err != nil {
		return err
	}
	a.peers.start(m.lend(forMessages))
	return a.loop(ctx, disk)
}

func nodeName(c *tls.Config) string {
	if len(c.Certificates) == 0 || c.Certificates[0].Leaf == nil {
		return ""
	}
	return c.Certificates[0].Leaf.Subject.CommonName
}

func newAgent(o Options) (*agent, error) {
	member, _ := o.Config.Self()
	a := &agent{
		o: o, c: o.Config, self: cluster.NodeID(o.Config.Node), member: member, log: o.Log, start: time.Now(),
		events: make(chan cluster.Event, 1024), heard: map[cluster.NodeID]cluster.Heartbeat{}, heardAt: map[cluster.NodeID]time.Time{},
		alarms: map[string]string{}, credentials: map[cluster.NodeID]instance.Credential{}, answers: map[uint64]chan cluster.Answer{},
	}
	if a.o.Notify == nil {
		a.o.Notify = func(string) {}
	}
	for _, d := range []string{o.Config.State, a.voterDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("make the agent's directory: %w", err)
		}
	}
	var b [8]byte
	if _, err := crand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("draw a number: %w", err)
	}
	a.life = binary.BigEndian.Uint64(b[:])>>24 | 1<<39 // the upper bits number this life's effects
	return a, nil
}

func (a *agent) voterDir() string { return filepath.Join(a.c.State, "register") }

// assemble makes the parts, without anything having effect yet.
func (a *agent) assemble(m *mux, conf *tls.Config) (err error) {
	timers := quorum.DefaultTimers()
	if a.c.Profile == config.ProfileFast {
		timers = quorum.FastTimers()
	}
	flush, err := quorum.FlushTime(a.voterDir())
	if err != nil {
		return fmt.Errorf("try the disk of %s: %w", a.c.State, err)
	}
	wide := timers.Widen(flush)
	if wide != timers {
		a.log.Warn("the agent's disk flushes slowly: all timers are widened", "flush", flush, "heartbeat", wide.Heartbeat)
	}
	a.timing = timingOf(wide, a.c.Timing)
	addresses, order := map[cluster.NodeID]string{}, []cluster.NodeID{}
	for _, x := range a.c.Members {
		addresses[cluster.NodeID(x.Name)] = x.Address
		order = append(order, cluster.NodeID(x.Name))
	}
	a.ask = newAsker(a.self, order, addresses, conf)
	a.peers = newPeers(a.self, addresses, conf, a.log, a.tell)
	a.peers.me = introduction{Life: a.life, Since: a.start.UnixNano()}
	a.peers.twice = func(by cluster.NodeID) {
		a.cancel(fmt.Errorf("%w: %s hears another agent that calls itself %s and began earlier: stop that one, or give this host a certificate and a name of its own", ErrRefused, by, a.self))
	}
	a.reg = &register{
		cluster: a.c.Cluster, self: a.self, address: addresses, ask: a.ask, tell: a.tell, log: a.log, check: a.checkSystem,
		poll: wide.Heartbeat, within: 2 * wide.Election,
		open: func(voter uint64, fresh bool, founders []quorum.Voter) (*quorum.Node, error) {
			return quorum.Open(quorum.Options{
				Dir: a.voterDir(), ID: voter, Fresh: fresh, Founders: founders, Address: a.member.Address, Listener: m.lend(forRegister),
				Dial: registerDial, TLS: conf, Timers: timers, Flush: flush, Reserve: quorum.DefaultReserve, Log: a.log,
			})
		},
	}
	a.reg.ctx, a.reg.end = context.WithCancel(context.Background())
	if a.member.Witness {
		return nil
	}
	a.inst, err = instance.New(a.instanceConfig())
	return err
}

func (a *agent) disassemble() {
	a.peers.close()
	a.reg.close()
	if a.inst != nil {
		if err := a.inst.Close(); err != nil {
			a.log.Warn("the instance did not close well", "err", err)
		}
	}
}

func (a *agent) instanceConfig() instance.Config {
	host, port := splitAddress(a.member.Postgres)
	slots, _ := config.ParseBytes(a.c.Postgres.SlotCap) // was checked
	return instance.Config{
		Cluster: a.c.Cluster, Self: a.self, BinDir: a.o.BinDir, DataDir: a.c.Postgres.Data, StateDir: a.c.State, RunDir: a.c.Run,
		Address: host, Port: port, OSUser: a.o.OSUser, Settings: a.c.Postgres.Settings, HBA: a.c.Postgres.HBA,
		Peer: func(id cluster.NodeID) (instance.Endpoint, bool) {
			m, ok := a.c.Member(string(id))
			h, p := splitAddress(m.Postgres)
			return instance.Endpoint{Host: h, Port: p}, ok && !m.Witness
		},
		Credential: a.credential, Exe: a.o.Exe, SlotCap: slots, Log: a.log,
	}
}

func splitAddress(s string) (string, int) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0
	}
	p, _ := strconv.Atoi(port) // was checked
	return host, p
}

// timingOf derives the core's times from the register's.
func timingOf(t quorum.Timers, c config.Timing) cluster.Timing {
	degrade, _ := time.ParseDuration(c.Degrade) // were checked
	remove, _ := time.ParseDuration(c.Remove)
	return cluster.Timing{
		Heartbeat: t.Heartbeat / 5, Suspect: t.Heartbeat, Veto: 4 * t.Heartbeat, Grace: 2 * t.Heartbeat,
		SelfFence: 2 * t.Election, Remove: max(remove, 2*t.Heartbeat), Steady: 2 * t.Heartbeat,
		Degrade: max(degrade, 2*t.Heartbeat), Retry: t.Heartbeat, Handover: 10 * t.Heartbeat, BackupStop: 6 * t.Heartbeat,
	}
}

func (a *agent) tell(e cluster.Event) {
	select {
	case a.events <- e:
	case <-a.ctx.Done():
	}
}

// loop is the core's one goroutine.
func (a *agent) loop(ctx context.Context, disk cluster.Disk) error {
	cfg := cluster.Config{Self: a.self, Witness: a.member.Witness, Priority: a.member.Priority, Timing: a.timing}
	for _, m := range a.c.Members {
		if m.Name != a.c.Node {
			cfg.Peers = append(cfg.Peers, cluster.NodeID(m.Name))
		}
	}
	s := cluster.New(cfg)
	fresh, err := drawID()
	if err != nil {
		return err
	}
	s = a.step(s, a.tick())
	s = a.step(s, cluster.Started{Life: a.life, Disk: disk, Fresh: fresh})
	if a.inst != nil {
		a.work.Go(func() { a.inst.Watch(ctx, a.tell) })
		if a.first() && disk.Incarnation == 0 {
			a.work.Go(func() { a.firstLater(ctx) })
		}
	}
	ticker := time.NewTicker(a.timing.Heartbeat)
	defer ticker.Stop()
	a.o.Notify("READY=1")
	for {
		select {
		case <-ctx.Done():
			cause := context.Cause(ctx)
			if !errors.Is(cause, errAgain) { // the process goes on then
				a.o.Notify("STOPPING=1")
			}
			if !errors.Is(cause, context.Canceled) {
				return cause
			}
			return nil
		case e := <-a.events:
			if e = knownOnly(e); e == nil {
				continue
			}
			if a.hurried(e) {
				s = a.step(s, a.tick())
			}
			cut := a.cut(e)
			s = a.step(s, e)
			if cut || a.news(e) {
				s = a.step(s, a.tick()) // it reads the register at once, or tells the others to
			}
		case <-ticker.C:
			s = a.step(s, a.tick())
			a.o.Notify("WATCHDOG=1")
		}
	}
}

// knownOnly keeps a look from the core that could not read the directory's WAL:
// what is not known must not be taken for a directory that holds nothing.
func knownOnly(e cluster.Event) cluster.Event {
	unknown := func(p cluster.Postgres) bool { return p.Exists && len(p.History) == 0 && !p.NeedsClone }
	switch x := e.(type) {
	case cluster.PostgresSeen:
		if unknown(x.Postgres) {
			return nil
		}
	case cluster.Done:
		if x.Postgres != nil && unknown(*x.Postgres) {
			x.Postgres = nil
			return x
		}
	}
	return e
}

// hurried says whether the core should know the time more exactly than by the
// ticker: while this node leads a register whose primary is elsewhere or not named,
// every tenth of a heartbeat waited for is time without writes.
func (a *agent) hurried(e cluster.Event) bool {
	_, first := e.(cluster.Leadership)
	v := a.view // only this goroutine writes it
	return first || v.Leads && (v.Register.Electing() || v.Register.Primary.Node != a.self) && time.Since(a.ticked) > a.timing.Heartbeat/10
}

// news says whether somebody has learned of a newer register just now: its
// followers would hear of that with the next beat of the register's leader.
func (a *agent) news(e cluster.Event) bool {
	switch x := e.(type) {
	case cluster.ProposeDone:
		return x.Outcome == cluster.Committed
	case cluster.Received:
		hb, ok := x.Message.(cluster.Heartbeat)
		return ok && hb.Version > a.view.Register.Version && time.Since(a.ticked) > time.Millisecond
	}
	return false
}

// cut says whether a standby's stream has ended just now: in a switchover the old
// primary waits to hear what it holds.
func (a *agent) cut(e cluster.Event) bool {
	x, ok := e.(cluster.PostgresSeen)
	a.mu.Lock()
	defer a.mu.Unlock()
	return ok && a.pg.Upstream != "" && x.Postgres.Upstream == ""
}

func drawID() (uint64, error) {
	var b [8]byte
	if _, err := crand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("draw a number: %w", err)
	}
	return binary.BigEndian.Uint64(b[:])>>1 | 1, nil
}

func (a *agent) tick() cluster.Tick {
	now := time.Now()
	a.ticked = now
	return cluster.Tick{Now: now.Sub(a.start), Wall: time.Duration(now.UnixNano())}
}

// step is one step of the core, and the beginning of what it decided.
func (a *agent) step(s cluster.State, e cluster.Event) cluster.State {
	a.note(e)
	s, effects := cluster.Step(s, e)
	v := s.View()
	a.mu.Lock()
	before := a.view
	a.view, a.steppedAt = v, time.Now()
	a.journal.see(before, v, time.Now())
	a.mu.Unlock()
	for _, x := range effects {
		a.do(x)
	}
	return s
}

// note keeps what status shows of an event.
func (a *agent) note(e cluster.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch x := e.(type) {
	case cluster.PostgresSeen:
		a.pg = x.Postgres
	case cluster.Done:
		if x.Postgres != nil {
			a.pg = *x.Postgres
		}
		if !x.OK && x.Why != "" {
			a.log.Info("that failed", "why", x.Why)
		}
	case cluster.Received:
		if hb, ok := x.Message.(cluster.Heartbeat); ok {
			a.heard[x.From], a.heardAt[x.From] = hb, time.Now()
			if x.From == a.view.Register.Primary.Node {
				a.journal.heard = time.Now()
			}
		}
	}
}

// do begins one effect. Nothing here waits for a disk or for the network.
func (a *agent) do(e cluster.Effect) {
	if text := cluster.Describe(e); text != "" {
		a.log.Info(text)
	}
	a.mu.Lock()
	a.journal.did(e, time.Now())
	chain := a.view.Register.Chain
	a.mu.Unlock()
	switch x := e.(type) {
	case cluster.ReadRegister:
		a.reg.read(x)
	case cluster.Propose:
		a.reg.propose(x)
	case cluster.TransferLeadership:
		a.transfer(x)
	case cluster.StartVoter:
		a.reg.start(x)
	case cluster.ReplaceVoter:
		a.reg.replace(x)
	case cluster.Send:
		a.peers.send(x.To, x.Message)
	case cluster.SavePromise:
		a.work.Go(func() {
			err := a.savePromise(x.Epoch)
			if err != nil {
				a.log.Error("the promise cannot be kept", "err", err)
			}
			a.tell(cluster.Done{ID: x.ID, OK: err == nil})
		})
	case cluster.Alarm:
		a.alarm(x)
	case cluster.Answer:
		a.answer(x)
	default:
		if _, follows := e.(cluster.Follow); follows && a.inst != nil {
			if err := a.inst.SetChain(chain); err != nil { // what a standby may restore goes by it
				a.log.Error("note the register's history", "err", err)
			}
		}
		if a.inst == nil || !a.inst.Begin(e, a.patient(e)) {
			a.log.Error("nobody carries this out", "effect", fmt.Sprintf("%T", e))
		}
	}
}

// patient tells of a failed rebuild only after a while: the core tries again at
// once, and what failed may have copied a lot.
func (a *agent) patient(e cluster.Effect) func(cluster.Event) {
	switch e.(type) {
	case cluster.Reclone, cluster.Rewind:
	default:
		return a.tell
	}
	return func(ev cluster.Event) {
		if d, ok := ev.(cluster.Done); ok && !d.OK {
			select {
			case <-time.After(4 * a.timing.Retry):
			case <-a.ctx.Done():
			}
		}
		a.tell(ev)
	}
}

func (a *agent) savePromise(e cluster.Epoch) error {
	a.saving.Lock()
	defer a.saving.Unlock()
	return a.promises.save(e)
}

func (a *agent) transfer(x cluster.TransferLeadership) {
	a.mu.Lock()
	n, ok := a.view.Register.Node(x.To)
	a.mu.Unlock()
	if x.To != "" && (!ok || n.Voter == 0) {
		return
	}
	a.reg.transfer(n.Voter)
}

func (a *agent) alarm(x cluster.Alarm) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x.On {
		a.alarms[x.Kind.String()] = x.Text
		a.log.Warn("alarm", "kind", x.Kind.String(), "text", x.Text)
		return
	}
	delete(a.alarms, x.Kind.String())
}
