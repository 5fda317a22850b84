package diagnose

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/disk"
	"github.com/holdfast-db/holdfast/internal/disk/control"
	"github.com/holdfast-db/holdfast/internal/disk/fuse"
)

// diskEnv makes the test binary a simulated disk: it must be another process,
// because a page fault on its own mount would stop a Go program for good.
const diskEnv = "HOLDFAST_TEST_DIAGNOSE_DISK"

// forgetEnv makes the test binary drop a file from the kernel's cache again and
// again, until its input ends: in a process of its own, since what this one
// uses of a processor counts as the sampler's.
const forgetEnv = "HOLDFAST_TEST_DIAGNOSE_FORGET"

func forgetMain(file string) int {
	f, err := os.Open(file)
	if err != nil {
		println(err.Error())
		return 1
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		time.Sleep(100 * time.Millisecond)
	}
}

type diskConfig struct{ Backing, Mountpoint, Socket string }

func TestMain(m *testing.M) {
	if c := os.Getenv(diskEnv); c != "" {
		os.Exit(diskMain(c))
	}
	if file := os.Getenv(forgetEnv); file != "" {
		os.Exit(forgetMain(file))
	}
	os.Exit(m.Run())
}

func diskMain(config string) int {
	var c diskConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		println(err.Error())
		return 1
	}
	kind, err := disk.ByName("null")
	if err != nil {
		println(err.Error())
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	lifeline := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(lifeline)
	}()
	fuse.Tune()
	err = fuse.Run(ctx, fuse.Config{
		Backing: c.Backing, Mountpoint: c.Mountpoint, Kind: kind, Policy: "lose-all", Seed: 1,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}, c.Socket, lifeline, func() { _, _ = os.Stdout.WriteString("ready\n") })
	if err != nil {
		println(err.Error())
		return 2
	}
	return 0
}

// simdisk is a mounted simulated disk; at first it takes no time.
type simdisk struct {
	*control.Client
	t   testing.TB
	mnt string
}

func mountDisk(t testing.TB) *simdisk {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no mounts")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a simulated disk for Postgres's user")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
	dir := tempDir(t)
	c := diskConfig{filepath.Join(dir, "backing"), filepath.Join(dir, "mnt"), filepath.Join(dir, "sock")}
	check(t, os.Mkdir(c.Mountpoint, 0o755))
	config, err := json.Marshal(c)
	check(t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), diskEnv+"="+string(config))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = unix.Unmount(c.Mountpoint, unix.MNT_FORCE|unix.MNT_DETACH)
	})
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the disk said %q, not ready: %s", line, errs.String())
	}
	client, err := control.Dial(c.Socket)
	check(t, err)
	return &simdisk{Client: client, t: t, mnt: c.Mountpoint}
}

func (d *simdisk) set(values map[string]string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	check(d.t, d.Set(ctx, values))
}

func (d *simdisk) sync() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	check(d.t, d.Sync(ctx))
}

// tempDir is short, since a socket's path has 107 bytes, and open to all.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hfd")
	check(t, err)
	check(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// server is a Postgres of our own, with an unprivileged user.
type server struct {
	loadMayEnd bool // a load that ends by itself is told, and is no failure
	t          testing.TB
	bin        string
	data       string
	run        string // of its socket and log
	port       int
	settings   []string
	cred       *syscall.Credential
	cmd        *exec.Cmd
	done       chan struct{}
}

// debianBin is the newest of Debian's servers that has pgbench.
func debianBin(t testing.TB) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
	if len(found) == 0 {
		t.Skip("needs Postgres with pgbench in /usr/lib/postgresql (apt-get install postgresql)")
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1])
}

// newServer initialises a data directory below dir, "" for one of its own, and starts a server on it.
func newServer(t testing.TB, bin, dir string, settings ...string) *server {
	t.Helper()
	s := prepareServer(t, bin, dir, settings...)
	s.initdb()
	s.start()
	return s
}

func prepareServer(t testing.TB, bin, dir string, settings ...string) *server {
	t.Helper()
	s := &server{t: t, bin: bin, run: tempDir(t), port: 5432, settings: settings}
	if os.Geteuid() == 0 {
		s.cred = unprivileged(t)
		check(t, os.Chown(s.run, int(s.cred.Uid), int(s.cred.Gid)))
	}
	if dir == "" {
		dir = s.run
	}
	s.data = filepath.Join(dir, "pg")
	check(t, os.Mkdir(s.data, 0o700))
	if s.cred != nil {
		check(t, os.Chown(s.data, int(s.cred.Uid), int(s.cred.Gid)))
	}
	t.Cleanup(s.kill)
	return s
}

func unprivileged(t testing.TB) *syscall.Credential {
	t.Helper()
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	t.Skip("needs a user postgres or nobody: Postgres does not run as root")
	return nil
}

func (s *server) initdb() {
	s.t.Helper()
	if out, err := s.command("initdb", "-D", s.data, "-N", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C").CombinedOutput(); err != nil {
		s.t.Fatalf("initdb: %v\n%s", err, out)
	}
}

