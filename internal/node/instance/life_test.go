package instance_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance"
)

func TestCreateStartStop(t *testing.T) {
	p := newNodes(t).node("a")
	inc, err := p.Create(t.Context())
	must(t, err)
	if inc == 0 || p.Incarnation() != inc {
		t.Fatalf("incarnation %d, remembered %d", inc, p.Incarnation())
	}
	if _, err := p.Create(t.Context()); err == nil || !strings.Contains(err.Error(), "adopt") {
		t.Errorf("made once more: %v", err)
	}
	p.watch(t)
	d := p.startPrimary(t)
	if v := d.Postgres; v == nil || !v.Running || !v.Primary || v.Foreign || v.DoorOpen || v.Incarnation != inc || v.End == 0 ||
		len(v.History) != 1 || v.History[0] != (cluster.Branch{Timeline: 1}) || !v.Headroom || v.ReloadRejected || v.Replayable != v.End {
		t.Fatalf("after the start: %+v", v)
	}
	if d := p.do(t, func(id uint64) cluster.Effect { return cluster.StartPrimary{ID: id} }); d.OK {
		t.Error("started twice")
	}
	p.begin(cluster.OpenDoor{})
	p.looks(t, "an open door", func(v cluster.Postgres) bool { return v.DoorOpen })
	d = p.stop(t, false)
	if v := d.Postgres; v.Running || v.DoorOpen || !v.Primary {
		t.Fatalf("after the stop: %+v", v)
	}
	p.startPrimary(t)
	if v := p.looks(t, "the start", func(v cluster.Postgres) bool { return v.Running }); v.DoorOpen {
		t.Error("a Postgres that was started has its door open")
	}
	d = p.stop(t, true)
	if v := d.Postgres; v.Running {
		t.Fatalf("after the immediate stop: %+v", v)
	}
	if pids := pidsOn(p.cfg.DataDir); len(pids) > 0 {
		t.Errorf("processes %v are left", pids)
	}
}

// TestProbedWhileStarting: a server that is started or stopped is no sick disk.
func TestProbedWhileStarting(t *testing.T) {
	n := newNodes(t)
	p := n.node("a")
	p.create(t)
	p.watch(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				if !p.Probe(ctx) && ctx.Err() == nil {
					t.Error("a probe failed")
				}
			}
		})
	}
	for k := range 4 {
		p.startPrimary(t)
		p.stop(t, k%2 == 0)
	}
	cancel()
	all.Wait()
}

// TestFoundedAnywhere: directories above the data directory that are missing are made
// so that Postgres's user gets through, and probing leaves an empty one empty.
func TestFoundedAnywhere(t *testing.T) {
	n := newNodes(t)
	p := n.node("a")
	must(t, p.Close())
	p.cfg.DataDir = filepath.Join(n.dir, "not", "there", "yet", "data")
	must(t, os.MkdirAll(p.cfg.DataDir, 0o755))
	p.open(t)
	if !p.Probe(t.Context()) {
		t.Error("a probe without a data directory failed")
	}
	if left, err := os.ReadDir(p.cfg.DataDir); err != nil || len(left) > 0 {
		t.Fatalf("a probe left %v in an empty directory (%v)", left, err)
	}
	must(t, os.RemoveAll(filepath.Join(n.dir, "not")))
	_, err := p.Create(t.Context())
	must(t, err)
	p.watch(t)
	p.startPrimary(t)
	p.stop(t, false)
	if !p.Probe(t.Context()) {
		t.Error("a probe beside a stopped server failed")
	}
	entries, err := os.ReadDir(p.cfg.DataDir)
	must(t, err)
	of := func(path string) uint32 {
		info, err := os.Stat(path)
		must(t, err)
		return info.Sys().(*syscall.Stat_t).Uid
	}
	want := of(filepath.Join(p.cfg.DataDir, "PG_VERSION"))
	for _, e := range entries { // pg_rewind opens all of them
		if got := of(filepath.Join(p.cfg.DataDir, e.Name())); got != want {
			t.Errorf("%s belongs to user %d, the directory to %d", e.Name(), got, want)
		}
	}
}

