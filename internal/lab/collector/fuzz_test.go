package collector

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/driver/frame"
)

// piped is a listener for one connection within this process.
type piped struct {
	conn   chan net.Conn
	closed chan struct{}
}

func (p *piped) Accept() (net.Conn, error) {
	select {
	case c := <-p.conn:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *piped) Close() error   { close(p.closed); return nil }
func (p *piped) Addr() net.Addr { return &net.UnixAddr{Name: "fuzz", Net: "unix"} }

// FuzzDriver: whatever a driver says once it is welcomed, the collector does
// not crash, and its history is whole and agrees with its counters.
func FuzzDriver(f *testing.F) {
	say := func(fs ...frame.Frame) (b []byte) {
		for i := range fs {
			b = frame.Append(b, &fs[i])
		}
		return b
	}
	f.Add(say(intent(1), outcome(1, history.Acked), bye), false)
	f.Add(say(intent(1), intent(2), outcome(2, history.Refused), outcome(1, history.Unknown), frame.Frame{Type: frame.Note, Text: []byte("n")}, bye), true)
	f.Add(say(intent(5), outcome(5, history.Acked), frame.Frame{Type: frame.Read, ID: 5, Outcome: frame.Stale, Micros: 1}), false)
	f.Add(say(intent(2), intent(1)), false)
	f.Add(say(outcome(9, history.Acked)), true)
	f.Add(say(frame.Frame{Type: frame.Welcome}), false)
	f.Add(say(intent(1<<63), outcome(1<<63, history.Acked), frame.Frame{Type: frame.Intent, ID: 1<<64 - 2, RetryOf: 1, Writer: 1<<32 - 1}), false)
	f.Add([]byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80}, false)
	dir := ""
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		dir = "/dev/shm" // each history is flushed at its end
	}
	f.Fuzz(func(t *testing.T, said []byte, confirm bool) {
		tmp, err := os.MkdirTemp(dir, "holdfast-fuzz-")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(tmp) }()
		path := filepath.Join(tmp, "h")
		ln := &piped{make(chan net.Conn, 1), make(chan struct{})}
		c, err := New(ln, token, path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := net.Pipe()
		ln.conn <- theirs
		heard := make(chan struct{})
		go func() { _, _ = io.Copy(io.Discard, ours); close(heard) }()
		h := hello(1, confirm)
		h.Reads = true
		_ = ours.SetWriteDeadline(time.Now().Add(10 * time.Second))
		_, _ = ours.Write(append(frame.Append(nil, &h), said...)) // it may hang up in the middle
		_ = ours.Close()
		<-heard
		if err := c.WaitDrivers(within(t, 10*time.Second), 1); err != nil {
			t.Fatal(err)
		}
		if err := c.Stop(within(t, 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		live, drivers := c.Live(), c.Drivers()
		if live.InFlight != 0 || drivers[0].State == Connected || drivers[0].State == Finished && !bytes.Contains(said, []byte{byte(frame.Bye)}) {
			t.Fatalf("%+v, %+v", live, drivers)
		}
		agrees(t, path, &live)
	})
}

// agrees reads the history to its end and holds the counters against it.
func agrees(t *testing.T, path string, live *Live) {
	r, err := history.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	open, n := map[uint64]bool{}, map[history.Outcome]int{}
	var e history.Event
	for err = r.Next(&e); err == nil; err = r.Next(&e) {
		switch e.Kind {
		case history.KindIntent:
			if open[e.ID] {
				t.Fatalf("write %d was attempted twice", e.ID)
			}
			open[e.ID] = true
		case history.KindOutcome:
			if !open[e.ID] {
				t.Fatalf("write %d has an outcome and was not in flight", e.ID)
			}
			delete(open, e.ID)
			n[e.Outcome]++
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatalf("the history: %v", err)
	}
	if n[history.Acked] != live.Acked || n[history.Refused] != live.Refused || n[history.Unknown]+len(open) != live.Unknown {
		t.Fatalf("%v and %d open in the history, counted %+v", n, len(open), live)
	}
}
