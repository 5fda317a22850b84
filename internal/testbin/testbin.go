// Package testbin gives tests the real holdfast program.
package testbin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// Env names the variable that holds a program to use instead of building one.
const Env = "HOLDFAST_BIN"

const pkg = "github.com/holdfast-db/holdfast/cmd/holdfast"

// Build returns the absolute path of the program, readable by every user. It
// is built once per test process, and removed when that process ends.
func Build(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var build = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(Env); path != "" {
		if !filepath.IsAbs(path) {
			return "", fmt.Errorf("%s is %q: want an absolute path", Env, path)
		}
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s: %w", Env, err)
		}
		return path, nil
	}
	return compile("", pkg)
})

// BuildFor builds another program of this module for the hosts of the lab, which
// have a /tmp of their own. The file is removed when this process ends.
func BuildFor(pkg string) (string, error) { return compile("/var/tmp", pkg) }

func compile(parent, pkg string) (string, error) {
	dir, err := os.MkdirTemp(parent, "holdfast-testbin-*")
	if err != nil {
		return "", err
	}
	if err := removeAfterwards(dir); err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, filepath.Base(pkg))
	cmd := exec.CommandContext(context.Background(), "go", "build", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return path, nil
}

// removeAfterwards has a shell remove dir when this process ends, whatever way
// it ends: nothing runs within a test process after its last test.
func removeAfterwards(dir string) error {
	// The writing end is never closed and, as a bare number, never collected.
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return os.NewSyscallError("pipe", err)
	}
	r := os.NewFile(uintptr(fds[0]), "lifeline")
	defer r.Close()
	cmd := exec.CommandContext(context.Background(), "/bin/sh", "-c", `read -r _; rm -rf -- "$1"`, "sh", dir)
	cmd.Stdin = r
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the remover of %s: %w", dir, err)
	}
	return nil
}
