package placetest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
)

// quiet is how long silence is listened to: longer than a first retransmission.
const quiet = 700 * time.Millisecond

func (s suite) powerOffIsSilent(t *testing.T) {
	hosts := s.acquire(t, "alpha", "beta")
	a, b := hosts[0], hosts[1]
	addr, p := startEcho(t, a)
	idle, busy := dial(t, b, addr), dial(t, b, addr)
	for _, c := range []*client{idle, busy} {
		c.send("before")
		c.expect("before")
	}
	before := time.Now()
	began, confirmed := off(t, a)
	if began.Before(before) || confirmed.Before(began) || confirmed.After(time.Now()) {
		t.Errorf("began %v, confirmed %v, after a start at %v", began, confirmed, before)
	}
	busy.send("to a dead host") // the sender's kernel takes it
	idle.expectSilence(quiet)
	busy.expectSilence(quiet)
	expectNoAnswer(t, b, addr)
	if err := p.Wait(); !errors.Is(err, place.ErrNoPower) {
		t.Errorf("the program's end: %v", err)
	}
}

func (s suite) powerCycle(t *testing.T) {
	hosts := s.acquire(t, "alpha", "beta")
	a, b := hosts[0], hosts[1]
	cycler := as[place.PowerCycler](t, a)
	address := a.Addr()
	for range 2 {
		addr, p := startEcho(t, a)
		expectEcho(t, b, addr)
		sh(t, a, "echo x > "+a.RunDir()+"/memory; setsid sleep 61 >/dev/null 2>&1 &")
		own, err := a.Dial(within(t, 5*time.Second), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		l, err := a.Listen(t.Context(), "tcp", net.JoinHostPort(a.Addr(), "7071"))
		if err != nil {
			t.Fatal(err)
		}
		off(t, a)
		if cycler.Powered() {
			t.Error("powered after it was cut")
		}
		<-p.Done()
		if err := p.Wait(); !errors.Is(err, place.ErrNoPower) {
			t.Errorf("wait: %v", err)
		}
		_ = own.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := own.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("a connection of the host itself: %v", err)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a listener of the host itself: %v", err)
		}
		s.deadHost(t, a)
		on(t, a)
		if !cycler.Powered() || a.Addr() != address {
			t.Errorf("powered %v, address %s, before %s", cycler.Powered(), a.Addr(), address)
		}
		if err := cycler.On(t.Context()); err == nil {
			t.Error("powered on twice")
		}
		if got := sh(t, a, "ls "+a.RunDir()+"; cat /proc/[0-9]*/comm | grep sleep || true"); got != "" {
			t.Errorf("after the power cycle there is still %q", got)
		}
		began := time.Now()
		addr, p = startEcho(t, a)
		started := time.Since(began)
		expectEcho(t, b, addr)
		if took := time.Since(began) - started; took > 500*time.Millisecond {
			t.Errorf("the network delayed a host that came back by %v", took)
		}
		_ = p.Signal(9)
		_ = p.Wait()
	}
}

func (s suite) deadHost(t *testing.T, h place.Host) {
	t.Helper()
	_, startErr := h.Start(t.Context(), place.Cmd{Path: "true"})
	_, getErr := h.Get(t.Context(), h.RunDir()+"/x")
	_, dialErr := h.Dial(within(t, time.Second), "tcp", net.JoinHostPort(h.Addr(), "1"))
	_, listenErr := h.Listen(t.Context(), "tcp", net.JoinHostPort(h.Addr(), "7071"))
	_, _, offErr := as[place.PowerCycler](t, h).Off(t.Context())
	for what, err := range map[string]error{"start": startErr, "get": getErr, "dial": dialErr, "listen": listenErr, "off": offErr} {
		if !errors.Is(err, place.ErrNoPower) {
			t.Errorf("%s without power: %v", what, err)
		}
	}
}

