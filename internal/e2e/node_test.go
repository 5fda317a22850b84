package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-db/holdfast/internal/postgres"
)

// layout is what `cluster init` made for two nodes on this machine.
type layout struct {
	*bench
	dir  string
	user string
	bin  string
}

func newLayout(t *testing.T) *layout {
	t.Helper()
	needPostgres(t)
	l := &layout{bench: newBench(t), dir: shortDir(t), user: "postgres"}
	if os.Geteuid() != 0 {
		u, err := user.Current()
		if err != nil {
			t.Fatal(err)
		}
		l.user = u.Username
	} else if _, err := user.Lookup(l.user); err != nil {
		t.Skip(err)
	}
	var err error
	if l.bin, err = postgres.FindBinDir(""); err != nil {
		t.Fatal(err)
	}
	port := freePorts(t)
	l.run("cluster", "init", "refused", "--out", l.dir+"/etc", "--etc", l.dir+"/etc/b", "--state", l.dir+"/state", "--run", l.dir+"/run", "--data", l.dir+"/pg", "--user", l.user,
		"--port", strconv.Itoa(port), "--agent-port", strconv.Itoa(port+1), "--http-port", strconv.Itoa(port+2),
		"--node", "a=127.0.0.2", "--node", "b=127.0.0.3", "--node", "w=127.0.0.4,witness").want(t, 0)
	return l
}

