package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/testbin"
)

// traces are what a lab could leave: who runs its program or is in its hosts'
// namespaces, its mounts, its directories.
type traces struct {
	id, binary string
	workDir    string
	spaces     map[string]bool // namespaces of its hosts
}

func spacesOf(t *testing.T, pids ...int) map[string]bool {
	t.Helper()
	spaces := map[string]bool{}
	for _, pid := range pids {
		for _, kind := range []string{"pid", "net", "mnt", "ipc", "uts"} {
			theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
			if err != nil {
				t.Fatal(err)
			}
			if ours, err := os.Readlink("/proc/self/ns/" + kind); err != nil || ours == theirs {
				t.Fatalf("process %d is in this process's own %s namespace (%v)", pid, kind, err)
			}
			spaces[theirs] = true
		}
	}
	return spaces
}

// find returns every trace there is.
func (tr traces) find(t *testing.T) []string {
	t.Helper()
	found := tr.processes(t)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, tr.id) {
			found = append(found, "mount "+strings.TrimSpace(line))
		}
	}
	for _, pattern := range []string{
		filepath.Join(labsDir, tr.id), filepath.Join(tr.workDir, "*"),
		"/sys/fs/cgroup/holdfast-" + tr.id + "*", "/sys/fs/cgroup/*/holdfast-" + tr.id + "*",
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, paths...)
	}
	for _, p := range cgroupParents() {
		paths, _ := filepath.Glob(filepath.Join(p.dir, "holdfast-"+tr.id+"*"))
		found = append(found, paths...)
	}
	return found
}

func (tr traces) processes(t *testing.T) (found []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// Who has ended is for the machine's own first process to reap.
		if stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); strings.Contains(string(stat), ") Z ") {
			continue
		}
		if exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); exe == tr.binary {
			found = append(found, fmt.Sprintf("process %d runs %s", pid, exe))
		}
		for _, pattern := range []string{"ns/*", "task/*/ns/net", "fd/*"} {
			links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/%s", pid, pattern))
			for _, link := range links {
				if ns, _ := os.Readlink(link); tr.spaces[ns] {
					found = append(found, link+" is "+ns)
				}
			}
		}
	}
	return found
}

func (tr traces) expectNone(t *testing.T) {
	t.Helper()
	for _, f := range tr.find(t) {
		t.Errorf("left behind: %s", f)
	}
}

// expectNoProcessSoon allows for what ends by itself after its lab was killed.
func (tr traces) expectNoProcessSoon(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		found := tr.processes(t)
		if len(found) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("10 s after the lab was killed there is still %v", found)
		}
	}
}

// ownBinary is a copy that only this test runs.
func ownBinary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "holdfast")
	copyFile(t, testbin.Build(t), path)
	return path
}

func TestReleaseLeavesNothing(t *testing.T) {
	o := options(t)
	o.Binary = ownBinary(t)
	o.WorkDir = filepath.Join(o.WorkDir, "made", "by-the-lab")
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	l := p.(*lab)
	tr := traces{id: l.state.id, binary: o.Binary, workDir: o.WorkDir}
	defer func() { _ = p.Release(context.Background()) }()
	hosts := acquire(t, l, "alpha", "beta", "gamma")
	var pids []int
	for _, h := range hosts {
		run(t, h, "dd if=/dev/zero of=file bs=1M count=2 conv=fsync status=none")
		sleeper, err := h.Start(t.Context(), place.Cmd{Path: "sleep", Args: []string{"600"}})
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, sleeper.Pid())
	}
	tr.spaces = spacesOf(t, pids...)
	if len(tr.find(t)) < len(hosts) {
		t.Fatalf("a running lab has too few traces for this test to see anything: %v", tr.find(t))
	}
	// One of each: off, frozen, and in the middle of everything.
	if _, _, err := hosts[0].Off(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := hosts[1].Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := hosts[2].Listen(t.Context(), "tcp", "10.77.0.3:80"); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	tr.expectNone(t)
	if _, err := os.Stat(o.WorkDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the work directory that the lab made is still there (%v)", err)
	}
}

