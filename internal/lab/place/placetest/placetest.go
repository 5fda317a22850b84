// Package placetest holds what every place has to keep to, as tests.
//
// What a host can do beyond running programs is tested where it offers it.
package placetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
)

// Options fit the suite to a place.
type Options struct {
	// Open makes a new place. The suite releases it.
	Open func(t *testing.T) place.Place
	// Disk is the named disk that hosts get, "" to leave out what needs one.
	Disk string
}

// Run runs the whole suite. The test binary's TestMain must call Main.
func Run(t *testing.T, o Options) {
	s := suite{o}
	t.Run("Reach", s.reach)
	t.Run("Run", s.run)
	t.Run("Start", s.start)
	t.Run("PutGet", s.putGet)
	t.Run("Private", s.private)
	t.Run("UnixSockets", s.unixSockets)
	t.Run("Join", s.join)
	t.Run("Refused", s.refused)
	t.Run("Release", s.release)
	t.Run("PowerCycle", s.powerCycle)
	t.Run("Silence", s.silences)
	Freeze(t, o)
	if o.Disk == "" {
		return
	}
	t.Run("DiskKeepsWhatWasFlushed", s.diskKeepsWhatWasFlushed)
	t.Run("InstanceDisk", s.instanceDisk)
	t.Run("Wipe", s.wipe)
	t.Run("NetworkVolume", s.networkVolume)
	t.Run("PosixDisk", s.posixDisk)
	t.Run("DiskStats", s.diskStats)
	t.Run("DiskIsPrivate", s.diskIsPrivate)
}

// silences spend their time on waiting for nothing to happen, so they do it
// together: several places at once is something that has to work anyway.
func (s suite) silences(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"PowerOff":              s.powerOffIsSilent,
		"PartitionOneWay":       s.partitionOneWay,
		"PartitionBothWays":     s.partitionBothWays,
		"PartitionOutlastPower": s.partitionOutlastsPower,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// Freeze runs the part of the suite that is about freezing, for places that do
// it in several ways.
func Freeze(t *testing.T, o Options) {
	s := suite{o}
	t.Run("Freeze", s.freeze)
	t.Run("PowerOffWhileFrozen", s.powerOffWhileFrozen)
}

type suite struct{ Options }

// acquire opens a place with hosts of the given names, without disks.
func (s suite) acquire(t *testing.T, names ...string) []place.Host {
	t.Helper()
	specs := make([]place.HostSpec, len(names))
	for i, n := range names {
		specs[i].Name = n
	}
	return s.acquireSpecs(t, specs...)
}

func (s suite) acquireSpecs(t *testing.T, specs ...place.HostSpec) []place.Host {
	t.Helper()
	p := s.open(t)
	hosts, err := p.Acquire(t.Context(), specs)
	if err != nil {
		t.Fatal(err)
	}
	if len(hosts) != len(specs) {
		t.Fatalf("%d hosts for %d specs", len(hosts), len(specs))
	}
	return hosts
}

func (s suite) open(t *testing.T) place.Place {
	t.Helper()
	p := s.Open(t)
	t.Cleanup(func() {
		if err := p.Release(context.Background()); err != nil {
			t.Errorf("release: %v", err)
		}
	})
	return p
}

// as asks a host for a capability; a place whose hosts lack it skips the test.
func as[T any](t *testing.T, h place.Host) T {
	t.Helper()
	c, ok := h.(T)
	if !ok {
		t.Skipf("host %s is no %T", h.Name(), *new(T))
	}
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// sh runs a shell script on h and returns its trimmed output.
func sh(t *testing.T, h place.Host, script string) string {
	t.Helper()
	out, err := h.Run(within(t, 20*time.Second), place.Cmd{Path: "sh", Args: []string{"-c", script}})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(string(out))
}

func off(t *testing.T, h place.Host) (began, confirmed time.Time) {
	t.Helper()
	began, confirmed, err := as[place.PowerCycler](t, h).Off(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return began, confirmed
}

func on(t *testing.T, h place.Host) {
	t.Helper()
	if err := as[place.PowerCycler](t, h).On(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The helper is the test binary itself, put on a host and run there.
const (
	helperEnv  = "HOLDFAST_PLACETEST_HELPER"
	helperPort = "7070"
)

// Main runs the helper in a process that is one, and m's tests otherwise.
func Main(m *testing.M) {
	if addr := os.Getenv(helperEnv); addr != "" {
		fmt.Fprintln(os.Stderr, echo(addr))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// echo answers every line it gets with the same line, until an error ends it.
func echo(addr string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = c.Close() }()
			_, _ = io.Copy(c, c)
		}()
	}
}

// startEcho has a program on h echo what arrives at the returned address.
func startEcho(t *testing.T, h place.Host) (string, place.Process) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	path := h.RunDir() + "/placetest-helper"
	if err := h.Put(t.Context(), path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort(h.Addr(), helperPort)
	r, w := io.Pipe()
	p, err := h.Start(t.Context(), place.Cmd{Path: path, Env: []string{helperEnv + "=" + addr}, Stdout: w, Stderr: w})
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1)
	go func() {
		sc := bufio.NewScanner(r)
		for sc.Scan() {
			select {
			case lines <- sc.Text():
			default:
			}
		}
	}()
	select {
	case line := <-lines:
		if line != "listening" {
			t.Fatalf("helper: %s", line)
		}
	case <-p.Done():
		t.Fatalf("helper: %v", p.Wait())
	case <-time.After(10 * time.Second):
		t.Fatal("the helper does not listen after 10 s")
	}
	return addr, p
}

// client is a connection of a host, with deadlines on everything.
type client struct {
	t *testing.T
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, from place.Host, addr string) *client {
	t.Helper()
	c, err := from.Dial(within(t, 5*time.Second), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return newClient(t, c)
}

func newClient(t *testing.T, c net.Conn) *client {
	t.Cleanup(func() { _ = c.Close() })
	return &client{t, c, bufio.NewReader(c)}
}

func (c *client) send(line string) {
	c.t.Helper()
	_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) expect(line string) {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(15 * time.Second))
	got, err := c.r.ReadString('\n')
	if err != nil {
		c.t.Fatalf("waiting for %q: %v", line, err)
	}
	if strings.TrimSpace(got) != line {
		c.t.Fatalf("got %q, want %q", got, line)
	}
}

// expectSilence fails on data, on an end of the stream and on a reset.
func (c *client) expectSilence(d time.Duration) {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(d))
	got, err := c.r.ReadString('\n')
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("got %q and %v, want silence", got, err)
	}
}

// expectNoAnswer fails unless connecting to addr just times out: being refused,
// or told that there is no way, is an answer.
func expectNoAnswer(t *testing.T, from place.Host, addr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), quiet)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", addr)
	if err == nil {
		_ = c.Close()
		t.Fatalf("%s reached %s", from.Name(), addr)
	}
	var timeout net.Error
	if !errors.Is(err, context.DeadlineExceeded) && (!errors.As(err, &timeout) || !timeout.Timeout()) {
		t.Fatalf("from %s to %s: %v, want a timeout", from.Name(), addr, err)
	}
}

func expectEcho(t *testing.T, from place.Host, addr string) {
	t.Helper()
	c := dial(t, from, addr)
	c.send("hello from " + from.Name())
	c.expect("hello from " + from.Name())
}