// asUser runs one of PostgreSQL's programs as the user who may.
func (l *layout) asUser(name string, args ...string) {
	l.t.Helper()
	cmd := exec.CommandContext(l.t.Context(), filepath.Join(l.bin, name), args...)
	cmd.Dir = "/"
	if os.Geteuid() == 0 {
		u, err := user.Lookup(l.user)
		if err != nil {
			l.t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// dataDir makes a data directory that is not this cluster's.
func (l *layout) dataDir() string {
	l.t.Helper()
	pg := l.dir + "/pg"
	if err := os.Mkdir(pg, 0o700); err != nil {
		l.t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		u, _ := user.Lookup(l.user)
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := os.Chown(pg, uid, gid); err != nil {
			l.t.Fatal(err)
		}
	}
	l.asUser("initdb", "-D", pg, "-N", "--no-instructions")
	return pg
}

func (l *layout) edit(old, now string) {
	l.t.Helper()
	file := l.dir + "/etc/b/node.yaml"
	b, err := os.ReadFile(file)
	if err != nil {
		l.t.Fatal(err)
	}
	text := strings.Replace(string(b), old, now, 1)
	if text == string(b) {
		l.t.Fatalf("%q is not in\n%s", old, b)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// files lists everything with size and time of change.
func (l *layout) files() string {
	var b strings.Builder
	_ = filepath.Walk(l.dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			fmt.Fprintln(&b, path, info.Size(), info.ModTime().UnixNano())
		}
		return nil
	})
	return b.String()
}

// TestNodeRefuses: what a node must not go on with is refused with the reason and
// what to do, by --check and by a start alike, and nothing is touched.
func TestNodeRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(l *layout)
		code  int
		says  []string
	}{
		"unknown key":           {func(l *layout) { l.edit("mode:", "moode:") }, 1, []string{"node.yaml", "[8:1]", "moode"}},
		"a dangerous setting":   {func(l *layout) { l.edit("  # settings:", "  settings: {fsync: off}\n  # settings:") }, 1, []string{"node.yaml", "fsync", "power cut", "Leave it out"}},
		"replication in a rule": {func(l *layout) { l.edit("host all all samenet", "host replication all samenet") }, 1, []string{"node.yaml", "certificate"}},
		"another node's certificate": {func(l *layout) { l.edit("identity: "+l.dir+"/etc/b", "identity: "+l.dir+"/etc/a") }, 1,
			[]string{"node.yaml", "identity", `of node "a"`}},
		"another authority": {func(l *layout) {
			l.run("cluster", "init", "other", "--out", l.dir+"/other", "--node", "a=127.0.0.5", "--node", "b=127.0.0.6").want(l.t, 0)
			b, err := os.ReadFile(l.dir + "/other/b/ca.crt")
			if err != nil {
				l.t.Fatal(err)
			}
			if err := os.WriteFile(l.dir+"/etc/b/ca.crt", b, 0o600); err != nil {
				l.t.Fatal(err)
			}
		}, 1, []string{"not valid for this cluster", "cluster init"}},
		"a key that others may read": {func(l *layout) {
			if err := os.Chmod(l.dir+"/etc/b/node.key", 0o644); err != nil {
				l.t.Fatal(err)
			}
		}, 1, []string{"node.key", "chmod 0600"}},
		"no such programs":                     {func(l *layout) { l.edit("postgres:\n  data", "postgres:\n  bin: /nonexistent\n  data") }, 1, []string{"node.yaml", "/nonexistent"}},
		"a data directory of somebody else":    {func(l *layout) { l.dataDir() }, 4, []string{"system identifier", "move it away"}},
		"a directory with something else":      {func(l *layout) { must(l.t, os.MkdirAll(l.dir+"/pg/mine", 0o755)) }, 4, []string{"not empty", "mine"}},
		"a data directory of another major":    {func(l *layout) { must(l.t, os.WriteFile(l.dataDir()+"/PG_VERSION", []byte("9\n"), 0o644)) }, 4, []string{"node.yaml", "is of PostgreSQL 9", "postgres.bin"}},
		"Postgres's port in use":               {func(l *layout) { l.occupy("postgres: 127.0.0.3:") }, 4, []string{"in use by another program"}},
		"an address that this host has not":    {func(l *layout) { l.edit("postgres: 127.0.0.3:", "postgres: 192.0.2.1:") }, 4, []string{"192.0.2.1 is no address of this host"}},
		"a server that is older than its race": {func(l *layout) { l.oldServer() }, 4, []string{"PostgreSQL 15.12", "15.13"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLayout(t)
			c.spoil(l)
			before := l.files()
			for _, args := range [][]string{{"--check"}, nil} {
				o := l.run(append([]string{"node", "--config", l.dir + "/etc/b/node.yaml"}, args...)...)
				o.want(t, c.code, c.says...)
				if strings.Contains(o.stdout, "good") {
					t.Errorf("it says %s", o.stdout)
				}
			}
			if after := l.files(); after != before {
				t.Errorf("something was touched: before\n%s\nafter\n%s", before, after)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// occupy listens where the configuration names an address.
func (l *layout) occupy(key string) {
	l.t.Helper()
	b, err := os.ReadFile(l.dir + "/etc/b/node.yaml")
	must(l.t, err)
	_, rest, _ := strings.Cut(string(b), key)
	port, _, _ := strings.Cut(rest, "\n")
	x, err := net.Listen("tcp", "127.0.0.3:"+port)
	must(l.t, err)
	l.t.Cleanup(func() { _ = x.Close() })
}

// oldServer puts a program in the server's place that says it is an older one.
func (l *layout) oldServer() {
	l.t.Helper()
	dir := l.dir + "/bin"
	must(l.t, os.Mkdir(dir, 0o755))
	must(l.t, os.WriteFile(dir+"/postgres", []byte("#!/bin/sh\necho 'postgres (PostgreSQL) 15.12'\n"), 0o755))
	l.edit("postgres:\n  data", "postgres:\n  bin: "+dir+"\n  data")
}

// TestNodeCheckGood: --check of a good one makes nothing either.
func TestNodeCheckGood(t *testing.T) {
	l := newLayout(t)
	before := l.files()
	o := l.run("node", "--config", l.dir+"/etc/b/node.yaml", "--check")
	o.want(t, 0)
	if !strings.Contains(o.stdout, "node b of cluster refused") || l.files() != before {
		t.Errorf("it says %q, and there are\n%s\ninstead of\n%s", o.stdout, l.files(), before)
	}
	for _, dir := range []string{"state", "run", "pg"} {
		if _, err := os.Stat(l.dir + "/" + dir); !os.IsNotExist(err) {
			t.Errorf("%s was made (%v)", dir, err)
		}
	}
	l.run("config", "check", l.dir+"/etc/b/node.yaml").want(t, 0)
	if o := l.run("config", "show", "--config", l.dir+"/etc/b/node.yaml"); o.code != 0 || !strings.Contains(o.stdout, "slot_cap: 10GB") {
		t.Errorf("config show: %+v", o)
	}
	if o := l.run("config", "show", "--json", "--config", l.dir+"/etc/b/node.yaml"); o.code != 0 || !strings.Contains(o.stdout, `"degrade": "10s"`) {
		t.Errorf("config show --json: %+v", o)
	}
	l.run("dsn", "--config", l.dir+"/etc/b/node.yaml").want(t, 0)
	l.run("status", "--config", l.dir+"/etc/b/node.yaml").want(t, 2, "no agent answers")
}
