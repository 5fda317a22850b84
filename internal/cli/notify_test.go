package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/node"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

// single writes the configuration of a cluster of one node, and returns its file.
func single(t *testing.T) string {
	t.Helper()
	if _, err := postgres.FindBinDir(""); err != nil {
		t.Skip(err)
	}
	if os.Geteuid() == 0 {
		if _, err := user.Lookup("postgres"); err != nil {
			t.Skip(err)
		}
	}
	dir, err := os.MkdirTemp("/var/tmp", "hf-cli-") // short, and others may pass
	if err != nil {
		t.Fatal(err)
	}
	n := &demoNode{name: "a", dir: dir}
	t.Cleanup(func() {
		if err := n.stopPostgres(false); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m := config.Member{Name: "a", Address: freeAddress(t), Postgres: freeAddress(t)}
	o := clusterInit{etc: filepath.Join(dir, "etc", "a"), state: filepath.Join(dir, "state"), run: filepath.Join(dir, "run"), data: filepath.Join(dir, "pg"), user: "postgres",
		mode: config.ModePreferred, profile: config.ProfileDefault, k: 1, http_: 1}
	text := strings.Replace(string(nodeYAML(o, "one", m, []config.Member{m})), "listen: 127.0.0.1:1", "listen: "+freeAddress(t), 1)
	if err := writeCluster(filepath.Join(dir, "etc"), "one", []config.Member{m}, map[string][]byte{"a": []byte(text)}); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "etc", "a", "node.yaml")
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // a test's
	return l.Addr().String()
}

// manager is the service manager's end of the socket.
type manager struct {
	path string
	said chan string
}

func newManager(t *testing.T) *manager {
	t.Helper()
	m := &manager{path: filepath.Join(t.TempDir(), "notify"), said: make(chan string, 1000)}
	c, err := net.ListenPacket("unixgram", m.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		b := make([]byte, 4096)
		for {
			n, _, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			m.said <- string(b[:n])
		}
	}()
	return m
}

func (m *manager) await(t *testing.T, want string) {
	t.Helper()
	for end := time.After(time.Minute); ; {
		select {
		case s := <-m.said:
			if s == want {
				return
			}
		case <-end:
			t.Fatalf("%s was not said within a minute", want)
		}
	}
}

// stuck is a log that does not return while it is on: what writes to it hangs.
type stuck struct {
	slog.Handler
	on   *atomic.Bool
	free chan struct{}
}

func (s stuck) Handle(ctx context.Context, r slog.Record) error {
	if s.on.Load() && strings.HasPrefix(r.Message, "propose") { // what the loop itself says
		<-s.free
	}
	return s.Handler.Handle(ctx, r)
}

// TestWatchdog: over a real socket, a node says that it is ready, that its loop
// goes round, no longer so while the loop is stuck, and that it stops.
func TestWatchdog(t *testing.T) {
	file := single(t)
	m := newManager(t)
	const every = 800 * time.Millisecond
	environ := map[string]string{"NOTIFY_SOCKET": m.path, "WATCHDOG_USEC": fmt.Sprint(every.Microseconds())}
	env := Env{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(k string) string { return environ[k] }, Version: "test", Root: os.Geteuid() == 0}
	c, err := loadNode(env, file)
	if err != nil {
		t.Fatal(err)
	}
	o, err := nodeOptions(t.Context(), env, c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if o.Notify, err = newNotifier(ctx, env.Getenv); err != nil {
		t.Fatal(err)
	}
	h := stuck{slog.NewTextHandler(io.Discard, nil), &atomic.Bool{}, make(chan struct{})}
	o.Log = slog.New(h)
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx, o) }()
	m.await(t, "READY=1")
	for range 4 {
		m.await(t, "WATCHDOG=1")
	}
	f := finder{config: file}
	for end := time.Now().Add(time.Minute); ; {
		var s node.Status
		if err := f.call(ctx, env, http.MethodGet, "/status", nil, &s); err == nil && s.Open {
			break
		} else if time.Now().After(end) {
			t.Fatalf("not open within a minute: %v, %+v", err, s)
		}
		time.Sleep(50 * time.Millisecond)
	}

	h.on.Store(true)
	go func() { // the register is written, the loop says so, and hangs
		var r node.Reply
		_ = f.call(ctx, env, http.MethodPost, "/command", cluster.Command{Kind: cluster.Pause}, &r)
	}()
	deadline := time.Now().Add(30 * time.Second)
	for last := time.Now(); time.Since(last) < 2*every; {
		select {
		case <-m.said:
			last = time.Now()
		case <-time.After(every / 10):
		}
		if time.Now().After(deadline) {
			t.Fatal("the watchdog is told of a loop that is stuck")
		}
	}
	h.on.Store(false)
	close(h.free)
	m.await(t, "WATCHDOG=1")
	cancel()
	m.await(t, "STOPPING=1")
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the agent does not end when it is told to")
	}
}

// TestNotifierIsNotHeldUp: a service manager that reads nothing does not keep the
// loop.
func TestNotifierIsNotHeldUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenPacket("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test's
	notify, err := newNotifier(t.Context(), func(k string) string { return map[string]string{"NOTIFY_SOCKET": path}[k] })
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	const n = 60 // more than a socket holds
	for range n {
		notify("STATUS=" + strings.Repeat("x", 1000))
	}
	if took := time.Since(began); took > n*notifyWithin+10*time.Second {
		t.Errorf("%d notes take %v", n, took)
	}
	notify("WATCHDOG=1") // no WATCHDOG_USEC: nobody wants it
}

// TestUnit: systemd finds nothing wrong with the unit, which starts what `cluster
// init` lays out.
func TestUnit(t *testing.T) {
	const file = "../../packaging/holdfast-node@.service"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Type=notify", "KillMode=process", "RuntimeDirectory=holdfast\n", "RuntimeDirectoryPreserve=yes", "Restart=always", "WatchdogSec=",
		"TimeoutStartSec=infinity", "OOMScoreAdjust=-", "node --config /etc/holdfast/%i/node.yaml"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the unit lacks %s", want)
		}
	}
	program, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here")
	}
	// The program is not installed where the unit has it: one that is there stands in.
	text := strings.Replace(string(b), "/usr/local/bin/holdfast", "/bin/true", 1)
	unit := filepath.Join(t.TempDir(), "holdfast-node@.service")
	if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program, "verify", "--man=no", unit).CombinedOutput()
	if err != nil || strings.Contains(string(out), "holdfast-node@") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
