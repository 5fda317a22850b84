package collector

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/driver/frame"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "the token"

type bench struct {
	t    *testing.T
	path string
	c    *Collector
}

func newBench(t *testing.T, o Options) *bench {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, path: filepath.Join(t.TempDir(), "h")}
	if b.c, err = New(ln, token, b.path, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.c.Stop(ended()) })
	return b
}

func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// client is a driver that does as the test says.
type client struct {
	b *bench
	net.Conn
	r *frame.Reader
}

func (b *bench) dial() *client {
	b.t.Helper()
	c, err := net.Dial("tcp", b.c.Addr().String())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	return &client{b, c, frame.NewReader(c)}
}

func (c *client) say(fs ...frame.Frame) {
	c.b.t.Helper()
	var out []byte
	for i := range fs {
		out = frame.Append(out, &fs[i])
	}
	if _, err := c.Write(out); err != nil {
		c.b.t.Fatal(err)
	}
}

// hear returns the next frame that is no ping.
func (c *client) hear() (frame.Frame, error) {
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	for {
		var f frame.Frame
		if err := c.r.Read(&f); err != nil || f.Type != frame.Ping {
			return f, err
		}
	}
}

func (c *client) expect(t frame.Type) frame.Frame {
	c.b.t.Helper()
	f, err := c.hear()
	if err != nil || f.Type != t {
		c.b.t.Fatalf("got %+v, %v; want a frame of type %d", f, err, t)
	}
	return f
}

func hello(base uint64, confirm bool) frame.Frame {
	return frame.Frame{Type: frame.Hello, Version: frame.Version, ID: base, Confirm: confirm, Token: []byte(token), Text: []byte("d")}
}

func intent(id uint64) frame.Frame { return frame.Frame{Type: frame.Intent, ID: id, Writer: 1} }

func outcome(id uint64, o history.Outcome) frame.Frame {
	return frame.Frame{Type: frame.Outcome, ID: id, Outcome: uint8(o), Micros: 5, Code: []byte("c")}
}

var bye = frame.Frame{Type: frame.Bye, Text: []byte("enough")}

// driver is a client that has been welcomed.
func (b *bench) driver(base uint64, confirm bool) *client {
	b.t.Helper()
	c := b.dial()
	c.say(hello(base, confirm))
	c.expect(frame.Welcome)
	return c
}

// gone waits until a driver is gone, and returns why.
func (b *bench) gone(i int) string {
	b.t.Helper()
	var d Driver
	b.eventually("the driver to be gone", func() bool { d = b.c.Drivers()[i]; return d.State != Connected })
	if d.State != Gone {
		b.t.Fatalf("driver %+v, want it gone", d)
	}
	return d.Why
}

func (b *bench) eventually(what string, ok func() bool) {
	b.t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("waited for %s", what)
		}
	}
}

// events stops the collector and reads the history.
func (b *bench) events() []history.Event {
	b.t.Helper()
	if err := b.c.Stop(within(b.t, 10*time.Second)); err != nil {
		b.t.Fatal(err)
	}
	r, err := history.Open(b.path)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	var out []history.Event
	for {
		var e history.Event
		if err := r.Next(&e); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			b.t.Fatal(err)
		}
		out = append(out, e)
	}
}

func marks(events []history.Event) (out []string) {
	for _, e := range events {
		if e.Kind == history.KindMark {
			out = append(out, e.Text)
		}
	}
	return out
}

