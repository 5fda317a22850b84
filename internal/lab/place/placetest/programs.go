package placetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
)

func (s suite) reach(t *testing.T) {
	hosts := s.acquire(t, "alpha", "beta", "gamma")
	seen := map[string]bool{}
	for _, to := range hosts {
		if net.ParseIP(to.Addr()) == nil || seen[to.Addr()] {
			t.Fatalf("host %s: address %q is none, or another host's", to.Name(), to.Addr())
		}
		seen[to.Addr()] = true
		addr, _ := startEcho(t, to)
		for _, from := range hosts {
			expectEcho(t, from, addr)
			if out := sh(t, from, "getent hosts "+to.Name()); !strings.HasPrefix(out, to.Addr()+" ") {
				t.Errorf("on %s, %s is %q, want %s", from.Name(), to.Name(), out, to.Addr())
			}
		}
	}
}

func (s suite) run(t *testing.T) {
	h := s.acquire(t, "alpha")[0]
	ctx := within(t, 30*time.Second)
	if got := sh(t, h, "echo one; echo two >&2"); got != "one\ntwo" {
		t.Errorf("combined output is %q", got)
	}
	if got := sh(t, h, "id -un; id -gn; whoami"); got != strings.Repeat(h.User()+"\n", 2)+h.User() {
		t.Errorf("programs run as %q, want %s", got, h.User())
	}
	if got := sh(t, h, "pwd"); got != h.RunDir() {
		t.Errorf("working directory is %q without a disk, want %q", got, h.RunDir())
	}
	out, err := h.Run(ctx, place.Cmd{Path: "/bin/sh", Args: []string{"-c", `id -u; pwd; echo "$WORD"; cat`},
		Root: true, Dir: "/usr", Env: []string{"WORD=first", "WORD=second"}, Stdin: strings.NewReader("from stdin")})
	if want := "0\n/usr\nsecond\nfrom stdin"; err != nil || string(out) != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
	var stdout, stderr bytes.Buffer
	out, err = h.Run(ctx, place.Cmd{Path: "sh", Args: []string{"-c", "echo a; echo b >&2"}, Stdout: &stdout, Stderr: &stderr})
	if err != nil || len(out) != 0 || stdout.String() != "a\n" || stderr.String() != "b\n" {
		t.Errorf("separate streams: %q %q %q %v", out, stdout.String(), stderr.String(), err)
	}
	_, err = h.Run(ctx, place.Cmd{Path: "sh", Args: []string{"-c", "echo the reason >&2; exit 7"}})
	var exit *place.ExitError
	if !errors.As(err, &exit) || exit.Code != 7 || !strings.Contains(err.Error(), "the reason") {
		t.Errorf("exit 7: %v", err)
	}
	if _, err = h.Run(ctx, place.Cmd{Path: "no-such-program"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
	if out, err := h.Run(ctx, place.Cmd{Path: "holdfast", Args: []string{"version"}}); err != nil || !bytes.HasPrefix(out, []byte("holdfast ")) {
		t.Errorf("holdfast itself: %q, %v", out, err)
	}
	out, err = h.Run(ctx, place.Cmd{Path: "head", Args: []string{"-c", "3000000", "/dev/zero"}})
	if err != nil || len(out) != 3000000 {
		t.Errorf("large output: %d bytes, %v", len(out), err)
	}
	began := time.Now()
	for i := range 40 { // at every moment of a start
		_, err = h.Run(within(t, time.Duration(i)*200*time.Microsecond), place.Cmd{Path: "sleep", Args: []string{"60"}})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a cancelled run: %v", err)
		}
	}
	_, err = h.Run(within(t, 200*time.Millisecond), place.Cmd{Path: "sh", Args: []string{"-c", "sleep 60 & sleep 61; true"}})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 10*time.Second {
		t.Errorf("a cancelled run: %v after %v", err, time.Since(began))
	}
	waitFor(t, "the cancelled run's programs to be gone", func() bool {
		return sh(t, h, "cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^sleep$' || true") == "0"
	})
}

func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("waited 10 s for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s suite) start(t *testing.T) {
	h := s.acquire(t, "alpha")[0]
	ctx, cancel := context.WithCancel(t.Context())
	p, err := h.Start(ctx, place.Cmd{Path: "sleep", Args: []string{"60"}})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := syscall.Kill(p.Pid(), 0); err != nil {
		t.Errorf("process %d: %v", p.Pid(), err)
	}
	select {
	case <-p.Done():
		t.Fatalf("it ended with the context: %v", p.Wait())
	case <-time.After(50 * time.Millisecond):
	}
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { errs[i] = p.Wait() })
	}
	if err := p.Signal(int(syscall.SIGTERM)); err != nil {
		t.Error(err)
	}
	wg.Wait()
	for _, err := range errs {
		var exit *place.ExitError
		if !errors.As(err, &exit) || exit.Signal != int(syscall.SIGTERM) {
			t.Errorf("wait: %v", err)
		}
	}
	<-p.Done()
	if err := p.Signal(int(syscall.SIGTERM)); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
	if p, err = h.Start(t.Context(), place.Cmd{Path: "true"}); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
	// Orphans are reaped, or they would look like a running postmaster.
	sh(t, h, "(sh -c 'sleep 0.01 & exec sleep 0.02' &) ; true")
	waitFor(t, "orphans to be reaped", func() bool {
		return sh(t, h, "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true") == "0"
	})
}

