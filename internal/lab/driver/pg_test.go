package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

const password = "a secret of the test"

// server is a Postgres of the test's own, on loopback, under an unprivileged
// user, that can be killed and started again.
type server struct {
	t    *testing.T
	bin  string
	dir  string
	port int
	cred *syscall.Credential
	cmd  *exec.Cmd
	done chan struct{}
	log  bytes.Buffer
}

// newServer makes a data directory (with primary: a copy of its, as a standby)
// and starts it.
func newServer(t *testing.T, primary *server, settings ...string) *server {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		t.Skip("needs Postgres in /usr/lib/postgresql (apt-get install postgresql)")
	}
	s := &server{t: t, bin: filepath.Dir(found[len(found)-1]), port: freePort(t), cred: unprivileged(t)}
	dir, err := os.MkdirTemp("", "hfd") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	s.dir = dir
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if s.cred != nil {
		if err := os.Chown(dir, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	if primary == nil {
		pw := filepath.Join(dir, "pw")
		if err := os.WriteFile(pw, []byte(password), 0o644); err != nil {
			t.Fatal(err)
		}
		s.run("initdb", "-D", s.data(), "-N", "-A", "scram-sha-256", "-U", "holdfast", "--pwfile="+pw, "--no-instructions", "--locale=C.UTF-8")
		settings = append(settings, "wal_level=replica", "max_wal_senders=4", "hot_standby=on")
	} else {
		s.run("pg_basebackup", "-D", s.data(), "-R", "-c", "fast", "-d",
			fmt.Sprintf("host=127.0.0.1 port=%d user=holdfast application_name=standby password='%s'", primary.port, password))
	}
	conf, err := os.OpenFile(filepath.Join(s.data(), "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer conf.Close()
	for _, line := range append(settings, fmt.Sprintf("port=%d", s.port), "listen_addresses='127.0.0.1'", "unix_socket_directories='"+dir+"'",
		"shared_buffers='16MB'", "max_connections=50", "dynamic_shared_memory_type='mmap'") {
		fmt.Fprintln(conf, line)
	}
	t.Cleanup(s.kill)
	s.start()
	return s
}

func (s *server) data() string { return filepath.Join(s.dir, "data") }

func (s *server) target() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }

func (s *server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir, cmd.Env = s.dir, []string{"LC_ALL=C.UTF-8", "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (s *server) run(name string, args ...string) {
	s.t.Helper()
	if out, err := s.command(name, args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// start starts the server and waits until it takes connections.
func (s *server) start() {
	s.t.Helper()
	s.done = make(chan struct{})
	s.cmd = s.command("postgres", "-D", s.data())
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func(c *exec.Cmd, done chan struct{}) { _ = c.Wait(); close(done) }(s.cmd, s.done)
	eventually(s.t, 30*time.Second, "the server to start", func() bool {
		select {
		case <-s.done:
			s.t.Fatalf("postgres ended at its start:\n%s", s.log.String())
		default:
		}
		c, err := s.connect()
		if err != nil {
			return false
		}
		_ = c.Close(context.Background())
		return true
	})
}

// kill ends every process of the server at once, and removes the System V
// memory that a killed server leaves.
func (s *server) kill() {
	if s.cmd == nil {
		return
	}
	segment := -1
	pid, _ := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	for line := range strings.Lines(string(pid)) {
		if f := strings.Fields(line); len(f) == 2 { // key and id of the segment
			if id, err := strconv.Atoi(f[1]); err == nil {
				segment = id
			}
		}
	}
	_ = s.cmd.Process.Signal(syscall.SIGSTOP) // so that it starts no more of them
	s.signal(syscall.SIGKILL)
	<-s.done
	s.cmd = nil
	if segment >= 0 {
		_, _ = unix.SysvShmCtl(segment, unix.IPC_RMID, nil)
	}
}

// signal sends sig to the processes of the server, which are in sessions of
// their own, and to the postmaster.
func (s *server) signal(sig syscall.Signal) {
	for _, pid := range append(children(s.cmd.Process.Pid), s.cmd.Process.Pid) {
		_ = syscall.Kill(pid, sig)
	}
}

func (s *server) connect() (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return pgx.Connect(ctx, fmt.Sprintf("host=127.0.0.1 port=%d user=holdfast password='%s' dbname=postgres sslmode=disable", s.port, password))
}

// exec runs SQL, one statement after another.
func (s *server) exec(sql ...string) {
	s.t.Helper()
	c, err := s.connect()
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	for _, q := range sql {
		if _, err := c.Exec(context.Background(), q); err != nil {
			s.t.Fatalf("%s: %v", q, err)
		}
	}
}

// ids reads the ids of the ledger, by scan or by index.
func (s *server) ids(byIndex bool) []uint64 {
	s.t.Helper()
	c, err := s.connect()
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	off := map[bool]string{true: "enable_seqscan", false: "enable_indexscan"}[byIndex]
	if _, err := c.Exec(context.Background(), "SET "+off+" = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off"); err != nil {
		s.t.Fatal(err)
	}
	rows, err := c.Query(context.Background(), "SELECT id FROM ledger ORDER BY id")
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[uint64])
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func children(parent int) []int {
	var out []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ") // pid (name) state ppid
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(parent) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				out = append(out, pid)
			}
		}
	}
	return out
}

func unprivileged(t *testing.T) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		t.Skip("needs a user nobody: Postgres does not run as root")
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// eventually waits for ok, and fails the test when it takes too long.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", limit, what)
		}
	}
}
