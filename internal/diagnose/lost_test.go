package diagnose

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// during runs a diagnosis and, when it has taken so many samples, something else.
func during(t *testing.T, dsn string, length time.Duration, samples int, what func()) (Diagnosis, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), length+30*time.Second)
	defer cancel()
	reached, done := make(chan struct{}), make(chan struct{})
	once := false
	go func() {
		defer close(done)
		select {
		case <-reached:
			what()
		case <-ctx.Done():
		}
	}()
	d, err := Run(ctx, Options{DSN: dsn, For: length, Interval: 20 * time.Millisecond, Seed: 1, Getenv: os.Getenv, share: 0.1, deadline: time.Second,
		Progress: func(_, _ time.Duration, n int) {
			if n >= samples && !once {
				once = true
				close(reached)
			}
		}})
	cancel()
	<-done
	return d, err
}

// wantLost checks what the diagnosis says of the server's fate.
func wantLost(t *testing.T, d Diagnosis, err error, what string, alive bool, say string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
	if d.Interrupted == nil {
		t.Fatalf("nothing is said of it: %+v", d.Verdict)
	}
	t.Logf("after %.1f s: %s: %s", d.Interrupted.AtS, d.Interrupted.What, d.Interrupted.Text)
	if d.Interrupted.What != what || d.Interrupted.Alive != alive || !strings.Contains(d.Interrupted.Text, say) {
		t.Errorf("%+v, want %q (alive %v) and %q", d.Interrupted, what, alive, say)
	}
	if len(d.Symptoms) != 5 || len(d.Verdict.Sentences) != 2 {
		t.Errorf("no diagnosis of what was seen until then: %+v", d.Verdict)
	}
}

func TestServerLost(t *testing.T) {
	s := newServer(t, debianBin(t), "", "fsync=off")
	t.Run("dies", func(t *testing.T) {
		s.t = t
		d, err := during(t, s.dsn(), 2*time.Second, 20, s.kill)
		wantLost(t, d, err, "died", false, "nobody listens there")
		s.start()
	})
	t.Run("restarts", func(t *testing.T) {
		s.t = t
		d, err := during(t, s.dsn(), 6*time.Second, 30, func() { s.stop(); s.start() })
		wantLost(t, d, err, "restarted", true, "answered again after")
	})
	t.Run("crashes and recovers", func(t *testing.T) {
		s.t = t
		d, err := during(t, s.dsn(), 6*time.Second, 30, func() { s.crash() })
		wantLost(t, d, err, "restarted", true, "crashed")
	})
	t.Run("hangs", func(t *testing.T) {
		s.t = t
		d, err := during(t, s.dsn(), 2500*time.Millisecond, 20, func() { s.signal(syscall.SIGSTOP) })
		s.signal(syscall.SIGCONT)
		wantLost(t, d, err, "hangs", false, "takes no new connection either")
	})
	t.Run("hangs and goes on", func(t *testing.T) {
		s.t = t
		d, err := during(t, s.dsn(), 4500*time.Millisecond, 20, func() {
			s.signal(syscall.SIGSTOP)
			time.Sleep(1500 * time.Millisecond) // the hang itself
			s.signal(syscall.SIGCONT)
		})
		wantLost(t, d, err, "hangs", true, "then went on")
		if d.Seconds < 3.5 {
			t.Errorf("sampling ended after %.1f s: the server was the same", d.Seconds)
		}
	})
	t.Run("connection lost", func(t *testing.T) {
		s.t = t
		d, err := during(t, s.dsn(), 2*time.Second, 20, s.terminate)
		wantLost(t, d, err, "connection lost", true, "the server itself went on")
		if d.Seconds < 1.5 || d.Rates.TPS == nil {
			t.Errorf("sampling ended after %.1f s: %+v", d.Seconds, d.Rates)
		}
	})
	t.Run("refuses", func(t *testing.T) {
		s.t = t
		s.exec("CREATE ROLE watcher LOGIN", "GRANT pg_monitor TO watcher")
		d, err := during(t, strings.Replace(s.dsn(), "user=postgres", "user=watcher", 1), 2*time.Second, 20, func() {
			s.exec("ALTER ROLE watcher NOLOGIN")
			s.terminate()
		})
		wantLost(t, d, err, "refuses", false, "not permitted to log in")
	})
	t.Run("too early", func(t *testing.T) {
		s.t = t
		_, err := during(t, s.dsn(), 2*time.Second, 2, s.kill)
		if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "nobody listens") {
			t.Errorf("%v", err)
		}
		s.start()
	})
	t.Run("stopped", func(t *testing.T) {
		s.t = t
		ctx, cancel := context.WithCancel(context.Background())
		d, err := Run(ctx, Options{DSN: s.dsn(), For: time.Minute, Interval: 20 * time.Millisecond, share: 0.1, Progress: func(_, _ time.Duration, n int) {
			if n == 30 {
				cancel()
			}
		}})
		wantLost(t, d, err, "stopped", true, "before its time")
	})
}

// terminate ends the diagnosis's session.
func (s *server) terminate() {
	s.exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '" + applicationName + "'")
}

// crash kills a backend as the kernel's out-of-memory killer does: the
// postmaster ends all others and recovers.
func (s *server) crash() {
	s.t.Helper()
	c := s.connect()
	var pid int
	check(s.t, c.QueryRow(context.Background(), "SELECT pg_backend_pid()").Scan(&pid))
	check(s.t, syscall.Kill(pid, syscall.SIGKILL))
}