func (s suite) putGet(t *testing.T) {
	h := s.acquire(t, "alpha")[0]
	ctx := within(t, 30*time.Second)
	path := h.RunDir() + "/a dir/deeper/file"
	for _, data := range [][]byte{[]byte("first\x00version"), nil, bytes.Repeat([]byte("0123456789abcdef"), 1<<16)} {
		if err := h.Put(ctx, path, data, 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := h.Get(ctx, path)
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("got %d bytes and %v for %d bytes", len(got), err, len(data))
		}
	}
	if got := sh(t, h, `stat -c '%U %a' '`+path+`'`); got != h.User()+" 640" {
		t.Errorf("owner and permissions are %q", got)
	}
	if got := sh(t, h, `ls -A "$(dirname '`+path+`')"`); got != "file" {
		t.Errorf("beside the file there is %q", got)
	}
	if _, err := h.Get(ctx, h.RunDir()+"/nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("get of nothing: %v", err)
	}
	if err := h.Put(ctx, "/etc/holdfast-placetest", []byte("x"), 0o644); err == nil {
		t.Error("the unprivileged user wrote into /etc")
	}
	if err := h.Put(ctx, "relative", nil, 0o644); err == nil {
		t.Error("a relative path was taken")
	}
}

func (s suite) private(t *testing.T) {
	hosts := s.acquire(t, "alpha", "beta")
	a, b := hosts[0], hosts[1]
	for _, h := range hosts {
		if got := sh(t, h, "hostname"); got != h.Name() {
			t.Errorf("host name is %q, want %q", got, h.Name())
		}
	}
	for _, dir := range []string{"/tmp", "/dev/shm", a.RunDir()} {
		sh(t, a, "echo secret > "+dir+"/placetest")
		if got := sh(t, b, "ls -A "+dir); strings.Contains(got, "placetest") {
			t.Errorf("%s of one host is seen on another", dir)
		}
		if _, err := os.Stat(dir + "/placetest"); err == nil {
			t.Errorf("%s of a host is this machine's", dir)
		}
	}
	p, err := a.Start(t.Context(), place.Cmd{Path: "sleep", Args: []string{"4242"}})
	if err != nil {
		t.Fatal(err)
	}
	const find = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 424[2]' || true"
	if got := sh(t, a, find); got != "1" {
		t.Errorf("a host sees its own program %s times", got)
	}
	if got := sh(t, b, find); got != "0" {
		t.Errorf("a host sees another's program %s times", got)
	}
	_ = p.Signal(int(syscall.SIGKILL))
	_ = p.Wait()
}

