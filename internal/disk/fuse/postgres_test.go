package fuse_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	pgBin  = "/usr/lib/postgresql/15/bin"
	nobody = 65534
)

// postgres is a server of our own: as an unprivileged user, on a unix socket,
// in PID and IPC namespaces that end with it.
type postgres struct {
	t    testing.TB
	data string
	run  string // socket and log, not on the disk under test
	cmd  *exec.Cmd
	done chan struct{}
}

// newPostgres initialises a data directory in dir.
func newPostgres(t testing.TB, dir string) *postgres {
	t.Helper()
	needRoot(t)
	if _, err := os.Stat(pgBin + "/postgres"); err != nil {
		t.Skip("needs PostgreSQL 15: apt-get install postgresql-15")
	}
	run, err := os.MkdirTemp("", "hfpg")
	must(t, err)
	p := &postgres{t: t, data: filepath.Join(dir, "pg"), run: run}
	t.Cleanup(func() {
		p.kill()
		_ = os.RemoveAll(run)
	})
	must(t, os.Chown(run, nobody, nobody))
	must(t, os.Mkdir(p.data, 0o700))
	must(t, os.Chown(p.data, nobody, nobody))
	init := p.command("initdb", "-D", p.data, "-A", "trust", "-U", "postgres", "--no-instructions", "--encoding=UTF8", "--locale=C")
	if out, err := init.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	return p
}

func (p *postgres) command(name string, args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(pgBin, name), args...)
	c.Dir = p.run
	c.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody},
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	return c
}

func (p *postgres) start(settings ...string) {
	p.t.Helper()
	args := []string{
		"-D", p.data, "-c", "listen_addresses=", "-c", "unix_socket_directories=" + p.run, "-c", "lc_messages=C",
		"-c", "dynamic_shared_memory_type=mmap", "-c", "autovacuum=off",
	}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	p.cmd = p.command("postgres", args...)
	log, err := os.OpenFile(p.run+"/log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(p.t, err)
	defer log.Close()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	must(p.t, p.cmd.Start())
	done, cmd := make(chan struct{}), p.cmd
	p.done = done
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if c, err := p.connect(); err == nil {
			_ = c.Close(context.Background())
			return
		}
		ended := false
		select {
		case <-done:
			ended = true
		default:
		}
		if ended || time.Now().After(end) {
			b, _ := os.ReadFile(p.run + "/log")
			p.t.Fatalf("Postgres does not start:\n%s", b)
		}
	}
}

func (p *postgres) connect() (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return pgx.Connect(ctx, fmt.Sprintf("host=%s user=postgres dbname=postgres", p.run))
}

// kill ends the server and all its backends at once, and waits.
func (p *postgres) kill() {
	if p.cmd == nil || p.cmd.Process == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	p.cmd = nil
	_ = os.Remove(p.run + "/.s.PGSQL.5432")
	_ = os.Remove(p.run + "/.s.PGSQL.5432.lock")
}

func (p *postgres) exec(sql string) {
	p.t.Helper()
	c, err := p.connect()
	must(p.t, err)
	defer func() { _ = c.Close(context.Background()) }()
	_, err = c.Exec(context.Background(), sql)
	must(p.t, err)
}

// load inserts rows from several connections until stop, and returns which ids
// were acknowledged.
func (p *postgres) load(first int64, stop <-chan struct{}) (wait func() []int64) {
	var wg sync.WaitGroup
	var next atomic.Int64
	next.Store(first)
	acked := make([][]int64, 4)
	for w := range acked {
		c, err := p.connect()
		must(p.t, err)
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer func() { _ = c.Close(context.Background()) }()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() {
				<-stop
				cancel()
			}()
			for {
				id := next.Add(1)
				if _, err := c.Exec(ctx, "insert into acks values ($1)", id); err != nil {
					return
				}
				acked[w] = append(acked[w], id)
			}
		}()
	}
	return func() []int64 {
		wg.Wait()
		var all []int64
		for _, a := range acked {
			all = append(all, a...)
		}
		return all
	}
}

// lost returns how many of the ids are not in the table.
func (p *postgres) lost(ids []int64) int {
	p.t.Helper()
	c, err := p.connect()
	must(p.t, err)
	defer func() { _ = c.Close(context.Background()) }()
	rows, err := c.Query(context.Background(), "select id from acks")
	must(p.t, err)
	there, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	must(p.t, err)
	set := map[int64]bool{}
	for _, id := range there {
		set[id] = true
	}
	n := 0
	for _, id := range ids {
		if !set[id] {
			n++
		}
	}
	return n
}

// cutUnderLoad writes for a while, cuts the power, brings disk and server back,
// and returns how many rows were acknowledged and how many of them are lost.
func cutUnderLoad(t *testing.T, d *daemon, p *postgres, first int64, during time.Duration) (acked, lost int) {
	t.Helper()
	stop := make(chan struct{})
	wait := p.load(first, stop)
	time.Sleep(during) // the load itself, not a wait for something
	_, err := d.Cut(d.ctx())
	must(t, err)
	p.kill()
	close(stop)
	ids := wait()
	_, err = d.On(d.ctx())
	must(t, err)
	p.start()
	return len(ids), p.lost(ids)
}

func TestPostgresLosesNothing(t *testing.T) {
	all := []string{"lose-all", "random-sectors", "torn-write", "posix/lose-all"}
	if os.Getenv("HOLDFAST_LONG") != "" {
		all = append(all, "operation-prefix", "posix/random-sectors", "posix/torn-write")
	}
	for _, crash := range all {
		t.Run(crash, func(t *testing.T) {
			profile, policy, ok := strings.Cut(crash, "/")
			if !ok {
				profile, policy = "", crash
			}
			d := prepare(t, "local-nvme", policy)
			d.cfg.Profile = profile
			d.start()
			p := newPostgres(t, d.mnt)
			d.fsync("") // initdb flushes what is in the directory, not the directory's own name
			p.start()
			p.exec("create table acks (id bigint primary key)")
			for cut := range 3 {
				if cut == 1 {
					p.exec("checkpoint")
				}
				acked, lost := cutUnderLoad(t, d, p, int64(cut)*1e6, 700*time.Millisecond)
				t.Logf("cut %d: %d rows acknowledged, %d lost", cut, acked, lost)
				if acked < 20 {
					t.Errorf("cut %d: only %d rows were acknowledged", cut, acked)
				}
				if lost != 0 {
					t.Errorf("cut %d: %d of %d acknowledged rows are lost", cut, lost, acked)
				}
			}
		})
	}
}

// TestPostgresOnALyingDisk is the control: the same experiment must show losses.
func TestPostgresOnALyingDisk(t *testing.T) {
	d := mount(t, "local-nvme", "lying")
	p := newPostgres(t, d.mnt)
	p.start()
	p.exec("create table acks (id bigint primary key)")
	d.sync()
	acked, lost := cutUnderLoad(t, d, p, 0, 700*time.Millisecond)
	t.Logf("%d rows acknowledged, %d lost", acked, lost)
	if acked < 20 || lost == 0 {
		t.Errorf("of %d acknowledged rows %d are lost, want some", acked, lost)
	}
}
