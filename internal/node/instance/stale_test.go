package instance_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestStaleLock: after a loss of power, the number in the lock file of the server
// that ran then belongs to somebody else, and must not keep Postgres down.
func TestStaleLock(t *testing.T) {
	p := newNodes(t).node("a")
	p.create(t)
	p.watch(t)
	other := exec.Command("sleep", "600")
	must(t, other.Start())
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	})
	st, err := os.Stat(filepath.Join(p.cfg.DataDir, "PG_VERSION"))
	must(t, err)
	for _, lock := range []string{filepath.Join(p.cfg.DataDir, "postmaster.pid"), filepath.Join(p.cfg.RunDir, fmt.Sprintf(".s.PGSQL.%d.lock", p.cfg.Port))} {
		must(t, os.WriteFile(lock, fmt.Appendf(nil, "%d\n%s\n1\n%d\n%s\n\n", other.Process.Pid, p.cfg.DataDir, p.cfg.Port, p.cfg.RunDir), 0o600))
		chownLike(t, lock, st)
	}
	if d := p.startPrimary(t); !d.Postgres.Running {
		t.Fatalf("after the start: %+v", d)
	}
}

func chownLike(t *testing.T, path string, st os.FileInfo) {
	t.Helper()
	if s, ok := st.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		must(t, os.Chown(path, int(s.Uid), int(s.Gid)))
	}
}
