package lab

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/place/local"
	"github.com/holdfast-db/holdfast/internal/postgres"
	"github.com/holdfast-db/holdfast/internal/result"
	"github.com/holdfast-db/holdfast/internal/testbin"
)

// watched is a local place that tells which hosts it handed out.
type watched struct {
	place.Place
	hosts chan<- []place.Host
}

func (w watched) Acquire(ctx context.Context, specs []place.HostSpec) ([]place.Host, error) {
	hosts, err := w.Place.Acquire(ctx, specs)
	if err == nil {
		w.hosts <- hosts
	}
	return hosts, err
}

// throttle makes the disk of a run's first host slower while pgbench runs: in
// the attempts that it is told to.
type throttle struct {
	t       *testing.T
	hosts   chan []place.Host
	primary place.DiskController
	attempt int
	slow    func(attempt int) bool
	pending sync.WaitGroup
}

func (h *throttle) Step(text string) { h.t.Log(text) }

func (h *throttle) Live(text string) {
	select {
	case hosts := <-h.hosts:
		h.primary = hosts[0].(place.DiskController)
	default:
	}
	if strings.HasSuffix(text, "first touch of every page") {
		h.pending.Wait()
		h.set("0.34")
	}
	if !strings.Contains(text, "pgbench, ") {
		return
	}
	h.attempt++
	if h.slow(h.attempt) {
		h.pending.Go(func() {
			time.Sleep(1800 * time.Millisecond) // into the measured 4 s: this is the load, not a wait
			h.set("4")
		})
	}
}

func (h *throttle) set(ms string) {
	if err := h.primary.SetDisk(context.Background(), map[string]string{"flush_ms": ms}); err != nil {
		h.t.Error(err)
	}
}

// TestThrottledCell: a disk whose flush gets slower within a cell makes that
// attempt invalid, with the reason; it is repeated, and what is steady then
// counts. One that is never steady stays invalid and has no figures.
func TestThrottledCell(t *testing.T) {
	if os.Getenv("HOLDFAST_LONG") == "" {
		t.Skip("takes a minute: set HOLDFAST_LONG=1")
	}
	if os.Geteuid() != 0 {
		t.Skip("the lab needs root for network namespaces and simulated disks")
	}
	binDir, err := postgres.FindBinDir(os.Getenv("HOLDFAST_PG_BINDIR"))
	if err != nil {
		t.Skip(err)
	}
	bin := testbin.Build(t)
	study := parse(t, "study: t\nsetups: [{setup: pg-single}]\nexperiments: [{experiment: commit, seconds: 4, scale: 1, repeat: 2}]\n")
	out := t.TempDir()
	if err := Create(out); err != nil {
		t.Fatal(err)
	}
	opt := local.Options{Binary: bin, WorkDir: t.TempDir()}
	steadyAt := 0 // the attempt at which the first cell came out
	h := &throttle{t: t, hosts: make(chan []place.Host, 1)}
	r := &Runner{
		Study: study, Seed: 1, Out: out, Binary: bin, BinDir: binDir, Environment: map[string]string{}, Facts: local.Facts(),
		NewPlace: func(context.Context) (place.Place, error) {
			p, err := local.New(opt)
			return watched{p, h.hosts}, err
		},
		Progress: h, Now: time.Now,
	}
	h.slow = func(attempt int) bool {
		if len(r.run.Cells) == 0 {
			steadyAt = attempt
			return attempt == 1
		}
		return true
	}
	run, err := r.Run(t.Context())
	h.pending.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if len(run.Cells) != 2 {
		t.Fatalf("%d cells, want 2", len(run.Cells))
	}
	once, never := run.Cells[0], run.Cells[1]
	if steadyAt < 2 || once.Verdict != result.Held || len(once.Discarded) != steadyAt-1 || !strings.Contains(once.Discarded[0].Why, "not steady: the median latency changed after") {
		t.Errorf("throttled once: %s after %d attempts, %d discarded: %+v", once.Verdict, steadyAt, len(once.Discarded), once.Discarded)
	}
	if never.Verdict != result.Invalid || !strings.Contains(never.Why, "not steady") || len(never.Discarded) != 2 || len(never.Metrics) != 0 || len(never.Series) == 0 {
		t.Errorf("throttled always: %s (%s), %d discarded, metrics %v", never.Verdict, never.Why, len(never.Discarded), never.Metrics)
	}
}
