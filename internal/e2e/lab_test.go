package e2e

import (
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/result"
)

const shortStudy = `
study: short
setups:
  - setup: pg-single
  - setup: pg-async
  - setup: pg-any1
experiments:
  - experiment: power-off
    setups: [pg-single, pg-any1]
    seconds: 1
    after: 2
    rate: 300
  - experiment: power-off
    setups: [pg-async, pg-any1]
    lag_ms: [1500]
    seconds: 1
    after: 2
    rate: 300
`

// longStudy writes for longer than any test waits.
const longStudy = `
study: long
setups: [{setup: pg-single}]
experiments: [{experiment: power-off, seconds: 600}]
`

// TestLiarsAreCaught is rule 5: the lab tests itself.
func TestLiarsAreCaught(t *testing.T) {
	needLab(t)
	b := newBench(t)
	b.labRun("selftest").want(t, 0)
	run := b.result()
	if caught, missed := result.Selftest(run); len(caught) != 3 || len(missed) != 0 {
		t.Errorf("caught %v, missed %v", caught, missed)
	}
	if run.Summary == nil || run.Finished == "" {
		t.Error("the run is not concluded")
	}
	b.run("lab", "recheck", "out").want(t, 0)
	list := b.run("lab", "list")
	list.want(t, 0)
	b.clean()
}

// TestPowerOff: an honest setup loses nothing, and lagging standbys are what
// asynchronous replication loses by.
func TestPowerOff(t *testing.T) {
	needLab(t)
	b := newBench(t)
	b.labRun(b.study(shortStudy)).want(t, 0)
	run := b.result()
	if len(run.Cells) != 4 {
		t.Fatalf("%d cells, want 4", len(run.Cells))
	}
	for _, c := range run.Cells {
		lost := c.Metrics["lost"]
		switch {
		case c.Verdict != result.Held:
			t.Errorf("%s: %s: %s", c.Setup, c.Verdict, c.Why)
		case c.Metrics["acked"] < 300:
			t.Errorf("%s: %g acknowledged writes only", c.Setup, c.Metrics["acked"])
		case c.Setup == "pg-async" && lost < 100:
			t.Errorf("pg-async lost %g writes with standbys that lag by 1.5 s at 300 writes/s", lost)
		case c.Setup != "pg-async" && lost != 0:
			t.Errorf("%s lost %g writes", c.Setup, lost)
		}
		if v, ok := c.Metrics["first_ack_ms"]; !ok || v < 50 {
			t.Errorf("%s: first acknowledged write after %v ms (measured: %v)", c.Setup, v, ok)
		}
		if c.Recovery == "" || c.Promise == nil || c.Evidence != result.EvidenceSimulatedDisk || !c.Silent || !c.Simulated {
			t.Errorf("%s: what the report must say is missing: %+v", c.Setup, c)
		}
	}
	html, err := os.ReadFile(filepath.Join(b.dir, "out", "report.html"))
	if err != nil || !strings.Contains(string(html), "pg-any1") {
		t.Errorf("report.html: %v", err)
	}
	again := b.run("lab", "recheck", "out")
	again.want(t, 0)
	if !strings.Contains(again.stdout, "4 cells checked again") {
		t.Errorf("recheck says %q", again.stdout)
	}
	b.run("lab", "report", "out").want(t, 0)
	b.noSecrets()
	b.clean()
}

// noSecrets: a password or token is never in what a run leaves.
func (b *bench) noSecrets() {
	b.t.Helper()
	err := filepath.WalkDir(filepath.Join(b.dir, "out"), func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		for _, s := range []string{"SCRAM-SHA-256$", "password=", `"token"`} {
			if strings.Contains(string(data), s) {
				b.t.Errorf("%s holds %q", p, s)
			}
		}
		return err
	})
	if err != nil {
		b.t.Error(err)
	}
}

