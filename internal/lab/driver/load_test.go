package driver

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/check"
	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/collector"
)

const token = "t0ken"

// lab is a collector and a driver in this process.
type lab struct {
	t    *testing.T
	path string
	c    *collector.Collector
	done chan error
}

// newLab starts a collector, and a driver with what set changes of its config.
func newLab(t *testing.T, set func(*Config), targets ...string) *lab {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, path: filepath.Join(t.TempDir(), "history"), done: make(chan error, 1)}
	if l.c, err = collector.New(ln, token, l.path, collector.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.c.Stop(expired()) })
	cfg := &Config{
		Name: "test", Collector: ln.Addr().String(), Token: token, Targets: targets,
		User: "holdfast", Password: password, Database: "postgres", Table: "ledger", Writers: 4, PayloadBytes: 100,
	}
	if set != nil {
		set(cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { l.done <- Run(ctx, cfg) }()
	t.Cleanup(cancel)
	return l
}

func expired() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// stop ends the load: the driver finishes by itself.
func (l *lab) stop() {
	l.t.Helper()
	l.must(l.c.Stop(within(l.t, 10*time.Second)))
	select {
	case err := <-l.done:
		l.must(err)
	case <-time.After(10 * time.Second):
		l.t.Fatal("the driver did not end")
	}
	for _, d := range l.c.Drivers() {
		if d.State != collector.Finished {
			l.t.Fatalf("driver %+v", d)
		}
	}
}

// findings holds the history against what a server has.
func (l *lab) findings(survivors *server) *check.Findings {
	l.t.Helper()
	r, err := history.Open(l.path)
	l.must(err)
	defer func() { _ = r.Close() }()
	led, err := check.Read(r)
	l.must(err)
	led.Survived(check.FirstScan, slices.Values(survivors.ids(false)))
	led.Survived(check.FirstIndex, slices.Values(survivors.ids(true)))
	f := led.Findings(check.Options{Window: 2 * time.Second})
	live := l.c.Live()
	if live.Acked != f.Acked || live.Refused != f.Refused || live.Unknown != f.Unknown || live.InFlight != 0 {
		l.t.Errorf("live counters %+v, but the history has %d acked, %d refused, %d unknown", live, f.Acked, f.Refused, f.Unknown)
	}
	l.t.Logf("%v; recovered %d; gaps %v", f.Metrics(), f.Recovered.Count, f.Gaps)
	return f
}

func ledger(s *server) { s.exec(strings.Split(fmt.Sprintf(CreateTable, "ledger"), ";\n")...) }

// TestCaseGoTPCIssue139 (and HammerDB#573, #147): the driver reconnects by itself
// and counts what was acked, refused and unknown meanwhile. It kills the server under load and starts it again: what was
// acked is there, and the checker finds nothing against it.
func TestCaseGoTPCIssue139(t *testing.T) {
	cycles := 1
	if os.Getenv("HOLDFAST_LONG") != "" {
		cycles = 20
	}
	for _, confirm := range []bool{false, true} {
		t.Run(fmt.Sprintf("confirm=%v", confirm), func(t *testing.T) {
			s := newServer(t, nil)
			ledger(s)
			l := newLab(t, func(c *Config) { c.ConfirmIntents = confirm }, s.target())
			l.must(l.c.WaitAcks(within(t, 20*time.Second), 500))
			for range cycles {
				cut := time.Now()
				l.c.MarkAt(cut, history.MarkCut)
				s.kill()
				s.start()
				l.must(l.c.WaitFirstAckSentAfter(within(t, 20*time.Second), cut))
				n := l.c.Live().Acked
				l.must(l.c.WaitAcks(within(t, 20*time.Second), n+500))
			}
			l.stop()
			f := l.findings(s)
			if v, why := f.Judge(check.Promise{Lose: check.LoseNothing}); v != check.Held {
				t.Errorf("%s: %s", v, why)
			}
			if f.Acked < 1000 || f.Unknown == 0 || f.Refused+f.Unknown > 1000*cycles {
				t.Errorf("%d acked, %d refused, %d unknown", f.Acked, f.Refused, f.Unknown)
			}
			if f.Gaps.FirstAckMs == nil || f.Gaps.LongestMs == nil || *f.Gaps.FirstAckMs > 10_000 || *f.Gaps.LongestMs < 10 {
				t.Errorf("gaps %+v", f.Gaps)
			}
		})
	}
}

// TestCatchesLoss is the control: a server that acknowledges before its WAL is
// written loses when it is killed, and is caught.
func TestCatchesLoss(t *testing.T) {
	s := newServer(t, nil, "synchronous_commit=off", "wal_buffers='16MB'")
	ledger(s)
	s.exec("CHECKPOINT")
	for _, pid := range children(s.cmd.Process.Pid) { // nobody writes the WAL for the backends
		if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.Contains(string(b), "walwriter") {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := newLab(t, nil, s.target())
	l.must(l.c.WaitAcks(within(t, 20*time.Second), 2000))
	cut := time.Now()
	l.c.MarkAt(cut, history.MarkCut)
	s.kill()
	s.start()
	l.must(l.c.WaitFirstAckSentAfter(within(t, 20*time.Second), time.Now()))
	s.exec("CHECKPOINT")
	l.stop()
	f := l.findings(s)
	if v, why := f.Judge(check.Promise{Lose: check.LoseNothing}); v != check.Broken || f.Lost.Count < 100 {
		t.Errorf("%s: %s", v, why)
	} else {
		t.Log(why)
	}
	if f.Ghost.Count+f.Phantom.Count+f.Duplicated.Count+f.Disagree.Count != 0 {
		t.Errorf("found besides: %v", f.Metrics())
	}
	// All of it was acked in the last seconds before the cut.
	if f.LostMs <= 0 || f.LostMs > 60_000 {
		t.Errorf("lost over %v ms", f.LostMs)
	}
	if v, why := f.Judge(check.Promise{Lose: check.LoseMillis, Ms: f.LostMs}); v != check.Held {
		t.Errorf("against what it lost: %s: %s", v, why)
	}
}

// TestFreeze stops every process of the server for longer than a write may
// take: the writes in flight are unknown, although they commit later, and the
// load goes on when the server does.
func TestFreeze(t *testing.T) {
	s := newServer(t, nil)
	ledger(s)
	l := newLab(t, func(c *Config) { c.WriteTimeoutMs, c.ProbeTimeoutMs = 300, 300 }, s.target())
	l.must(l.c.WaitAcks(within(t, 20*time.Second), 200))
	frozen := time.Now()
	s.signal(syscall.SIGSTOP)
	eventually(t, 20*time.Second, "writes to be given up", func() bool { return l.c.Live().Unknown >= 4 })
	eventually(t, 20*time.Second, "writes to be refused", func() bool { return l.c.Live().Refused >= 4 })
	s.signal(syscall.SIGCONT)
	l.must(l.c.WaitFirstAckSentAfter(within(t, 20*time.Second), frozen.Add(time.Second)))
	l.must(l.c.WaitAcks(within(t, 20*time.Second), l.c.Live().Acked+200))
	l.stop()
	f := l.findings(s)
	if v, why := f.Judge(check.Promise{Lose: check.LoseNothing}); v != check.Held {
		t.Errorf("%s: %s", v, why)
	}
	if f.Unknown != 4 || f.Recovered.Count == 0 {
		t.Errorf("%d unknown and %d of them present, with 4 writers", f.Unknown, f.Recovered.Count)
	}
}
