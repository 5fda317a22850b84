package instance_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance"
	"github.com/holdfast-db/holdfast/internal/testbin"
)

// disk mounts a simulated disk and returns its mount point and what sets it.
func (n *nodes) disk() (mnt string, set func(kv string)) {
	t := n.t
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a disk for another user")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
	bin := testbin.Build(t)
	mnt = filepath.Join(n.dir, "mnt")
	must(t, os.Mkdir(mnt, 0o755))
	socket := filepath.Join(n.dir, "disk.sock")
	cmd := exec.Command(bin, "simdisk", "--disk", "null", "--control", socket, filepath.Join(n.dir, "backing"), mnt)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	ended := make(chan struct{})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = exec.Command("umount", "-l", mnt).Run()
	})
	line, _ := bufio.NewReader(out).ReadString('\n')
	go func() { _ = cmd.Wait(); close(ended) }()
	if strings.TrimSpace(line) != "ready" {
		t.Fatalf("the disk said %q", line)
	}
	return mnt, func(kv string) {
		t.Helper()
		if out, err := exec.Command(bin, "simdisk", "set", socket, kv).CombinedOutput(); err != nil {
			t.Fatalf("set %s: %v: %s", kv, err, out)
		}
	}
}

// TestHungDisk: a disk that does not answer is found by the probe, and holds up
// neither the looks, nor the door, nor SIGQUIT, nor Begin.
func TestHungDisk(t *testing.T) {
	n := newNodes(t)
	mnt, set := n.disk()
	p := n.node("a", func(c *instance.Config) {
		c.DataDir = filepath.Join(mnt, "data")
		c.Settings["dynamic_shared_memory_type"] = "posix" // mmap has its memory on the disk
	})
	p.create(t)
	p.watch(t)
	p.startPrimary(t)
	p.setSSN(t, cluster.SSN{})
	p.openDoor(t)
	var sessions []*pgx.Conn
	for range 4 {
		c, err := p.client(t.Context())
		must(t, err)
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			_ = c.Close(ctx)
		}()
		sessions = append(sessions, c)
	}
	p.mu.Lock()
	p.probes = nil
	p.mu.Unlock()
	pm := postmaster(t, p)
	set("hang=true")
	defer set("hang=false")
	began := time.Now()
	eventually(t, "a probe that fails", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.probes) > 0 && !p.probes[len(p.probes)-1]
	})
	t.Logf("the probe found it after %v", time.Since(began).Round(time.Millisecond))
	p.mu.Lock()
	looks := len(p.seen)
	p.mu.Unlock()
	eventually(t, "looks that go on", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.seen) > looks+5 && p.seen[len(p.seen)-1].Running
	})
	acked := make(chan error, 1)
	go func() {
		_, err := sessions[0].Exec(context.Background(), "SELECT pg_logical_emit_message(true, 'test', 'x')")
		acked <- err
	}()
	p.begin(cluster.SaveDurable{SSN: cluster.SSN{K: 1}}) // this hangs in the queue

	began = time.Now()
	p.begin(cluster.CloseDoor{})
	quit := p.next()
	if took := time.Since(began); took > 100*time.Millisecond {
		t.Errorf("closing the door took its caller %v", took)
	}
	for _, c := range sessions[1:] {
		eventually(t, "the end of a session", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			return c.Ping(ctx) != nil
		})
	}
	t.Logf("idle sessions were ended within %v", time.Since(began).Round(time.Millisecond))
	p.looks(t, "a closed door", func(v cluster.Postgres) bool { return !v.DoorOpen })

	began = time.Now()
	p.begin(cluster.StopPostgres{ID: quit, Immediate: true})
	if took := time.Since(began); took > 100*time.Millisecond {
		t.Errorf("SIGQUIT took its caller %v", took)
	}
	// What waits within the disk's driver cannot be killed, here as on a real disk:
	// all else is gone, and nobody gets in.
	eventually(t, "the end of what can end", func() bool {
		for _, pid := range pidsOn(p.cfg.DataDir) {
			if state(pid) != "D" && pid != pm {
				return false
			}
		}
		return true
	})
	t.Logf("all that can end was gone after %v", time.Since(began).Round(time.Millisecond))
	if _, err := p.client(t.Context()); err == nil {
		t.Error("a client got in")
	}
	set("hang=false")
	if err := <-acked; err == nil {
		t.Error("a commit was acknowledged by a Postgres that was told to quit")
	}
	if d := p.answer(t, quit); !d.OK || d.Postgres.Running {
		t.Errorf("the stop: %+v", d)
	}
	p.startPrimary(t)
	p.mu.Lock()
	p.probes = nil
	p.mu.Unlock()
	eventually(t, "a probe that works again", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.probes) > 0 && p.probes[len(p.probes)-1]
	})
}

// state is a process's, as /proc has it; empty if it is gone.
func state(pid int) string {
	data, _ := os.ReadFile("/proc/" + itoa(pid) + "/stat")
	_, rest, _ := strings.Cut(string(data), ") ")
	s, _, _ := strings.Cut(rest, " ")
	return s
}
