package fuse_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fenced returns the first block of a language after a heading of a page.
func fenced(t *testing.T, page, heading, language string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, heading)
	if ok {
		_, rest, ok = strings.Cut(rest, "```"+language+"\n")
	}
	block, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatalf("the page has no %s block under %q", language, heading)
	}
	return block
}

// TestPageTestYourOwn runs what docs/simdisk.md tells its readers to run, and
// compares with what it says that they will see.
func TestPageTestYourOwn(t *testing.T) {
	needRoot(t)
	const root = "../../.."
	b, err := os.ReadFile(root + "/docs/simdisk.md")
	must(t, err)
	page, heading := string(b), "## Test your own"
	program, err := os.ReadFile(root + "/docs/examples/queue/main.go")
	must(t, err)
	if fenced(t, page, heading, "go") != string(program) {
		t.Error("the program on the page is not docs/examples/queue/main.go")
	}
	tmp := t.TempDir()
	bin := filepath.Join(tmp, "bin")
	must(t, os.Mkdir(bin, 0o755))
	build := exec.Command("go", "build", "-o", bin+"/holdfast", "./cmd/holdfast")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", fenced(t, page, heading, "sh"))
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TMPDIR="+tmp)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	t.Cleanup(func() { // what a script leaves that fails half way
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
		mounts, _ := filepath.Glob(tmp + "/*/mnt")
		for _, m := range mounts {
			_ = syscall.Unmount(m, syscall.MNT_FORCE|syscall.MNT_DETACH)
		}
	})
	out, err := cmd.CombinedOutput()
	if want := fenced(t, page, heading, "text"); err != nil || string(out) != want {
		t.Errorf("%v; it prints\n%s\nthe page says\n%s", err, out, want)
	}
}