// TestReleaseClosesDescriptors: an open one would keep a namespace, or a dead
// lab's socket, for as long as this process lives.
func TestReleaseClosesDescriptors(t *testing.T) {
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	once := func() {
		l := openLab(t)
		h := acquire(t, l, "alpha", "beta")[0]
		run(t, h, "echo something")
		if _, err := h.Start(t.Context(), place.Cmd{Path: "cat", Stdin: strings.NewReader("x"), Stdout: io.Discard}); err != nil {
			t.Fatal(err)
		}
		for _, do := range []func() error{
			func() error { _, _, err := h.Off(t.Context()); return err }, func() error { return h.On(t.Context()) },
			func() error { return h.Freeze(t.Context()) }, func() error { return l.Release(t.Context()) },
		} {
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
	}
	once() // what the runtime opens once and for all
	before := open()
	once()
	once()
	for end := time.Now().Add(5 * time.Second); open() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors are open, %d were", open(), before)
		}
	}
}

func TestFailedAcquireLeavesNothing(t *testing.T) {
	l := openLab(t)
	for _, spec := range []place.HostSpec{
		{Name: "bad", Disk: "no-such-disk"}, {Name: "bad", Disk: testDisk, Crash: "no-such-policy"},
	} {
		_, err := l.Acquire(t.Context(), []place.HostSpec{{Name: "good", Disk: testDisk}, spec})
		if err == nil || !strings.Contains(err.Error(), "no-such") || !strings.Contains(err.Error(), "host bad") {
			t.Errorf("%+v: %v", spec, err)
		}
		expectOnly(t, l, nil)
	}
	// Interrupted at any moment.
	for i := range 12 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*6*time.Millisecond)
		_, err := l.Acquire(ctx, []place.HostSpec{{Name: "alpha", Disk: testDisk}, {Name: "beta"}})
		cancel()
		if err == nil {
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("interrupted: %v", err)
		}
		expectOnly(t, l, nil)
	}
}

// expectOnly fails when the lab's directories hold anything but these hosts.
func expectOnly(t *testing.T, l *lab, hosts []string) {
	t.Helper()
	for _, dir := range []string{l.state.dir, l.state.work} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			if e.Name() != lockName && e.Name() != leftName {
				got = append(got, e.Name())
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(hosts) {
			t.Errorf("%s holds %v, want %v", dir, got, hosts)
		}
	}
}

// A lab in a process of its own, to be interrupted or killed.
const labProcessEnv = "HOLDFAST_LOCAL_TEST_LAB"

