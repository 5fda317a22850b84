package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/result"
)

// enduranceStudy has 24 groups of the shortest real fault cells, nine times.
const enduranceStudy = `
study: endurance
setups: [{setup: pg-single}, {setup: pg-any1}]
experiments:
  - {experiment: power-off, seconds: 0.3, after: 0.3, rate: 300, repeat: 9}
  - {experiment: host-lost, seconds: 0.3, after: 0.3, rate: 300, repeat: 9}
  - {experiment: restart, seconds: 0.3, after: 0.3, rate: 300, repeat: 9}
  - {experiment: standby-power-off, setups: [pg-any1], seconds: 0.3, after: 0.3, rate: 300, repeat: 9}
  - {experiment: lose-standbys, setups: [pg-any1], hold: 0.5, seconds: 0.3, after: 0.3, rate: 300, repeat: 9}
  - {experiment: all-off, seconds: 0.3, after: 0.3, rate: 300, repeat: 9}
  - {experiment: freeze, hold: 0.5, seconds: 0.3, after: 0.3, rate: 300, reads: 0.2, repeat: 9}
  - {experiment: partition, hold: 0.5, seconds: 0.3, after: 0.3, rate: 300, reads: 0.2, repeat: 9}
`

// TestEndurance: a run of 200 cells, every fault on one Postgres and on a
// quorum, leaves nothing behind, and its last cells find the lab no bigger than
// its first ones.
func TestEndurance(t *testing.T) {
	needLab(t)
	if os.Getenv("HOLDFAST_LONG") == "" {
		t.Skip("takes a quarter of an hour; HOLDFAST_LONG=1 runs it")
	}
	b := newBench(t)
	b.deadline = 2 * time.Hour
	tmp := filepath.Join(b.dir, "tmp")
	if err := os.Mkdir(tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	b.env = append(b.env, "TMPDIR="+tmp)
	links := interfaces(t)

	cmd, stdout, stderr := b.command("lab", "run", b.study(enduranceStudy), "--out", "out", "--work-dir", b.work, "--seed", "7")
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	w := newWatch(b, cmd.Process.Pid)
	var err error
	for running := true; running; {
		select {
		case err = <-ended:
			running = false
		case <-time.After(200 * time.Millisecond):
			w.look()
		}
	}
	finished(t, err, stdout, stderr).want(t, 0)
	run := b.result()
	t.Logf("%d cells in %s", len(run.Cells), time.Since(began).Round(time.Second))
	if len(run.Cells) < 200 || len(run.Skipped) > 0 {
		t.Errorf("%d cells, skipped: %v", len(run.Cells), run.Skipped)
	}
	for _, c := range run.Cells {
		if c.Verdict != result.Held {
			t.Errorf("%s %s %s: %s: %s", c.Setup, c.Experiment, result.Conditions(c.Params), c.Verdict, c.Why)
		}
	}
	w.grown(t, len(run.Cells))
	b.clean(w.labs...)
	w.left(t)
	if left, _ := os.ReadDir(tmp); len(left) > 0 {
		t.Errorf("left in the folder for temporary files: %v", left)
	}
	if now := interfaces(t); !slices.Equal(now, links) {
		t.Errorf("network interfaces were %v and are %v", links, now)
	}
}

func interfaces(t *testing.T) []string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	slices.Sort(names)
	return names
}

// sample is how big the lab was while a cell ran.
type sample struct{ cell, fds, threads, processes, kb int }

// watch keeps what a lab makes while it runs, to look for it afterwards.
type watch struct {
	b       *bench
	pid     int
	own     map[string]bool // this process's namespaces
	spaces  map[string]bool // namespaces of the lab's processes
	pids    map[int]uint64  // its processes and when they began
	labs    []string
	samples []sample
}

func newWatch(b *bench, pid int) *watch {
	w := &watch{b: b, pid: pid, own: map[string]bool{}, spaces: map[string]bool{}, pids: map[int]uint64{}}
	for _, ns := range namespaces(os.Getpid()) {
		w.own[ns] = true
	}
	return w
}

