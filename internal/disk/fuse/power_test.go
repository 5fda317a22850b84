package fuse_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/disk/control"
)

func TestWhatACutLeaves(t *testing.T) {
	d := mount(t, "null", "lose-all")
	must(t, os.Mkdir(d.path("dir"), 0o755))
	d.write("kept", "old")
	d.write("moved", "m")
	d.write("replaced", "old")
	d.sync()

	d.write("new", "never flushed")
	d.cycle()
	d.reads("new", "-")
	d.reads("kept", "old")

	// A new file's fsync makes its name durable, and with it all that was before.
	must(t, os.Rename(d.path("moved"), d.path("dir/moved")))
	d.write("flushed", "yes")
	d.write("alongside", "data that was not flushed")
	d.fsync("flushed")
	d.cycle()
	d.reads("flushed", "yes")
	d.reads("moved", "-")
	d.reads("dir/moved", "m")
	d.reads("alongside", "") // its name was committed, its data not: size 0

	// fdatasync of bytes in place does not commit names.
	f, err := os.OpenFile(d.path("kept"), os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("new"), 0)
	must(t, err)
	must(t, os.Rename(d.path("flushed"), d.path("renamed")))
	must(t, unix.Fdatasync(int(f.Fd())))
	f.Close()
	d.cycle()
	d.reads("kept", "new")
	d.reads("flushed", "yes")
	d.reads("renamed", "-")

	// Replace by rename: the data goes first; the directory's fsync commits.
	d.write("tmp", "replacement")
	must(t, os.Rename(d.path("tmp"), d.path("replaced")))
	d.fsync(".")
	d.cycle()
	d.reads("replaced", "replacement")
	d.reads("tmp", "-")
}

func TestSynchronousWrites(t *testing.T) {
	d := mount(t, "null", "lose-all")
	d.write("f", strings.Repeat("a", 8192))
	d.sync()
	for name, flag := range map[string]int{"O_DSYNC": unix.O_DSYNC, "O_SYNC": unix.O_SYNC} {
		f, err := os.OpenFile(d.path("f"), os.O_RDWR|flag, 0)
		must(t, err)
		_, err = f.WriteAt([]byte(name), 4096)
		must(t, err)
		f.Close()
		d.cycle()
		got, err := os.ReadFile(d.path("f"))
		must(t, err)
		if !strings.HasPrefix(string(got[4096:]), name) {
			t.Errorf("a write with %s was lost", name)
		}
	}
	// O_DIRECT bypasses the cache, yet is not durable before a flush.
	f, err := os.OpenFile(d.path("f"), os.O_RDWR|unix.O_DIRECT, 0)
	must(t, err)
	defer f.Close()
	mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	must(t, err)
	defer func() { _ = unix.Munmap(mem) }()
	copy(mem, "direct")
	_, err = f.WriteAt(mem, 0)
	must(t, err)
	if lost := d.cycle(); lost.Bytes != 4096 {
		t.Errorf("%d bytes dropped, want 4096", lost.Bytes)
	}
	d.reads("f", strings.Repeat("a", 4096)+string(readFrom(t, d.path("f"), 4096)))
}

func readFrom(t *testing.T, path string, off int64) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return b[off:]
}

