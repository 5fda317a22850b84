package instance_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance"
)

// tree is every file below a directory with its time, to see that nothing was touched.
func tree(t testing.TB, dir string) string {
	t.Helper()
	out, err := exec.Command("find", dir, "-printf", "%p %s %T@\n").CombinedOutput()
	must(t, err)
	return string(out)
}

// TestCheck: what is wrong is named, with what to do, and nothing is touched.
func TestCheck(t *testing.T) {
	n := newNodes(t)
	p := n.node("a")
	if errs := instance.CheckHost(t.Context(), p.cfg); len(errs) > 0 {
		t.Fatalf("an empty place is refused: %v", errs)
	}
	p.create(t)
	if errs := instance.CheckHost(t.Context(), p.cfg); len(errs) > 0 {
		t.Fatalf("its own directory is refused: %v", errs)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(p.cfg.Address, itoa(p.cfg.Port)))
	must(t, err)
	defer func() { _ = l.Close() }()
	old := filepath.Join(n.dir, "old")
	must(t, os.Mkdir(old, 0o700))
	must(t, os.WriteFile(filepath.Join(old, "PG_VERSION"), []byte("9.6\n"), 0o600))
	before := tree(t, p.cfg.DataDir)
	for what, c := range map[string]struct {
		change func(*instance.Config)
		want   []string
	}{
		"a port in use":      {func(*instance.Config) {}, []string{"members", "in use", "another port"}},
		"a foreign address":  {func(c *instance.Config) { c.Address = "192.0.2.1" }, []string{"192.0.2.1", "no address of this host"}},
		"a bad setting":      {func(c *instance.Config) { c.Settings = map[string]string{"fsync": "off"} }, []string{"postgres.settings.fsync", "power cut"}},
		"a bad rule":         {func(c *instance.Config) { c.HBA = []string{"host replication all all trust"} }, []string{"postgres.hba[0]", "certificate"}},
		"an unknown setting": {func(c *instance.Config) { c.Settings = map[string]string{"shared_bufers": "1GB", "work_mem": "8MB"} }, []string{"postgres.settings.shared_bufers", "unrecognized"}},
		"a wrong value":      {func(c *instance.Config) { c.Settings = map[string]string{"work_mem": "lots"} }, []string{"postgres.settings.work_mem", "invalid value"}},
		"a wrong method":     {func(c *instance.Config) { c.HBA = []string{"host all all samenet scram-sha-25"} }, []string{"postgres.hba[0]", "scram-sha-256"}},
		"another major":      {func(c *instance.Config) { c.DataDir = old }, []string{"postgres.data", "postgres.bin"}},
		"no programs":        {func(c *instance.Config) { c.BinDir = "/nonexistent" }, []string{"postgres.bin", "/nonexistent"}},
	} {
		cfg := p.cfg
		c.change(&cfg)
		cfg.StateDir = filepath.Join(n.dir, "untouched")
		var all []string
		for _, r := range instance.CheckHost(t.Context(), cfg) {
			all = append(all, r.Key+": "+r.Err.Error())
		}
		if _, err := os.Stat(cfg.StateDir); err == nil {
			t.Errorf("%s: the check made the state directory", what)
		}
		for _, want := range c.want {
			if !strings.Contains(strings.Join(all, "\n"), want) {
				t.Errorf("%s: %q does not say %q", what, all, want)
			}
		}
	}
	if after := tree(t, p.cfg.DataDir); after != before {
		t.Errorf("the data directory was touched:\n%s\nbecame\n%s", before, after)
	}
	for what, c := range map[string]struct {
		change func(*instance.Config)
		want   string
	}{
		"a bad node name":    {func(c *instance.Config) { c.Self = "a_b" }, "hyphens"},
		"no programs":        {func(c *instance.Config) { c.BinDir = "/nonexistent" }, "/nonexistent"},
		"a long run_dir":     {func(c *instance.Config) { c.RunDir = "/run/" + strings.Repeat("x", 100) }, "shorter"},
		"a relative path":    {func(c *instance.Config) { c.DataDir = "data" }, "absolute"},
		"Postgres as root":   {func(c *instance.Config) { c.OSUser = "root" }, "root"},
		"a user that is not": {func(c *instance.Config) { c.OSUser = "no-such-user" }, "no-such-user"},
	} {
		cfg := p.cfg
		c.change(&cfg)
		i, err := instance.New(cfg)
		if err == nil {
			_ = i.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v does not say %q", what, err, c.want)
		}
	}
}

