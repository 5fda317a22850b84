package diagnose

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestTruth injects one bottleneck at a time into a real Postgres on a
// simulated disk: the verdict has to name it.
func TestTruth(t *testing.T) {
	d := mountDisk(t)
	s := newServer(t, debianBin(t), d.mnt, "max_wal_size=8GB", "checkpoint_timeout=1h", "wal_level=logical", "autovacuum_naptime=1h",
		"shared_buffers=24MB", "max_connections=60")
	scale := 1
	if long() {
		scale = 8
	}
	s.pgbenchTables(scale)
	s.exec("CHECKPOINT")
	w := &world{t: t, d: d, s: s}
	always := []string{CauseFlush, CauseRowLocks, CauseClient}
	named := 0
	all := w.injections()
	for _, in := range all {
		if !long() && !slices.Contains(always, in.cause) {
			continue
		}
		t.Run(strings.ReplaceAll(in.cause, " ", "-"), func(t *testing.T) {
			s.t, d.t, w.t = t, t, t
			defer func() { s.t, d.t = nil, nil }()
			length := 4 * time.Second
			if in.length > 0 {
				length = in.length
			}
			in.inject()
			got := s.diagnose(length)
			logDiagnosis(t, got)
			if got.Verdict.Cause != in.cause {
				t.Errorf("the verdict names %q, injected was %q", got.Verdict.Cause, in.cause)
				return
			}
			if want := in.storage; got.Verdict.Storage != want {
				t.Errorf("storage to blame: %q, want %q", got.Verdict.Storage, want)
			}
			if n := len(got.Verdict.Sentences); n != 2 {
				t.Errorf("%d sentences", n)
			}
			named++
		})
	}
	if long() {
		t.Logf("%d of %d named", named, len(all))
	}
}

func logDiagnosis(t *testing.T, d Diagnosis) {
	t.Helper()
	t.Logf("%s / storage %s: %s", d.Verdict.Cause, d.Verdict.Storage, strings.Join(d.Verdict.Sentences, " "))
	if d.Interrupted != nil {
		t.Logf("  after %.1f s: %+v", d.Interrupted.AtS, *d.Interrupted)
	}
	for _, p := range d.Breakdown {
		if p.Share >= 0.01 {
			t.Logf("  %-12s %5.1f %% %8.2f ms", p.Name, 100*p.Share, deref(p.Ms))
		}
	}
	t.Logf("  %d samples every %.0f ms, %.2f %% of a core; flush %.2f ms, read %.2f ms, limit %q elasticity %.2f, tps %.0f",
		d.Sampling.Samples, d.Sampling.IntervalMs, d.Sampling.CorePercent, deref(d.Storage.FlushMs), deref(d.Storage.ReadMs), d.Storage.Limit, deref(d.Storage.Elasticity), deref(d.Rates.TPS))
	t.Logf("  checkpoints %.0f, forced %.0f, full pages %.2f a transaction", deref(d.Rates.Checkpoints), deref(d.Rates.CheckpointsForced), deref(d.Rates.FullPageImagesPerTx))
	for _, s := range d.Series {
		t.Logf("    %5.1f s: tps %6.0f active %5.2f reads %6.0f of %5.2f ms, checkpoint %v", s.T, deref(s.TPS), deref(s.Active), deref(s.Reads), deref(s.ReadMs), s.Checkpoint)
	}
}

// world is what bottlenecks are injected into. Each undoes itself with its subtest.
type world struct {
	t *testing.T
	d *simdisk
	s *server
}

type injection struct {
	cause, storage string
	length         time.Duration
	inject         func()
}

func (w *world) injections() []injection {
	return []injection{
		{CauseFlush, Yes, 0, w.slowFlush},
		{CauseReads, Yes, 20 * time.Second, func() { w.reads(map[string]string{"read_ms": "6"}) }},
		{CauseIOPS, Yes, 20 * time.Second, func() { w.reads(map[string]string{"read_ms": "0.2", "iops": "700"}) }},
		{CauseRowLocks, No, 0, w.rowLocks},
		{CauseCPU, No, 0, w.cpu},
		{CauseReplication, No, 0, w.standby},
		{CauseClient, No, 0, w.think},
		{CauseCheckpoints, Yes, 8 * time.Second, w.checkpoints},
		{CauseVacuum, No, 6 * time.Second, w.idleInTransaction},
		{CauseSlot, No, 6 * time.Second, w.slot},
	}
}

// disk changes the disk for the subtest.
func (w *world) disk(values map[string]string) {
	w.t.Helper()
	w.d.sync() // what waits for write-back would be charged to a cap
	w.d.set(values)
	back := map[string]string{}
	for k := range values {
		back[k] = "0"
	}
	t := w.t
	t.Cleanup(func() {
		w.d.t = t
		w.d.set(back)
		w.d.sync() // what is still queued behind a cap is not the next one's affair
	})
}

func (w *world) slowFlush() {
	w.disk(map[string]string{"flush_ms": "6"})
	w.s.load("-N", "-c", "8")
}