// runLabProcess is that process: it prints the lab's id and the number of a
// program on each host, and holds on until it is interrupted.
func runLabProcess() {
	binary := os.Getenv(labProcessEnv)
	if binary == "" {
		return
	}
	if err := labProcess(binary, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func labProcess(binary, workDir string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	p, err := New(Options{Binary: binary, WorkDir: workDir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Release(context.Background())) }()
	hosts, err := p.Acquire(ctx, []place.HostSpec{
		{Name: "alpha", Disk: testDisk}, {Name: "beta", Disk: testDisk}, {Name: "frozen"},
	})
	if err != nil {
		return err
	}
	line := p.(*lab).state.id
	for _, h := range hosts {
		sleeper, err := h.Start(ctx, place.Cmd{Path: "sleep", Args: []string{"600"}})
		if err != nil {
			return err
		}
		line += " " + strconv.Itoa(sleeper.Pid())
	}
	if err := hosts[2].(place.Freezer).Freeze(ctx); err != nil {
		return err
	}
	fmt.Println(line)
	<-ctx.Done()
	// The interrupt reached the lab alone: its hosts and disks go on.
	ctx = context.Background()
	if err := hosts[0].Put(ctx, hosts[0].DataDir()+"/after", []byte("the interrupt"), 0o600); err != nil {
		return err
	}
	cycler := hosts[0].(place.PowerCycler)
	if _, _, err := cycler.Off(ctx); err != nil {
		return err
	}
	if err := cycler.On(ctx); err != nil {
		return err
	}
	if got, err := hosts[0].Get(ctx, hosts[0].DataDir()+"/after"); err != nil || string(got) != "the interrupt" {
		return fmt.Errorf("after the interrupt: %q, %w", got, err)
	}
	return nil
}

// startLabProcess returns when its hosts are up.
func startLabProcess(t *testing.T) (*exec.Cmd, traces) {
	t.Helper()
	needRoot(t)
	tr := traces{binary: ownBinary(t), workDir: t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, tr.workDir)
	cmd.Env = append(os.Environ(), labProcessEnv+"="+tr.binary)
	cmd.Stderr = t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as a job of a shell
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if _, err := Clean(context.Background(), Options{WorkDir: tr.workDir}); err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_, _ = io.Copy(io.Discard, out)
		t.Fatalf("the lab's process did not get its hosts up: %v", err)
	}
	fields := strings.Fields(line)
	tr.id = fields[0]
	var pids []int
	for _, f := range fields[1:] {
		pid, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	tr.spaces = spacesOf(t, pids...)
	return cmd, tr
}

func TestInterruptedLab(t *testing.T) {
	cmd, tr := startLabProcess(t)
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	tr.expectNone(t)
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}

func TestKilledLab(t *testing.T) {
	t.Run("clean", func(t *testing.T) {
		cmd, tr := startLabProcess(t)
		o := Options{WorkDir: tr.workDir}
		if removed, err := Clean(t.Context(), o); err != nil || strings.Contains(fmt.Sprint(removed), tr.id) {
			t.Errorf("clean while the lab is running: %v, %v", removed, err)
		}
		kill(t, cmd)
		removed, err := Clean(t.Context(), o)
		if err != nil || !strings.Contains(fmt.Sprint(removed), tr.id) {
			t.Errorf("clean: %v, %v", removed, err)
		}
		t.Log(removed)
		tr.expectNone(t)
		if removed, err = Clean(t.Context(), o); err != nil || strings.Contains(fmt.Sprint(removed), tr.id) {
			t.Errorf("clean again: %v, %v", removed, err)
		}
	})
	t.Run("by itself", func(t *testing.T) {
		// All but a frozen host ends without anybody's doing.
		cmd, tr := startLabProcess(t)
		frozen := tr
		tr.spaces = withoutFrozen(t, tr)
		kill(t, cmd)
		tr.binary = "the frozen host's first process still runs it"
		tr.expectNoProcessSoon(t)
		if mounts, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(mounts), tr.id) {
			t.Error("a disk is still mounted")
		}
		// The next lab removes the rest.
		o := options(t)
		o.WorkDir = tr.workDir
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		frozen.expectNone(t)
	})
	t.Run("after a restart of the machine", func(t *testing.T) {
		cmd, tr := startLabProcess(t)
		kill(t, cmd)
		if _, err := Clean(t.Context(), Options{}); err != nil { // ends what a restart would
			t.Fatal(err)
		}
		left := filepath.Join(tr.workDir, workPrefix+tr.id)
		others := filepath.Join(tr.workDir, "of-somebody-else")
		for _, dir := range []string{left, others} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Clean(t.Context(), Options{WorkDir: tr.workDir}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there (%v)", left, err)
		}
		if err := os.Remove(others); err != nil {
			t.Errorf("a directory of somebody else: %v", err)
		}
	})
}

// withoutFrozen drops the namespaces of the lab's last host, by its first
// process: the one whose control group is frozen.
func withoutFrozen(t *testing.T, tr traces) map[string]bool {
	t.Helper()
	spaces := map[string]bool{}
	for s := range tr.spaces {
		spaces[s] = true
	}
	for _, p := range cgroupParents() {
		procs, err := os.ReadFile(filepath.Join(p.dir, "holdfast-"+tr.id+"-frozen", "cgroup.procs"))
		if err != nil {
			continue
		}
		for _, pid := range strings.Fields(string(procs)) {
			links, _ := filepath.Glob("/proc/" + pid + "/ns/*")
			for _, link := range links {
				ns, _ := os.Readlink(link)
				delete(spaces, ns)
			}
		}
		return spaces
	}
	t.Skip("there are no control groups to freeze a host with")
	return nil
}

func TestTwoLabs(t *testing.T) {
	cmd, other := startLabProcess(t) // in a process of its own
	first, second := openLab(t), openLab(t)
	var hosts [][]*host
	for _, l := range []*lab{first, second} {
		hosts = append(hosts, acquire(t, l, "alpha", "beta"))
	}
	for i, hs := range hosts {
		if hs[0].Addr() != hosts[0][0].Addr() {
			t.Fatalf("this test wants equal addresses: %s, %s", hs[0].Addr(), hosts[0][0].Addr())
		}
		l, err := hs[0].Listen(t.Context(), "tcp", hs[0].Addr()+":80")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(c, "lab %d", i)
				_ = c.Close()
			}
		}()
	}
	ask := func(i int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		c, err := hosts[i][1].Dial(ctx, "tcp", hosts[i][0].Addr()+":80")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if got, err := io.ReadAll(c); err != nil || string(got) != fmt.Sprintf("lab %d", i) {
			t.Errorf("in lab %d: %q, %v", i, got, err)
		}
	}
	ask(0)
	ask(1)
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	ask(1)
	if err := second.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	other.expectNone(t)
}
