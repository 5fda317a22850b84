// Package pgtest starts a throw-away Postgres for tests: as an unprivileged
// user, in a directory of its own, on a unix socket only.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Server is a running Postgres.
type Server struct {
	Bin    string // directory of its programs
	Socket string // directory of its socket; connect as User to database postgres
	User   string
	cred   *syscall.Credential
	cmd    *exec.Cmd
	done   chan struct{}
	log    bytes.Buffer
}

// Start starts a server with settings ("fsync=off") and ends it with the test.
// It skips the test where Postgres, or an unprivileged user for it, is missing.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	s := &Server{Bin: binDir(t), User: "holdfast", done: make(chan struct{})}
	s.cred = unprivileged(t)
	dir, err := os.MkdirTemp("", "pgt") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if s.cred != nil {
		if err := os.Chown(dir, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	s.Socket = dir
	data := filepath.Join(dir, "data")
	if out, err := s.Command(t.Context(), "initdb", "-D", data, "-N", "-A", "trust", "-U", s.User, "--no-instructions").CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	args := []string{"-D", data, "-c", "listen_addresses=", "-c", "unix_socket_directories=" + dir, "-c", "shared_buffers=32MB",
		"-c", "dynamic_shared_memory_type=mmap"} // in data, not in /dev/shm, where a killed server leaves it
	port := "5432"
	for _, set := range settings {
		args = append(args, "-c", set)
		if p, ok := strings.CutPrefix(set, "port="); ok {
			port = p
		}
	}
	s.cmd = s.Command(context.Background(), "postgres", args...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.cmd.Wait(); close(s.done) }()
	t.Cleanup(s.Kill)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if s.Command(t.Context(), "pg_isready", "-q", "-h", dir, "-p", port, "-U", s.User).Run() == nil {
			return s
		}
		select {
		case <-s.done:
			t.Fatalf("postgres ended at its start:\n%s", s.log.String())
		default:
		}
		if time.Now().After(deadline) {
			s.Kill()
			t.Fatalf("postgres is not ready after 30 s:\n%s", s.log.String())
		}
	}
}

// Command is a program of this Postgres, to be run as its user.
func (s *Server) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.Bin, name), args...)
	cmd.Dir = s.Socket
	cmd.Env = []string{"LC_ALL=C", "PATH=" + s.Bin + ":/usr/bin:/bin", "TMPDIR=" + s.Socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// DSN connects to it.
func (s *Server) DSN() string {
	return fmt.Sprintf("host=%s user=%s dbname=postgres sslmode=disable", s.Socket, s.User)
}

// Signal sends sig to the postmaster and all of its processes. Backends are
// found through their parent: they are in sessions of their own.
func (s *Server) Signal(sig syscall.Signal) {
	pids := append([]int{s.cmd.Process.Pid}, children(s.cmd.Process.Pid)...)
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
}

// Kill ends all of its processes at once. The postmaster is stopped first, so
// that it starts no more of them while they are looked for.
func (s *Server) Kill() {
	select {
	case <-s.done:
		return
	default:
	}
	segment := s.segment()
	_ = s.cmd.Process.Signal(syscall.SIGSTOP)
	s.Signal(syscall.SIGKILL)
	<-s.done
	if segment > 0 {
		_, _ = unix.SysvShmCtl(segment, unix.IPC_RMID, nil)
	}
}

// segment is the id of the server's System V shared memory, which a killed
// server leaves: the second number in the line of postmaster.pid that has two.
func (s *Server) segment() int {
	data, err := os.ReadFile(filepath.Join(s.Socket, "data", "postmaster.pid"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 2 {
			id, err := strconv.Atoi(f[1])
			if err == nil {
				return id
			}
		}
	}
	return 0
}

func children(parent int) []int {
	var pids []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// pid (name) state ppid …; the name may hold anything.
		_, rest, _ := strings.Cut(string(data), ") ")
		f := strings.Fields(rest)
		if len(f) > 1 && f[1] == strconv.Itoa(parent) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func binDir(t testing.TB) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
	if len(found) == 0 {
		t.Skip("needs Postgres with pgbench in /usr/lib/postgresql (apt-get install postgresql)")
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1])
}

// unprivileged is nil when the test itself runs unprivileged.
func unprivileged(t testing.TB) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if errors.Join(err1, err2) == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	t.Skip("needs a user postgres or nobody: Postgres does not run as root")
	return nil
}

// Pipe runs cmd with stdout and stderr apart and returns both with the exit
// status (-1 for a signal).
func Pipe(cmd *exec.Cmd) (stdout, stderr string, status int, err error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.Writer(&out), io.Writer(&errs)
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode(), err
}
