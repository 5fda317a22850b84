package fuse_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mountPosix mounts a disk with the rules of the profile posix.
func mountPosix(t *testing.T) *daemon {
	t.Helper()
	d := prepare(t, "null", "lose-all")
	d.cfg.Profile = "posix"
	d.start()
	return d
}

func TestPosixProfileKeepsNamesByTheirDirectory(t *testing.T) {
	d := mountPosix(t)
	must(t, os.Mkdir(d.path("dir"), 0o755))
	d.fsync("")
	d.write("dir/unnamed", "data")
	d.fsync("dir/unnamed")
	d.write("named", "data")
	d.fsync("named")
	d.fsync("")
	d.cycle()
	d.reads("dir/unnamed", "-")
	d.reads("named", "data")

	// A rename is kept whole or not at all, and writes nothing back.
	d.write("tmp", "new")
	d.fsync("tmp")
	d.fsync("")
	must(t, os.Rename(d.path("tmp"), d.path("dir/target")))
	d.cycle()
	d.reads("tmp", "new")
	d.reads("dir/target", "-")
	must(t, os.Rename(d.path("tmp"), d.path("dir/target")))
	d.fsync("dir")
	d.cycle()
	d.reads("tmp", "-")
	d.reads("dir/target", "new")
	d.write("late", "never flushed")
	must(t, os.Rename(d.path("late"), d.path("dir/target")))
	d.fsync("dir")
	d.fsync("")
	d.cycle()
	d.reads("dir/target", "")
}

func TestFailedWriteBackLosesItsPagesOnce(t *testing.T) {
	d := mount(t, "null", "lose-all")
	d.write("f", "old")
	d.fsync("f")
	f, err := os.OpenFile(d.path("f"), os.O_WRONLY, 0)
	must(t, err)
	defer f.Close()
	_, err = f.WriteString("new")
	must(t, err)
	d.set(map[string]string{"fail_writebacks": "1"})
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("the fsync that fails: %v, want EIO", err)
	}
	if err := f.Sync(); err != nil {
		t.Errorf("the fsync after it: %v, want none: the pages count as clean", err)
	}
	d.cycle()
	d.reads("f", "old")
	stats, err := d.Stats(d.ctx())
	must(t, err)
	if stats["failed_writebacks"] != 1 || stats["failed_bytes"] != 4096 {
		t.Errorf("counters: %v failed, %v bytes", stats["failed_writebacks"], stats["failed_bytes"])
	}
}

// TestPostgresPanicsOnAFailedFsync is what became known as fsyncgate: after an
// fsync that failed nothing that it covered may be believed to be on the disk.
func TestPostgresPanicsOnAFailedFsync(t *testing.T) {
	d := mount(t, "local-nvme", "lose-all")
	p := newPostgres(t, d.mnt)
	p.start("restart_after_crash=off")
	p.exec("create table acks (id bigint primary key)")
	stop := make(chan struct{})
	wait := p.load(0, stop)
	time.Sleep(300 * time.Millisecond) // the load itself
	d.set(map[string]string{"fail_writebacks": "1"})
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		t.Error("Postgres goes on after an fsync that failed")
	}
	close(stop)
	ids := wait()
	log, err := os.ReadFile(p.run + "/log")
	must(t, err)
	if !bytes.Contains(log, []byte("PANIC")) {
		t.Errorf("no PANIC in the log:\n%s", log)
	}
	p.kill()
	p.start()
	if n := p.lost(ids); n != 0 || len(ids) < 20 {
		t.Errorf("after the restart %d of %d acknowledged rows are lost", n, len(ids))
	}
	// Once more, now that nothing but the disk remembers.
	_, err = d.Cut(d.ctx())
	must(t, err)
	p.kill()
	_, err = d.On(d.ctx())
	must(t, err)
	p.start()
	if n := p.lost(ids); n != 0 {
		t.Errorf("after the power cut %d of %d acknowledged rows are lost", n, len(ids))
	}
	t.Logf("%d rows acknowledged, none lost", len(ids))
}

// start runs f and returns where its error will be.
func start(f func() error) chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

func waits(t *testing.T, what string, done chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Errorf("%s came back (%v) from a disk that hangs", what, err)
	case <-time.After(200 * time.Millisecond):
	}
}

func ends(t *testing.T, what string, done chan error, want error) {
	t.Helper()
	select {
	case err := <-done:
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	case <-time.After(5 * time.Second):
		t.Errorf("%s is still waiting", what)
	}
}