func namespaces(pid int) (all []string) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/ns/*", pid))
	for _, l := range links {
		if ns, err := os.Readlink(l); err == nil {
			all = append(all, ns)
		}
	}
	return all
}

// process reads /proc/PID/stat: its parent, and when it began in clock ticks.
func process(pid int) (parent int, began uint64, ok bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, false
	}
	fields := strings.Fields(string(data)[strings.LastIndex(string(data), ")")+1:])
	if len(fields) < 20 || fields[0] == "Z" {
		return 0, 0, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	began, err2 := strconv.ParseUint(fields[19], 10, 64)
	return parent, began, err1 == nil && err2 == nil
}

// descendants are the lab's processes, itself among them.
func (w *watch) descendants() map[int]uint64 {
	parents, began := map[int]int{}, map[int]uint64{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(d)); err == nil {
			if p, at, ok := process(pid); ok {
				parents[pid], began[pid] = p, at
			}
		}
	}
	found := map[int]uint64{}
	for pid := range parents {
		for at, n := pid, 0; at > 1 && n < 50; at, n = parents[at], n+1 {
			if at == w.pid {
				found[pid] = began[pid]
				break
			}
		}
	}
	return found
}

func (w *watch) look() {
	all := w.descendants()
	for pid, began := range all {
		if w.pids[pid] == began {
			continue
		}
		w.pids[pid] = began
		for _, ns := range namespaces(pid) {
			if !w.own[ns] {
				w.spaces[ns] = true
			}
		}
	}
	for _, id := range w.b.labs() {
		if !slices.Contains(w.labs, id) {
			w.labs = append(w.labs, id)
		}
	}
	log, _ := os.ReadFile(filepath.Join(w.b.dir, "out", "lab.log"))
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", w.pid))
	status, err2 := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.pid))
	if err != nil || err2 != nil {
		return // it has ended
	}
	s := sample{cell: strings.Count(string(log), " cell "), fds: len(fds), processes: len(all)}
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "Threads: %d", &s.threads)
		_, _ = fmt.Sscanf(line, "RssAnon: %d kB", &s.kb)
	}
	w.samples = append(w.samples, s)
}

// grown holds the last fifth of the cells against the second one: by then each
// setup has been deployed.
func (w *watch) grown(t *testing.T, cells int) {
	t.Helper()
	within := func(from, to int, of func(sample) int) int {
		var v []int
		for _, s := range w.samples {
			if s.cell > from*cells/5 && s.cell <= to*cells/5 {
				v = append(v, of(s))
			}
		}
		if len(v) == 0 {
			t.Fatalf("no sample in cells %d to %d of %d", from*cells/5, to*cells/5, cells)
		}
		slices.Sort(v)
		return v[len(v)/2]
	}
	for _, c := range []struct {
		what  string
		of    func(sample) int
		allow int // one a cell would be 120 more
	}{
		{"open files", func(s sample) int { return s.fds }, 15},
		{"threads", func(s sample) int { return s.threads }, 15},
		{"processes", func(s sample) int { return s.processes }, 15},
		{"KB of memory", func(s sample) int { return s.kb }, 20_000},
	} {
		before, after := within(1, 2, c.of), within(4, 5, c.of)
		t.Logf("%s of the lab: %d in the second fifth of its cells, %d in the last", c.what, before, after)
		if after > before+c.allow {
			t.Errorf("%s of the lab: %d in the second fifth of its cells, %d in the last", c.what, before, after)
		}
	}
}

// left looks for everything that the lab was seen to have.
func (w *watch) left(t *testing.T) {
	t.Helper()
	t.Logf("%d processes and %d namespaces were seen, in labs %v", len(w.pids), len(w.spaces), w.labs)
	if len(w.pids) < 1000 || len(w.spaces) < 100 || len(w.labs) == 0 {
		t.Errorf("too few were seen to tell what is left")
	}
	for pid, began := range w.pids {
		if _, at, ok := process(pid); ok && at == began {
			t.Errorf("process %d is left", pid)
		}
	}
	for _, pattern := range []string{"/proc/[0-9]*/ns/*", "/proc/[0-9]*/task/*/ns/net", "/proc/[0-9]*/fd/*"} {
		links, _ := filepath.Glob(pattern)
		for _, l := range links {
			if ns, err := os.Readlink(l); err == nil && w.spaces[ns] {
				t.Errorf("namespace %s is left, by %s", ns, l)
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if strings.Contains(line, w.b.dir) || len(f) > 3 && w.spaces[f[3]] {
			t.Errorf("mount %s is left", strings.TrimSpace(line))
		}
	}
	for _, id := range w.labs {
		for _, pattern := range []string{"/sys/fs/cgroup/holdfast-" + id + "*", "/sys/fs/cgroup/*/holdfast-" + id + "*", "/dev/shm/*" + id + "*", "/tmp/*" + id + "*"} {
			paths, _ := filepath.Glob(pattern)
			for _, p := range paths {
				t.Errorf("%s is left", p)
			}
		}
	}
	// Memory segments are told by who made them: columns are key shmid perms size cpid.
	segments, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(segments)) {
		f := strings.Fields(line)
		if len(f) > 4 {
			if pid, err := strconv.Atoi(f[4]); err == nil && w.pids[pid] != 0 {
				t.Errorf("memory segment %s of process %d is left", f[1], pid)
			}
		}
	}
}
