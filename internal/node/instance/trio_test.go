package instance

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
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

// peers are some instances on this machine that know each other.
type peers struct {
	t     *testing.T
	all   map[cluster.NodeID]*Instance
	ports map[cluster.NodeID]int
	mu    sync.Mutex
	id    uint64
	admit func(ctx context.Context, of cluster.NodeID) error // stands in for the network between agents
}

// postgresBin skips where there is no Postgres.
func postgresBin(t *testing.T) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		t.Skip("needs Postgres in /usr/lib/postgresql (apt-get install postgresql)")
	}
	return filepath.Dir(found[len(found)-1])
}

// postgresUser is whom Postgres runs as.
func postgresUser(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		return ""
	}
	for _, name := range []string{"postgres", "nobody"} {
		if _, err := user.Lookup(name); err == nil {
			return name
		}
	}
	t.Skip("needs a user postgres or nobody: Postgres does not run as root")
	return ""
}

// newPeers makes n instances, each with an address of its own and no directory yet.
func newPeers(t *testing.T, names ...cluster.NodeID) *peers {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Postgres")
	}
	p := &peers{t: t, all: map[cluster.NodeID]*Instance{}, ports: map[cluster.NodeID]int{}, admit: func(context.Context, cluster.NodeID) error { return nil }}
	root, err := os.MkdirTemp("", "hfi")
	if err != nil {
		t.Fatal(err)
	}
	run, err := os.MkdirTemp("/dev/shm", "hfi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = os.RemoveAll(root), os.RemoveAll(run) })
	for _, dir := range []string{root, run} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for n, name := range names {
		p.ports[name] = freePort(t)
		p.open(name, filepath.Join(root, string(name)), filepath.Join(run, string(name)), fmt.Sprintf("127.0.0.%d", n+1))
	}
	return p
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// open begins a life of name's agent.
func (p *peers) open(name cluster.NodeID, dir, run, address string) {
	p.t.Helper()
	for _, d := range []string{dir, run} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			p.t.Fatal(err)
		}
	}
	cfg := Config{Cluster: "trial", Self: name, BinDir: postgresBin(p.t), DataDir: filepath.Join(dir, "data"),
		StateDir: filepath.Join(dir, "state"), RunDir: run, Address: address, Port: p.ports[name], OSUser: postgresUser(p.t),
		Settings: map[string]string{"shared_buffers": "32MB", "dynamic_shared_memory_type": "mmap", "max_connections": "20"},
		Peer: func(of cluster.NodeID) (Endpoint, bool) {
			o, ok := p.all[of]
			if !ok {
				return Endpoint{}, false
			}
			return Endpoint{o.cfg.Address, o.cfg.Port}, true
		},
		Credential: func(ctx context.Context, of cluster.NodeID) (Credential, error) {
			if err := p.admit(ctx, of); err != nil {
				return Credential{}, err
			}
			return p.all[of].Issue(name)
		},
		Log: slog.New(slog.NewTextHandler(p.t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})).With("node", name)}
	i, err := New(cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.all[name] = i
	p.t.Cleanup(func() {
		killTree(i)
		if err := i.Close(); err != nil {
			p.t.Error(err)
		}
		if p.t.Failed() {
			out, _ := exec.Command("tail", "-n", "40", i.logPath()).Output()
			p.t.Logf("log of %s:\n%s", name, out)
		}
	})
}

// killTree ends every process on the directory at once, as a loss of power would.
func killTree(i *Instance) {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		left := processesOn(i.cfg.DataDir)
		if len(left) == 0 {
			return
		}
		for _, p := range left {
			if p.serves() || p.ppid == 1 {
				_ = syscall.Kill(p.pid, syscall.SIGKILL)
			}
		}
	}
}

// try begins an effect and returns its answer, and how long it took.
func (p *peers) try(name cluster.NodeID, e func(id uint64) cluster.Effect) (cluster.Done, time.Duration) {
	p.t.Helper()
	p.mu.Lock()
	p.id++
	id := p.id
	p.mu.Unlock()
	answer := make(chan cluster.Done, 2)
	at := time.Now()
	x := e(id)
	if !p.all[name].Begin(x, func(ev cluster.Event) {
		if d, ok := ev.(cluster.Done); ok && d.ID == id {
			answer <- d
		}
	}) {
		p.t.Fatalf("%T is not for an instance", x)
	}
	select {
	case d := <-answer:
		return d, time.Since(at)
	case <-time.After(90 * time.Second):
		p.t.Fatalf("%s: no answer to %T", name, x)
		return cluster.Done{}, 0
	}
}

// do is try for what has to succeed.
func (p *peers) do(name cluster.NodeID, e func(id uint64) cluster.Effect) (cluster.Done, time.Duration) {
	p.t.Helper()
	d, took := p.try(name, e)
	if !d.OK {
		p.t.Fatalf("%s: %T: %s", name, e(0), d.Why)
	}
	return d, took
}