func (s suite) unixSockets(t *testing.T) {
	h := s.acquire(t, "alpha")[0]
	long := h.RunDir() + "/" + strings.Repeat("long/", 30) + "socket"
	sh(t, h, `mkdir -p "$(dirname `+long+`)"`)
	for _, path := range []string{h.RunDir() + "/socket", long} {
		l, err := h.Listen(t.Context(), "unix", path)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}
		}()
		if got := sh(t, h, "stat -c '%F %U' "+path); got != "socket "+h.User() {
			t.Errorf("the socket is a %q", got)
		}
		c, err := h.Dial(within(t, 5*time.Second), "unix", path)
		if err != nil {
			t.Fatal(err)
		}
		cl := newClient(t, c)
		cl.send("hello")
		cl.expect("hello")
		if err := errors.Join(c.Close(), l.Close()); err != nil {
			t.Error(err)
		}
		if got := sh(t, h, "ls "+path+" 2>/dev/null || true"); got != "" {
			t.Errorf("%s is left", got)
		}
		if _, err := h.Dial(within(t, time.Second), "unix", path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("dial a socket that is gone: %v", err)
		}
	}
}

// join acquires more hosts beside those that are there.
func (s suite) join(t *testing.T) {
	p := s.open(t)
	first, err := p.Acquire(t.Context(), []place.HostSpec{{Name: "alpha"}})
	if err != nil {
		t.Fatal(err)
	}
	second, err := p.Acquire(t.Context(), []place.HostSpec{{Name: "beta"}})
	if err != nil {
		t.Fatal(err)
	}
	a, b := first[0], second[0]
	addr, _ := startEcho(t, b)
	expectEcho(t, a, addr)
	addr, _ = startEcho(t, a)
	expectEcho(t, b, addr)
	for _, h := range []place.Host{a, b} {
		if got := sh(t, h, "getent hosts alpha; getent hosts beta"); !strings.Contains(got, a.Addr()) || !strings.Contains(got, b.Addr()) {
			t.Errorf("%s knows %q", h.Name(), got)
		}
	}
}

func (s suite) refused(t *testing.T) {
	p := s.open(t)
	if _, err := p.Acquire(t.Context(), []place.HostSpec{{Name: "alpha"}}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "Alpha", "a_b", "1st", "much-too-long-a-name", "alpha", "localhost"} {
		if _, err := p.Acquire(t.Context(), []place.HostSpec{{Name: name}}); err == nil {
			t.Errorf("host name %q was taken", name)
		}
	}
	if _, err := p.Acquire(t.Context(), []place.HostSpec{{Name: "beta"}, {Name: "beta"}}); err == nil {
		t.Error("two hosts of one name were taken")
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Acquire(cancelled, []place.HostSpec{{Name: "beta"}}); err == nil {
		t.Error("hosts were acquired after the context was cancelled")
	}
	if _, err := p.Acquire(t.Context(), []place.HostSpec{{Name: "beta"}}); err != nil {
		t.Errorf("a host whose acquisition failed before: %v", err)
	}
}

func (s suite) release(t *testing.T) {
	p := s.open(t)
	hosts, err := p.Acquire(t.Context(), []place.HostSpec{{Name: "alpha"}})
	if err != nil {
		t.Fatal(err)
	}
	proc, err := hosts[0].Start(t.Context(), place.Cmd{Path: "sleep", Args: []string{"60"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := proc.Wait(); !errors.Is(err, place.ErrNoPower) {
		t.Errorf("a program of a released host: %v", err)
	}
	if _, err := hosts[0].Start(t.Context(), place.Cmd{Path: "true"}); !errors.Is(err, place.ErrNoPower) {
		t.Errorf("start on a released host: %v", err)
	}
	if _, err := p.Acquire(t.Context(), []place.HostSpec{{Name: "beta"}}); err == nil {
		t.Error("hosts were acquired from a released place")
	}
}
