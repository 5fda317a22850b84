package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// recorder is a Disk that says what it was asked.
type recorder struct {
	mu    sync.Mutex
	calls []string
	fail  error
	block chan struct{} // Sync waits for it, if set
}

func (r *recorder) call(what string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, what)
	return r.fail
}

func (r *recorder) Cut() error { return r.call("cut") }
func (r *recorder) On() (Dropped, error) {
	return Dropped{Bytes: 4096, Operations: 3, Kept: 512}, r.call("on")
}
func (r *recorder) Wipe() error { return r.call("wipe") }
func (r *recorder) Stop() error { return r.call("stop") }

func (r *recorder) Detach() error { return r.call("detach") }
func (r *recorder) Attach(mountpoint string, delay time.Duration) (Dropped, error) {
	return Dropped{Operations: 5}, r.call("attach " + mountpoint + " " + delay.String())
}

func (r *recorder) Stats() map[string]float64 {
	_ = r.call("stats")
	return map[string]float64{"flushes": 7}
}

func (r *recorder) Set(v map[string]string) error { return r.call("set flush_ms=" + v["flush_ms"]) }

func (r *recorder) Sync() error {
	if r.block != nil {
		<-r.block
	}
	return r.call("sync")
}

func listen(t *testing.T, d Disk) (string, *Server) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sock")
	s, err := Listen(path, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return path, s
}

func TestClient(t *testing.T) {
	r := &recorder{}
	path, _ := listen(t, r)
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if _, err := c.Cut(ctx); err != nil {
		t.Error(err)
	}
	if lost, err := c.On(ctx); err != nil || lost != (Dropped{4096, 3, 512}) {
		t.Errorf("on: %+v, %v", lost, err)
	}
	if stats, err := c.Stats(ctx); err != nil || stats["flushes"] != 7 {
		t.Errorf("stats: %v, %v", stats, err)
	}
	for _, f := range []func(context.Context) error{
		c.Wipe, c.Sync, c.Stop, func(ctx context.Context) error { return c.Set(ctx, map[string]string{"flush_ms": "5"}) },
	} {
		if err := f(ctx); err != nil {
			t.Error(err)
		}
	}
	want := []string{"cut", "on", "stats", "wipe", "sync", "stop", "set flush_ms=5"}
	if !reflect.DeepEqual(r.calls, want) {
		t.Errorf("asked for %v, want %v", r.calls, want)
	}
	r.fail = errors.New("no such disk")
	if _, err := c.On(ctx); err == nil || !strings.Contains(err.Error(), "on the simulated disk: no such disk") {
		t.Errorf("a failure comes back as %v", err)
	}
}

// TestProtocol pins the lines themselves: other programs write them.
func TestProtocol(t *testing.T) {
	path, _ := listen(t, &recorder{})
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for _, c := range []struct{ request, want string }{
		{`{"op":"cut"}`, `{"ok":true}`},
		{`{"op":"on"}`, `{"ok":true,"dropped_bytes":4096,"dropped_operations":3,"kept_bytes":512}`},
		{`{"op":"wipe"}`, `{"ok":true}`},
		{`{"op":"stats"}`, `{"ok":true,"stats":{"flushes":7}}`},
		{`{"op":"set","values":{"flush_ms":"5","crash":"lying"}}`, `{"ok":true}`},
		{`{"op":"sync"}`, `{"ok":true}`},
		{`{"op":"stop"}`, `{"ok":true}`},
		{`{"op":"jump"}`, `{"ok":false,"error":"unknown request \"jump\""}`},
		{`{"op":"set"}`, `{"ok":false,"error":"request set needs values"}`},
		{`{"op":"cut","values":{"a":"b"}}`, `{"ok":false,"error":"request cut takes no values"}`},
	} {
		if _, err := io.WriteString(conn, c.request+"\n"); err != nil {
			t.Fatal(err)
		}
		line, err := in.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		var got, want map[string]any
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%s: reply %q: %v", c.request, line, err)
		}
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if _, ok := got["took_ms"].(float64); !ok {
			t.Errorf("%s: no took_ms in %s", c.request, line)
		}
		delete(got, "took_ms")
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s, want %s", c.request, line, c.want)
		}
	}
	for _, bad := range []string{"", "nonsense", `{"op":"cut"} {"op":"on"}`, `{"op":"cut","colour":1}`, `[]`} {
		_, _ = io.WriteString(conn, bad+"\n")
		if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, `{"ok":false,"error":"request is not as expected`) {
			t.Errorf("%q: %q, %v", bad, line, err)
		}
	}
}

func TestSlowRequestHoldsUpNoOther(t *testing.T) {
	r := &recorder{block: make(chan struct{})}
	path, _ := listen(t, r)
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- c.Sync(context.Background()) }()
	if _, err := c.Cut(context.Background()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := c.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a request past its deadline: %v", err)
	}
	close(r.block)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestListen(t *testing.T) {
	path, s := listen(t, &recorder{})
	if _, err := Listen(path, &recorder{}); err == nil || !strings.Contains(err.Error(), "another simulated disk answers") {
		t.Errorf("a second server: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	// A daemon that was killed leaves its socket; the next one takes it over.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	again, err := Listen(path, &recorder{})
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
	// Something else at that path is not touched.
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, &recorder{}); err == nil {
		t.Error("a file was replaced by a socket")
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("the file holds %q", b)
	}
}

func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		`{"op":"cut"}`, `{"op":"set","values":{"flush_ms":"5"}}`, `{"op":"stats"}{}`, `{`, `null`, `{"op":1}`, "", `{"op":"on","values":{}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := decodeRequest(line)
		if err != nil {
			return
		}
		// What was accepted is one of the known requests and means the same again.
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeRequest(b)
		if err != nil || again.Op != r.Op || len(again.Values) != len(r.Values) {
			t.Fatalf("%q became %q: %v", line, b, err)
		}
	})
}
