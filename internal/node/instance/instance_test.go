package instance_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

const clusterName = "test"

// nodes is a set of instances on this machine, which know each other.
type nodes struct {
	t    testing.TB
	dir  string
	user string // that Postgres runs as when the test is root
	bin  string
	all  map[cluster.NodeID]*testNode
}

// testNode is one instance and what it has told.
type testNode struct {
	*instance.Instance
	cfg instance.Config

	mu     sync.Mutex
	done   map[uint64]cluster.Done
	seen   []cluster.Postgres
	probes []bool
	id     uint64
	kick   chan struct{}
}

func newNodes(t testing.TB) *nodes {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Postgres")
	}
	bin, err := postgres.FindBinDir("")
	if err != nil {
		t.Skip(err)
	}
	n := &nodes{t: t, bin: bin, all: map[cluster.NodeID]*testNode{}}
	if n.user = systemUser(); n.user == "" && os.Geteuid() == 0 {
		t.Skip("needs a user postgres or nobody: Postgres does not run as root")
	}
	n.dir, err = os.MkdirTemp("", "hfpgnode") // short: a socket's path has 107 bytes
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(n.dir) })
	must(t, os.Chmod(n.dir, 0o755))
	return n
}

// node makes an instance with a directory of its own, without data.
func (n *nodes) node(id cluster.NodeID, change ...func(*instance.Config)) *testNode {
	n.t.Helper()
	base := filepath.Join(n.dir, string(id))
	must(n.t, os.MkdirAll(filepath.Join(base, "home"), 0o755))
	cfg := n.config(id, base, freePort(n.t))
	cfg.Peer = func(id cluster.NodeID) (instance.Endpoint, bool) {
		p := n.all[id]
		if p == nil {
			return instance.Endpoint{}, false
		}
		return instance.Endpoint{Host: p.cfg.Address, Port: p.cfg.Port}, true
	}
	cfg.Credential = func(_ context.Context, of cluster.NodeID) (instance.Credential, error) {
		p := n.all[of]
		if p == nil {
			return instance.Credential{}, errors.New("nobody of that name")
		}
		return p.Issue(id)
	}
	cfg.Log = slog.New(slog.NewTextHandler(logger{n.t}, nil))
	for _, c := range change {
		c(&cfg)
	}
	p := &testNode{cfg: cfg, done: map[uint64]cluster.Done{}, kick: make(chan struct{}, 1)}
	n.all[id] = p
	p.open(n.t)
	n.t.Cleanup(func() {
		_ = p.Close()
		endPostgres(cfg.DataDir)
	})
	return p
}

// create gives the node a directory as Create makes it: a copy of one, since
// initdb takes its time.
func (p *testNode) create(t testing.TB) {
	t.Helper()
	dir, err := template()
	must(t, err)
	must(t, exec.Command("cp", "-a", filepath.Join(dir, "a", "home", "data"), p.cfg.DataDir).Run())
	must(t, exec.Command("cp", "-a", filepath.Join(dir, "a", "state", "incarnation"), p.cfg.StateDir).Run())
	p.restart(t)
}

// template is where a data directory was made for the whole test process; TestMain removes it.
var template = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "hfpgnode")
	if err != nil {
		return "", err
	}
	templateDir = dir
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	bin, err := postgres.FindBinDir("")
	if err != nil {
		return "", err
	}
	n := &nodes{dir: dir, bin: bin, user: systemUser()}
	base := filepath.Join(dir, "a")
	if err := os.MkdirAll(filepath.Join(base, "home"), 0o755); err != nil {
		return "", err
	}
	i, err := instance.New(n.config("a", base, 1))
	if err != nil {
		return "", err
	}
	_, err = i.Create(context.Background())
	return dir, errors.Join(err, i.Close())
})

var templateDir string

func TestMain(m *testing.M) {
	if config := os.Getenv(agentEnv); config != "" {
		os.Exit(agentMain(config))
	}
	code := m.Run()
	if templateDir != "" {
		_ = os.RemoveAll(templateDir)
	}
	os.Exit(code)
}

// systemUser is whom Postgres runs as when the test is root; empty if nobody can.
func systemUser() string {
	if os.Geteuid() != 0 {
		return ""
	}
	for _, name := range []string{"postgres", "nobody"} {
		if _, err := user.Lookup(name); err == nil {
			return name
		}
	}
	return ""
}

// config is a node's, without its peers.
func (n *nodes) config(id cluster.NodeID, base string, port int) instance.Config {
	return instance.Config{Cluster: clusterName, Self: id, BinDir: n.bin, DataDir: filepath.Join(base, "home", "data"),
		StateDir: filepath.Join(base, "state"), RunDir: filepath.Join(base, "run"), Address: "127.0.0.1", Port: port, OSUser: n.user,
		Settings: map[string]string{"shared_buffers": "16MB", "dynamic_shared_memory_type": "mmap"},
		HBA:      []string{"local all postgres trust", "host all postgres 127.0.0.1/32 trust"}}
}

// open begins a life of the agent.
func (p *testNode) open(t testing.TB) {
	t.Helper()
	i, err := instance.New(p.cfg)
	must(t, err)
	p.Instance = i
}

// restart ends this life of the agent and begins the next.
func (p *testNode) restart(t testing.TB) {
	t.Helper()
	must(t, p.Close())
	p.open(t)
}

