package dsn

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/pgbench/pgtest"
)

// pair is a primary and its standby, both reached over loopback.
type pairOfServers struct {
	primary *pgtest.Server
	ports   [2]int // primary, standby
	standby *exec.Cmd
	dir     string
	dead    int // a port on which nobody listens
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // a test's
	return l.Addr().(*net.TCPAddr).Port
}

func startPair(t *testing.T) *pairOfServers {
	t.Helper()
	p := &pairOfServers{ports: [2]int{freePort(t), freePort(t)}, dead: freePort(t)}
	set := func(port int) []string {
		return []string{"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(port), "lc_messages=C", "fsync=off"}
	}
	p.primary = pgtest.Start(t, append(set(p.ports[0]), "wal_keep_size=256MB")...)
	p.dir = filepath.Join(p.primary.Socket, "standby")
	backup := p.primary.Command(t.Context(), "pg_basebackup", "-h", "127.0.0.1", "-p", strconv.Itoa(p.ports[0]), "-U", p.primary.User, "-D", p.dir, "-X", "stream", "-c", "fast", "-N")
	if out, err := backup.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "standby.signal"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-D", p.dir, "-c", "unix_socket_directories=", "-c", "shared_buffers=32MB", "-c", "dynamic_shared_memory_type=mmap",
		"-c", fmt.Sprintf("primary_conninfo=host=127.0.0.1 port=%d user=%s application_name=s", p.ports[0], p.primary.User)}
	for _, s := range set(p.ports[1]) {
		args = append(args, "-c", s)
	}
	p.standby = p.primary.Command(context.Background(), "postgres", args...)
	if err := p.standby.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.signalStandby(syscall.SIGCONT)
		_ = p.standby.Process.Signal(syscall.SIGQUIT)
		_ = p.standby.Wait()
	})
	until(t, "the standby answers", func() bool { return p.ask(1, "SELECT 1") == "1" })
	return p
}

// signalStandby reaches the standby's walreceiver and startup process too.
func (p *pairOfServers) signalStandby(s syscall.Signal) {
	kids, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.standby.Process.Pid))
	for _, f := range append(strings.Fields(string(kids)), strconv.Itoa(p.standby.Process.Pid)) {
		pid, _ := strconv.Atoi(f)
		_ = syscall.Kill(pid, s)
	}
}

// ask returns one value, or "" and what went wrong.
func (p *pairOfServers) ask(which int, sql string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=postgres sslmode=disable", p.ports[which], p.primary.User))
	if err != nil {
		return err.Error()
	}
	defer c.Close(ctx) //nolint:errcheck // a test's
	var v string
	if err := c.QueryRow(ctx, "SELECT ("+sql+")::text").Scan(&v); err != nil {
		return err.Error()
	}
	return v
}

func (p *pairOfServers) exec(t *testing.T, which int, sql string) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=postgres sslmode=disable", p.ports[which], p.primary.User))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context()) //nolint:errcheck // a test's
	if _, err := c.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

// options name a dead member first, then the standby, then the primary.
func (p *pairOfServers) options() Options {
	at := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	return Options{User: p.primary.User, Database: "postgres", SSLMode: "prefer",
		Hosts: []Host{{Name: "dead", Address: at(p.dead)}, {Name: "standby", Address: at(p.ports[1])}, {Name: "primary", Address: at(p.ports[0])}}}
}

func python(t *testing.T, modules ...string) string {
	t.Helper()
	const python = "/usr/bin/python3" // Debian's, which has Debian's modules
	for _, m := range modules {
		if err := exec.Command(python, "-c", "import "+m).Run(); err != nil {
			t.Skipf("%s has no module %s: apt-get install python3-%s", python, m, m)
		}
	}
	return python
}

const recovering = "SELECT pg_is_in_recovery()"