// TestRecords: what a driver reports is in the history, in order, with the
// collector's times, and in the counters.
func TestRecords(t *testing.T) {
	b := newBench(t, Options{})
	c := b.driver(10, false)
	start := time.Now()
	c.say(intent(10), intent(11), outcome(11, history.Acked))
	if err := b.c.WaitAcks(within(t, 10*time.Second), 1); err != nil {
		t.Fatal(err)
	}
	b.c.MarkAt(start, "in the past")
	b.c.Mark("now")
	c.say(outcome(10, history.Unknown), frame.Frame{Type: frame.Intent, ID: 12, RetryOf: 10, Writer: 2}, outcome(12, history.Refused), intent(20), outcome(20, history.Acked),
		frame.Frame{Type: frame.Note, Text: []byte("a note")}, bye)
	if _, err := c.hear(); !errors.Is(err, io.EOF) {
		t.Errorf("after bye: %v", err)
	}
	b.eventually("the driver to finish", func() bool { return b.c.Drivers()[0].State == Finished })
	v := b.c.Live()
	if v.Acked != 2 || v.Refused != 1 || v.Unknown != 1 || v.InFlight != 0 || v.LastAckedID != 20 || v.LastSecond != 2 || v.SinceLastAck < 0 {
		t.Errorf("%+v", v)
	}
	if d := b.c.Drivers()[0]; d != (Driver{Name: "d", State: Finished, Why: "enough", Note: "a note"}) {
		t.Errorf("%+v", d)
	}
	ev := b.events()
	if want := []string{"driver d connected", "in the past", "now", "driver d: a note", "driver d finished: enough"}; !slices.Equal(marks(ev), want) {
		t.Errorf("marks %q", marks(ev))
	}
	var got []history.Event
	last := time.Duration(0)
	for _, e := range ev {
		if e.Kind == history.KindMark {
			continue
		}
		if e.At < last || e.At > b.c.Since(time.Now()) {
			t.Errorf("event %+v after one at %v", e, last)
		}
		last, e.At = e.At, 0
		got = append(got, e)
	}
	µs5 := 5 * time.Microsecond
	want := []history.Event{
		{Kind: history.KindIntent, ID: 10, Writer: 1}, {Kind: history.KindIntent, ID: 11, Writer: 1},
		{Kind: history.KindOutcome, ID: 11, Outcome: history.Acked, Latency: µs5, Code: "c"},
		{Kind: history.KindOutcome, ID: 10, Outcome: history.Unknown, Latency: µs5, Code: "c"},
		{Kind: history.KindIntent, ID: 12, RetryOf: 10, Writer: 2},
		{Kind: history.KindOutcome, ID: 12, Outcome: history.Refused, Latency: µs5, Code: "c"},
		{Kind: history.KindIntent, ID: 20, Writer: 1},
		{Kind: history.KindOutcome, ID: 20, Outcome: history.Acked, Latency: µs5, Code: "c"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("events\n%+v\nwant\n%+v", got, want)
	}
}

// TestReads: a driver that reads hears of what any driver got acked, and its
// answers are counted; one that did not say that it reads may not.
func TestReads(t *testing.T) {
	b := newBench(t, Options{NewsEvery: time.Millisecond})
	writer := b.driver(1, false)
	reader := b.dial()
	h := hello(1000, true)
	h.Reads = true
	reader.say(h)
	reader.expect(frame.Welcome)
	writer.say(intent(1), intent(2), outcome(2, history.Acked), outcome(1, history.Unknown))
	if f := reader.expect(frame.Newest); f.ID != 2 {
		t.Errorf("the newest is said to be %d", f.ID)
	}
	if err := b.c.WaitAckSentBy(within(t, 10*time.Second), 1, time.Now().Add(-time.Minute)); err != nil {
		t.Error(err)
	}
	if err := b.c.WaitAckSentBy(within(t, 20*time.Millisecond), 1000, time.Now().Add(-time.Minute)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an ack of one that wrote nothing: %v", err)
	}
	read := func(answer uint8) frame.Frame { return frame.Frame{Type: frame.Read, ID: 2, Outcome: answer} }
	reader.say(read(frame.Fresh), read(frame.Stale), read(frame.Failed), read(frame.Stale), bye)
	b.eventually("the reader to finish", func() bool { return b.c.Drivers()[1].State == Finished })
	r := b.c.Drivers()[1].Reads
	if r.Fresh != 1 || r.Stale != 2 || r.Failed != 1 || r.FirstStale <= 0 || r.LastStale < r.FirstStale {
		t.Errorf("%+v", r)
	}
	writer.say(read(frame.Fresh))
	if why := b.gone(0); !strings.Contains(why, "without having said") {
		t.Errorf("a read by one that writes only: %s", why)
	}
	stale := 0
	for _, m := range marks(b.events()) {
		if m == "driver d read write 2, which was acknowledged, and it is not there" {
			stale++
		}
	}
	if stale != 2 {
		t.Errorf("%d marks of stale reads", stale)
	}
}

func TestRejects(t *testing.T) {
	b := newBench(t, Options{})
	b.driver(100, false).say(intent(100), intent(105))
	b.eventually("its intents", func() bool { return b.c.Live().InFlight == 2 })
	for name, c := range map[string]struct {
		f    frame.Frame
		want string
	}{
		"wrong token":     {frame.Frame{Type: frame.Hello, Version: frame.Version, ID: 1, Token: []byte("the tokem")}, "token"},
		"no token":        {frame.Frame{Type: frame.Hello, Version: frame.Version, ID: 1}, "token"},
		"other version":   {frame.Frame{Type: frame.Hello, Version: frame.Version + 1, ID: 1, Token: []byte(token)}, "version"},
		"no hello":        {intent(1), "token"},
		"id 0":            {hello(0, false), "id 0"},
		"ids in use":      {hello(103, false), "never reused"},
		"the same base":   {hello(100, false), "never reused"},
		"the last id too": {hello(105, false), "never reused"},
	} {
		cl := b.dial()
		cl.say(c.f)
		if f, err := cl.hear(); err != nil || f.Type != frame.Reject || !strings.Contains(string(f.Text), c.want) {
			t.Errorf("%s: %+v %q, %v", name, f, f.Text, err)
		}
		if _, err := cl.hear(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: then %v", name, err)
		}
	}
	if n := len(b.c.Drivers()); n != 1 {
		t.Errorf("%d drivers were let in", n)
	}
	if _, err := New(nil, "", b.path+"2", Options{}); err == nil {
		t.Error("a collector without a token")
	}
	ln, _ := net.Listen("tcp", "127.0.0.1:0")
	defer func() { _ = ln.Close() }()
	if _, err := New(ln, token, b.path, Options{}); err == nil || !strings.Contains(err.Error(), "one writer") {
		t.Errorf("a second collector for one history: %v", err)
	}
}

// TestBreaksOff: a driver that contradicts itself is gone, with the reason;
// what it had in flight is unknown, and a phantom proves nothing any more.
func TestBreaksOff(t *testing.T) {
	for name, c := range map[string]struct {
		say     []frame.Frame
		raw     []byte
		confirm bool
		want    string
		unknown int
	}{
		"id used again":          {say: []frame.Frame{intent(2), intent(2)}, want: "write 2", unknown: 1},
		"id going down":          {say: []frame.Frame{intent(3), intent(2)}, want: "write 2", unknown: 1},
		"id below its base":      {say: []frame.Frame{intent(1)}, want: "write 1"},
		"id of another":          {say: []frame.Frame{intent(1000)}, want: "write 1000"},
		"outcome of nothing":     {say: []frame.Frame{outcome(2, history.Acked)}, want: "not in flight"},
		"two outcomes":           {say: []frame.Frame{intent(2), outcome(2, history.Acked), outcome(2, history.Acked)}, want: "not in flight"},
		"bye with writes open":   {say: []frame.Frame{intent(2), bye}, want: "in flight", unknown: 1},
		"a frame of the other":   {say: []frame.Frame{{Type: frame.Welcome}}, want: "type 16"},
		"no frame":               {raw: []byte{0xff, 0xff, 0xff, 0x7f}, want: "malformed"},
		"closed":                 {say: []frame.Frame{intent(2), intent(3)}, want: "connection", unknown: 2},
		"closed, with confirmed": {say: []frame.Frame{intent(2)}, confirm: true, want: "connection", unknown: 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			b.driver(1000, false).say(bye)
			cl := b.driver(2, c.confirm)
			cl.say(c.say...)
			if c.raw != nil {
				_, _ = cl.Write(c.raw)
			}
			if strings.HasPrefix(name, "closed") {
				b.eventually("the intents", func() bool { return b.c.Live().InFlight == c.unknown })
				_ = cl.Close()
			}
			if why := b.gone(1); !strings.Contains(why, c.want) {
				t.Errorf("gone: %s, want %q", why, c.want)
			}
			if v := b.c.Live(); v.Unknown != c.unknown || v.InFlight != 0 {
				t.Errorf("%+v, want %d unknown", v, c.unknown)
			}
			ev := b.events()
			if got := slices.Contains(marks(ev), history.MarkIncomplete); got == c.confirm {
				t.Errorf("incomplete: %v although confirmed is %v", got, c.confirm)
			}
		})
	}
}

