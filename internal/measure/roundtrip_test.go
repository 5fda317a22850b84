package measure

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-db/holdfast/internal/pgbench/pgtest"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func dialer(l net.Listener) DialFunc {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", l.Addr().String())
	}
}

func TestRoundTripOverLoopback(t *testing.T) {
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- ServeEcho(ctx, l) }()
	r, err := RoundTrip(t.Context(), dialer(l), RoundTripOptions{For: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("loopback: p50 %.4f ms, p99 %.4f ms of %d", r.P50Ms, r.P99Ms, r.Count)
	if r.Count < 10 || r.P50Ms <= 0 || r.P50Ms > 20 || r.P99Ms < r.P50Ms {
		t.Errorf("%+v", r)
	}
	if r, err = RoundTrip(t.Context(), dialer(l), RoundTripOptions{For: time.Minute, Count: 37}); err != nil || r.Count != 37 {
		t.Errorf("37 asked: %d, %v", r.Count, err)
	}
	idle, err := dialer(l)(t.Context()) // must not keep the server from ending
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close() }()
	cancel()
	select {
	case err := <-served:
		if err != nil {
			t.Errorf("the echo server ended with %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("the echo server does not end")
	}
	if _, err := RoundTrip(t.Context(), dialer(l), RoundTripOptions{}); err == nil || !strings.Contains(err.Error(), "connect to the echo peer") {
		t.Errorf("without a peer: %v", err)
	}
}

func TestRoundTripToPeersThatDoNotEcho(t *testing.T) {
	for name, answer := range map[string]func(net.Conn){
		"silent": func(net.Conn) {},
		"greets": func(c net.Conn) { _, _ = c.Write([]byte(strings.Repeat("SSH-2.0 ", 8))) },
		"closes": func(c net.Conn) { _ = c.Close() },
	} {
		l := listen(t)
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			answer(c)
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		begin := time.Now()
		_, err := RoundTrip(ctx, dialer(l), RoundTripOptions{For: time.Minute})
		cancel()
		if err == nil || time.Since(begin) > 5*time.Second {
			t.Errorf("%s: %v after %v", name, err, time.Since(begin))
		}
		if name == "silent" && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("silent: %v", err)
		}
		if name == "greets" && !strings.Contains(err.Error(), "no echo peer") {
			t.Errorf("greets: %v", err)
		}
	}
}

func TestSelectOne(t *testing.T) {
	s := pgtest.Start(t, "fsync=off")
	cfg, err := pgconn.ParseConfig(s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	dialed := 0
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialed++
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}
	r, err := SelectOne(t.Context(), cfg, RoundTripOptions{For: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("SELECT 1 over the socket: p50 %.4f ms, p99 %.4f ms of %d", r.P50Ms, r.P99Ms, r.Count)
	if r.Count < 10 || r.P50Ms <= 0 || r.P50Ms > 50 || dialed != 1 {
		t.Errorf("%+v, dialed %d times", r, dialed)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := SelectOne(ctx, cfg, RoundTripOptions{For: time.Minute}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	s.Kill()
	if _, err := SelectOne(t.Context(), cfg, RoundTripOptions{}); err == nil || !strings.Contains(err.Error(), "connect to Postgres") {
		t.Errorf("without a server: %v", err)
	}
}
