package diagnose

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestOwnCost: with 64 sessions at work, sampling takes less than 1 % of one
// core, of the server's and of its own together. The figure is held against the
// kernel's for the whole of another process that runs nothing else.
func TestOwnCost(t *testing.T) {
	if os.Getenv(costEnv) != "" {
		t.Skip("this is the other process")
	}
	s := newServer(t, debianBin(t), "", "fsync=off", "max_connections=80")
	s.pgbenchTables(1)
	s.load("-S", "-c", "64", "-R", "800") // sessions at work that leave the processors to others
	s.until(20*time.Second, "64 sessions are there", func() bool {
		c, err := s.tryConnect()
		if err != nil {
			return false
		}
		defer func() { _ = c.Close(context.Background()) }()
		var n int
		return c.QueryRow(context.Background(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'").Scan(&n) == nil && n == 64
	})
	cmd := exec.Command("/proc/self/exe", "-test.run", "TestOwnCostHelper", "-test.v")
	cmd.Env = append(os.Environ(), costEnv+"="+s.dsn())
	began := time.Now()
	out, err := cmd.CombinedOutput()
	took := time.Since(began)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	if !strings.Contains(string(out), "with 64 sessions") {
		t.Errorf("not with 64 sessions:\n%s", out)
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	percent := 100 * cpu.Seconds() / took.Seconds()
	t.Logf("its process took %.2f %% of a core, its start included", percent)
	if percent > 1 {
		t.Errorf("its process alone took %.2f %% of a core", percent)
	}
}

// costEnv makes TestOwnCostHelper diagnose this DSN.
const costEnv = "HOLDFAST_TEST_DIAGNOSE_COST"

func TestOwnCostHelper(t *testing.T) {
	dsn := os.Getenv(costEnv)
	if dsn == "" {
		t.Skip("run by TestOwnCost")
	}
	d, err := Run(context.Background(), Options{DSN: dsn, For: 12 * time.Second})
	check(t, err)
	c := d.Sampling
	t.Logf("%.2f %% of a core (%s), %d samples every %.0f ms, with %.0f sessions", c.CorePercent, c.Source, c.Samples, c.IntervalMs, c.Sessions)
	if c.CorePercent > 1 || c.CorePercent <= 0 || !strings.HasPrefix(c.Source, "processor time") {
		t.Errorf("%+v", c)
	}
	if c.Samples < fewestSamples {
		t.Errorf("%d samples", c.Samples)
	}
}

// TestPlainUser: without pg_monitor it says what is missing and what would
// help, and gives no verdict about sessions that it cannot see; with it, and
// no more, everything is there.
func TestPlainUser(t *testing.T) {
	s := newServer(t, debianBin(t), "", "fsync=off", "shared_preload_libraries=pg_stat_statements")
	s.pgbenchTables(1)
	s.exec("CREATE ROLE plain LOGIN", "CREATE ROLE monitor LOGIN", "GRANT pg_monitor TO monitor", "CREATE EXTENSION pg_stat_statements")
	s.load("-N", "-c", "4")
	as := func(user string) Diagnosis {
		t.Helper()
		d, err := Run(context.Background(), Options{DSN: strings.Replace(s.dsn(), "user=postgres", "user="+user, 1), For: 2 * time.Second, Interval: 20 * time.Millisecond, share: 0.1})
		check(t, err)
		return d
	}
	d := as("plain")
	if d.Verdict.Cause != CauseUnknown || len(d.Breakdown) != 0 || !strings.Contains(strings.Join(d.Missing, "\n"), "GRANT pg_monitor TO plain") {
		t.Errorf("%+v\n%q", d.Verdict, d.Missing)
	}
	if d.Rates.TPS == nil || *d.Rates.TPS < 10 {
		t.Errorf("transactions are counted for everybody: %v", d.Rates.TPS)
	}
	d = as("monitor")
	if d.Verdict.Cause == CauseUnknown || len(d.Breakdown) != len(PartNames()) || len(d.Statements) == 0 {
		t.Errorf("%+v\n%q", d.Verdict, d.Missing)
	}
	for _, m := range d.Missing {
		if strings.Contains(m, "permission") || strings.Contains(m, "GRANT") {
			t.Errorf("pg_monitor is not enough: %s", m)
		}
	}
	// It reads only: the session cannot write.
	c, err := open(t.Context(), mustConfig(t, s.dsn()), time.Second)
	check(t, err)
	defer c.close()
	if err := c.exec(t.Context(), "CREATE TABLE x (i int)"); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("%v", err)
	}
}
