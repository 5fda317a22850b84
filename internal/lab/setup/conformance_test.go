package setup_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/place/local"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/postgres"
	"github.com/holdfast-db/holdfast/internal/testbin"
)

func long() bool { return os.Getenv("HOLDFAST_LONG") != "" }

// bed is a deployed setup on hosts of its own.
type bed struct {
	t      *testing.T
	system setup.System
	hosts  []place.Host
}

func deploy(t *testing.T, k setup.Kind) *bed {
	t.Helper()
	if testing.Short() {
		t.Skip("the lab takes longer than -short allows")
	}
	if os.Geteuid() != 0 {
		t.Skip("the lab needs root for network namespaces and simulated disks")
	}
	bin, err := postgres.FindBinDir(os.Getenv("HOLDFAST_PG_BINDIR"))
	if err != nil {
		t.Skip(err)
	}
	if err := k.Missing(); err != nil {
		t.Skip(err)
	}
	p, err := local.New(local.Options{
		Binary: testbin.Build(t), WorkDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Release(context.Background()); err != nil {
			t.Errorf("release the hosts: %v", err)
		}
	})
	var specs []place.HostSpec
	for i := range k.Hosts {
		specs = append(specs, place.HostSpec{Name: fmt.Sprintf("h%d", i+1), Disk: "local-nvme", Seed: uint64(i + 1)})
	}
	b := &bed{t: t, system: k.New()}
	if b.hosts, err = p.Acquire(t.Context(), specs); err != nil {
		t.Fatal(err)
	}
	logs := map[string]io.Writer{}
	for _, h := range b.hosts {
		f, err := os.Create(filepath.Join(t.TempDir(), h.Name()+".log"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				if text, err := os.ReadFile(f.Name()); err == nil {
					t.Logf("%s says at last:\n%s", h.Name(), text[max(0, len(text)-60_000):])
				}
			}
			_ = f.Close()
		})
		logs[h.Name()] = f
	}
	var mu sync.Mutex
	began := time.Now()
	err = b.system.Deploy(t.Context(), setup.Env{
		Hosts: b.hosts, BinDir: bin, Log: func(h string) io.Writer { return logs[h] },
		Trace: func(format string, a ...any) {
			mu.Lock()
			defer mu.Unlock()
			if t.Context().Err() == nil {
				t.Logf("%s "+format, append([]any{time.Since(began).Round(time.Millisecond)}, a...)...)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s is deployed after %s", k.Name, time.Since(began).Round(time.Millisecond))
	return b
}

const table = "conformance"

func (b *bed) write(ids ...int) {
	b.t.Helper()
	for _, id := range ids {
		err := b.system.(setup.SQL).Instance().Exec(b.t.Context(), fmt.Sprintf("INSERT INTO %s VALUES (%d, 1, 0, '')", table, id))
		if err != nil {
			b.t.Fatal(err)
		}
	}
}

// has holds what is found by scan and by index against what was written.
func (b *bed) has(on place.Host, want ...uint64) {
	b.t.Helper()
	by := map[setup.Scan][]uint64{}
	sink := func(s setup.Scan, id uint64) { by[s] = append(by[s], id) }
	var err error
	if on == nil {
		err = b.system.(setup.Ledger).Survivors(b.t.Context(), table, sink)
	} else {
		err = b.system.(setup.Operated).SurvivorsOn(b.t.Context(), on, table, sink)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	for _, s := range []setup.Scan{setup.BySequence, setup.ByIndex} {
		if slices.Sort(by[s]); !slices.Equal(by[s], want) {
			b.t.Errorf("by %s there is %v, want %v", s, by[s], want)
		}
	}
}

func (b *bed) recovered(rec setup.Recovery, err error) setup.Recovery {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Log(rec.How)
	return rec
}

// conforms is what every setup has to do that heals itself.
func conforms(t *testing.T, k setup.Kind) {
	b := deploy(t, k)
	c := b.system.(setup.Healing)
	v, err := b.system.Versions(t.Context())
	if err != nil || len(v) < 2 {
		t.Fatalf("versions %v, %v", v, err)
	}
	if err := b.system.(setup.Ledger).Prepare(t.Context(), table); err != nil {
		t.Fatal(err)
	}
	b.write(1, 2)

	old := c.Primary()
	began := cut(t, old)
	rec := b.recovered(c.Recover(t.Context()))
	took := rec.Promoted.Sub(began)
	if c.Primary() == old || took <= 0 || took > k.Heals || !rec.Done.After(rec.Promoted) {
		t.Errorf("after %s: %+v", took, rec)
	}
	if rec.Detected.IsZero() || rec.Detected.Before(began) || rec.Detected.After(rec.Promoted) {
		t.Errorf("noticed after %s, promoted after %s", rec.Detected.Sub(began), took)
	}
	t.Logf("noticed after %s, promoted after %s, writable after %s", rec.Detected.Sub(began), took, rec.Done.Sub(began))
	b.write(3)
	b.has(nil, 1, 2, 3)
	b.recovered(c.Rejoin(t.Context()))
	b.has(old, 1, 2, 3)
	if len(c.Standbys()) != k.Hosts-1 || slices.Contains(c.Standbys(), c.Primary()) {
		t.Errorf("the standbys are %v", c.Standbys())
	}

	if sw, ok := b.system.(setup.Switcher); ok {
		b.recovered(c.Settle(t.Context(), time.Now())) // who it is, if that changed meanwhile
		before := c.Primary()
		b.recovered(sw.Switchover(t.Context()))
		if c.Primary() == before {
			t.Errorf("%s is the primary after a switchover too", before.Name())
		}
		b.write(4)
		b.recovered(c.Rejoin(t.Context()))
		b.has(before, 1, 2, 3, 4)
	}

	lost := c.Standbys()[0]
	cut(t, lost)
	if err := lost.(place.Wiper).Wipe(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.recovered(c.Return(t.Context(), lost))
	b.has(lost, 1, 2, 3, 4)

	if err := b.system.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, h := range b.hosts { // the first process of a host is the lab's own
		if out, err := h.Run(t.Context(), place.Cmd{Path: "/bin/sh", Args: []string{"-c", "for p in postgres etcd patroni python3 holdfast; do pgrep -l -x $p; done | grep -v '^1 '; true"}}); err != nil || len(out) > 0 {
			t.Errorf("on %s there is left: %s (%v)", h.Name(), out, err)
		}
	}
	if err := b.system.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.has(nil, 1, 2, 3, 4)
}

func cut(t *testing.T, h place.Host) time.Time {
	t.Helper()
	began, _, err := h.(place.PowerCycler).Off(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return began
}

// TestHealing: every setup that heals itself does, and comes back whole.
func TestHealing(t *testing.T) {
	for _, k := range setup.All() {
		if k.Heals == 0 {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			if !long() {
				t.Skip("set HOLDFAST_LONG=1 for the setups that take minutes to heal")
			}
			conforms(t, k)
		})
	}
}

// TestMissing: a setup whose programs are not there says what to install.
func TestMissing(t *testing.T) {
	k := setup.Kind{Name: "x", Needs: []string{"/bin/sh", "/nonexistent/program"}}
	if err := k.Missing(); !errors.Is(err, setup.ErrMissing) {
		t.Errorf("%v", err)
	}
	k.Needs = k.Needs[:1]
	if err := k.Missing(); err != nil {
		t.Error(err)
	}
}
