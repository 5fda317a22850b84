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
	st, err := os.Stat(filepath.Join(p.cfg.DataDir, "PG_VERSION"))
	must(t, err)
	other := exec.Command("sleep", "600") // of Postgres's user: others' it does not mind
	if s, ok := st.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.Uid, Gid: s.Gid}}
	}
	must(t, other.Start())
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	})
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
