package local

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/place/local/guest"
	"github.com/holdfast-db/holdfast/internal/lab/place/placetest"
	"github.com/holdfast-db/holdfast/internal/testbin"
)

func TestMain(m *testing.M) {
	runLabProcess()
	runPreflightProcess()
	placetest.Main(m)
}

const testDisk = "local-nvme"

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make namespaces and mount disks")
	}
}

func options(t *testing.T) Options {
	t.Helper()
	needRoot(t)
	return Options{
		Binary:      testbin.Build(t),
		WorkDir:     t.TempDir(),
		AttachDelay: 300 * time.Millisecond,
		Log:         slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

// openLab makes a place whose backing images go into a directory of the test.
func openLab(t *testing.T) *lab {
	t.Helper()
	p, err := New(options(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Release(context.Background()); err != nil {
			t.Errorf("release: %v", err)
		}
	})
	return p.(*lab)
}

func acquire(t *testing.T, l *lab, names ...string) []*host {
	t.Helper()
	var specs []place.HostSpec
	for _, n := range names {
		specs = append(specs, place.HostSpec{Name: n, Disk: testDisk})
	}
	got, err := l.Acquire(t.Context(), specs)
	if err != nil {
		t.Fatal(err)
	}
	hosts := make([]*host, len(got))
	for i, h := range got {
		hosts[i] = h.(*host)
	}
	return hosts
}

func run(t *testing.T, h place.Host, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out, err := h.Run(ctx, place.Cmd{Path: "sh", Args: []string{"-c", script}})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func TestConformance(t *testing.T) {
	needRoot(t)
	placetest.Run(t, placetest.Options{Open: func(t *testing.T) place.Place { return openLab(t) }, Disk: testDisk})
}

// TestFreezers freezes in every way that this machine offers, not only the
// one that a lab would choose.
func TestFreezers(t *testing.T) {
	needRoot(t)
	ways := map[string][]cgroupParent{"signals": nil}
	for _, p := range cgroupParents() {
		ways[fmt.Sprintf("cgroup v2=%v", p.v2)] = []cgroupParent{p}
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			placetest.Freeze(t, placetest.Options{Open: func(t *testing.T) place.Place {
				l := openLab(t)
				l.groups = way
				return l
			}})
		})
	}
}

// TestOtherDisksAreNotMounted: a copy of a mount would keep the file system of
// another host alive after its power was cut.
func TestOtherDisksAreNotMounted(t *testing.T) {
	l := openLab(t)
	hosts := acquire(t, l, "alpha", "beta", "gamma")
	for range 2 {
		for _, h := range hosts {
			mounts, err := guest.DiskMounts(strings.NewReader(run(t, h, "cat /proc/self/mountinfo")))
			if err != nil {
				t.Fatal(err)
			}
			mounts = slices.DeleteFunc(mounts, func(m string) bool {
				return strings.HasPrefix(guest.DataDir, m+"/") || m == h.disk.mount
			})
			if len(mounts) > 0 {
				t.Errorf("on %s there is %v", h.Name(), mounts)
			}
		}
		if _, _, err := hosts[0].Off(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := hosts[0].On(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNeighboursAreKnown: address resolution would tell within seconds that a
// host is off (EHOSTUNREACH), which a lost host in a routed network never does.
func TestNeighboursAreKnown(t *testing.T) {
	l := openLab(t)
	hosts := acquire(t, l, "alpha", "beta")
	hosts = append(hosts, acquire(t, l, "later")...)
	if _, _, err := hosts[0].Off(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := hosts[0].On(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		table := run(t, h, "cat /proc/net/arp")
		for _, peer := range hosts {
			if peer == h {
				continue
			}
			const complete = "0x6" // and permanent
			want := fmt.Sprintf("%s 0x1 %s %s", peer.Addr(), complete, hostMAC(peer.number))
			if !strings.Contains(strings.Join(strings.Fields(table), " "), want) {
				t.Errorf("%s does not know %q:\n%s", h.Name(), want, table)
			}
		}
	}
}

// TestBinaryUnderTmp: hosts have a /tmp of their own, and yet the program that
// they run may be in the machine's, where an unprivileged user cannot look.
func TestBinaryUnderTmp(t *testing.T) {
	o := options(t)
	dir, err := os.MkdirTemp("/tmp", "holdfast-local-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	copyFile(t, o.Binary, filepath.Join(dir, "holdfast"))
	o.Binary = filepath.Join(dir, "holdfast")
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Release(context.Background()) }()
	hosts, err := p.Acquire(t.Context(), []place.HostSpec{{Name: "alpha"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []place.Cmd{
		{Path: o.Binary, Args: []string{"version"}},
		{Path: "holdfast", Args: []string{"version"}},
		{Path: "sh", Args: []string{"-c", o.Binary + " version"}, Root: true},
	} {
		if out, err := hosts[0].Run(t.Context(), cmd); err != nil || !strings.HasPrefix(string(out), "holdfast ") {
			t.Errorf("%v: %q, %v", cmd, out, err)
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestManyCycles cuts the power of several hosts at once, again and again.
func TestManyCycles(t *testing.T) {
	l := openLab(t)
	hosts := acquire(t, l, "alpha", "beta", "gamma", "delta")
	cycles := 4
	if os.Getenv("HOLDFAST_LONG") != "" {
		cycles = 100
	}
	for _, h := range hosts {
		t.Run(h.Name(), func(t *testing.T) {
			t.Parallel()
			stop := talkToYourself(t, h)
			defer stop()
			for i := range cycles {
				file := fmt.Sprintf("%s/%d", h.DataDir(), i)
				if err := h.Put(t.Context(), file, []byte(h.Name()), 0o600); err != nil {
					t.Fatal(err)
				}
				run(t, h, "cp -r . /dev/shm/copy; dd if=/dev/zero of=volatile bs=1M count=4 status=none")
				if _, _, err := h.Off(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := h.On(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got, err := h.Get(t.Context(), file); err != nil || string(got) != h.Name() {
					t.Fatalf("cut %d: %q, %v", i, got, err)
				}
				if got := run(t, h, "ls volatile 2>/dev/null; ls /dev/shm; hostname"); got != h.Name() {
					t.Fatalf("cut %d: %q", i, got)
				}
			}
		})
	}
}

// talkToYourself makes sockets on h while its power comes and goes, and fails
// when one of them turns out to be on another host.
func talkToYourself(t *testing.T, h *host) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		rounds := 0
		for ctx.Err() == nil {
			l, err := h.Listen(ctx, "tcp", ":81")
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			accepted := make(chan struct{})
			go func() {
				defer close(accepted)
				if c, err := l.Accept(); err == nil {
					fmt.Fprint(c, h.Name())
					_ = c.Close()
				}
			}()
			if c, err := h.Dial(ctx, "tcp", h.Addr()+":81"); err == nil {
				if got, err := io.ReadAll(c); err == nil && string(got) != h.Name() {
					t.Errorf("on %s answers %q", h.Name(), got)
				} else if err == nil {
					rounds++
				}
				_ = c.Close()
			}
			_ = l.Close()
			<-accepted
		}
		if rounds == 0 {
			t.Errorf("%s never got through to itself", h.Name())
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// TestTimes reports how long hosts take, and fails where an order of magnitude
// was lost.
func TestTimes(t *testing.T) {
	began := time.Now()
	l := openLab(t)
	hosts := acquire(t, l, "alpha", "beta", "gamma")
	up := time.Since(began)
	a := hosts[0]
	var offs, ons, cuts, runs []time.Duration
	for range 11 {
		run(t, a, "dd if=/dev/zero of=busy bs=1M count=8 status=none")
		began = time.Now()
		if err := a.Cut(t.Context(), hosts[1]); err != nil {
			t.Fatal(err)
		}
		cuts = append(cuts, time.Since(began))
		began, confirmed, err := a.Off(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		offs = append(offs, confirmed.Sub(began))
		began = time.Now()
		if err := a.On(t.Context()); err != nil {
			t.Fatal(err)
		}
		ons = append(ons, time.Since(began))
		began = time.Now()
		run(t, a, "true")
		runs = append(runs, time.Since(began))
	}
	for _, m := range []struct {
		what  string
		took  []time.Duration
		limit time.Duration
	}{
		{"acquire 3 hosts", []time.Duration{up}, 5 * time.Second}, {"off", offs, 250 * time.Millisecond},
		{"on", ons, 1500 * time.Millisecond}, {"cut", cuts, 50 * time.Millisecond}, {"run true", runs, 250 * time.Millisecond},
	} {
		slices.Sort(m.took)
		median := m.took[len(m.took)/2]
		t.Logf("%-16s median %v, worst %v", m.what, median, m.took[len(m.took)-1])
		if median > m.limit {
			t.Errorf("%s takes %v at the median, want at most %v", m.what, median, m.limit)
		}
	}
}
