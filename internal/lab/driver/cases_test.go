package driver

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/history"
)

// TestCasePsycopg2Issue1017: a server that falls silent is given up by the
// client's own deadline, and not by a timeout that the server would have to
// keep; and the kernel is told to give up the connection as well.
func TestCasePsycopg2Issue1017(t *testing.T) {
	quit := make(chan struct{})
	f := newFake(t, func(*pgproto3.Backend, *pgproto3.Bind) bool { <-quit; return false })
	defer close(quit)
	cfg := testConfig(f.target())
	cfg.WriteTimeoutMs = 300
	s, err := newDialer(cfg).dial(within(t, 10*time.Second), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	rc, err := s.nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var user, idle int
	var err1, err2 error
	if err := rc.Control(func(fd uintptr) {
		user, err1 = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		idle, err2 = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
	}); err != nil || err1 != nil || err2 != nil {
		t.Fatal(err, err1, err2)
	}
	if user != 300 || idle != 1 {
		t.Errorf("TCP_USER_TIMEOUT is %d ms and keepalives begin after %d s", user, idle)
	}
	began := time.Now()
	r := s.insert(&write{id: 1, payload: []byte("p")}, 300*time.Millisecond)
	if took := time.Since(began); r.outcome != history.Unknown || r.code != "timeout" || r.usable || took < 300*time.Millisecond || took > 5*time.Second {
		t.Errorf("%+v after %v", r, took)
	}

	// One that takes the connection and says nothing at all.
	f.silent.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began = time.Now()
	if _, err := newDialer(cfg).dial(ctx, 0); !errors.Is(err, context.DeadlineExceeded) && netCode(err) != "timeout" || time.Since(began) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}
