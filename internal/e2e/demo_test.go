package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/postgres"
)

// needPostgres skips where there is none.
func needPostgres(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("a cluster takes longer than -short allows")
	}
	if _, err := postgres.FindBinDir(""); err != nil {
		t.Skip(err)
	}
}

// freePorts is the first of 23 ports of which none is in use.
func freePorts(t *testing.T) int {
	t.Helper()
	for base := 21000 + os.Getpid()%300*30; base < 32000; base += 30 {
		free := true
		for p := base; p < base+23 && free; p++ {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
			if free = err == nil; free {
				_ = l.Close()
			}
		}
		if free {
			return base
		}
	}
	t.Fatal("no 23 ports in a row are free")
	return 0
}

// shortDir is a folder that every user may enter, with a short name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "hf-e2e-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

type clusterStatus struct {
	Open    bool
	Epoch   uint64
	Primary string
	S       []string
}

// TestDemo runs the demo as its reader would: it comes up, a client finds the
// primary, the primary's Postgres is killed, writes go on, Ctrl-C removes it all.
func TestDemo(t *testing.T) {
	needPostgres(t)
	b := newBench(t)
	dir := filepath.Join(shortDir(t), "demo")
	port := freePorts(t)
	cmd, stdout, stderr := b.command("cluster", "demo", "--dir", dir, "--port", strconv.Itoa(port))
	out := filepath.Join(b.dir, "out")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // a test's
	cmd.Stdout = f
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { // whatever fails, Ctrl-C cleans up
		_ = cmd.Process.Signal(syscall.SIGINT)
		select {
		case err := <-ended:
			_ = err
		case <-time.After(30 * time.Second):
		}
	})
	within := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(3 * time.Minute); !ok(); time.Sleep(100 * time.Millisecond) {
			select {
			case err := <-ended:
				ended <- err
				t.Fatalf("it ended before: %s: %v\n%s", what, err, stderr.String())
			default:
			}
			if time.Now().After(end) {
				t.Fatalf("not within 3 minutes: %s\n%s", what, stderr.String())
			}
		}
	}
	within("it says what to try", func() bool { text, _ := os.ReadFile(out); return strings.Contains(string(text), "holdfast switchover") })

	b.env = append(b.env, "HOLDFAST_CONFIG="+filepath.Join(dir, "etc/b/node.yaml"), "PGPASSFILE="+filepath.Join(dir, "pgpass"))
	status := func() (s clusterStatus) {
		o := b.run("status", "--json")
		_ = json.Unmarshal([]byte(o.stdout), &s)
		return s
	}
	psql := func(sql string) (string, error) {
		dsn := b.run("dsn", "--for", "libpq")
		dsn.want(t, 0)
		cmd, out, _ := b.command("-X", "-A", "-t", "-q", "-c", sql, strings.TrimSpace(dsn.stdout))
		cmd.Path = "/usr/bin/psql"
		err := cmd.Run()
		return strings.TrimSpace(out.String()), err
	}
	if _, err := psql("CREATE TABLE t (id int); INSERT INTO t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	s := status()
	pid, err := os.ReadFile(filepath.Join(dir, s.Primary, "pg/postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(pid), "\n")
	n, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	within("writes go on", func() bool { _, err := psql("INSERT INTO t VALUES (2)"); return err == nil })
	if rows, err := psql("SELECT count(*) FROM t WHERE id = 1"); err != nil || rows != "1" {
		t.Errorf("of the first row there are %q, %v", rows, err)
	}
	b.run("cluster", "demo", "--dir", dir, "--port", strconv.Itoa(port)).want(t, 4, "in use")
	twin(t, b, dir, port)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		ended <- err
		if o := finished(t, err, stdout, stderr); o.code != 0 {
			t.Errorf("after Ctrl-C the exit code is %d\n%s", o.code, o.stderr)
		}
	case <-time.After(time.Minute):
		t.Fatalf("Ctrl-C does not end it\n%s", stderr.String())
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left (%v)", dir, err)
	}
	b.clean()
}

// twin starts a second agent that calls itself c, as if its configuration had been
// copied to another host: it is told so and ends, and the cluster goes on.
func twin(t *testing.T, b *bench, dir string, port int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "etc/c/node.yaml"))
	must(t, err)
	at := func(p int) string { return fmt.Sprintf("127.0.0.1:%d", p) }
	own := strings.NewReplacer(at(port+2), at(port+5), at(port+12), at(port+15), at(port+22), at(port+19),
		filepath.Join(dir, "c"), filepath.Join(dir, "twin"), "/c\nidentity", "/twin\nidentity").Replace(string(text))
	if !strings.Contains(own, "/twin\nidentity") {
		t.Fatalf("no directory in memory of its own:\n%s", own)
	}
	file := filepath.Join(dir, "twin.yaml")
	must(t, os.WriteFile(file, []byte(own), 0o600))
	b.run("node", "--config", file).want(t, 4, "another agent that calls itself c")
	must(t, os.RemoveAll(filepath.Join(dir, "twin")))
	must(t, os.Remove(file))
	var s clusterStatus
	b.eventually("all three are well again", func() bool {
		o := b.run("status", "--json")
		return json.Unmarshal([]byte(o.stdout), &s) == nil && s.Open && len(s.S) == 2
	})
}

// TestDemoRefuses touches nothing.
func TestDemoRefuses(t *testing.T) {
	needPostgres(t)
	b := newBench(t)
	full := shortDir(t)
	if err := os.WriteFile(filepath.Join(full, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(freePorts(t))
	b.run("cluster", "demo", "--dir", full, "--port", port).want(t, 4, "not empty")
	b.run("cluster", "demo", "--port", "80").want(t, 1, "--port 80")
	b.run("cluster", "demo", "--profile", "slow", "--port", port).want(t, 1, "default and fast")
	if os.Geteuid() == 0 {
		b.run("cluster", "demo", "--user", "root", "--port", port).want(t, 1, "never runs as root")
	}
	if e, err := os.ReadDir(full); err != nil || len(e) != 1 {
		t.Errorf("the folder that was refused holds %v, %v", e, err)
	}
}