// pair returns both ends of a connection between two hosts.
func pair(t *testing.T, a, b place.Host) (atA, atB *client) {
	t.Helper()
	l, err := b.Listen(t.Context(), "tcp", net.JoinHostPort(b.Addr(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	atA = dial(t, a, l.Addr().String())
	select {
	case c := <-accepted:
		return atA, newClient(t, c)
	case <-time.After(5 * time.Second):
		t.Fatal("the connection did not arrive within 5 s")
		return nil, nil
	}
}

func partition(t *testing.T, cut bool, from, to place.Host) {
	t.Helper()
	p := as[place.Partitioner](t, from)
	do := p.Heal
	if cut {
		do = p.Cut
	}
	if err := do(t.Context(), to); err != nil {
		t.Fatal(err)
	}
}

func (s suite) partitionOneWay(t *testing.T) {
	hosts := s.acquire(t, "alpha", "beta", "gamma")
	for _, d := range [][2]place.Host{{hosts[0], hosts[1]}, {hosts[1], hosts[0]}} {
		from, to, third := d[0], d[1], hosts[2]
		atFrom, atTo := pair(t, from, to)
		partition(t, true, from, to)
		atTo.send("the open way")
		atFrom.expect("the open way")
		atFrom.send("the way that was cut")
		atTo.expectSilence(quiet)
		addr, p := startEcho(t, to)
		expectNoAnswer(t, from, addr)
		expectEcho(t, third, addr)
		partition(t, false, from, to)
		atTo.expect("the way that was cut") // by a retransmission
		expectEcho(t, from, addr)
		_ = p.Signal(9)
		_ = p.Wait()
	}
	if err := as[place.Partitioner](t, hosts[0]).Cut(t.Context(), hosts[0]); err == nil {
		t.Error("a host was cut off from itself")
	}
}

func (s suite) partitionBothWays(t *testing.T) {
	hosts := s.acquire(t, "alpha", "beta")
	a, b := hosts[0], hosts[1]
	addr, _ := startEcho(t, b)
	atA, atB := pair(t, a, b)
	partition(t, true, a, b)
	partition(t, true, b, a)
	atA.send("to b")
	atB.send("to a")
	atA.expectSilence(quiet)
	atB.expectSilence(quiet)
	expectNoAnswer(t, a, addr)
	partition(t, false, a, b)
	partition(t, false, b, a)
	atA.expect("to a")
	atB.expect("to b")
	expectEcho(t, a, addr)
}

func (s suite) partitionOutlastsPower(t *testing.T) {
	hosts := s.acquire(t, "alpha", "beta")
	a, b := hosts[0], hosts[1]
	partition(t, true, a, b)
	off(t, a)
	on(t, a)
	addr, _ := startEcho(t, b)
	expectNoAnswer(t, a, addr)
	off(t, a)
	partition(t, false, a, b)
	on(t, a)
	expectEcho(t, a, addr)
}

// meter counts what a program writes.
type meter struct {
	mu    sync.Mutex
	bytes int
}

func (m *meter) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes += len(p)
	return len(p), nil
}

func (m *meter) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// chatter starts programs that start programs all the time, and say so.
func chatter(t *testing.T, h place.Host) *meter {
	t.Helper()
	m := &meter{}
	const script = "while :; do (:; echo tick); /bin/true; done & while :; do (sh -c 'echo tock'); done"
	if _, err := h.Start(t.Context(), place.Cmd{Path: "sh", Args: []string{"-c", script}, Stdout: m}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the programs to run", func() bool { return m.count() > 100 })
	return m
}

func (s suite) freeze(t *testing.T) {
	hosts := s.acquire(t, "alpha", "beta")
	a, b := hosts[0], hosts[1]
	f := as[place.Freezer](t, a)
	addr, _ := startEcho(t, a)
	c := dial(t, b, addr)
	m := chatter(t, a)
	for range 3 {
		if err := f.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.send("are you there")
		c.expectSilence(100 * time.Millisecond) // and what was in the pipe is read by now
		late := a.RunDir() + "/late"
		if _, err := a.Run(within(t, 50*time.Millisecond), place.Cmd{Path: "touch", Args: []string{late}}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("run on a frozen host: %v", err)
		}
		before := m.count()
		c.expectSilence(300 * time.Millisecond)
		if n := m.count() - before; n != 0 {
			t.Errorf("frozen programs wrote %d bytes", n)
		}
		if err := f.Thaw(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.expect("are you there")
		waitFor(t, "the programs to go on", func() bool { return m.count() > before })
		if got := sh(t, a, "ls "+late+" 2>/dev/null || true"); got != "" {
			t.Error("what was given up while the host was frozen was done when it was thawed")
		}
	}
}

func (s suite) powerOffWhileFrozen(t *testing.T) {
	hosts := s.acquire(t, "alpha", "beta")
	a, b := hosts[0], hosts[1]
	addr, p := startEcho(t, a)
	c := dial(t, b, addr)
	m := chatter(t, a)
	if err := as[place.Freezer](t, a).Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.send("never answered")
	c.expectSilence(100 * time.Millisecond)
	before := m.count()
	off(t, a)
	if n := m.count() - before; n != 0 {
		t.Errorf("programs went on for %d bytes when the power of the frozen host was cut", n)
	}
	if err := p.Wait(); !errors.Is(err, place.ErrNoPower) {
		t.Errorf("wait: %v", err)
	}
	c.expectSilence(quiet)
	on(t, a)
	addr, _ = startEcho(t, a)
	expectEcho(t, b, addr)
}

// write makes a file of one block on h's disk, flushed or not.
func write(t *testing.T, h place.Host, name string, flush bool) {
	t.Helper()
	args := []string{"if=/dev/urandom", "of=" + h.DataDir() + "/" + name, "bs=8192", "count=4", "status=none"}
	if flush {
		args = append(args, "conv=fsync")
	}
	if _, err := h.Run(within(t, 20*time.Second), place.Cmd{Path: "dd", Args: args}); err != nil {
		t.Fatal(err)
	}
}

func (s suite) withDisk(name string) place.HostSpec {
	return place.HostSpec{Name: name, Disk: s.Disk, Seed: 1}
}

func (s suite) diskKeepsWhatWasFlushed(t *testing.T) {
	h := s.acquireSpecs(t, s.withDisk("alpha"))[0]
	if got := sh(t, h, "pwd"); got != h.DataDir() {
		t.Errorf("working directory is %q, want %q", got, h.DataDir())
	}
	put := bytes.Repeat([]byte("put"), 5000)
	for i := range 3 {
		write(t, h, "flushed", true)
		sum := sh(t, h, "sha256sum flushed")
		if err := h.Put(t.Context(), h.DataDir()+"/dir/put", put, 0o600); err != nil {
			t.Fatal(err)
		}
		// Many a disk commits all names with any flush, so none comes after this.
		write(t, h, "volatile", false)
		busy := place.Cmd{Path: "sh", Args: []string{"-c", "while :; do dd if=/dev/zero of=busy bs=8192 count=64 status=none; done"}}
		if _, err := h.Start(t.Context(), busy); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the disk to be busy", func() bool { return sh(t, h, "ls busy 2>/dev/null || true") != "" })
		off(t, h)
		on(t, h)
		if got := sh(t, h, "sha256sum flushed"); got != sum {
			t.Errorf("cut %d: the flushed file is %q, was %q", i, got, sum)
		}
		if got := sh(t, h, "ls volatile 2>/dev/null || true"); got != "" {
			t.Errorf("cut %d: a file that was not flushed is there", i)
		}
		if got, err := h.Get(t.Context(), h.DataDir()+"/dir/put"); err != nil || !bytes.Equal(got, put) {
			t.Errorf("cut %d: what was put: %d bytes, %v", i, len(got), err)
		}
	}
}

func (s suite) instanceDisk(t *testing.T) {
	spec := s.withDisk("alpha")
	spec.Volume = place.Instance
	h := s.acquireSpecs(t, spec)[0]
	write(t, h, "flushed", true)
	off(t, h)
	on(t, h)
	s.expectEmptyDisk(t, h)
}

func (s suite) expectEmptyDisk(t *testing.T, h place.Host) {
	t.Helper()
	if got := sh(t, h, "ls -A"); got != "" {
		t.Errorf("the disk holds %q", got)
	}
	write(t, h, "again", true) // as the unprivileged user
	off(t, h)
	on(t, h)
}

func (s suite) wipe(t *testing.T) {
	h := s.acquireSpecs(t, s.withDisk("alpha"))[0]
	w := as[place.Wiper](t, h)
	write(t, h, "flushed", true)
	if err := w.Wipe(t.Context()); err == nil {
		t.Error("the disk of a running host was wiped")
	}
	off(t, h)
	if err := w.Wipe(t.Context()); err != nil {
		t.Fatal(err)
	}
	on(t, h)
	s.expectEmptyDisk(t, h)
}

func (s suite) diskStats(t *testing.T) {
	h := s.acquireSpecs(t, s.withDisk("alpha"))[0]
	d := as[place.DiskStatser](t, h)
	before, err := d.DiskStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	write(t, h, "flushed", true)
	after, err := d.DiskStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	grown := 0
	for name, v := range after {
		if v > before[name] {
			grown++
		}
	}
	if grown == 0 {
		t.Errorf("no counter grew with a flushed write: %v", after)
	}
}

// diskIsPrivate keeps one host's disk away from another, which would keep its
// file system alive after a power cut.
func (s suite) diskIsPrivate(t *testing.T) {
	hosts := s.acquireSpecs(t, s.withDisk("alpha"), s.withDisk("beta"))
	a, b := hosts[0], hosts[1]
	write(t, a, "of-alpha", true)
	if got := sh(t, b, "ls -A"); got != "" {
		t.Errorf("one host's disk holds another's %q", got)
	}
}

// networkVolume loses a host and goes on with its volume on another one.
func (s suite) networkVolume(t *testing.T) {
	spec := s.withDisk("alpha")
	spec.Volume = place.Network
	hosts := s.acquireSpecs(t, spec, place.HostSpec{Name: "beta"}, s.withDisk("gamma"))
	a, b, c := hosts[0], hosts[1], hosts[2]
	att := as[place.Attacher](t, b)
	if b.DataDir() != "" {
		t.Errorf("a host without a disk has data in %s", b.DataDir())
	}
	write(t, a, "flushed", true)
	sum := sh(t, a, "sha256sum flushed")
	write(t, a, "volatile", false)
	off(t, b)
	if err := att.Attach(t.Context(), a); err == nil {
		t.Error("a volume was taken from a host that is on")
	}
	off(t, a)
	if err := att.Attach(t.Context(), c); err == nil {
		t.Error("a host-bound disk was taken from its host")
	}
	if err := as[place.Attacher](t, c).Attach(t.Context(), a); err == nil {
		t.Error("a volume was attached to a host that has a disk, and is on")
	}
	if w, ok := a.(place.Wiper); ok {
		if err := w.Wipe(t.Context()); err == nil {
			t.Error("a network volume was wiped with its host")
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := att.Attach(ended, a); !errors.Is(err, context.Canceled) {
		t.Errorf("attached by a caller that gave up: %v", err)
	}
	if err := att.Attach(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	on(t, b)
	on(t, a)
	if a.DataDir() != "" || b.DataDir() == "" {
		t.Errorf("data is in %q on the old host and in %q on the new one", a.DataDir(), b.DataDir())
	}
	if got := sh(t, b, "sha256sum flushed"); got != sum {
		t.Errorf("on the new host the flushed file is %q, was %q", got, sum)
	}
	if got := sh(t, b, "ls volatile 2>/dev/null || true"); got != "" {
		t.Error("a file that was not flushed went along")
	}
	write(t, b, "again", true)
	off(t, b)
	on(t, b)
	if got := sh(t, b, "ls again"); got != "again" {
		t.Errorf("after a power cycle of the new host: %q", got)
	}
}

// posixDisk loses a file whose directory was not flushed, and nothing else.
func (s suite) posixDisk(t *testing.T) {
	spec := s.withDisk("alpha")
	spec.Profile = "posix"
	h := s.acquireSpecs(t, spec)[0]
	if err := h.Put(t.Context(), h.DataDir()+"/new/put", []byte("put"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, h, "kept", true)
	sh(t, h, "sync .")
	write(t, h, "unnamed", true)
	off(t, h)
	on(t, h)
	if got := sh(t, h, "ls"); got != "kept\nnew" {
		t.Errorf("after the cut there is %q", got)
	}
	if got, err := h.Get(t.Context(), h.DataDir()+"/new/put"); err != nil || string(got) != "put" {
		t.Errorf("what was put: %q, %v", got, err)
	}
}