func (s *server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.run
	cmd.Env = []string{"LC_ALL=C", "PATH=" + s.bin + ":/usr/bin:/bin", "TMPDIR=" + s.run, "PGHOST=" + s.run, "PGUSER=postgres", "PGDATABASE=postgres", "PGPORT=" + strconv.Itoa(s.port)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func (s *server) start() {
	s.t.Helper()
	// In a file, so that ALTER SYSTEM has the last word.
	conf := fmt.Sprintf("listen_addresses = ''\nunix_socket_directories = '%s'\nport = %d\ndynamic_shared_memory_type = mmap\nlc_messages = 'C'\nshared_buffers = 16MB\n", s.run, s.port)
	for _, set := range s.settings {
		name, value, _ := strings.Cut(set, "=")
		conf += fmt.Sprintf("%s = '%s'\n", name, value)
	}
	file := filepath.Join(s.run, "postgresql.conf")
	check(s.t, os.WriteFile(file, []byte(conf), 0o644))
	s.cmd = s.command("postgres", "-D", s.data, "-c", "config_file="+file)
	log, err := os.OpenFile(filepath.Join(s.run, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(s.t, err)
	defer log.Close()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	check(s.t, s.cmd.Start())
	cmd, done := s.cmd, make(chan struct{})
	s.done = done
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	s.until(30*time.Second, "the server starts", func() bool {
		select {
		case <-done:
			s.t.Fatalf("postgres ended at its start:\n%s", s.log())
		default:
		}
		c, err := s.tryConnect()
		if err == nil {
			_ = c.Close(context.Background())
		}
		return err == nil
	})
}

func (s *server) log() string {
	b, _ := os.ReadFile(filepath.Join(s.run, "log"))
	return string(b)
}

// until waits for a condition, with a deadline.
func (s *server) until(most time.Duration, what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(most); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("after %v still not: %s\n%s", most, what, s.log())
		}
	}
}

func (s *server) dsn() string {
	return fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres", s.run, s.port)
}

func (s *server) tryConnect() (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return pgx.Connect(ctx, s.dsn())
}

// connectVia is a session by another way.
func (s *server) connectVia(dsn string) *pgx.Conn {
	s.t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	check(s.t, err)
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := pgx.ConnectConfig(ctx, cfg)
	check(s.t, err)
	return c
}

// connect is a session that ends with the test.
func (s *server) connect() *pgx.Conn {
	s.t.Helper()
	c, err := s.tryConnect()
	check(s.t, err)
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

func (s *server) exec(sql ...string) {
	s.t.Helper()
	c, err := s.tryConnect()
	check(s.t, err)
	defer func() { _ = c.Close(context.Background()) }()
	for _, q := range sql {
		if _, err := c.Exec(context.Background(), q); err != nil {
			s.t.Fatalf("%s: %v", q, err)
		}
	}
}

// pids are the postmaster and its children.
func (s *server) pids() []int {
	m := &machine{proc: "/proc"}
	pids := []int{s.cmd.Process.Pid}
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		if pid, err := strconv.Atoi(d.Name()); err == nil {
			if st, ok := m.stat(pid); ok && st.parent == s.cmd.Process.Pid {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func (s *server) signal(sig syscall.Signal) {
	for _, pid := range s.pids() {
		_ = syscall.Kill(pid, sig)
	}
}

// kill ends the server at once, as a crash would.
func (s *server) kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	segment := s.segment()
	_ = s.cmd.Process.Signal(syscall.SIGSTOP) // it starts no more children
	s.signal(syscall.SIGKILL)
	<-s.done
	s.cmd = nil
	if segment > 0 {
		_, _ = unix.SysvShmCtl(segment, unix.IPC_RMID, nil)
	}
}

// stop ends it in order.
func (s *server) stop() {
	s.t.Helper()
	check(s.t, s.cmd.Process.Signal(syscall.SIGINT))
	select {
	case <-s.done:
		s.cmd = nil
	case <-time.After(30 * time.Second):
		s.t.Fatalf("the server does not stop:\n%s", s.log())
	}
}

// segment is the id of the System V shared memory that a killed server leaves.
func (s *server) segment() int {
	b, err := os.ReadFile(filepath.Join(s.data, "postmaster.pid"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 {
			if id, err := strconv.Atoi(f[1]); err == nil {
				return id
			}
		}
	}
	return 0
}

// load runs pgbench until the function that it returns, or the test, ends.
func (s *server) load(args ...string) (end func()) {
	s.t.Helper()
	cmd := s.command("pgbench", append([]string{"-n", "-T", "600"}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	check(s.t, cmd.Start())
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	stopped := false
	end = func() {
		if stopped {
			return
		}
		stopped = true
		select {
		case <-done:
			if s.loadMayEnd {
				s.t.Logf("pgbench %v ended by itself:\n%s", args, out.String())
				return
			}
			s.t.Errorf("pgbench %v ended by itself:\n%s", args, out.String())
			return
		default:
		}
		_ = cmd.Process.Kill()
		<-done
	}
	s.t.Cleanup(end)
	return end
}

// script writes a pgbench script.
func (s *server) script(text string) string {
	s.t.Helper()
	f, err := os.CreateTemp(s.run, "script")
	check(s.t, err)
	_, err = f.WriteString(text)
	check(s.t, err)
	check(s.t, f.Chmod(0o644))
	check(s.t, f.Close())
	return f.Name()
}

// pgbenchTables makes pgbench's tables.
func (s *server) pgbenchTables(scale int) {
	s.t.Helper()
	if out, err := s.command("pgbench", "-i", "-q", "-s", strconv.Itoa(scale)).CombinedOutput(); err != nil {
		s.t.Fatalf("pgbench -i: %v\n%s", err, out)
	}
}

// diagnose runs for a while, with more samples than it would cost a user; the
// test fails when it does not come about.
func (s *server) diagnose(length time.Duration) Diagnosis {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), length+30*time.Second)
	defer cancel()
	d, err := Run(ctx, Options{DSN: s.dsn(), For: length, Interval: 20 * time.Millisecond, Seed: 1, Getenv: os.Getenv, share: 0.05})
	check(s.t, err)
	return d
}

// long says whether tests of more than 20 s are to run.
func long() bool { return os.Getenv("HOLDFAST_LONG") != "" }
