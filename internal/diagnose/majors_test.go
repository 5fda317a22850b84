package diagnose

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// majorBin is where a major's programs are: Debian's, or what scripts/majors fetched.
func majorBin(t *testing.T, major int) string {
	t.Helper()
	for _, dir := range []string{fmt.Sprintf("/usr/lib/postgresql/%d/bin", major), fmt.Sprintf("../../.tools/postgres/%d/bin", major)} {
		if _, err := os.Stat(filepath.Join(dir, "postgres")); err != nil {
			continue
		}
		abs, err := filepath.Abs(dir)
		check(t, err)
		if strings.HasPrefix(abs, "/usr/") {
			return abs
		}
		return readable(t, filepath.Dir(abs))
	}
	t.Skipf("needs PostgreSQL %d: scripts/majors fetches it", major)
	return ""
}

// readable copies a server to where its own user may read it: a work tree may
// be below a directory that is closed to others.
func readable(t *testing.T, dir string) string {
	t.Helper()
	to := tempDir(t)
	if out, err := exec.Command("cp", "-r", dir, filepath.Join(to, "pg")).CombinedOutput(); err != nil {
		t.Fatalf("copy a server: %v %s", err, out)
	}
	return filepath.Join(to, "pg", "bin")
}

// columns says which figures a major has. What it has not must be absent.
type columns struct {
	images, flushes, activeTime, ioView, checkpointer bool
}

// TestMajors: of each column that moved between 13 and 18, the figure is found
// where the major has it, and absent where it has not.
func TestMajors(t *testing.T) {
	for major, has := range map[int]columns{
		13: {},
		14: {images: true, flushes: true, activeTime: true},
		15: {images: true, flushes: true, activeTime: true},
		16: {images: true, flushes: true, activeTime: true, ioView: true},
		17: {images: true, flushes: true, activeTime: true, ioView: true, checkpointer: true},
		18: {images: true, flushes: true, activeTime: true, ioView: true, checkpointer: true},
	} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			if !long() {
				t.Skip("HOLDFAST_LONG=1 tests all majors; TestCasePostgresExporterIssue1060 the newest always")
			}
			testMajor(t, majorBin(t, major), major, has)
		})
	}
}

// TestCasePostgresExporterIssue1060: columns that moved (blk_read_time in 17,
// the WAL's times to pg_stat_io in 18) break no reading; they are found under
// their new names.
func TestCasePostgresExporterIssue1060(t *testing.T) {
	testMajor(t, majorBin(t, 18), 18, columns{images: true, flushes: true, activeTime: true, ioView: true, checkpointer: true})
}

func testMajor(t *testing.T, bin string, major int, has columns) {
	timing := []string{"track_io_timing=on", "shared_preload_libraries=pg_stat_statements"}
	if major >= 14 {
		timing = append(timing, "track_wal_io_timing=on")
	}
	s := newServer(t, bin, "", timing...)
	s.exec("CREATE EXTENSION pg_stat_statements", "CREATE TABLE t (id int PRIMARY KEY, n int, pad text)",
		"INSERT INTO t SELECT i, 0, repeat('x', 900) FROM generate_series(1, 40000) i", "CREATE ROLE mona LOGIN", "GRANT pg_monitor TO mona", "CHECKPOINT")
	write(t, s, 4)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	ev, err := Collect(ctx, Options{DSN: s.dsn(), For: 3 * time.Second, Interval: 20 * time.Millisecond, Seed: 1, share: 0.1,
		Progress: func() func(time.Duration, time.Duration, int) {
			var once sync.Once
			return func(_, _ time.Duration, n int) {
				if n >= 8 {
					once.Do(func() { s.exec("CHECKPOINT") })
				}
			}
		}()})
	check(t, err)
	d := Assess(ev)
	logDiagnosis(t, d)
	if d.Server.Major != major {
		t.Fatalf("it is PostgreSQL %d", d.Server.Major)
	}
	for _, m := range d.Missing {
		if m[:min(4, len(m))] != "the " && m[:min(7, len(m))] != "devices" {
			t.Errorf("could not be looked at: %s", m)
		}
	}
	want := func(what string, there bool, p *float64) {
		t.Helper()
		switch {
		case there && p == nil:
			t.Errorf("%s is absent", what)
		case !there && p != nil:
			t.Errorf("%s is %v, though PostgreSQL %d does not have it", what, *p, major)
		case there && *p < 0:
			t.Errorf("%s is %v", what, *p)
		}
	}
	want("transactions", true, d.Rates.TPS)
	want("the hit ratio", true, d.Rates.HitRatio)
	want("WAL a transaction", true, d.Rates.WALBytesPerTx)
	want("full-page images", has.images, d.Rates.FullPageImagesPerTx)
	want("flushes", has.flushes, d.Storage.FlushesPerS)
	want("the time of a flush", has.flushes, d.Storage.FlushMs)
	want("the time of a read", true, d.Storage.ReadMs)
	want("checkpoints", true, d.Rates.Checkpoints)
	want("active time", has.activeTime, d.CounterMs)
	want("statements", true, d.Rates.StatementsPerTx)
	if has.flushes && d.Storage.FlushSource != fromCounters || d.Storage.ReadSource != fromCounters {
		t.Errorf("times are not the server's: %q, %q", d.Storage.FlushSource, d.Storage.ReadSource)
	}
	if n := deref(d.Rates.CheckpointsForced); n < 1 {
		t.Errorf("%v checkpoints", n)
	}
	if _, ok := ev.End.Views["pg_stat_io"]; ok != has.ioView {
		t.Errorf("pg_stat_io: %v", ok)
	}
	if _, ok := ev.End.Views["pg_stat_checkpointer"]; ok != has.checkpointer {
		t.Errorf("pg_stat_checkpointer: %v", ok)
	}
	io := 0.0
	for _, st := range d.Statements {
		io += st.IOMs
		if st.Query == "" {
			t.Errorf("a statement without its text: %+v", st)
		}
	}
	if len(d.Statements) == 0 || io == 0 {
		t.Errorf("statements without times of I/O: %+v", d.Statements)
	}
	for _, w := range d.Waits {
		if w.Part == Unexplained && w.Share > 0.02 {
			t.Errorf("the wait %s belongs to no part", w.Event)
		}
	}
}

// write has clients change random rows until the test ends.
func write(t *testing.T, s *server, clients int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range clients {
		c := s.connect()
		wg.Go(func() {
			for n := i; ctx.Err() == nil; n += 7919 {
				if _, err := c.Exec(ctx, "UPDATE t SET n = n + 1 WHERE id = $1", n%40000+1); err != nil {
					return
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
}