func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a small file system")
	}
	n := newNodes(t)
	dir := filepath.Join(n.dir, "small")
	must(t, os.Mkdir(dir, 0o755))
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=300m,mode=0755", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("cannot mount: %s", out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() })
	p := n.node("a", func(c *instance.Config) { c.DataDir = filepath.Join(dir, "data") })
	fill := func(mb int) {
		must(t, os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, mb<<20), 0o600))
	}
	fill(100)
	if _, err := p.Create(t.Context()); err == nil || !strings.Contains(err.Error(), "nearly full") {
		t.Errorf("made on a nearly full disk: %v", err)
	}
	if errs := instance.CheckHost(t.Context(), p.cfg); len(errs) != 1 || !strings.Contains(errs[0].Err.Error(), "nearly full") {
		t.Errorf("checked: %v", errs)
	}
	fill(0)
	p.create(t)
	p.watch(t)
	p.startPrimary(t)
	p.looks(t, "headroom", func(v cluster.Postgres) bool { return v.Headroom && v.Running })
	fill(150)
	p.looks(t, "no headroom", func(v cluster.Postgres) bool { return !v.Headroom })
	fill(0)
	p.looks(t, "headroom again", func(v cluster.Postgres) bool { return v.Headroom })
}

func TestAdopt(t *testing.T) {
	n := newNodes(t)
	p := n.node("a")
	out, err := n.asPostgres("initdb", "-D", p.cfg.DataDir, "-U", "owner", "-A", "trust", "--no-instructions").CombinedOutput()
	if err != nil {
		must(t, os.Chmod(filepath.Dir(p.cfg.DataDir), 0o777))
		out, err = n.asPostgres("initdb", "-D", p.cfg.DataDir, "-U", "owner", "-A", "trust", "--no-instructions").CombinedOutput()
	}
	if err != nil {
		t.Fatalf("initdb: %v: %s", err, out)
	}
	conf := filepath.Join(p.cfg.DataDir, "postgresql.conf")
	f, err := os.OpenFile(conf, os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString("work_mem = '11MB'\nfsync = off\nsynchronous_commit = off\n")
	must(t, err)
	must(t, f.Close())
	must(t, os.WriteFile(filepath.Join(p.cfg.DataDir, "postgresql.auto.conf"), []byte("synchronous_standby_names = ''\nmaintenance_work_mem = '77MB'\n"), 0o600))
	// postgresql.auto.conf belongs to Postgres's user, as does the rest.
	if a := n.asPostgres("true").SysProcAttr.Credential; a != nil {
		must(t, os.Chown(filepath.Join(p.cfg.DataDir, "postgresql.auto.conf"), int(a.Uid), int(a.Gid)))
	}
	refused := func(what, want string) {
		t.Helper()
		before := tree(t, p.cfg.DataDir)
		if _, err := p.Adopt(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v does not say %q", what, err, want)
		}
		if after := tree(t, p.cfg.DataDir); after != before {
			t.Errorf("%s: the directory was touched", what)
		}
	}
	signal := filepath.Join(p.cfg.DataDir, "standby.signal")
	must(t, os.WriteFile(signal, nil, 0o600))
	refused("a standby", "standby")
	must(t, os.Remove(signal))
	version := filepath.Join(p.cfg.DataDir, "PG_VERSION")
	was, err := os.ReadFile(version)
	must(t, err)
	must(t, os.WriteFile(version, []byte("9\n"), 0o600))
	refused("another major", "postgres.bin")
	must(t, os.WriteFile(version, was, 0o600))

	sock := filepath.Join(n.dir, "sock")
	must(t, os.Mkdir(sock, 0o777))
	must(t, os.Chmod(sock, 0o777))
	cmd := n.asPostgres("postgres", "-D", p.cfg.DataDir, "-c", "listen_addresses=", "-c", "unix_socket_directories="+sock)
	must(t, cmd.Start())
	go func() { _ = cmd.Wait() }()
	p.restart(t)
	p.watch(t)
	p.looks(t, "somebody else's Postgres", func(v cluster.Postgres) bool { return v.Running && v.Foreign })
	if _, err := p.Adopt(t.Context()); err == nil || !strings.Contains(err.Error(), "stop it") {
		t.Errorf("adopted while it runs: %v", err)
	}
	p.stop(t, false)

	inc, err := p.Adopt(t.Context())
	must(t, err)
	d := p.startPrimary(t)
	if d.Postgres.Incarnation != inc || !d.Postgres.Primary {
		t.Errorf("it looks %+v", d.Postgres)
	}
	for name, want := range map[string]string{"work_mem": "11MB", "maintenance_work_mem": "77MB", "fsync": "on", "synchronous_commit": "on",
		"synchronous_standby_names": "ANY 1 (holdfast_nobody)", "shared_buffers": "16MB"} {
		var have string
		c := p.agent(t)
		_, err := c.Exec(t.Context(), "RESET ALL")
		must(t, err)
		must(t, c.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&have))
		if have != want {
			t.Errorf("%s is %s, want %s", name, have, want)
		}
	}
	q := n.node("b", func(c *instance.Config) { c.DataDir = p.cfg.DataDir })
	if _, err := q.Adopt(t.Context()); err == nil {
		t.Error("another node adopted it too")
	}
}
