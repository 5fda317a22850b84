package fuse_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/disk"
	"github.com/holdfast-db/holdfast/internal/disk/control"
	"github.com/holdfast-db/holdfast/internal/disk/fuse"
)

// daemonEnv makes the test binary a daemon: the disk must be another process,
// because a page fault on its own mount would stop a Go program for good.
const daemonEnv = "HOLDFAST_TEST_SIMDISK"

type daemonConfig struct {
	Backing, Mountpoint, Disk, Crash, Socket string
	Profile                                  string
	DirtyLimit, Size                         int64
}

func TestMain(m *testing.M) {
	if c := os.Getenv(daemonEnv); c != "" {
		os.Exit(daemonMain(c))
	}
	os.Exit(m.Run())
}

func daemonMain(config string) int {
	var c daemonConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		println(err.Error())
		return 1
	}
	kind, err := disk.ByName(c.Disk)
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
		Backing: c.Backing, Mountpoint: c.Mountpoint, Kind: kind, Policy: disk.Policy(c.Crash), Profile: disk.Profile(c.Profile), Seed: 1,
		DirtyLimit: c.DirtyLimit, Size: c.Size,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}, c.Socket, lifeline, func() { _, _ = os.Stdout.WriteString("ready\n") })
	if err != nil {
		println(err.Error())
		return 2
	}
	return 0
}

// daemon is a mounted disk.
type daemon struct {
	*control.Client
	t        testing.TB
	cfg      daemonConfig
	mnt      string
	cmd      *exec.Cmd
	lifeline io.Closer
	errs     *bytes.Buffer
	line     string // the first that it printed
	exited   chan struct{}
}

func needRoot(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no mounts")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts for other users")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs /dev/fuse")
	}
}

// mount starts a daemon over a fresh backing directory.
func mount(t testing.TB, kind, crash string) *daemon {
	t.Helper()
	d := prepare(t, kind, crash)
	d.start()
	return d
}

// prepare makes the directories of a daemon that is not started yet.
func prepare(t testing.TB, kind, crash string) *daemon {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} { // other users must get through
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d := &daemon{t: t, cfg: daemonConfig{
		Backing: filepath.Join(dir, "backing"), Mountpoint: filepath.Join(dir, "mnt"), Socket: filepath.Join(dir, "sock"),
		Disk: kind, Crash: crash, DirtyLimit: 64 << 20,
	}}
	d.mnt = d.cfg.Mountpoint
	if err := os.Mkdir(d.mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.kill()
		_ = unix.Unmount(d.mnt, unix.MNT_FORCE|unix.MNT_DETACH)
		if d.errs.Len() > 0 {
			t.Errorf("the daemon said: %s", d.errs)
		}
	})
	return d
}

// start starts the daemon and waits until it is mounted.
func (d *daemon) start() {
	d.t.Helper()
	if line := d.launch(); line != "ready" {
		<-d.exited
		d.t.Fatalf("the daemon said %q, not ready: %s", line, d.errs)
	}
	c, err := control.Dial(d.cfg.Socket)
	if err != nil {
		d.t.Fatal(err)
	}
	d.Client = c
}

// launch starts the daemon and returns its first line.
func (d *daemon) launch() string {
	d.t.Helper()
	config, err := json.Marshal(d.cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), daemonEnv+"="+string(config))
	d.run(cmd)
	return d.line
}

// run starts a command that is the daemon and takes its first line.
func (d *daemon) run(cmd *exec.Cmd) {
	d.t.Helper()
	d.cmd, d.errs = cmd, new(bytes.Buffer)
	cmd.Stderr = d.errs
	var err error
	if d.lifeline, err = cmd.StdinPipe(); err != nil {
		d.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	d.line = strings.TrimSpace(line)
	exited := make(chan struct{})
	d.exited = exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
}

// kill ends the daemon as the machine's own failure would.
func (d *daemon) kill() {
	if d.cmd == nil || d.cmd.Process == nil {
		return
	}
	_ = d.cmd.Process.Kill()
	<-d.exited
}

// wait waits for the daemon to end by itself.
func (d *daemon) wait() {
	d.t.Helper()
	select {
	case <-d.exited:
	case <-time.After(10 * time.Second):
		d.t.Fatal("the daemon does not end")
	}
}

func (d *daemon) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	d.t.Cleanup(cancel)
	return ctx
}

// cycle cuts the power and brings it back.
func (d *daemon) cycle() control.Dropped {
	d.t.Helper()
	if _, err := d.Cut(d.ctx()); err != nil {
		d.t.Fatal(err)
	}
	lost, err := d.On(d.ctx())
	if err != nil {
		d.t.Fatal(err)
	}
	return lost
}

func (d *daemon) sync() {
	d.t.Helper()
	if err := d.Sync(d.ctx()); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) set(values map[string]string) {
	d.t.Helper()
	if err := d.Set(d.ctx(), values); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) path(name string) string { return filepath.Join(d.mnt, name) }

func (d *daemon) write(name, content string) {
	d.t.Helper()
	must(d.t, os.WriteFile(d.path(name), []byte(content), 0o644))
}

// fsync opens a file or directory and flushes it.
func (d *daemon) fsync(name string) {
	d.t.Helper()
	f, err := os.Open(d.path(name))
	must(d.t, err)
	defer f.Close()
	must(d.t, f.Sync())
}

// reads checks a file's content; "-" means that it must not exist.
func (d *daemon) reads(name, content string) {
	d.t.Helper()
	got, err := os.ReadFile(d.path(name))
	switch {
	case content == "-" && !os.IsNotExist(err):
		d.t.Errorf("%s exists (%v), with %q", name, err, got)
	case content == "-":
	case err != nil || string(got) != content:
		d.t.Errorf("%s reads %.40q (%v), want %.40q", name, got, err, content)
	}
}

func mounted(path string) bool {
	table, err := os.ReadFile("/proc/self/mounts")
	return err == nil && strings.Contains(string(table), " "+path+" ")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