// reads makes reads miss the page cache, and varies how many want one.
func (w *world) reads(values map[string]string) {
	w.disk(values)
	w.forget("pgbench_accounts")
	w.s.load("-S", "-c", "3", "-M", "prepared")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ctx.Err() == nil; n++ {
			cmd := w.s.command("pgbench", "-n", "-T", "4", "-S", "-M", "prepared", "-c", fmt.Sprint(3+12*(n%2)))
			_ = cmd.Start()
			_ = cmd.Wait()
		}
	}()
	w.t.Cleanup(func() { cancel(); <-done })
}

// forget drops a table's pages from the kernel's cache again and again.
func (w *world) forget(table string) {
	w.t.Helper()
	c := w.s.connect()
	var path string
	check(w.t, c.QueryRow(context.Background(), "SELECT pg_relation_filepath($1::regclass)", table).Scan(&path))
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), forgetEnv+"="+filepath.Join(w.s.data, path))
	in, err := cmd.StdinPipe()
	check(w.t, err)
	check(w.t, cmd.Start())
	w.t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
}

// rowLocks has sixteen clients change one row, each for some ms.
func (w *world) rowLocks() {
	f := w.s.script("BEGIN;\nUPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = 1;\n\\sleep 2 ms\nEND;\n")
	w.s.load("-c", "16", "-f", f)
}

func (w *world) cpu() {
	// With a table in it: a session that touches none does not report its
	// transactions (PostgreSQL 15 to 17).
	f := w.s.script("SELECT sum(sqrt(i)) FROM generate_series(1, 5000) i, pgbench_branches WHERE bid = 1;\n")
	w.s.load("-c", "12", "-f", f)
}

// standby commits to a synchronous standby on a disk of its own, which is slow.
func (w *world) standby() {
	t := w.t
	d := mountDisk(t)
	b := prepareServer(t, w.s.bin, d.mnt, "hot_standby=on", "max_connections=60", "wal_level=logical",
		fmt.Sprintf("primary_conninfo=host=%s user=postgres application_name=slow", w.s.run))
	check(t, os.Remove(b.data))
	base := w.s.command("pg_basebackup", "-D", b.data, "-c", "fast", "-X", "stream")
	check(t, os.Chmod(d.mnt, 0o777))
	if out, err := base.CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v\n%s", err, out)
	}
	check(t, os.WriteFile(filepath.Join(b.data, "standby.signal"), nil, 0o644))
	b.start()
	d.set(map[string]string{"flush_ms": "15"})
	w.s.exec("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (slow)'", "SELECT pg_reload_conf()")
	t.Cleanup(func() {
		w.s.t = t
		w.s.exec("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
	})
	c := w.s.connect()
	w.s.until(20*time.Second, "the standby is synchronous", func() bool {
		var n int
		return c.QueryRow(context.Background(), "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')").Scan(&n) == nil && n == 1
	})
	w.s.load("-N", "-c", "8")
}

func (w *world) think() {
	f := w.s.script("\\set aid random(1, 100000)\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;\n\\sleep 30 ms\n")
	w.s.load("-c", "8", "-f", f)
}

// checkpoints are forced every other second, and each makes pages go whole
// into the WAL again.
func (w *world) checkpoints() {
	w.disk(map[string]string{"flush_ms": "1.2", "mbps": "25"})
	w.s.exec("ALTER SYSTEM SET max_wal_size = '32MB'", "ALTER SYSTEM SET min_wal_size = '32MB'", "SELECT pg_reload_conf()")
	t := w.t
	t.Cleanup(func() {
		w.s.t = t
		w.s.exec("ALTER SYSTEM RESET max_wal_size", "ALTER SYSTEM RESET min_wal_size", "SELECT pg_reload_conf()")
	})
	w.s.load("-N", "-c", "16")
}

// modest is a load that strains nothing.
func (w *world) modest() {
	w.s.load("-N", "-c", "4", "-R", "150")
}

func (w *world) idleInTransaction() {
	c := w.s.connect()
	for _, sql := range []string{"BEGIN", "CREATE TABLE left_open (x int)", "SELECT 1"} {
		_, err := c.Exec(context.Background(), sql)
		check(w.t, err)
	}
	w.modest()
	w.s.until(30*time.Second, "rows have died and the session has been idle for a while", func() bool {
		k, err := w.s.tryConnect()
		if err != nil {
			return false
		}
		defer func() { _ = k.Close(context.Background()) }()
		var dead, age float64
		err = k.QueryRow(context.Background(), `SELECT (SELECT sum(n_dead_tup)::float8 FROM pg_stat_user_tables),
 (SELECT max(age(backend_xid))::float8 FROM pg_stat_activity WHERE state = 'idle in transaction')`).Scan(&dead, &age)
		return err == nil && dead > 800 && age > oldTransaction
	})
}

func (w *world) slot() {
	w.s.exec("CHECKPOINT", "SELECT pg_create_physical_replication_slot('forgotten', true)")
	t := w.t
	t.Cleanup(func() {
		w.s.t = t
		w.s.exec("SELECT pg_drop_replication_slot('forgotten')")
	})
	w.modest()
}