// newStandby streams from s, from a data directory below dir ("" for its own).
func newStandby(t testing.TB, s *server, settings ...string) *server {
	t.Helper()
	b := prepareServer(t, s.bin, "", append([]string{"hot_standby=on", fmt.Sprintf("primary_conninfo=host=%s user=postgres application_name=standby", s.run)}, settings...)...)
	check(t, os.Remove(b.data))
	if out, err := s.command("pg_basebackup", "-D", b.data, "-c", "fast", "-X", "stream").CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v\n%s", err, out)
	}
	check(t, os.WriteFile(filepath.Join(b.data, "standby.signal"), nil, 0o644))
	b.start()
	return b
}

// TestStandby: a standby is called one, reads on it are diagnosed, its
// promotion is noticed, and so is an address that leads to another server.
func TestStandby(t *testing.T) {
	a := newServer(t, debianBin(t), "", "fsync=off")
	a.pgbenchTables(1)
	b := newStandby(t, a)
	t.Run("reads", func(t *testing.T) {
		b.t = t
		end := b.load("-S", "-c", "2")
		d := b.diagnose(3 * time.Second)
		end()
		if d.Server.Role != "standby" || d.Rates.TPS == nil || *d.Rates.TPS < 10 || len(d.Breakdown) == 0 {
			t.Errorf("%+v %+v", d.Server, d.Rates)
		}
		if d.Symptoms[0].Answer != No || !strings.Contains(strings.Join(d.Verdict.Sentences, " "), "standby") {
			t.Errorf("%+v %+v", d.Symptoms[0], d.Verdict)
		}
		if d.Rates.WALBytesPerTx != nil || d.Storage.FlushMs != nil {
			t.Errorf("a standby writes no WAL: %+v", d.Rates)
		}
	})
	t.Run("fails over to another address", func(t *testing.T) {
		a.t, b.t = t, t
		both := fmt.Sprintf("host=%s,%s port=5432,5432 user=postgres dbname=postgres target_session_attrs=read-write", a.run, b.run)
		d, err := during(t, both, 8*time.Second, 30, func() { a.kill(); b.exec("SELECT pg_promote()") })
		wantLost(t, d, err, "failed over", true, "another server answers as primary on timeline 2")
	})
	t.Run("is promoted under our feet", func(t *testing.T) {
		b.t = t
		c := newStandby(t, b)
		d, err := during(t, c.dsn(), 6*time.Second, 30, func() { c.exec("SELECT pg_promote()") })
		wantLost(t, d, err, "failed over", true, "was promoted")
		if d.Server.Role != "standby" {
			t.Errorf("role %q", d.Server.Role)
		}
	})
}

func TestLoginRefused(t *testing.T) {
	s := newServer(t, debianBin(t), "", "fsync=off", "max_connections=6", "superuser_reserved_connections=3")
	hba := filepath.Join(s.data, "pg_hba.conf")
	check(t, os.WriteFile(hba, []byte("local all postgres trust\nlocal all mona trust\nlocal all paula scram-sha-256\n"), 0o644))
	s.exec("CREATE ROLE mona LOGIN", "CREATE ROLE paula LOGIN PASSWORD 'geheimnis'", "CREATE ROLE rosa LOGIN", "SELECT pg_reload_conf()")
	as := func(user, more string) string {
		return strings.Replace(s.dsn(), "user=postgres", "user="+user, 1) + more
	}
	for _, c := range []struct{ name, dsn, what, say string }{
		{"no server", "host=/nowhere user=x", "unreachable", "nobody listens there"},
		{"refused port", "host=127.0.0.1 port=1 user=x sslmode=disable", "unreachable", "nobody listens there"},
		{"no such database", strings.Replace(s.dsn(), "dbname=postgres", "dbname=nowhere", 1), "refuses", "name a database that exists"},
		{"no such user", as("nobody", ""), "refuses", "pg_hba.conf"},
		{"no rule", as("rosa", ""), "refuses", "pg_hba.conf"},
		{"wrong password", as("paula", " password=falschheit"), "refuses", "is the password right"},
		{"no password", as("paula", " passfile=/dev/null"), "refuses", "password"},
		{"unresolvable", "host=no-such-host.invalid user=x", "unreachable", "does not resolve"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Run(context.Background(), Options{DSN: c.dsn, For: time.Second, Getenv: os.Getenv})
			var ce *ConnectError
			if !errors.As(err, &ce) {
				t.Fatalf("%v", err)
			}
			t.Log(err)
			if ce.What != c.what || !strings.Contains(err.Error(), c.say) {
				t.Errorf("%s: %v, want %s and %q", ce.What, err, c.what, c.say)
			}
			if strings.Contains(err.Error(), "falschheit") || strings.Contains(err.Error(), "geheimnis") {
				t.Errorf("the password is shown: %v", err)
			}
		})
	}
	t.Run("all connections taken", func(t *testing.T) {
		for range 3 {
			c, err := pgx.Connect(context.Background(), as("mona", ""))
			check(t, err)
			defer func() { _ = c.Close(context.Background()) }()
		}
		_, err := Run(context.Background(), Options{DSN: as("mona", ""), For: time.Second, Getenv: os.Getenv})
		if err == nil || !strings.Contains(err.Error(), "all connections are taken") {
			t.Errorf("%v", err)
		}
	})
	t.Run("hangs", func(t *testing.T) {
		s.signal(syscall.SIGSTOP)
		defer s.signal(syscall.SIGCONT)
		_, err := Run(context.Background(), Options{DSN: as("postgres", " connect_timeout=1"), For: time.Second, Getenv: os.Getenv, deadline: time.Second})
		var ce *ConnectError
		if !errors.As(err, &ce) || ce.What != "hangs" {
			t.Errorf("%v", err)
		}
	})
}
