package driver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/holdfast-db/holdfast/internal/lab/collector"
	"github.com/holdfast-db/holdfast/internal/lab/driver/frame"
)

// desk is a collector that does as the test says.
type desk struct {
	t    *testing.T
	ln   net.Listener
	conn chan net.Conn
}

func newDesk(t *testing.T) *desk {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{t: t, ln: ln, conn: make(chan net.Conn, 1)}
	t.Cleanup(func() { _ = ln.Close() })
	return d
}

// welcome takes the driver in and returns its connection.
func (d *desk) welcome() (net.Conn, *frame.Reader) {
	d.t.Helper()
	c, err := d.ln.Accept()
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = c.Close() })
	r := frame.NewReader(c)
	var f frame.Frame
	if err := r.Read(&f); err != nil || f.Type != frame.Hello || string(f.Token) != token {
		d.t.Fatalf("hello: %+v, %v", f, err)
	}
	if _, err := c.Write(frame.Append(nil, &frame.Frame{Type: frame.Welcome})); err != nil {
		d.t.Fatal(err)
	}
	return c, r
}

// start runs a driver for this desk.
func (d *desk) start(set func(*Config), targets ...string) <-chan error {
	cfg := testConfig(targets...)
	cfg.Collector = d.ln.Addr().String()
	if set != nil {
		set(cfg)
	}
	out := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	d.t.Cleanup(cancel)
	go func() { out <- Run(ctx, cfg) }()
	return out
}

func await(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("the driver did not end")
		return nil
	}
}

// counting is a server that counts the INSERTs that reach it.
func counting(t *testing.T) (*fake, *atomic.Int64) {
	var n atomic.Int64
	return newFake(t, func(b *pgproto3.Backend, bind *pgproto3.Bind) bool { n.Add(1); return ack(b, bind) }), &n
}

// TestNoCollectorNoWrites: when the connection to the collector breaks, the
// driver ends and nothing is written any more.
func TestNoCollectorNoWrites(t *testing.T) {
	f, n := counting(t)
	d := newDesk(t)
	done := d.start(nil, f.target())
	c, _ := d.welcome()
	eventually(t, 10*time.Second, "writes", func() bool { return n.Load() > 10 })
	_ = c.Close()
	if err := await(t, done); !errors.Is(err, ErrCollector) {
		t.Errorf("%v", err)
	}
	eventually(t, 5*time.Second, "its sessions to be closed", func() bool { return f.open.Load() == 0 })
}

// TestSilentCollector: a collector that is connected but says nothing.
func TestSilentCollector(t *testing.T) {
	f, _ := counting(t)
	d := newDesk(t)
	done := d.start(func(c *Config) { c.CollectorTimeoutMs = 200; c.Rate = 10 }, f.target())
	d.welcome()
	if err := await(t, done); !errors.Is(err, ErrCollector) {
		t.Errorf("%v", err)
	}
}

// TestUnconfirmedIntentIsNotWritten: with confirm_intents no write is sent
// before its intent is confirmed.
func TestUnconfirmedIntentIsNotWritten(t *testing.T) {
	f, n := counting(t)
	d := newDesk(t)
	done := d.start(func(c *Config) { c.ConfirmIntents = true; c.IDBase = 100 }, f.target())
	c, r := d.welcome()
	var fr frame.Frame
	intent := func() {
		t.Helper()
		for {
			if err := r.Read(&fr); err != nil {
				t.Fatal(err)
			}
			if fr.Type == frame.Intent {
				return
			}
		}
	}
	for id := uint64(100); id < 105; id++ {
		intent()
		if fr.ID != id {
			t.Fatalf("intent of %d, want %d", fr.ID, id)
		}
		if got := n.Load(); got != int64(id-100) {
			t.Fatalf("%d writes were sent before intent %d was confirmed", got, id)
		}
		if _, err := c.Write(frame.Append(nil, &frame.Frame{Type: frame.Confirm, ID: id})); err != nil {
			t.Fatal(err)
		}
		eventually(t, 10*time.Second, "the confirmed write", func() bool { return n.Load() == int64(id-99) })
	}
	_ = c.Close()
	if err := await(t, done); !errors.Is(err, ErrCollector) {
		t.Errorf("%v", err)
	}
}

func TestRejected(t *testing.T) {
	f, n := counting(t)
	l := newLab(t, func(c *Config) { c.Token = "wrong" }, f.target())
	err := await(t, l.done)
	if !errors.Is(err, ErrRejected) || !strings.Contains(err.Error(), "token") || strings.Contains(err.Error(), "wrong") {
		t.Errorf("%v", err)
	}
	if n.Load() != 0 || f.conns.Load() != 0 {
		t.Error("a driver that was refused touched the server")
	}
}

