package pgbench

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/pgbench/pgtest"
)

// bench is a real server with pgbench's tables.
func bench(t *testing.T) *pgtest.Server {
	s := pgtest.Start(t, "fsync=off")
	cfg := Config{Host: s.Socket, User: s.User, Database: "postgres"}
	if out, err := s.Command(t.Context(), "pgbench", InitArgs(cfg, 1)...).CombinedOutput(); err != nil {
		t.Fatalf("pgbench -i: %v\n%s", err, out)
	}
	return s
}

// run runs pgbench for real, calls during once transactions are logged as
// running, and reads what is left.
func run(t *testing.T, s *pgtest.Server, cfg Config, stop time.Duration, during func()) *Result {
	t.Helper()
	cfg.Host, cfg.User, cfg.Database = s.Socket, s.User, "postgres"
	cfg.LogPrefix = filepath.Join(s.Socket, t.Name())
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), stop)
	defer cancel()
	cmd := s.Command(ctx, "pgbench", Args(cfg)...)
	fired := make(chan struct{})
	go func() {
		defer close(fired)
		if during != nil {
			waitForRows(ctx, s)
			during()
		}
	}()
	stdout, stderr, exit, err := pgtest.Pipe(cmd)
	<-fired
	if err != nil {
		t.Fatal(err)
	}
	out := Output{Stdout: stdout, Stderr: stderr, Exit: exit, HardStopped: ctx.Err() != nil}
	for _, name := range LogNames(cfg, cmd.Process.Pid) {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		out.Logs = append(out.Logs, io.Reader(f))
	}
	r, err := Read(cfg, out)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("exit %d, %s", exit, strings.ReplaceAll(stdout, "\n", " | "))
	t.Logf("invalid: %q", r.Invalid)
	return r
}

// waitForRows returns when the load has committed something.
func waitForRows(ctx context.Context, s *pgtest.Server) {
	for ctx.Err() == nil {
		out, err := s.Command(ctx, "psql", "-AtX", "-h", s.Socket, "-U", s.User, "-c", "SELECT count(*) > 50 FROM pgbench_history", "postgres").Output()
		if err == nil && strings.TrimSpace(string(out)) == "t" {
			return
		}
	}
}

func wants(t *testing.T, r *Result, parts ...string) {
	t.Helper()
	if r.Valid() || len(r.Metrics()) != 0 {
		t.Errorf("a broken run is valid, or has figures: %v", r.Metrics())
	}
	for _, p := range parts {
		if !strings.Contains(r.Why(), p) {
			t.Errorf("the reason %q does not say %q", r.Why(), p)
		}
	}
}

func TestGoodRun(t *testing.T) {
	s := bench(t)
	for _, cfg := range []Config{
		{Clients: 4, Jobs: 2, Seconds: 2, Protocol: "prepared", Seed: 7},
		{Script: TPCB, Clients: 1, Seconds: 2},
		{Script: SelectOnly, Clients: 2, Seconds: 2, Rate: 100, NoVacuum: true},
	} {
		cfg.StallLimit = 1900 * time.Millisecond // a busy machine may well stall for a second
		r := run(t, s, cfg, Deadline(cfg), nil)
		if !r.Valid() {
			t.Errorf("%+v: a good run is invalid: %s", cfg, r.Why())
			continue
		}
		m := r.Metrics()
		for _, name := range []string{"latency_mean_ms", "latency_p50_ms", "latency_p99_ms", "latency_p999_ms", "tps"} {
			if m[name] <= 0 {
				t.Errorf("%s = %v", name, m[name])
			}
		}
		if f, ok := m["failed"]; !ok || f != 0 {
			t.Errorf("failed = %v", f)
		}
		// The printed average is time × clients ÷ transactions, which holds
		// pgbench's own work between transactions too.
		if ratio := m["latency_mean_ms"] / *r.LatencyMs; ratio < 0.6 || ratio > 1.03 {
			t.Errorf("mean by the log %.3f ms, printed %.3f", m["latency_mean_ms"], *r.LatencyMs)
		}
		sum := 0
		for _, sec := range r.Seconds {
			sum += sec.Done
		}
		if int64(sum) != r.Transactions {
			t.Errorf("the seconds hold %d of %d transactions", sum, r.Transactions)
		}
		if (r.Service != nil) != (cfg.Rate > 0) {
			t.Error("service time is kept with a rate, and only then")
		}
		if enc, err := r.EncodeHistogram(); err != nil || enc == "" {
			t.Errorf("histogram: %q, %v", enc, err)
		}
	}
}

// TestCasePgbenchKilledServer: pgbench ends with a TPS and "failed 0".
func TestCasePgbenchKilledServer(t *testing.T) {
	s := bench(t)
	r := run(t, s, Config{Clients: 4, Jobs: 2, Seconds: 8}, time.Minute, s.Kill)
	if r.Failed != nil && *r.Failed != 0 {
		t.Errorf("pgbench itself counts %d failed; the trap has gone?", *r.Failed)
	}
	wants(t, r, "4 of 4 clients aborted", "of 8 s")
}

func TestOneBackendKilledInMidRun(t *testing.T) {
	s := bench(t)
	r := run(t, s, Config{Clients: 4, Jobs: 2, Seconds: 3}, time.Minute, func() {
		sql := "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbench' LIMIT 1"
		if out, err := s.Command(t.Context(), "psql", "-AtX", "-h", s.Socket, "-U", s.User, "-c", sql, "postgres").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	wants(t, r, "1 of 4 clients aborted")
}

// TestCasePgbenchFrozenServer: -T does not end pgbench, the hard stop does.
func TestCasePgbenchFrozenServer(t *testing.T) {
	s := bench(t)
	r := run(t, s, Config{Clients: 2, Jobs: 1, Seconds: 4}, 8*time.Second, func() { s.Signal(syscall.SIGSTOP) })
	wants(t, r, "hard stop")
	s.Signal(syscall.SIGCONT)
}

// TestCasePgbenchStalledServer: one that freezes for a while and goes on, with
// which pgbench is content.
func TestCasePgbenchStalledServer(t *testing.T) {
	s := bench(t)
	r := run(t, s, Config{Clients: 2, Jobs: 1, Seconds: 5}, time.Minute, func() {
		s.Signal(syscall.SIGSTOP)
		time.Sleep(1800 * time.Millisecond)
		s.Signal(syscall.SIGCONT)
	})
	wants(t, r, "no transaction ended for")
	if r.LongestMs < 1500 {
		t.Errorf("the longest gap is %.0f ms", r.LongestMs)
	}
}

func TestNoServer(t *testing.T) {
	s := bench(t)
	s.Kill()
	cfg := Config{Host: s.Socket, User: s.User, Database: "postgres", Clients: 1, Seconds: 1}
	stdout, stderr, exit, err := pgtest.Pipe(s.Command(t.Context(), "pgbench", Args(cfg)...))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Read(cfg, Output{Stdout: stdout, Stderr: stderr, Exit: exit})
	if err != nil {
		t.Fatal(err)
	}
	wants(t, r, "onnect")
}