func TestConfirms(t *testing.T) {
	b := newBench(t, Options{})
	c := b.driver(1, true)
	c.say(intent(1))
	if f := c.expect(frame.Confirm); f.ID != 1 {
		t.Errorf("confirmed %d", f.ID)
	}
	if n := b.c.Live().InFlight; n != 1 {
		t.Errorf("confirmed with %d intents recorded", n)
	}
	c.say(intent(2), intent(3), outcome(1, history.Acked))
	for f := c.expect(frame.Confirm); f.ID != 3; f = c.expect(frame.Confirm) {
		if f.ID != 2 {
			t.Fatalf("confirmed %d", f.ID)
		}
	}
}

func TestWaits(t *testing.T) {
	b := newBench(t, Options{})
	if err := b.c.WaitAcks(within(t, 20*time.Millisecond), 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a driver: %v", err)
	}
	if err := b.c.WaitDrivers(within(t, 20*time.Millisecond), 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a driver: %v", err)
	}
	arrived := make(chan error, 1)
	go func() { arrived <- b.c.WaitDrivers(within(t, 10*time.Second), 1) }()
	c := b.driver(1, true)
	if err := <-arrived; err != nil {
		t.Error(err)
	}
	c.say(intent(1))
	c.expect(frame.Confirm)
	between := time.Now()
	first := make(chan error, 1)
	go func() { first <- b.c.WaitFirstAckSentAfter(within(t, 10*time.Second), between) }()
	c.say(outcome(1, history.Acked), frame.Frame{Type: frame.Note, Text: []byte("no server")})
	if err := b.c.WaitAcks(within(t, 10*time.Second), 1); err != nil {
		t.Fatal(err)
	}
	// Acked after, but sent before.
	if err := b.c.WaitFirstAckSentAfter(within(t, 50*time.Millisecond), between); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no server") {
		t.Errorf("an ack of a write sent before: %v", err)
	}
	c.say(intent(2))
	c.expect(frame.Confirm)
	c.say(outcome(2, history.Acked))
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := b.c.WaitFirstAckSentAfter(within(t, 10*time.Second), between); err != nil {
		t.Errorf("when it has come already: %v", err)
	}
	waiting := make(chan error, 1)
	go func() { waiting <- b.c.WaitAcks(within(t, 10*time.Second), 99) }()
	_ = c.Close()
	if err := <-waiting; !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), "driver d") {
		t.Errorf("when the driver is gone: %v", err)
	}
	if err := b.c.Stop(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := b.c.WaitDrivers(within(t, 10*time.Second), 9); !errors.Is(err, ErrStopped) {
		t.Errorf("after the end: %v", err)
	}
	if err := b.c.WaitAcks(within(t, 10*time.Second), 2); err != nil {
		t.Errorf("what has come is still known: %v", err)
	}
}

