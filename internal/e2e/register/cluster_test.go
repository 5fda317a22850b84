package register

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/place/local"
	"github.com/holdfast-db/holdfast/internal/quorum"
	"github.com/holdfast-db/holdfast/internal/testbin"
)

// patience is how long anything may take that has to happen.
const patience = 30 * time.Second

var memberProgram = sync.OnceValues(func() (string, error) {
	return testbin.BuildFor("github.com/holdfast-db/holdfast/internal/e2e/register/member")
})

func long() bool { return os.Getenv("HOLDFAST_LONG") != "" }

// cluster is three members on three hosts, and those who use them.
type cluster struct {
	t       *testing.T
	program string
	hosts   []place.Host
	voters  []quorum.Voter
	ledger  *ledger

	heartbeats [3]time.Duration // as each last started with

	mu        sync.Mutex
	members   []*member // nil: not running
	changed   chan struct{}
	leader    int // who last said that it leads; -1: nobody
	term      uint64
	confirmed func(member int, at time.Time) // called under mu
}

// newCluster forms a cluster on disks of a kind, with what is changed about them,
// and waits until one leads.
func newCluster(t *testing.T, disk string, changes map[string]string) *cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("the lab takes longer than -short allows")
	}
	if os.Geteuid() != 0 {
		t.Skip("the lab needs root for network namespaces and simulated disks")
	}
	program, err := memberProgram()
	if err != nil {
		t.Fatal(err)
	}
	p, err := local.New(local.Options{
		Binary: testbin.Build(t), WorkDir: t.TempDir(),
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Release(context.Background()); err != nil {
			t.Errorf("release the hosts: %v", err)
		}
	})
	var specs []place.HostSpec
	for i := range 3 {
		specs = append(specs, place.HostSpec{Name: string(rune('a' + i)), Disk: disk, Seed: uint64(i + 1)})
	}
	c := &cluster{t: t, program: program, ledger: newLedger(), members: make([]*member, 3), changed: make(chan struct{}), leader: -1}
	if c.hosts, err = p.Acquire(t.Context(), specs); err != nil {
		t.Fatal(err)
	}
	ca, err := quorum.NewAuthority("drill", time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range c.hosts {
		if err := h.(place.DiskController).SetDisk(t.Context(), changes); len(changes) > 0 && err != nil {
			t.Fatal(err)
		}
		c.voters = append(c.voters, quorum.Voter{ID: uint64(i + 1), Address: h.Addr() + ":7000"})
		id, err := ca.Issue(h.Name(), time.Now(), 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for name, pem := range map[string][]byte{quorum.CACertFile: id.CAPEM, quorum.NodeCertFile: id.CertPEM, quorum.NodeKeyFile: id.KeyPEM} {
			if err := h.Put(t.Context(), filepath.Join(h.DataDir(), "identity", name), pem, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range c.hosts {
		c.start(i, "-fresh", "-founders", FormatVoters(c.voters))
	}
	c.settled()
	return c
}

// member is one process, from its start to its end.
type member struct {
	c     *cluster
	i     int
	proc  place.Process
	in    *os.File
	gone  chan struct{} // closed when nothing more comes from it
	ready chan Answer

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]func(Answer, time.Time)
}

// start starts a member, and waits until it runs.
func (c *cluster) start(i int, args ...string) {
	c.t.Helper()
	h := c.hosts[i]
	toIn, in, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	out, toOut, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	m := &member{c: c, i: i, in: in, gone: make(chan struct{}), ready: make(chan Answer, 1), waiting: map[uint64]func(Answer, time.Time){}}
	m.proc, err = h.Start(c.t.Context(), place.Cmd{
		Path: c.program, Stdin: toIn, Stdout: toOut, Stderr: prefixed{c.t.Output(), h.Name()},
		Args: append([]string{
			"-identity", filepath.Join(h.DataDir(), "identity"), "-dir", filepath.Join(h.DataDir(), "register"),
			"-address", c.voters[i].Address, "-id", fmt.Sprint(c.voters[i].ID),
		}, args...),
	})
	_, _ = toIn.Close(), toOut.Close()
	if err != nil {
		_, _ = in.Close(), out.Close()
		c.t.Fatal(err)
	}
	c.put(i, m)
	go m.listen(out)
	select {
	case a := <-m.ready:
		c.t.Logf("%s runs: heartbeat %s", h.Name(), a.Timers.Heartbeat.Round(time.Millisecond))
		c.heartbeats[i] = a.Timers.Heartbeat
	case <-m.gone:
		c.t.Fatalf("%s does not start: %v", h.Name(), m.proc.Wait())
	case <-time.After(patience):
		c.t.Fatalf("%s does not start within %s", h.Name(), patience)
	}
}

// prefixed writes lines, each with a name before it.
type prefixed struct {
	w    io.Writer
	name string
}

func (p prefixed) Write(b []byte) (int, error) {
	_, err := fmt.Fprintf(p.w, "%s: %s", p.name, b)
	return len(b), err
}

func (c *cluster) put(i int, m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members[i] = m
	if m == nil && c.leader == i {
		c.leader = -1
	}
	c.tell()
}

// tell wakes whoever waits for a change; under mu.
func (c *cluster) tell() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// leading returns the member that last said that it leads, and what is closed
// when that changes.
func (c *cluster) leading() (*member, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leader < 0 {
		return nil, c.changed
	}
	return c.members[c.leader], c.changed
}

func (c *cluster) running(i int) (*member, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members[i], c.changed
}

// heard takes what a member says of itself.
func (c *cluster) heard(m *member, s quorum.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.members[m.i] != m:
	case s.Leads && s.Term >= c.term:
		if c.leader != m.i {
			c.leader, c.term = m.i, s.Term
			c.tell()
		}
	case !s.Leads && c.leader == m.i:
		c.leader = -1
		c.tell()
	}
}

func (m *member) name() string { return m.c.hosts[m.i].Name() }

// listen takes what the member says until it ends.
func (m *member) listen(out *os.File) {
	defer close(m.gone)
	defer out.Close()
	s := bufio.NewScanner(out)
	for s.Scan() {
		at := time.Now()
		var a Answer
		if err := json.Unmarshal(s.Bytes(), &a); err != nil {
			m.c.t.Errorf("%s says %q: %v", m.name(), s.Text(), err)
			return
		}
		m.c.ledger.seen(m.name(), a.Status.Value)
		m.mu.Lock()
		done := m.waiting[a.ID]
		delete(m.waiting, a.ID)
		m.mu.Unlock()
		switch {
		case done != nil:
			done(a, at)
		case a.Timers.Heartbeat != 0:
			m.ready <- a
		default:
			m.c.heard(m, a.Status)
		}
	}
}

// ask sends a request; done runs when the answer is there, if one comes.
func (m *member) ask(r Request, done func(Answer, time.Time)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	r.ID = m.last
	m.waiting[r.ID] = done
	line, err := json.Marshal(r)
	if err != nil {
		m.c.t.Error(err)
		return
	}
	_, _ = m.in.Write(append(line, '\n')) // it may just have lost its power
}

// read asks for a linearizable read, which the ledger judges.
func (m *member) read(within time.Duration, done func(Answer)) {
	floor := m.c.ledger.floor()
	m.ask(Request{Do: DoRead, Within: within}, func(a Answer, _ time.Time) {
		if a.Error == "" {
			m.c.ledger.told("a read at "+m.name(), floor, a.Value)
		}
		done(a)
	})
}

// propose asks for a write, which the ledger judges.
func (m *member) propose(p quorum.Proposal, within time.Duration, done func(Answer)) {
	floor := m.c.ledger.floor()
	m.ask(Request{Do: DoPropose, Proposal: p, Within: within}, func(a Answer, at time.Time) {
		switch who := "a write at " + m.name(); {
		case a.Error != "":
		case a.Outcome == quorum.Applied:
			m.c.ledger.confirmed(who, floor, p, a.Value)
			m.c.mu.Lock()
			if m.c.confirmed != nil {
				m.c.confirmed(m.i, at)
			}
			m.c.mu.Unlock()
		case a.Outcome == quorum.Conflict:
			m.c.ledger.told(who, floor, a.Value)
		}
		done(a)
	})
}

// wait asks something and waits for the answer; false: there will be none.
func (m *member) wait(ask func(func(Answer))) (Answer, bool) {
	got := make(chan Answer, 1)
	ask(func(a Answer) { got <- a })
	select {
	case a := <-got:
		return a, true
	case <-m.gone:
	case <-time.After(patience):
	}
	return Answer{}, false
}

func (m *member) status() (quorum.Status, bool) {
	a, ok := m.wait(func(done func(Answer)) {
		m.ask(Request{Do: DoStatus, Within: patience}, func(a Answer, _ time.Time) { done(a) })
	})
	return a.Status, ok
}

// settled waits until all three run, agree on a leader and hold the same, and
// returns who leads.
func (c *cluster) settled() int {
	c.t.Helper()
	var last []quorum.Status
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		leader, all := -1, []quorum.Status{}
		for i := range c.hosts {
			m, _ := c.running(i)
			if m == nil {
				c.t.Fatalf("%s does not run", c.hosts[i].Name())
			}
			s, ok := m.status()
			if !ok {
				c.t.Fatalf("%s does not answer", m.name())
			}
			if s.Leads {
				leader = i
			}
			all = append(all, s)
		}
		last = all
		if leader >= 0 && !slices.ContainsFunc(all, func(s quorum.Status) bool {
			// While somebody writes, the others are a little behind.
			return s.Leader != c.voters[leader].ID || s.Term != all[0].Term || s.Value.Version+20 < all[leader].Value.Version
		}) {
			return leader
		}
	}
	c.t.Fatalf("the members do not agree within %s: %+v", patience, last)
	return -1
}

// off cuts the power of a host, and returns when that began.
func (c *cluster) off(i int) time.Time {
	c.t.Helper()
	p, ok := c.hosts[i].(place.PowerCycler)
	if !ok {
		c.t.Fatal("the hosts cannot lose power")
	}
	m, _ := c.running(i)
	began, _, err := p.Off(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	c.put(i, nil)
	<-m.gone
	_ = m.in.Close()
	if err := m.proc.Wait(); !errors.Is(err, place.ErrNoPower) {
		c.t.Errorf("%s ended by itself: %v", m.name(), err)
	}
	return began
}

// on brings a host back, and its member.
func (c *cluster) on(i int) {
	c.t.Helper()
	if err := c.hosts[i].(place.PowerCycler).On(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	c.start(i)
}

// confirmedBy waits for the first write that another member than not confirms
// after a moment, and returns when that was. It has to be called before then.
func (c *cluster) confirmedBy(not int) func(after time.Time) time.Time {
	got := make(chan time.Time, 1024)
	c.mu.Lock()
	c.confirmed = func(i int, at time.Time) {
		if i != not {
			select {
			case got <- at:
			default:
			}
		}
	}
	c.mu.Unlock()
	return func(after time.Time) time.Time {
		c.t.Helper()
		defer func() {
			c.mu.Lock()
			c.confirmed = nil
			c.mu.Unlock()
		}()
		deadline := time.After(patience)
		for {
			select {
			case at := <-got:
				if at.After(after) {
					return at
				}
			case <-deadline:
				c.t.Fatalf("no write is confirmed within %s", patience)
			}
		}
	}
}

// use writes and reads until the returned function is called: compare-and-swap
// at whoever leads, linearizable reads at every member.
func (c *cluster) use() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { c.write(ctx) })
	for i := range c.hosts {
		work.Go(func() { c.readAt(ctx, i) })
	}
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); work.Wait() }) }
	c.t.Cleanup(stop)
	return stop
}

// writes waits until so many more are confirmed.
func (c *cluster) writes(n uint64) {
	c.t.Helper()
	before := c.ledger.floor()
	for end := time.Now().Add(patience); c.ledger.floor() < before+n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("%d writes are not confirmed within %s", n, patience)
		}
	}
}

func (c *cluster) write(ctx context.Context) {
	var v quorum.Value
	for ctx.Err() == nil {
		m, changed := c.leading()
		if m == nil {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		got := make(chan Answer, 1)
		m.propose(c.ledger.next(v), 2*time.Second, func(a Answer) { got <- a })
		select {
		case a := <-got:
			if a.Error == "" {
				v = a.Value
			}
			pause(ctx, 2*time.Millisecond)
		case <-m.gone:
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (c *cluster) readAt(ctx context.Context, i int) {
	for ctx.Err() == nil {
		m, changed := c.running(i)
		if m == nil {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		got := make(chan struct{})
		m.read(2*time.Second, func(Answer) { close(got) })
		select {
		case <-got:
			pause(ctx, 20*time.Millisecond)
		case <-m.gone:
			select { // the next one, or another change
			case <-changed:
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