func TestMappedMemory(t *testing.T) {
	d := mount(t, "null", "lose-all")
	d.write("f", strings.Repeat("a", 3*4096))
	d.sync()
	f, err := os.OpenFile(d.path("f"), os.O_RDWR, 0)
	must(t, err)
	m, err := unix.Mmap(int(f.Fd()), 0, 3*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	m[5] = 'x'
	if got := readFrom(t, d.path("f"), 0); got[5] != 'x' {
		t.Error("read does not see what was written through the map")
	}
	must(t, unix.Msync(m, unix.MS_SYNC))
	m[4096] = 'y' // not synced
	must(t, unix.Munmap(m))
	f.Close()
	d.cycle()
	if got := readFrom(t, d.path("f"), 0); got[5] != 'x' {
		t.Error("msync did not make the map durable")
	} else if got[4096] == 'y' {
		t.Error("a page of the map is durable that was never synced")
	}
}

// TestCutFreesWaiters cuts the power during a flush of ten seconds.
func TestCutFreesWaiters(t *testing.T) {
	d := mount(t, "null", "lose-all")
	d.write("a", "a")
	d.write("b", "b")
	d.sync()
	d.set(map[string]string{"flush_ms": "10000"})
	var files []*os.File
	for _, n := range []string{"a", "b", "a"} {
		f, err := os.OpenFile(d.path(n), os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		_, err = f.WriteString("x")
		must(t, err)
		files = append(files, f)
	}
	var wg sync.WaitGroup
	errs := make([]error, len(files))
	for i, f := range files {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = unix.Fdatasync(int(f.Fd()))
		}()
	}
	waitFor(t, "a flush under way", func() bool {
		s, err := d.Stats(d.ctx())
		must(t, err)
		return s["flush_batches"] > 0
	})
	began := time.Now()
	_, err := d.Cut(d.ctx())
	must(t, err)
	wg.Wait()
	if took := time.Since(began); took > time.Second {
		t.Errorf("the cut took %v", took)
	}
	for i, err := range errs {
		if !errors.Is(err, unix.EIO) {
			t.Errorf("flush %d: %v, want EIO", i, err)
		}
	}
	if _, err := os.Stat(d.path("not yet looked up")); !errors.Is(err, syscall.EIO) {
		t.Errorf("a call after the cut: %v, want EIO", err)
	}
	if _, err := files[0].Write([]byte("y")); !errors.Is(err, syscall.EIO) {
		t.Errorf("a write after the cut: %v, want EIO", err)
	}
	if _, err := d.Cut(d.ctx()); err == nil {
		t.Error("a second cut is accepted")
	}
	_, err = d.On(d.ctx())
	must(t, err)
	d.reads("a", "a")
	if _, err := d.On(d.ctx()); err == nil {
		t.Error("the power came on twice")
	}
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestWipe(t *testing.T) {
	d := mount(t, "null", "lose-all")
	must(t, os.Chown(d.mnt, 65534, 65534))
	d.write("f", "x")
	d.sync()
	if err := d.Wipe(d.ctx()); err == nil {
		t.Error("a disk that is on can be wiped")
	}
	_, err := d.Cut(d.ctx())
	must(t, err)
	must(t, d.Wipe(d.ctx()))
	_, err = d.On(d.ctx())
	must(t, err)
	entries, err := os.ReadDir(d.mnt)
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Stat(d.mnt, &st))
	if len(entries) != 0 || st.Uid != 65534 || st.Gid != 65534 {
		t.Errorf("after the wipe: %v, owner %d:%d", entries, st.Uid, st.Gid)
	}
	d.write("g", "y")
	d.sync()
	d.cycle()
	d.reads("g", "y")
}

func TestDaemonEnds(t *testing.T) {
	d := mount(t, "null", "lose-all")
	d.write("clean", "1")
	must(t, d.Stop(d.ctx()))
	d.wait()
	if mounted(d.mnt) {
		t.Error("still mounted after stop")
	}

	d.start()
	d.reads("clean", "1")
	d.write("term", "2")
	must(t, d.cmd.Process.Signal(syscall.SIGTERM))
	d.wait()

	d.start()
	d.reads("term", "2")
	d.write("umount", "3")
	must(t, unix.Unmount(d.mnt, 0))
	d.wait()

	d.start()
	d.reads("umount", "3")
	d.write("flushed", "4")
	d.fsync("flushed")
	d.write("volatile", "5")
	_ = d.lifeline.Close() // as when the lab is killed: a cut, and nothing is left
	d.wait()
	if mounted(d.mnt) {
		t.Error("still mounted after the lifeline ended")
	}
	if _, err := os.Stat(d.cfg.Socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}

	d.start()
	d.reads("flushed", "4")
	d.reads("volatile", "-")
	d.write("again", "6")
	d.fsync("again")
	d.kill() // unclean: the mount is dead, the backing directory is not
	must(t, unix.Unmount(d.mnt, unix.MNT_DETACH))
	d.start()
	d.reads("again", "6")

	// A stop takes away a mount that is in use, and keeps what was written.
	f, err := os.OpenFile(d.path("busy"), os.O_CREATE|os.O_RDWR, 0o600)
	must(t, err)
	defer f.Close()
	_, err = f.WriteString("7")
	must(t, err)
	must(t, d.Stop(d.ctx()))
	d.wait()
	d.start()
	d.reads("busy", "7")
}

func TestRefusals(t *testing.T) {
	d := mount(t, "null", "lose-all")
	for name, change := range map[string]func(*daemonConfig){
		"in use by another simulated disk": func(c *daemonConfig) { c.Mountpoint = t.TempDir() },
		"is mounted there already":         func(c *daemonConfig) { c.Backing = t.TempDir() },
		"another simulated disk answers":   func(c *daemonConfig) { c.Backing, c.Mountpoint = t.TempDir(), t.TempDir() },
		"no such file":                     func(c *daemonConfig) { c.Mountpoint = "/nowhere/at/all" },
		"not a directory":                  func(c *daemonConfig) { c.Mountpoint = "/proc/self/exe" },
		"which is not part of":             func(c *daemonConfig) { c.Backing, c.Mountpoint = "/proc/self", t.TempDir() },
		"lies below the mount point":       func(c *daemonConfig) { c.Mountpoint = t.TempDir(); c.Backing = c.Mountpoint + "/b" },
		"below the mount point": func(c *daemonConfig) { // by way of a link
			c.Mountpoint = t.TempDir()
			link := filepath.Join(t.TempDir(), "link")
			must(t, os.Symlink(c.Mountpoint, link))
			c.Backing = filepath.Join(link, "deep", "b")
		},
	} {
		other := &daemon{t: t, cfg: d.cfg}
		change(&other.cfg)
		if line := other.launch(); line == "ready" {
			t.Errorf("%s: it mounted all the same", name)
			_ = other.lifeline.Close()
		}
		other.wait()
		if !strings.Contains(other.errs.String(), name) {
			t.Errorf("want a message with %q, got %q", name, other.errs)
		}
		if other.cfg.Mountpoint != d.mnt && mounted(other.cfg.Mountpoint) {
			t.Errorf("%s: left mounted", name)
		}
	}
	for _, values := range []map[string]string{
		{"crash": "sometimes"}, {"flush_ms": "fast"}, {"flush_ms": "-1"}, {"flush_ms": "NaN"}, {"colour": "red"}, {"disk": "floppy"}, {"dirty_limit": "3"},
		{"flush_ms": "7", "crash": "never"},
	} {
		if err := d.Set(d.ctx(), values); err == nil {
			t.Errorf("set %v is accepted", values)
		}
	}
	s, err := d.Stats(d.ctx())
	must(t, err)
	if s["flush_set_ms"] != 0 {
		t.Error("a refused set changed something")
	}
	d.set(map[string]string{"disk": "cloud-volume", "read_ms": "1.5"})
	if s, err = d.Stats(d.ctx()); err != nil || s["flush_set_ms"] != 2.7 || s["read_set_ms"] != 1.5 {
		t.Errorf("after set: flush %v ms, read %v ms (%v)", s["flush_set_ms"], s["read_set_ms"], err)
	}
}

// TestFlushTakesItsTime holds the latencies that programs see against the named
// disk's, and sees the lane coalesce.
func TestFlushTakesItsTime(t *testing.T) {
	d := mount(t, "null", "lose-all")
	d.set(map[string]string{"flush_ms": "3", "flush_spread": "0"})
	f, err := os.OpenFile(d.path("f"), os.O_CREATE|os.O_RDWR, 0o600)
	must(t, err)
	defer f.Close()
	flush := func(at int64) time.Duration {
		_, err := f.WriteAt([]byte("x"), at)
		must(t, err)
		began := time.Now()
		must(t, unix.Fdatasync(int(f.Fd())))
		return time.Since(began)
	}
	best := time.Hour
	for range 30 {
		took := flush(0)
		if took < 3*time.Millisecond {
			t.Fatalf("a flush took %v, less than the disk's 3 ms", took)
		}
		best = min(best, took)
	}
	if best > 4*time.Millisecond {
		t.Errorf("the best of 30 flushes took %v, the disk's is 3 ms", best)
	}

	// Eight at once, on files of their own: two flushes serve them all, unless
	// somebody came late.
	before, err := d.Stats(d.ctx())
	must(t, err)
	d.set(map[string]string{"flush_ms": "100"})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			g, err := os.Create(d.path(string(rune('a' + i))))
			if err == nil {
				err = errors.Join(g.Sync(), g.Close())
			}
			if err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	after, err := d.Stats(d.ctx())
	must(t, err)
	if n := after["flush_batches"] - before["flush_batches"]; n < 1 || n > 4 {
		t.Errorf("8 flushes at once took %v of the disk", n)
	}
	if n := after["flushes"] - before["flushes"]; n != 8 {
		t.Errorf("%v flushes counted, want 8", n)
	}
}

// TestLargeFile writes far more than may be dirty, and looks at the daemon's
// memory.
func TestLargeFile(t *testing.T) {
	d := mount(t, "null", "lose-all")
	d.set(map[string]string{"dirty_limit": "16777216"})
	const chunk, chunks = 1 << 20, 192
	f, err := os.Create(d.path("big"))
	must(t, err)
	for i := range chunks {
		_, err := f.Write(bytes.Repeat([]byte{byte(i + 1)}, chunk))
		must(t, err)
	}
	must(t, f.Sync())
	must(t, f.Close())
	if rss := residentMB(t, d.cmd.Process.Pid); rss > 110 && !raceEnabled {
		t.Errorf("the daemon holds %d MB after a file of %d", rss, chunks)
	}
	d.cycle()
	f, err = os.Open(d.path("big"))
	must(t, err)
	defer f.Close()
	b := make([]byte, chunk)
	for i := range chunks {
		if _, err := f.Read(b); err != nil || b[0] != byte(i+1) || b[chunk-1] != byte(i+1) {
			t.Fatalf("MiB %d reads %d (%v)", i, b[0], err)
		}
	}
	s, err := d.Stats(d.ctx())
	must(t, err)
	if s["stalls"] == 0 {
		t.Error("no writer ever waited")
	}
}

func TestTwoDisksDiffer(t *testing.T) {
	a, b := mount(t, "null", "lose-all"), mount(t, "null", "lose-all")
	var x, y unix.Stat_t
	must(t, unix.Stat(a.mnt, &x))
	must(t, unix.Stat(b.mnt, &y))
	if x.Ino == y.Ino {
		t.Error("both roots have the same inode number")
	}
	a.cycle()
	var again unix.Stat_t
	must(t, unix.Stat(a.mnt, &again))
	if again.Ino != x.Ino {
		t.Error("the root's inode number changed with the power")
	}
}

func TestSocketIsPrivate(t *testing.T) {
	d := mount(t, "null", "lose-all")
	st, err := os.Stat(d.cfg.Socket)
	must(t, err)
	if st.Mode().Perm() != 0o600 {
		t.Errorf("the control socket has mode %v", st.Mode())
	}
	if _, err := control.Dial(d.cfg.Socket + ".other"); err == nil {
		t.Error("a missing socket can be dialled")
	}
}

// TestFullBacking fills the file system that the durable image is on.
func TestFullBacking(t *testing.T) {
	needRoot(t)
	small := t.TempDir()
	must(t, unix.Mount("none", small, "tmpfs", 0, "size=8m"))
	t.Cleanup(func() { _ = unix.Unmount(small, unix.MNT_DETACH) })
	d := prepare(t, "null", "lose-all")
	d.cfg.Backing = small + "/backing"
	d.start()
	d.write("before", "x")
	d.fsync("before")
	f, err := os.Create(d.path("big"))
	must(t, err)
	defer f.Close()
	_, err = f.Write(make([]byte, 20<<20))
	must(t, err) // it fits into memory
	if err := f.Sync(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("flush to a full disk: %v, want ENOSPC", err)
	}
	must(t, f.Truncate(0))
	d.write("after", "y")
	d.fsync("after")
	d.cycle()
	d.reads("before", "x")
	d.reads("after", "y")
	d.reads("big", "")
}