// TestDenial: what stands on disk rejects clients and has commits wait, whoever starts Postgres.
func TestDenial(t *testing.T) {
	n := newNodes(t)
	p := n.node("a")
	p.create(t)
	p.watch(t)
	p.startPrimary(t)
	p.stop(t, false)
	must(t, p.Close())                  // or a look writes into it while it goes
	must(t, os.RemoveAll(p.cfg.RunDir)) // as after a reboot
	p.open(t)
	p.watch(t)
	port := freePort(t)
	sock := filepath.Join(n.dir, "elsewhere")
	must(t, os.Mkdir(sock, 0o777))
	must(t, os.Chmod(sock, 0o777))
	cmd := n.asPostgres("postgres", "-D", p.cfg.DataDir, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="+sock, "-p", itoa(port))
	must(t, cmd.Start())
	go func() { _ = cmd.Wait() }()
	v := p.looks(t, "a foreign Postgres that answers", func(v cluster.Postgres) bool { return v.Foreign && v.Running && v.End > 0 })
	if !v.Primary || v.DoorOpen {
		t.Errorf("it looks %+v", v)
	}
	var c *pgx.Conn
	eventually(t, "a session of the agent's", func() bool {
		var err error
		c, err = pgx.Connect(t.Context(), "host="+sock+" user=holdfast dbname=postgres port="+itoa(port))
		return err == nil
	})
	for _, dsn := range []string{"host=127.0.0.1 user=postgres dbname=postgres port=" + itoa(port), "host=" + sock + " user=postgres dbname=postgres port=" + itoa(port)} {
		if c, err := pgx.Connect(t.Context(), dsn); err == nil {
			_ = c.Close(t.Context())
			t.Errorf("%s got in", dsn)
		}
	}
	defer func() { _ = c.Close(context.Background()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := c.Exec(ctx, "CREATE TABLE confirmed (n int)"); err == nil {
		t.Error("a commit on a foreign Postgres was acknowledged")
	}
	p.begin(cluster.OpenDoor{}) // not for one that somebody else started
	p.stop(t, false)
	if p.do(t, func(id uint64) cluster.Effect { return cluster.StartPrimary{ID: id} }); p.looks(t, "ours", func(v cluster.Postgres) bool { return v.Running && !v.Foreign }).DoorOpen {
		t.Error("it came up with an open door")
	}
}

// TestTakeover: the agent's death leaves Postgres running, and the next life has it.
func TestTakeover(t *testing.T) {
	p := newNodes(t).node("a")
	p.create(t)
	d := p.startPrimary(t)
	p.setSSN(t, cluster.SSN{})
	p.watch(t)
	p.begin(cluster.OpenDoor{})
	p.looks(t, "an open door", func(v cluster.Postgres) bool { return v.DoorOpen })
	pids := pidsOn(p.cfg.DataDir)
	p.restart(t)
	p.watch(t)
	v := p.looks(t, "the Postgres of the life before", func(v cluster.Postgres) bool { return v.Running && v.End > 0 })
	if v.Foreign || !v.Primary || !v.DoorOpen || v.Incarnation != d.Postgres.Incarnation {
		t.Errorf("taken over as %+v", v)
	}
	if now := pidsOn(p.cfg.DataDir); len(now) == 0 || now[0] != pids[0] {
		t.Errorf("processes were %v, are %v", pids, now)
	}
	c, err := p.client(t.Context())
	must(t, err)
	_, err = c.Exec(t.Context(), "CREATE TABLE t (n int)") // SSN is still that of the life before
	must(t, err)
	_ = c.Close(t.Context())
	p.stop(t, true)
}

// TestKilled: the door is closed behind a Postgres that died, and what its
// postmaster left does not keep the next start from working.
func TestKilled(t *testing.T) {
	p := newNodes(t).node("a")
	p.create(t)
	p.watch(t)
	p.startPrimary(t)
	p.setSSN(t, cluster.SSN{})
	p.begin(cluster.OpenDoor{})
	p.looks(t, "an open door", func(v cluster.Postgres) bool { return v.DoorOpen })
	must(t, syscall.Kill(postmaster(t, p), syscall.SIGKILL))
	began := time.Now()
	p.looks(t, "its end", func(v cluster.Postgres) bool { return !v.Running })
	t.Logf("its death was told after %v", time.Since(began).Round(time.Millisecond))
	rules, err := os.ReadFile(filepath.Join(p.cfg.RunDir, "pg_hba.conf"))
	must(t, err)
	if !strings.Contains(string(rules), "all all all reject") {
		t.Error("the door stands open behind it")
	}
	p.startPrimary(t)
	if _, err := p.client(t.Context()); err == nil {
		t.Error("a client got in after the restart")
	}
}

// TestStopEndsStart: a stop ends a start that is under way, and nothing comes after it.
func TestStopEndsStart(t *testing.T) {
	p := newNodes(t).node("a")
	p.create(t)
	p.watch(t)
	for range 4 {
		start := p.next()
		p.begin(cluster.StartPrimary{ID: start})
		time.Sleep(time.Duration(start%5) * 7 * time.Millisecond) // anywhere within the start
		stop := p.next()
		p.begin(cluster.StopPostgres{ID: stop, Immediate: true})
		d := p.answer(t, stop)
		if !d.OK || d.Postgres.Running {
			t.Fatalf("the stop: %+v", d)
		}
		p.answer(t, start)
		if pids := pidsOn(p.cfg.DataDir); len(pids) > 0 {
			t.Fatalf("processes %v came after the stop", pids)
		}
	}
	p.startPrimary(t)
}

// TestShutdown: it carries the end of the shutdown checkpoint, which is where WAL ends.
func TestShutdown(t *testing.T) {
	p := newNodes(t).node("a")
	p.create(t)
	p.watch(t)
	for range 2 {
		p.startPrimary(t)
		v := p.looks(t, "a primary", func(v cluster.Postgres) bool { return v.Running && v.Primary && v.End > 0 })
		d := p.ok(t, func(id uint64) cluster.Effect { return cluster.Shutdown{ID: id, Within: 10 * time.Second} })
		if d.LSN <= v.End || d.Postgres.Running {
			t.Errorf("shut down at %X, before %X: %+v", d.LSN, v.End, d.Postgres)
		}
		p.startPrimary(t)
		// The first record after a clean stop lies right behind its checkpoint.
		var redo int64
		must(t, p.ask(t, "SELECT (redo_lsn - '0/0')::bigint FROM pg_control_checkpoint()", &redo))
		if at := cluster.LSN(redo); at >= d.LSN || d.LSN-at > 200 {
			t.Errorf("its checkpoint's record begins at %X and ends at %X", at, d.LSN)
		}
		p.stop(t, false)
	}
}

// TestShutdownBlocked: a stop that is held up says by whom, and a bound that is
// over leaves no false yes.
func TestShutdownBlocked(t *testing.T) {
	p := newNodes(t).node("a")
	p.create(t)
	p.watch(t)
	p.startPrimary(t)
	p.setSSN(t, cluster.SSN{})
	c := p.agent(t)
	var pid int
	must(t, c.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid))
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	id := p.next()
	p.begin(cluster.Shutdown{ID: id, Within: 1500 * time.Millisecond})
	v := p.looks(t, "who holds it up", func(v cluster.Postgres) bool { return v.ShutdownBlocked != "" })
	if !strings.Contains(v.ShutdownBlocked, itoa(pid)) {
		t.Errorf("it is said to be held up by %q, not by %d", v.ShutdownBlocked, pid)
	}
	d := p.answer(t, id)
	if d.OK || !d.Postgres.Running {
		t.Errorf("not stopped in time, yet %+v", d)
	}
	must(t, syscall.Kill(pid, syscall.SIGCONT))
	p.stop(t, false)
}

// TestStartFails: the answer says what the server said.
func TestStartFails(t *testing.T) {
	p := newNodes(t).node("a", func(c *instance.Config) { c.Settings["shared_buffers"] = "nonsense" })
	p.create(t)
	d := p.do(t, func(id uint64) cluster.Effect { return cluster.StartPrimary{ID: id} })
	if d.OK || !strings.Contains(d.Why, "shared_buffers") && !strings.Contains(d.Why, "configuration") {
		t.Errorf("the start with a bad setting: %+v", d)
	}
	if v := d.Postgres; v.Running || !v.Exists || !v.Primary {
		t.Errorf("it looks %+v", v)
	}
}
