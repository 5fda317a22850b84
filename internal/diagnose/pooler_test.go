package diagnose

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startPgbouncer puts pgbouncer in transaction mode in front of a server.
func startPgbouncer(t *testing.T, s *server) (dsn string) {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Skip("needs pgbouncer (apt-get install pgbouncer)")
	}
	dir := tempDir(t)
	if s.cred != nil {
		check(t, os.Chown(dir, int(s.cred.Uid), int(s.cred.Gid)))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	check(t, l.Close())
	conf := fmt.Sprintf(`[databases]
* = host=%s port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 6
logfile = %s/log
pidfile = %s/pid
`, s.run, s.port, port, dir, dir)
	// With auth_type any every login is this user on the server.
	conf = strings.Replace(conf, "\n[pgbouncer]", " user=postgres\n[pgbouncer]", 1)
	file := filepath.Join(dir, "ini")
	check(t, os.WriteFile(file, []byte(conf), 0o644))
	cmd := exec.Command(program, file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Pdeathsig: syscall.SIGKILL}
	check(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	s.until(10*time.Second, "pgbouncer listens", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable", port)
}

func TestThroughPgbouncer(t *testing.T) {
	s := newServer(t, debianBin(t), "", "fsync=off")
	s.pgbenchTables(1)
	dsn := startPgbouncer(t, s)
	// Seen once: at the end pgbouncer told a client that its server's connection was
	// closed. What is tested is the diagnosis, which has its samples by then.
	s.loadMayEnd = true
	port := strings.Fields(strings.SplitN(dsn, "port=", 2)[1])[0]
	// Rows that many want: sixteen clients share six sessions of the server.
	f := s.script("UPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = 1;\n")
	s.load("-h", "127.0.0.1", "-p", port, "-c", "16", "-M", "simple", "-f", f)
	d, err := Run(context.Background(), Options{DSN: dsn, For: 3 * time.Second, Interval: 20 * time.Millisecond, Getenv: os.Getenv, share: 0.1})
	check(t, err)
	logDiagnosis(t, d)
	if !d.Server.Pooler || d.Server.Role != "primary" || d.Sampling.Samples < 20 {
		t.Errorf("%+v %+v", d.Server, d.Sampling)
	}
	if !strings.Contains(strings.Join(d.Missing, "\n"), "wait for the pooler") {
		t.Errorf("it does not say what a pooler hides: %q", d.Missing)
	}
	if len(d.Breakdown) == 0 || d.Rates.TPS == nil || *d.Rates.TPS < 10 || d.Verdict.Cause == CauseUnknown {
		t.Errorf("%+v %+v", d.Verdict, d.Rates)
	}
	// Nothing of ours may stay behind in the sessions that clients share.
	for range 20 {
		c := s.connectVia(dsn)
		var ro string
		check(t, c.QueryRow(context.Background(), "SELECT current_setting('default_transaction_read_only') || current_setting('jit')").Scan(&ro))
		if ro != "offon" {
			t.Fatalf("a session of the pooler was changed: %q", ro)
		}
		_ = c.Close(context.Background())
	}
	t.Run("console", func(t *testing.T) {
		_, err := Run(context.Background(), Options{DSN: strings.Replace(dsn, "dbname=postgres", "dbname=pgbouncer", 1), For: time.Second, Getenv: os.Getenv})
		var ce *ConnectError
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), "pgbouncer's own console") {
			t.Errorf("%v", err)
		}
	})
	t.Run("server dies", func(t *testing.T) {
		s.t = t
		d, err := during(t, dsn, 3*time.Second, 20, s.kill)
		check(t, err)
		if i := d.Interrupted; i == nil || i.Alive || !strings.Contains(i.Text, "pooler") {
			t.Errorf("%+v", d.Interrupted)
		} else {
			t.Logf("%+v", *i)
		}
	})
}
