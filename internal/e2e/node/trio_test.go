// Package node drills whole nodes: three hosts of the lab with disks and Postgres
// of their own, the program as a user has it, and a client beside them that counts
// what was acknowledged.
package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/place/local"
	"github.com/holdfast-db/holdfast/internal/postgres"
	"github.com/holdfast-db/holdfast/internal/testbin"
)

// patience is how long anything may take that has to happen.
const patience = 60 * time.Second

func long() bool { return os.Getenv("HOLDFAST_LONG") != "" }

// trio is three nodes on three hosts, and a host for clients.
type trio struct {
	t      *testing.T
	hosts  []place.Host
	client place.Host
	procs  []place.Process
	logs   []*tail
	user   string
	secret string
	bin    string // where PostgreSQL's programs are
}

// newTrio founds a cluster on disks of a kind and waits until both standbys may
// confirm commits. flags go to `cluster init`.
func newTrio(t *testing.T, disk string, flags ...string) *trio {
	t.Helper()
	if testing.Short() {
		t.Skip("the lab takes longer than -short allows")
	}
	if os.Geteuid() != 0 {
		t.Skip("the lab needs root for network namespaces and simulated disks")
	}
	bin, err := postgres.FindBinDir(os.Getenv("HOLDFAST_PG_BINDIR"))
	if err != nil {
		t.Skip(err)
	}
	program := testbin.Build(t)
	p, err := local.New(local.Options{Binary: program, WorkDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
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
	all, err := p.Acquire(t.Context(), append(specs, place.HostSpec{Name: "client"}))
	if err != nil {
		t.Fatal(err)
	}
	c := &trio{t: t, hosts: all[:3], client: all[3], procs: make([]place.Process, 3), logs: make([]*tail, 3), user: "app", secret: "drill-only", bin: bin}
	for i := range c.logs {
		c.logs[i] = &tail{}
	}
	t.Cleanup(func() {
		if t.Failed() {
			for i, l := range c.logs {
				t.Logf("the end of what node %s logged:\n%s", c.hosts[i].Name(), l)
			}
		}
	})
	c.install(bin, flags)
	for i := range c.hosts {
		c.start(i)
	}
	c.await("open, with both standbys in S", func(s status) bool { return s.Open && len(s.S) == 2 })
	c.must(0, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", c.user, c.secret), "CREATE TABLE public.ledger (id bigint PRIMARY KEY)",
		fmt.Sprintf("GRANT ALL ON public.ledger TO %s", c.user))
	return c
}

// install makes the configuration with the program itself, and puts each node's
// folder on its host.
func (c *trio) install(bin string, flags []string) {
	c.t.Helper()
	h := c.hosts[0]
	args := []string{"cluster", "init", "drill", "--out", filepath.Join(h.RunDir(), "made"), "--etc", h.DataDir() + "/etc", "--state", h.DataDir() + "/state",
		"--data", h.DataDir() + "/pg", "--run", h.RunDir() + "/hf", "--bin", bin, "--hba", "host all all all scram-sha-256"}
	for _, x := range c.hosts {
		args = append(args, "--node", x.Name()+"="+x.Addr())
	}
	if _, err := h.Run(c.t.Context(), place.Cmd{Path: "holdfast", Args: append(args, flags...)}); err != nil {
		c.t.Fatal(err)
	}
	for _, x := range c.hosts {
		for _, f := range []string{"node.yaml", "ca.crt", "node.crt", "node.key"} {
			b, err := h.Get(c.t.Context(), filepath.Join(h.RunDir(), "made", x.Name(), f))
			if err != nil {
				c.t.Fatal(err)
			}
			b = bytes.ReplaceAll(bytes.ReplaceAll(b, []byte(h.DataDir()), []byte(x.DataDir())), []byte(h.RunDir()), []byte(x.RunDir()))
			if err := x.Put(c.t.Context(), x.DataDir()+"/etc/"+f, b, 0o600); err != nil {
				c.t.Fatal(err)
			}
		}
	}
}

func (c *trio) config(i int) string { return c.hosts[i].DataDir() + "/etc/node.yaml" }

// start starts the agent on a host.
func (c *trio) start(i int) {
	c.t.Helper()
	p, err := c.hosts[i].Start(c.t.Context(), place.Cmd{Path: "holdfast", Args: []string{"node", "--config", c.config(i)}, Stdout: c.logs[i], Stderr: c.logs[i]})
	if err != nil {
		c.t.Fatal(err)
	}
	c.procs[i] = p
}

// status is the part of `holdfast status --json` that drills look at.
type status struct {
	Epoch   uint64
	Primary string
	Open    bool
	S       []string
	K       int
	Waiting []string
	Members []struct {
		Node, Role, State, Follows string
		Answers                    bool
		Timeline                   uint32
	}
	Failovers []phases
}

// phases are in milliseconds since the former primary was last heard.
type phases struct {
	Epoch    uint64
	Detected float64 `json:"detected_ms"`
	Named    float64 `json:"named_ms"`
	Promoted float64 `json:"promoted_ms"`
	Opened   float64 `json:"opened_ms"`
}

func (s status) phases() phases {
	for _, f := range s.Failovers {
		if f.Epoch == s.Epoch {
			return f
		}
	}
	return phases{}
}

func (c *trio) statusOf(i int) (status, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
	defer cancel()
	out, err := c.hosts[i].Run(ctx, place.Cmd{Path: "holdfast", Args: []string{"status", "--json", "--config", c.config(i)}})
	var s status
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	return s, err
}

// await waits until a status that any powered node gives is right.
func (c *trio) await(what string, ok func(status) bool) status {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	var last status
	var lastErr error
	for {
		for i, h := range c.hosts {
			if !h.(place.PowerCycler).Powered() {
				continue
			}
			s, err := c.statusOf(i)
			if err != nil {
				lastErr = err
				continue
			}
			last = s
			if ok(s) {
				return s
			}
		}
		select {
		case <-ctx.Done():
			c.t.Fatalf("not %s within %s; last status %+v, last error %v", what, patience, last, lastErr)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *trio) index(name string) int {
	return slices.IndexFunc(c.hosts, func(h place.Host) bool { return h.Name() == name })
}

// connect opens a session on a node from another host.
func (c *trio) connect(ctx context.Context, from place.Host, i int) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig("")
	if err != nil {
		return nil, err
	}
	cfg.Host, cfg.Port, cfg.User, cfg.Password, cfg.Database = c.hosts[i].Addr(), 5432, c.user, c.secret, "postgres"
	cfg.TLSConfig, cfg.Fallbacks = nil, nil
	cfg.LookupFunc = func(_ context.Context, h string) ([]string, error) { return []string{h}, nil }
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return from.Dial(ctx, network, addr)
	}
	return pgx.ConnectConfig(ctx, cfg)
}

// local runs statements on a node's own socket, as its superuser.
func (c *trio) local(ctx context.Context, i int, sql ...string) (string, error) {
	h := c.hosts[i]
	args := []string{"-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", h.RunDir() + "/hf", "-p", "5432", "-U", "holdfast", "-d", "postgres"}
	for _, q := range sql {
		args = append(args, "-c", q)
	}
	out, err := h.Run(ctx, place.Cmd{Path: "/usr/bin/psql", Args: args})
	return strings.TrimSpace(string(out)), err
}

func (c *trio) must(i int, sql ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	out, err := c.local(ctx, i, sql...)
	if err != nil {
		c.t.Fatalf("%s on %s: %v\n%s", sql, c.hosts[i].Name(), err, out)
	}
	return out
}

// writer is a client that writes one id after the other wherever it is let in.
type writer struct {
	c     *trio
	end   context.CancelFunc
	done  sync.WaitGroup
	mu    sync.Mutex
	next  int64
	acked []ack
	last  [3]error // why the last session on each node ended
}

type ack struct {
	id   int64
	sent time.Time
	at   time.Time
}

// write begins a load that lasts until stop. Each of three workers holds on to
// one node and writes while that takes writes.
func (c *trio) write() *writer {
	ctx, cancel := context.WithCancel(c.t.Context())
	w := &writer{c: c, end: cancel}
	for i := range c.hosts {
		w.done.Go(func() { w.run(ctx, i) })
	}
	c.t.Cleanup(w.stop)
	return w
}

func (w *writer) run(ctx context.Context, i int) {
	for ctx.Err() == nil {
		w.session(ctx, i)
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (w *writer) session(ctx context.Context, i int) {
	each, cancel := context.WithTimeout(ctx, time.Second)
	conn, err := w.c.connect(each, w.c.client, i)
	cancel()
	if err != nil {
		w.ended(i, err)
		return
	}
	defer func() {
		end, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = conn.Close(end)
	}()
	for ctx.Err() == nil {
		w.mu.Lock()
		w.next++
		id := w.next
		w.mu.Unlock()
		sent := time.Now()
		each, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := conn.Exec(each, "INSERT INTO public.ledger VALUES ($1)", id)
		cancel()
		if err != nil {
			w.ended(i, err)
			return
		}
		w.mu.Lock()
		w.acked = append(w.acked, ack{id, sent, time.Now()})
		w.mu.Unlock()
		time.Sleep(2 * time.Millisecond) // a load, not a race
	}
}

func (w *writer) ended(i int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last[i] = err
}

func (w *writer) stop() {
	w.end()
	w.done.Wait()
}

// firstAfter waits for the first acknowledgement of a write sent after t.
func (w *writer) firstAfter(t time.Time) (ack, error) {
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		w.mu.Lock()
		for _, a := range w.acked {
			if a.sent.After(t) {
				w.mu.Unlock()
				return a, nil
			}
		}
		w.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return ack{}, fmt.Errorf("no write was acknowledged again; the last sessions ended with: %v", w.last)
}

// longestSince is the longest time between two acknowledgements since t.
func (w *writer) longestSince(t time.Time) (gap time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := 1; i < len(w.acked); i++ {
		if w.acked[i].at.After(t) {
			gap = max(gap, w.acked[i].at.Sub(w.acked[i-1].at))
		}
	}
	return gap
}

// lost returns the acknowledged ids that the primary does not hold.
func (w *writer) lost(primary int) []int64 {
	w.c.t.Helper()
	w.mu.Lock() // what is acknowledged from here on may not be among what is read
	acked := slices.Clone(w.acked)
	w.mu.Unlock()
	have := map[int64]bool{}
	for _, line := range strings.Fields(w.c.must(primary, "SELECT id FROM public.ledger")) {
		var id int64
		if _, err := fmt.Sscan(line, &id); err != nil {
			w.c.t.Fatal(err)
		}
		have[id] = true
	}
	var out []int64
	for _, a := range acked {
		if !have[a.id] {
			out = append(out, a.id)
		}
	}
	return out
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (l *tail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, b...)
	if n := len(l.buf) - 64<<10; n > 0 {
		l.buf = append([]byte(nil), l.buf[n:]...)
	}
	return len(b), nil
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.buf)
}

// tellLogs prints what the nodes and their servers logged, for whoever looks for
// where the time goes.
func (c *trio) tellLogs() {
	if os.Getenv("HOLDFAST_LOGS") == "" {
		return
	}
	for i := range c.logs {
		pg, _ := c.hosts[i].Get(c.t.Context(), c.hosts[i].DataDir()+"/state/postgres.log")
		c.t.Logf("node %s:\n%s\n%s", c.hosts[i].Name(), c.logs[i], pg[max(0, len(pg)-20000):])
	}
}