// watch collects what is seen until the test ends.
func (p *testNode) watch(t testing.TB) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	i := p.Instance
	go func() {
		defer close(ended)
		i.Watch(ctx, p.tell)
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

func (p *testNode) tell(e cluster.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch x := e.(type) {
	case cluster.Done:
		if _, twice := p.done[x.ID]; twice {
			panic(fmt.Sprintf("effect %d was answered twice", x.ID))
		}
		p.done[x.ID] = x
	case cluster.PostgresSeen:
		p.seen = append(p.seen, x.Postgres)
	case cluster.Probed:
		p.probes = append(p.probes, x.OK)
	}
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// next is an id for an effect.
func (p *testNode) next() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.id++
	return p.id
}

// answer waits for the answer to an effect.
func (p *testNode) answer(t testing.TB, id uint64) cluster.Done {
	t.Helper()
	var d cluster.Done
	eventually(t, fmt.Sprintf("an answer to effect %d", id), func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		var ok bool
		d, ok = p.done[id]
		return ok
	})
	return d
}

// do begins the effect that make returns and waits for its answer.
func (p *testNode) do(t testing.TB, effect func(id uint64) cluster.Effect) cluster.Done {
	t.Helper()
	id := p.next()
	e := effect(id)
	if !p.Begin(e, p.tell) {
		t.Fatalf("%T is no effect on the instance", e)
	}
	return p.answer(t, id)
}

// ok is do for what has to work.
func (p *testNode) ok(t testing.TB, effect func(id uint64) cluster.Effect) cluster.Done {
	t.Helper()
	d := p.do(t, effect)
	if !d.OK {
		t.Fatalf("%#v: %s", effect(d.ID), d.Why)
	}
	return d
}

// begin begins an effect that nobody answers.
func (p *testNode) begin(e cluster.Effect) { p.Begin(e, p.tell) }

func (p *testNode) startPrimary(t testing.TB) cluster.Done {
	t.Helper()
	return p.ok(t, func(id uint64) cluster.Effect { return cluster.StartPrimary{ID: id} })
}

func (p *testNode) stop(t testing.TB, immediate bool) cluster.Done {
	t.Helper()
	return p.ok(t, func(id uint64) cluster.Effect { return cluster.StopPostgres{ID: id, Immediate: immediate} })
}

func (p *testNode) setSSN(t testing.TB, ssn cluster.SSN) {
	t.Helper()
	p.ok(t, func(id uint64) cluster.Effect { return cluster.SetSSN{ID: id, SSN: ssn} })
}

// looks waits until what Watch tells last is as wanted.
func (p *testNode) looks(t testing.TB, what string, fn func(cluster.Postgres) bool) cluster.Postgres {
	t.Helper()
	var v cluster.Postgres
	eventually(t, what, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.seen) == 0 {
			return false
		}
		v = p.seen[len(p.seen)-1]
		return fn(v)
	})
	return v
}

// dsn connects as a client over TCP.
func (p *testNode) dsn() string {
	return fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres connect_timeout=2 sslmode=prefer", p.cfg.Address, p.cfg.Port)
}

// client connects as a client; it may be refused.
func (p *testNode) client(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, p.dsn()) }

// agent connects as the agent does; as root or as Postgres's user.
func (p *testNode) agent(t testing.TB) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), fmt.Sprintf("host=%s port=%d user=holdfast dbname=postgres", p.cfg.RunDir, p.cfg.Port))
	must(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// ask asks for one row on a session of its own.
func (p *testNode) ask(t testing.TB, sql string, into ...any) error {
	t.Helper()
	c, err := pgx.Connect(t.Context(), fmt.Sprintf("host=%s port=%d user=holdfast dbname=postgres", p.cfg.RunDir, p.cfg.Port))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.Background()) }()
	return c.QueryRow(t.Context(), sql).Scan(into...)
}

func (p *testNode) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	_, err := p.agent(t).Exec(t.Context(), sql, args...)
	must(t, err)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until fn holds.
func eventually(t testing.TB, what string, fn func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !fn() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// endPostgres ends whatever still works in a data directory.
func endPostgres(dir string) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		pids := pidsOn(dir)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGQUIT)
			if time.Until(deadline) < 8*time.Second {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
	}
}

func pidsOn(dir string) []int {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	var out []int
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == dir {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(l)))
			if err == nil {
				out = append(out, pid)
			}
		}
	}
	return out
}

// asPostgres is a program of PostgreSQL's, run as its user.
func (n *nodes) asPostgres(name string, args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(n.bin, name), args...)
	c.Dir = "/"
	c.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin"}
	c.SysProcAttr = &syscall.SysProcAttr{}
	if n.user != "" {
		u, err := user.Lookup(n.user)
		must(n.t, err)
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		must(n.t, errors.Join(err1, err2))
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return c
}

// logger gives the agent's log to the test's.
type logger struct{ t testing.TB }

func (l logger) Write(b []byte) (int, error) {
	if testing.Verbose() {
		fmt.Fprint(os.Stderr, l.t.Name()+": "+string(b))
	}
	return len(b), nil
}

func itoa(n int) string { return strconv.Itoa(n) }

// postmaster is the server's main process.
func postmaster(t testing.TB, p *testNode) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(p.cfg.DataDir, "postmaster.pid"))
	must(t, err)
	line, _, _ := strings.Cut(string(data), "\n")
	pid, err := strconv.Atoi(line)
	must(t, err)
	return pid
}
