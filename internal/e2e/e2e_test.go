// Package e2e runs the program as a user does and holds it to its contract:
// exit codes, messages, files, and nothing left behind.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/postgres"
	"github.com/holdfast-db/holdfast/internal/result"
	"github.com/holdfast-db/holdfast/internal/testbin"
)

// bench is a folder of its own with a copy of the program, so that what one
// test leaves behind can be told from what others are using.
type bench struct {
	t    *testing.T
	dir  string
	bin  string
	work string
	env  []string

	deadline time.Duration // of one command
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir(), deadline: deadline}
	b.bin, b.work = filepath.Join(b.dir, "holdfast"), filepath.Join(b.dir, "work")
	data, err := os.ReadFile(testbin.Build(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.bin, data, 0o755); err != nil {
		t.Fatal(err)
	}
	b.env = append(os.Environ(), "XDG_STATE_HOME="+filepath.Join(b.dir, "state"))
	return b
}

// needLab skips where the lab cannot run at all; its own message says why.
func needLab(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("the lab takes longer than -short allows")
	}
	if os.Geteuid() != 0 {
		t.Skip("the lab needs root for network namespaces and simulated disks")
	}
	if _, err := postgres.FindBinDir(os.Getenv("HOLDFAST_PG_BINDIR")); err != nil {
		t.Skip(err)
	}
}

type outcome struct {
	code           int
	stdout, stderr string
}

const (
	deadline     = 4 * time.Minute
	longDeadline = 45 * time.Minute
)

func (b *bench) command(args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	ctx, cancel := context.WithTimeout(context.Background(), b.deadline)
	b.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, b.bin, args...)
	cmd.Dir, cmd.Env = b.dir, b.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	return cmd, &stdout, &stderr
}

func (b *bench) run(args ...string) outcome {
	b.t.Helper()
	cmd, stdout, stderr := b.command(args...)
	return finished(b.t, cmd.Run(), stdout, stderr)
}

func finished(t *testing.T, err error, stdout, stderr *bytes.Buffer) outcome {
	t.Helper()
	o := outcome{stdout: stdout.String(), stderr: stderr.String()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		o.code = exit.ExitCode()
	case err != nil:
		t.Fatal(err)
	}
	return o
}

// want holds an outcome to its exit code and to what its error says, once.
func (o outcome) want(t *testing.T, code int, says ...string) {
	t.Helper()
	if o.code != code {
		t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", o.code, code, o.stdout, o.stderr)
	}
	for _, s := range says {
		if !strings.Contains(o.stderr, s) {
			t.Errorf("stderr does not say %q:\n%s", s, o.stderr)
		}
	}
	if strings.Contains(o.stderr, "panic:") || strings.Contains(o.stderr, "goroutine ") {
		t.Errorf("a crash instead of a message:\n%s", o.stderr)
	}
}

func (b *bench) study(text string) string {
	b.t.Helper()
	name := filepath.Join(b.dir, "study.yaml")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
	return name
}

func (b *bench) labRun(study string, more ...string) outcome {
	b.t.Helper()
	return b.run(append([]string{"lab", "run", study, "--out", "out", "--work-dir", b.work, "--seed", "7"}, more...)...)
}

func (b *bench) result() *result.Run {
	b.t.Helper()
	run, err := result.Read(filepath.Join(b.dir, "out"))
	if err != nil {
		b.t.Fatal(err)
	}
	return run
}

// labs are the ids of the labs that have used this bench's work folder, while
// they run.
func (b *bench) labs() []string {
	entries, _ := os.ReadDir(b.work)
	var ids []string
	for _, e := range entries {
		ids = append(ids, strings.TrimPrefix(e.Name(), "holdfast-lab-"))
	}
	return ids
}

// processes are those that run this bench's copy of the program.
func (b *bench) processes() map[int]string {
	found := map[int]string{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		exe, err := os.Readlink(filepath.Join(d, "exe"))
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		args := strings.ReplaceAll(string(line), "\x00", " ")
		if strings.TrimSuffix(exe, " (deleted)") == b.bin || strings.Contains(args, b.dir) {
			if pid, err := strconv.Atoi(filepath.Base(d)); err == nil && pid != os.Getpid() {
				found[pid] = args
			}
		}
	}
	return found
}

// clean fails the test if anything of the given labs is still there.
func (b *bench) clean(labs ...string) {
	b.t.Helper()
	b.eventually("every process has ended", func() bool { return len(b.processes()) == 0 })
	if left := b.labs(); len(left) > 0 {
		b.t.Errorf("left in the work folder: %v", left)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		b.t.Fatal(err)
	}
	state, _ := filepath.Glob("/run/holdfast/labs/*")
	for _, id := range labs {
		if strings.Contains(string(mounts), id) {
			b.t.Errorf("a mount of lab %s is left", id)
		}
		for _, s := range state {
			if filepath.Base(s) == id {
				b.t.Errorf("%s is left", s)
			}
		}
	}
}

func (b *bench) eventually(what string, ok func() bool) {
	b.t.Helper()
	end := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(end) {
			b.t.Fatalf("not within 30 s: %s (processes: %v)", what, b.processes())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// started is a lab run in the background.
type started struct {
	*bench
	cmd            *exec.Cmd
	stdout, stderr *bytes.Buffer
	ids            []string
}

// start begins a run and waits until its driver writes.
func (b *bench) start(study string) *started {
	b.t.Helper()
	cmd, stdout, stderr := b.command("lab", "run", study, "--out", "out", "--work-dir", b.work, "--seed", "7")
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	s := &started{bench: b, cmd: cmd, stdout: stdout, stderr: stderr}
	b.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		}
	})
	b.eventually("the driver runs", func() bool { return s.driver() != 0 })
	s.ids = b.labs()
	return s
}

func (s *started) wait() outcome { return finished(s.t, s.cmd.Wait(), s.stdout, s.stderr) }

// driver is the pid of the lab's driver, 0 while there is none. Its program is
// bound to another path within its host, so it is found by its parents.
func (s *started) driver() int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		line, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		if len(args) < 2 || args[len(args)-1] != "lab-driver" {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(d)); err == nil && descends(pid, s.cmd.Process.Pid) {
			return pid
		}
	}
	return 0
}

func descends(pid, from int) bool {
	for range 20 {
		if pid == from {
			return true
		}
		if pid <= 1 {
			return false
		}
		data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			return false
		}
		fields := strings.Fields(string(data)[strings.LastIndex(string(data), ")")+1:])
		if pid, err = strconv.Atoi(fields[1]); err != nil {
			return false
		}
	}
	return false
}