// TestStopWaitsForWritesInFlight: the driver is told, and its last outcomes are taken.
func TestStopWaitsForWritesInFlight(t *testing.T) {
	b := newBench(t, Options{PingEvery: time.Hour})
	c := b.driver(1, false)
	c.say(intent(1))
	b.eventually("the intent", func() bool { return b.c.Live().InFlight == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- b.c.Stop(within(t, 10*time.Second)) }()
	c.expect(frame.Stop)
	if _, err := net.Dial("tcp", b.c.Addr().String()); err == nil {
		b.eventually("no new driver", func() bool { _, err := net.Dial("tcp", b.c.Addr().String()); return err != nil })
	}
	c.say(outcome(1, history.Acked), bye)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if err := b.c.Stop(within(t, 10*time.Second)); err != nil {
		t.Errorf("again: %v", err)
	}
	if v := b.c.Live(); v.Acked != 1 {
		t.Errorf("%+v", v)
	}
	if d := b.c.Drivers()[0]; d.State != Finished {
		t.Errorf("%+v", d)
	}
}

// TestStopDoesNotWaitForever: neither for a driver that does not finish, nor
// for one that never said hello.
func TestStopDoesNotWaitForever(t *testing.T) {
	b := newBench(t, Options{})
	c := b.driver(1, false)
	b.dial()
	c.say(intent(1))
	b.eventually("the intent", func() bool { return b.c.Live().InFlight == 1 })
	if err := b.c.Stop(within(t, 100*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if d := b.c.Drivers()[0]; d.State != Gone || !strings.Contains(d.Why, "in time") {
		t.Errorf("%+v", d)
	}
	if v := b.c.Live(); v.Unknown != 1 {
		t.Errorf("%+v", v)
	}
	if ev := b.events(); !slices.Contains(marks(ev), history.MarkIncomplete) {
		t.Errorf("marks %q", marks(ev))
	}
}

// TestFullDisk: a history that cannot be written is an error of the collector,
// ends every wait, and stops the drivers.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("needs to mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t}
	if b.c, err = New(ln, token, filepath.Join(dir, "h"), Options{FlushEvery: 10 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.c.Stop(ended()) }()
	c := b.driver(1, false)
	waiting := make(chan error, 1)
	go func() { waiting <- b.c.WaitAcks(within(t, 30*time.Second), 1<<40) }()
	told := make(chan frame.Frame, 1)
	go func() { f, _ := c.hear(); told <- f }()
	var f frame.Frame
	for id := uint64(1); f.Type == 0 && id < 1e6; id++ {
		c.say(intent(id), outcome(id, history.Acked))
		select {
		case f = <-told:
		default:
		}
	}
	if f.Type != frame.Stop {
		t.Errorf("the driver was told %+v", f)
	}
	if err := <-waiting; !errors.Is(err, ErrHistory) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the wait: %v", err)
	}
	c.say(bye)
	if err := b.c.Stop(within(t, 10*time.Second)); !errors.Is(err, ErrHistory) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("stop: %v", err)
	}
	if err := b.c.Err(); !errors.Is(err, ErrHistory) {
		t.Errorf("err: %v", err)
	}
}

func TestPings(t *testing.T) {
	b := newBench(t, Options{PingEvery: 5 * time.Millisecond})
	c := b.driver(1, false)
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	for range 3 {
		var f frame.Frame
		if err := c.r.Read(&f); err != nil || f.Type != frame.Ping {
			t.Fatalf("%+v, %v", f, err)
		}
	}
}

func TestWindow(t *testing.T) {
	var w window
	at := func(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }
	for ms := range 2000 {
		w.add(at(ms))
	}
	if n := w.sum(at(1999)); n != 1000 {
		t.Errorf("%d in the last second at 1,000 a second", n)
	}
	if n := w.sum(at(2450)); n < 500 || n > 600 {
		t.Errorf("%d half a second later", n)
	}
	if n := w.sum(at(2999)); n != 0 {
		t.Errorf("%d a second later", n)
	}
	w.add(at(1 << 30))
	if n := w.sum(at(1 << 30)); n != 1 {
		t.Errorf("%d after a long silence", n)
	}
}