func TestHungDisk(t *testing.T) {
	d := mount(t, "null", "lose-all")
	d.write("f", "data")
	f, err := os.OpenFile(d.path("f"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	hang := func() (write, create chan error) {
		d.set(map[string]string{"hang": "true"})
		write = start(func() error {
			if _, err := f.WriteAt([]byte("more"), 0); err != nil {
				return err
			}
			return f.Sync()
		})
		create = start(func() error { return os.Mkdir(d.path("dir"), 0o755) })
		waits(t, "a write", write)
		waits(t, "mkdir", create)
		if err := d.Sync(d.ctx()); err == nil {
			t.Error("a disk that hangs says that it has synced")
		}
		return write, create
	}
	write, create := hang()
	d.set(map[string]string{"hang": "false"})
	ends(t, "a write", write, nil)
	ends(t, "mkdir", create, nil)
	must(t, os.Remove(d.path("dir")))

	// A delay that began before does not outlast a cut either.
	d.set(map[string]string{"flush_ms": "60000"})
	flush := start(f.Sync)
	waits(t, "a flush", flush)
	write, create = hang()
	began := time.Now()
	_, err = d.Cut(d.ctx())
	must(t, err)
	ends(t, "a flush", flush, syscall.EIO)
	ends(t, "a write", write, syscall.EIO)
	ends(t, "mkdir", create, syscall.EIO)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the cut of a disk that hangs took %v", took)
	}
	d.set(map[string]string{"hang": "false", "flush_ms": "0"})
	_, err = d.On(d.ctx())
	must(t, err)
	d.write("after", "works")
	d.fsync("after")
}

func TestSizeIsKeptAndTold(t *testing.T) {
	d := prepare(t, "null", "lose-all")
	d.cfg.Size = 4 << 20
	d.start()
	var st unix.Statfs_t
	must(t, unix.Statfs(d.mnt, &st))
	if st.Blocks*uint64(st.Bsize) != 4<<20 || st.Bavail != st.Blocks {
		t.Errorf("empty: %d blocks, %d free, of %d bytes", st.Blocks, st.Bavail, st.Bsize)
	}
	f, err := os.Create(d.path("f"))
	must(t, err)
	defer f.Close()
	written := 0
	chunk := bytes.Repeat([]byte("x"), 64<<10)
	for {
		n, err := f.Write(chunk)
		if written += n; err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("a full disk says %v", err)
			}
			break
		}
		if written > 8<<20 {
			t.Fatal("no end")
		}
	}
	if written < 4<<20-64<<10 || written > 4<<20 {
		t.Errorf("%d bytes fit on a disk of 4 MiB", written)
	}
	must(t, f.Sync())
	must(t, unix.Statfs(d.mnt, &st))
	if got := int(st.Blocks-st.Bfree) * int(st.Bsize); got != written {
		t.Errorf("%d bytes are taken, but %d were written", got, written)
	}
	d.cycle()
	got, err := os.ReadFile(d.path("f"))
	if err != nil || len(got) != written || strings.Trim(string(got), "x") != "" {
		t.Errorf("after a cut %d bytes of %d are there (%v)", len(got), written, err)
	}
	must(t, os.Remove(d.path("f")))
	d.write("g", "fits again")
	d.fsync("g")
}

// TestPostgresOnAFullDisk fills the disk under load, makes it larger and counts.
func TestPostgresOnAFullDisk(t *testing.T) {
	d := mount(t, "null", "lose-all")
	p := newPostgres(t, d.mnt)
	settings := []string{"wal_keep_size=4GB", "max_wal_size=4GB", "restart_after_crash=off"}
	p.start(settings...)
	p.exec("create table acks (id bigint primary key, pad text default repeat('x', 2000))")
	p.exec("alter table acks alter pad set storage plain")
	p.exec("checkpoint")
	stats, err := d.Stats(d.ctx())
	must(t, err)
	full := int64(stats["used_bytes"])>>20 + 24
	d.set(map[string]string{"size": itoa(full) + "M"})
	stop := make(chan struct{})
	wait := p.load(0, stop)
	ids := within(t, 60*time.Second, wait) // ends by itself: every client gets an error
	close(stop)
	stats, err = d.Stats(d.ctx())
	must(t, err)
	if stats["no_space"] == 0 {
		t.Error("the load ended, but not because the disk was full")
	}
	log, err := os.ReadFile(p.run + "/log")
	must(t, err)
	if !bytes.Contains(log, []byte("No space left on device")) {
		t.Errorf("Postgres does not say that the disk is full:\n%s", log)
	}
	_, err = d.Cut(d.ctx())
	must(t, err)
	p.kill()
	d.set(map[string]string{"size": "0"})
	_, err = d.On(d.ctx())
	must(t, err)
	p.start(settings...)
	if n := p.lost(ids); n != 0 || len(ids) < 20 {
		t.Errorf("%d of %d acknowledged rows are lost", n, len(ids))
	}
	t.Logf("%d rows acknowledged until the disk was full, none lost", len(ids))
	c, err := p.connect()
	must(t, err)
	defer func() { _ = c.Close(context.Background()) }()
	_, err = c.Exec(context.Background(), "insert into acks values (-1)")
	must(t, err)
}

func within(t *testing.T, d time.Duration, f func() []int64) []int64 {
	t.Helper()
	done := make(chan []int64, 1)
	go func() { done <- f() }()
	select {
	case ids := <-done:
		return ids
	case <-time.After(d):
		t.Fatal("the load does not end on a full disk")
		return nil
	}
}