func (p *peers) member(name cluster.NodeID) cluster.Member {
	return cluster.Member{Node: name, Incarnation: p.all[name].Incarnation()}
}

// begin makes the first primary, and clones that follow it.
func (p *peers) begin(primary cluster.NodeID, standbys ...cluster.NodeID) {
	p.t.Helper()
	if _, err := p.all[primary].Create(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	p.do(primary, func(id uint64) cluster.Effect { return cluster.StartPrimary{ID: id} })
	p.do(primary, func(id uint64) cluster.Effect { return cluster.SetSSN{ID: id, SSN: cluster.SSN{}} })
	p.exec(primary, "CREATE TABLE public.t (id bigserial PRIMARY KEY, v text)")
	for _, s := range standbys {
		p.clone(s, primary)
		p.follow(s, primary, 1)
	}
}

func (p *peers) clone(name, from cluster.NodeID) time.Duration {
	p.t.Helper()
	_, took := p.do(name, func(id uint64) cluster.Effect {
		return cluster.Reclone{ID: id, Upstream: p.member(from), Name: cluster.Member{Node: name}}
	})
	return took
}

// follow returns when name streams from upstream, and how long it took to answer.
func (p *peers) follow(name, upstream cluster.NodeID, epoch cluster.Epoch) time.Duration {
	p.t.Helper()
	_, took := p.do(name, func(id uint64) cluster.Effect {
		return cluster.Follow{ID: id, Upstream: p.member(upstream), Epoch: epoch, Name: p.member(name)}
	})
	p.until(20*time.Second, func() error { return p.streams(name, upstream) })
	return took
}

// streams says whether upstream has a walsender for name, through its own slot.
func (p *peers) streams(name, upstream cluster.NodeID) error {
	var n int
	err := p.all[upstream].session(p.t.Context(), func(c *pgx.Conn) error {
		return c.QueryRow(p.t.Context(), `SELECT count(*) FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid
			WHERE application_name = $1 AND state = 'streaming' AND slot_name = $2`,
			MemberName("trial", p.member(name)), SlotName(p.member(name))).Scan(&n)
	})
	if err == nil && n != 1 {
		err = fmt.Errorf("%s does not stream from %s", name, upstream)
	}
	return err
}

func (p *peers) until(within time.Duration, fn func() error) {
	p.t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := fn()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("after %v: %v", within, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (p *peers) exec(name cluster.NodeID, sql string) {
	p.t.Helper()
	if err := p.all[name].session(p.t.Context(), func(c *pgx.Conn) error { _, err := c.Exec(p.t.Context(), sql); return err }); err != nil {
		p.t.Fatalf("%s: %s: %v", name, sql, err)
	}
}

func (p *peers) query(name cluster.NodeID, sql string) string {
	p.t.Helper()
	var s string
	if err := p.all[name].session(p.t.Context(), func(c *pgx.Conn) error { return c.QueryRow(p.t.Context(), sql).Scan(&s) }); err != nil {
		p.t.Fatalf("%s: %s: %v", name, sql, err)
	}
	return s
}

// load writes rows at name until the returned function is called, or it dies.
func (p *peers) load(name cluster.NodeID) (stop func() (rows int)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int)
	i := p.all[name]
	go func() {
		n := 0
		c, err := i.connect(ctx)
		for err == nil && ctx.Err() == nil {
			if _, err = c.Exec(ctx, "INSERT INTO public.t (v) SELECT repeat('x', 1000 * (g % 4)) FROM generate_series(1, 10) g"); err == nil {
				n += 10
			}
		}
		if c != nil {
			closeConn(c)
		}
		done <- n
	}()
	return func() int { cancel(); return <-done }
}

// recruit does to a standby what an election does, and says how long that took.
func (p *peers) recruit(name cluster.NodeID) (cluster.Postgres, time.Duration) {
	p.t.Helper()
	_, a := p.do(name, func(id uint64) cluster.Effect { return cluster.UnlinkCredential{ID: id} })
	_, b := p.do(name, func(id uint64) cluster.Effect { return cluster.StopReceivers{ID: id} })
	d, c := p.do(name, func(id uint64) cluster.Effect { return cluster.InspectWAL{ID: id} })
	p.until(5*time.Second, func() error { // a child that was forked just now has no title yet, and may be anybody's
		left := p.all[name].receivers()
		for _, r := range left {
			if receives(r.title, p.all[name].cfg.Cluster) == receiver {
				p.t.Fatalf("%s: a walreceiver lives after the cut: %+v", name, r)
			}
		}
		if len(left) > 0 {
			return errNotYet
		}
		return nil
	})
	p.t.Logf("%s: unlinked %v, receivers stopped %v, WAL inspected %v: ends at %s of timeline %d", name, ms(a), ms(b), ms(c),
		wal.Text(d.Postgres.End), d.Postgres.History[len(d.Postgres.History)-1].Timeline)
	return *d.Postgres, a + b + c
}

func ms(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

var errNotYet = errors.New("not yet")