// TestEnds: by duration and by an interrupt the driver finishes its writes.
func TestEnds(t *testing.T) {
	for _, byTime := range []bool{true, false} {
		f, n := counting(t)
		ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "c"))
		if err != nil {
			t.Fatal(err)
		}
		c, err := collector.New(ln, token, filepath.Join(t.TempDir(), "h"), collector.Options{})
		if err != nil {
			t.Fatal(err)
		}
		cfg := testConfig(f.target())
		cfg.Collector, cfg.Writers = ln.Addr().String(), 3
		if byTime {
			cfg.DurationMs = 300
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- Run(ctx, cfg) }()
		if err := c.WaitAcks(within(t, 10*time.Second), 10); err != nil {
			t.Fatal(err)
		}
		if !byTime {
			cancel()
		}
		if err := await(t, done); err != nil {
			t.Errorf("by time %v: %v", byTime, err)
		}
		if err := c.Stop(within(t, 10*time.Second)); err != nil {
			t.Error(err)
		}
		d, v := c.Drivers()[0], c.Live()
		want := map[bool]string{true: "its time is over", false: "it was interrupted"}[byTime]
		if d.State != collector.Finished || d.Why != want {
			t.Errorf("by time %v: %+v", byTime, d)
		}
		if int64(v.Acked) != n.Load() || v.Unknown+v.Refused+v.InFlight != 0 {
			t.Errorf("%+v, and %d writes reached the server", v, n.Load())
		}
	}
}

// TestPacer: the writes of all writers are spread evenly, a small delay is made
// up for, an outage is not.
func TestPacer(t *testing.T) {
	const rate, writers = 1000.0, 4
	for w := range writers {
		p := pacer{rate: rate, writers: writers, writer: w}
		now := time.Duration(0)
		for k := range 1000 {
			now += max(p.next(now), 0)
			want := time.Duration((float64(k*writers+w) / rate) * 1e9)
			if d := now - want; d.Abs() > time.Microsecond {
				t.Fatalf("write %d of writer %d is due at %v, want %v", k, w, now, want)
			}
		}
		// 50 ms late: the next ones are due at once, until it has caught up.
		now += 50 * time.Millisecond
		caught := 0
		for p.next(now) <= 0 {
			caught++
		}
		if caught < 11 || caught > 13 {
			t.Errorf("%d writes made up for after 50 ms, want 12", caught)
		}
		now += time.Minute
		missed := 0
		for p.next(now) <= 0 {
			missed++
		}
		if missed > 1 {
			t.Errorf("%d writes made up for after a minute", missed)
		}
	}
	free := pacer{writers: 1}
	if d := free.next(time.Hour); d != 0 {
		t.Errorf("without a rate the next write is due in %v", d)
	}
}

func TestReadConfig(t *testing.T) {
	good := `{"collector":"a:1","token":"t","user":"u","database":"d","table":"x","targets":["h:5432"]`
	c, err := ReadConfig(strings.NewReader(good + `}`))
	if err != nil {
		t.Fatal(err)
	}
	if c.Writers != 1 || c.IDBase != 1 || c.WriteTimeoutMs != 1500 || c.ConnectTimeoutMs != 1000 || c.ProbeEveryMs != 100 {
		t.Errorf("defaults: %+v", c)
	}
	for in, want := range map[string]string{
		``:                                       "EOF",
		`{`:                                      "JSON",
		good + `,"bogus":1}`:                     "bogus",
		`{}`:                                     `"collector" is missing`,
		good + `,"targets":[]}`:                  "targets",
		good + `,"targets":["h"]}`:               "host:port",
		good + `,"writers":-1}`:                  "writers",
		good + `,"rate":-1}`:                     "rate",
		good + `,"payload_bytes":9999999}`:       "payload_bytes",
		good + `,"write_timeout_ms":-1}`:         "write_timeout_ms",
		good + `,"id_base":9223372036854775807}`: "id_base",
	} {
		if _, err := ReadConfig(strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", in, err, want)
		}
	}
	bad := testConfig("h:1")
	bad.Rate = math.NaN()
	if err := bad.complete(); err == nil {
		t.Error("a rate that is no number")
	}
	if strings.Contains(fmt.Sprint(bad.complete()), token) {
		t.Error("the error holds the token")
	}
}