// TestDriversFindThePrimary: each driver, with the string that is printed for it,
// passes over a dead member and a standby; with Replica it comes to the standby.
func TestDriversFindThePrimary(t *testing.T) {
	p := startPair(t)
	for _, c := range []struct {
		name string
		form Form
		run  func(t *testing.T, dsn string) string
	}{
		{"psql", Libpq, func(t *testing.T, dsn string) string {
			return run(t, "psql", "-X", "-A", "-t", "-c", recovering, dsn)
		}},
		{"pgx", PGX, func(t *testing.T, dsn string) string {
			conn, err := pgx.Connect(t.Context(), dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context()) //nolint:errcheck // a test's
			var in bool
			if err := conn.QueryRow(t.Context(), recovering).Scan(&in); err != nil {
				t.Fatal(err)
			}
			return strconv.FormatBool(in)
		}},
		{"psycopg", Psycopg, func(t *testing.T, dsn string) string {
			return run(t, python(t, "psycopg"), "-c", "import psycopg,sys; print(psycopg.connect(sys.argv[1]).execute('"+recovering+"').fetchone()[0])", dsn)
		}},
		{"psycopg2", Psycopg, func(t *testing.T, dsn string) string {
			return run(t, python(t, "psycopg2"), "-c", "import psycopg2,sys; c=psycopg2.connect(sys.argv[1]).cursor(); c.execute('"+recovering+"'); print(c.fetchone()[0])", dsn)
		}},
		{"django", Django, func(t *testing.T, settings string) string {
			return run(t, python(t, "django", "psycopg2"), "-c", "import os\nos.environ.setdefault('PGPASSWORD','')\n"+settings+
				"\nfrom django.conf import settings\nsettings.configure(DATABASES=DATABASES)\nfrom django.db import connection\n"+
				"with connection.cursor() as c:\n    c.execute('"+recovering+"')\n    print(c.fetchone()[0])\n")
		}},
		{"jdbc", JDBC, func(t *testing.T, dsn string) string {
			const jar = "/usr/share/java/postgresql.jar"
			if _, err := os.Stat(jar); err != nil {
				t.Skip("no " + jar + ": apt-get install libpostgresql-jdbc-java")
			}
			if _, err := exec.LookPath("java"); err != nil {
				t.Skip("no java: apt-get install default-jdk-headless")
			}
			src := filepath.Join(t.TempDir(), "Ask.java")
			text := `class Ask { public static void main(String[] a) throws Exception { try (var c = java.sql.DriverManager.getConnection(a[0]);
				var r = c.createStatement().executeQuery("` + recovering + `")) { r.next(); System.out.println(r.getBoolean(1)); } } }`
			if err := os.WriteFile(src, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return run(t, "java", "-cp", jar, src, dsn)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, replica := range []bool{false, true} {
				o := p.options()
				o.Replica = replica
				s, err := String(c.form, o)
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.ToLower(c.run(t, s)); !strings.HasPrefix(got, strconv.FormatBool(replica)[:1]) {
					t.Errorf("replica %v: pg_is_in_recovery is %q\n%s", replica, got, s)
				}
			}
		})
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// TestRetry runs the programs of docs/clients.md through a cancelled wait and
// through the death of the primary: each deposit is kept exactly once, and none
// is called kept before it is.
func TestRetry(t *testing.T) {
	build := filepath.Join(t.TempDir(), "commit")
	if out, err := exec.Command("go", "build", "-o", build, "../../docs/examples/commit").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Run("go", func(t *testing.T) { retry(t, PGX, build) })
	t.Run("python", func(t *testing.T) {
		if os.Getenv("HOLDFAST_LONG") == "" {
			t.Skip("takes 20 s: HOLDFAST_LONG=1")
		}
		retry(t, Psycopg, python(t, "psycopg"), "../../docs/examples/commit.py")
	})
}

const deposits = 500

func retry(t *testing.T, form Form, program ...string) {
	p := startPair(t)
	p.exec(t, 0, "CREATE TABLE done (key text PRIMARY KEY, tries int NOT NULL); CREATE TABLE account (balance int NOT NULL); INSERT INTO account VALUES (0)")
	p.exec(t, 0, "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (s)'")
	p.exec(t, 0, "SELECT pg_reload_conf()")
	until(t, "commits wait for the standby", func() bool {
		return p.ask(0, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'") == "1"
	})
	o := p.options()
	o.Hosts[2].Primary = true // as the agent knows; psycopg 3.1 would give up at the frozen standby otherwise
	s, err := String(form, o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program[0], append(program[1:], s, strconv.Itoa(deposits))...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var kept atomic.Int64
	ended := make(chan error, 1)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			kept.Add(1)
		}
		ended <- cmd.Wait()
	}()
	until(t, "deposits are kept", func() bool { return kept.Load() > 20 })

	p.signalStandby(syscall.SIGSTOP)
	const waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
	until(t, "the commit waits", func() bool { return p.ask(0, waiting) == "1" })
	before := kept.Load()
	seen := p.ask(0, "SELECT count(*) FROM done")
	p.exec(t, 0, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	until(t, "what was cancelled shows, though no standby has it", func() bool {
		return p.ask(0, "SELECT count(*) FROM done") != seen
	})
	until(t, "the retry waits again", func() bool { return p.ask(0, waiting) == "1" })
	if now := kept.Load(); now != before {
		t.Errorf("%d deposits were called kept while no standby answered", now-before)
	}
	p.signalStandby(syscall.SIGCONT)
	until(t, "it goes on", func() bool { return kept.Load() > before+20 })

	p.primary.Kill()
	p.exec(t, 1, "SELECT pg_promote()")
	select {
	case err := <-ended:
		if err != nil {
			t.Fatalf("%v\n%s", err, stderr.String())
		}
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		t.Fatalf("not over after a minute: %d deposits are kept\n%s", kept.Load(), stderr.String())
	}
	if kept.Load() != deposits || p.ask(1, "SELECT balance FROM account") != strconv.Itoa(deposits) || p.ask(1, "SELECT count(*) FROM done") != strconv.Itoa(deposits) {
		t.Errorf("of %d deposits %d are called kept, the balance is %s", deposits, kept.Load(), p.ask(1, "SELECT balance FROM account"))
	}
	if p.ask(1, "SELECT count(*) > 0 FROM done WHERE tries > 1") != "true" {
		t.Error("nothing was tried twice: the test shows nothing")
	}
}