// TestCommit: the four figures of a commit come from the real pgbench.
func TestCommit(t *testing.T) {
	needLab(t)
	b := newBench(t)
	b.labRun(b.study(`
study: commit
setups: [{setup: pg-any1}]
experiments:
  - {experiment: commit, clients: [1, 2], seconds: 2, scale: 1, repeat: 2}
  - {experiment: commit, clients: [2], seconds: 2, scale: 1, workload: tpcb-like, via: tcp}
  - {experiment: commit, clients: [4], seconds: 2, scale: 1, rate: 100}
  - {experiment: round-trip, seconds: 0.5}
  - {experiment: flush, seconds: 0.05}
`)).want(t, 0)
	run := b.result()
	commits, flushes := 0, 0
	for _, c := range run.Cells {
		var want []string
		switch c.Experiment {
		case "commit":
			commits++
			want = []string{"latency_mean_ms", "latency_p50_ms", "latency_p99_ms", "latency_p999_ms", "tps", "failed", "rss_mb", "cpu_s_per_1000", "disk_bytes",
				"commit_flush_ms", "replication_ms", "wait_samples", "disk_iops", "disk_flush_mean_ms"}
			if len(c.DiskSeries) == 0 {
				t.Errorf("%v: the disk's own counters are missing", c.Params)
			}
			// The pages' images are in the WAL before: a run that begins right after a
			// checkpoint writes about one for each transaction at this scale and length.
			if v, ok := c.Metrics["fpi_per_tx"]; !ok || v > 0.2 {
				t.Errorf("commit %v: %g full-page images a transaction (measured: %v), want hardly any", c.Params, v, ok)
			}
			if c.Params["mode"] == "open-loop" {
				want = append(want, "service_mean_ms", "service_p99_ms")
				if tps := c.Metrics["tps"]; tps < 80 || tps > 120 {
					t.Errorf("100 transactions a second were asked for, %g ran", tps)
				}
			}
		case "round-trip":
			want = []string{"tcp_p50_ms", "select1_p50_ms"}
		case "flush":
			flushes++
			want = []string{"p50_ms", "p99_ms", "mean_ms"}
		}
		for _, m := range want {
			if v, ok := c.Metrics[m]; !ok || (v <= 0 && m != "failed") {
				t.Errorf("%s %v: %s is %v (measured: %v)", c.Experiment, c.Params, m, v, ok)
			}
		}
	}
	if commits != 6 || flushes != 24 {
		t.Errorf("%d commit cells and %d flush cells, want 6 and 24 (skipped: %v)", commits, flushes, run.Skipped)
	}
	if len(run.Comparisons) == 0 && len(run.Noise) == 0 {
		t.Error("neither noise nor a comparison came of repeated cells")
	}
	b.clean()
}

// TestInterrupt: Ctrl-C ends a run at once, cleans up, and keeps what it had.
func TestInterrupt(t *testing.T) {
	needLab(t)
	b := newBench(t)
	s := b.start(b.study(longStudy))
	// While it runs, its folder is nobody else's.
	b.run("lab", "resume", "out").want(t, 4, "is being run")
	if err := s.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	s.wait().want(t, 130, "interrupted")
	if run := b.result(); run.Finished != "" || len(run.Cells) != 0 {
		t.Errorf("an interrupted run claims %d cells, finished %q", len(run.Cells), run.Finished)
	}
	b.clean(s.ids...)
}

// TestKilled: what a killed lab leaves is little, and `lab clean` removes it.
func TestKilled(t *testing.T) {
	needLab(t)
	b := newBench(t)
	s := b.start(b.study(longStudy))
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait()
	b.eventually("the killed lab's processes have ended", func() bool { return len(b.processes()) == 0 })
	b.run("lab", "clean", "--work-dir", b.work).want(t, 0)
	b.clean(s.ids...)
}

// TestKilledDriver: without its driver a cell has no verdict.
func TestKilledDriver(t *testing.T) {
	needLab(t)
	b := newBench(t)
	s := b.start(b.study(longStudy))
	if err := syscall.Kill(s.driver(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.wait().want(t, 2, "driver")
	run := b.result()
	if len(run.Cells) != 1 || run.Cells[0].Verdict != result.Unknown {
		t.Errorf("cells: %+v", run.Cells)
	}
	b.clean(s.ids...)
}

// TestTwoAtOnce: two labs on one machine do not meet.
func TestTwoAtOnce(t *testing.T) {
	needLab(t)
	study := `
study: both
setups: [{setup: pg-single}]
experiments: [{experiment: power-off, seconds: 1, after: 1, rate: 200}]
`
	a, b := newBench(t), newBench(t)
	cmd, stdout, stderr := a.command("lab", "run", a.study(study), "--out", "out", "--work-dir", a.work)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b.labRun(b.study(study)).want(t, 0)
	finished(t, cmd.Wait(), stdout, stderr).want(t, 0)
	a.clean()
	b.clean()
}

// TestFullDisk: too little room is found before anything is made, and a run
// folder that fills up makes a cell unknown, never lost.
func TestFullDisk(t *testing.T) {
	needLab(t)
	b := newBench(t)
	small := filepath.Join(b.dir, "small")
	if err := os.Mkdir(small, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	o := b.run("lab", "run", "quick", "--out", "out", "--work-dir", small)
	o.want(t, 2, small, "free")
	if _, err := os.Stat(filepath.Join(b.dir, "out")); err == nil {
		t.Error("a run folder was made for a run that could not begin")
	}

	out := filepath.Join(small, "out")
	if err := os.WriteFile(filepath.Join(small, "ballast"), make([]byte, 63<<20+512<<10), 0o644); err != nil {
		t.Fatal(err)
	}
	o = b.run("lab", "run", b.study(strings.Replace(longStudy, "600", "20, rate: 0, writers: 32", 1)), "--out", out, "--work-dir", b.work)
	o.want(t, 2, "no space left")
	b.clean()
}

// TestNoPostgres, TestNoRoot: one message that names the piece and how to get it.
func TestNoPostgres(t *testing.T) {
	needLab(t)
	b := newBench(t)
	b.env = append(b.env, "HOLDFAST_PG_BINDIR="+filepath.Join(b.dir, "nowhere"))
	b.labRun("quick").want(t, 2, "PostgreSQL", "HOLDFAST_PG_BINDIR")
	b.clean()
}

func TestNoRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	b := newBench(t)
	for _, d := range []string{b.dir, filepath.Dir(b.dir)} {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	cmd, stdout, stderr := b.command("lab", "run", "quick", "--out", "out")
	const nobody = 65534
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	finished(t, cmd.Run(), stdout, stderr).want(t, 2, "root")
	// What needs no root works without it.
	for _, args := range [][]string{{"version"}, {"lab", "list"}, {"measure", "disk", ".", "--for", "10ms", "--only", "same-block/fsync/buffered"}} {
		cmd, stdout, stderr = b.command(args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		finished(t, cmd.Run(), stdout, stderr).want(t, 0)
	}
}

// TestResume: an interrupted run goes on where it was, and ends as one run.
func TestResume(t *testing.T) {
	needLab(t)
	b := newBench(t)
	s := b.start(b.study(`
study: three
setups: [{setup: pg-single}]
experiments: [{experiment: power-off, seconds: 1, after: 1, rate: 200, repeat: 3}]
`))
	b.eventually("the first cell is kept", func() bool {
		run, err := result.Read(filepath.Join(b.dir, "out"))
		return err == nil && len(run.Cells) > 0
	})
	b.eventually("the next cell's driver runs", func() bool { return s.driver() != 0 })
	if err := s.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	s.wait().want(t, 130, "holdfast lab resume out")
	had := len(b.result().Cells)
	list := b.run("lab", "list", ".")
	list.want(t, 0)
	if !strings.Contains(list.stdout, "Runs in .") || !strings.Contains(list.stdout, "not finished, so far") {
		t.Errorf("lab list . says\n%s", list.stdout)
	}
	// Cells of two studies must not become one run.
	kept := filepath.Join(b.dir, "out", "study.yaml")
	study, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.Replace(string(study), "rate: 200", "rate: 300", 1)
	if err := os.WriteFile(kept, []byte(edited), 0o644); err != nil {
		t.Fatal(err)
	}
	b.run("lab", "resume", "out").want(t, 1, "study.yaml was edited")
	if err := os.WriteFile(kept, study, 0o644); err != nil {
		t.Fatal(err)
	}
	b.run("lab", "resume", "out", "--work-dir", b.work).want(t, 0)
	run := b.result()
	if len(run.Cells) != 3 || had == 0 || had == 3 || len(run.Resumed) != 1 || run.Finished == "" {
		t.Errorf("%d cells, %d of them from before, resumed %v, finished %q", len(run.Cells), had, run.Resumed, run.Finished)
	}
	seen := map[int]bool{}
	for _, c := range run.Cells {
		if seen[c.Repetition] || c.Verdict != result.Held {
			t.Errorf("repetition %d: %s %s", c.Repetition, c.Verdict, c.Why)
		}
		seen[c.Repetition] = true
	}
	b.run("lab", "recheck", "out").want(t, 0)
	b.run("lab", "resume", "out").want(t, 1, "is finished")
	b.clean(s.ids...)
}

// TestInterruptAnywhere: a run that is interrupted at any moment, while it is
// being deployed, loaded, cut or recovered, leaves nothing behind. Three times
// here, twenty with HOLDFAST_LONG=1.
func TestInterruptAnywhere(t *testing.T) {
	needLab(t)
	times := 3
	if os.Getenv("HOLDFAST_LONG") != "" {
		times = 20
	}
	rnd := rand.New(rand.NewPCG(uint64(times), 1))
	for i := range times {
		b := newBench(t)
		study := b.study(strings.Replace(shortStudy, "study: short", "study: anywhere", 1))
		cmd, stdout, stderr := b.command("lab", "run", study, "--out", "out", "--work-dir", b.work, "--seed", strconv.Itoa(i))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		after := time.Duration(rnd.Int64N(int64(20 * time.Second)))
		ids := map[string]bool{}
		for end := time.Now().Add(after); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			for _, id := range b.labs() {
				ids[id] = true
			}
		}
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		o := finished(t, cmd.Wait(), stdout, stderr)
		o.want(t, 130)
		t.Logf("interrupted after %s, in %d labs", after.Round(time.Millisecond), len(ids))
		b.clean(slices.Collect(maps.Keys(ids))...)
	}
}

// TestReaderGone: a reader of the output that goes away does not end the run.
func TestReaderGone(t *testing.T) {
	needLab(t)
	b := newBench(t)
	study := b.study(`
study: pipe
setups: [{setup: pg-single}]
experiments: [{experiment: power-off, seconds: 1, after: 1, rate: 100}]
`)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd, _, _ := b.command("lab", "run", study, "--out", "out", "--work-dir", b.work)
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = r.Close(), w.Close()
	_ = cmd.Wait()
	if run := b.result(); run.Finished == "" || len(run.Cells) != 1 {
		t.Errorf("finished %q with %d cells", run.Finished, len(run.Cells))
	}
	b.clean()
}
