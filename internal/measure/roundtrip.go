package measure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// echoBytes is the size of a ping: about that of a short protocol message.
const echoBytes = 64

// RoundTripOptions bound a measurement: it ends at the first of the two.
type RoundTripOptions struct {
	For   time.Duration // 1 s if 0
	Count int           // no bound if 0
}

// RoundTripResult is a distribution of round trips and their number.
type RoundTripResult struct {
	Count int64 `json:"count"`
	Latency
}

// DialFunc opens one connection to a peer.
type DialFunc func(ctx context.Context) (net.Conn, error)

// RoundTrip measures the round trip of 64 bytes to a peer that runs ServeEcho,
// one at a time on one connection. The first 20 or tenth of the time, whichever
// is less, warm up and are not counted. A peer that answers something else is
// an error.
func RoundTrip(ctx context.Context, dial DialFunc, opts RoundTripOptions) (RoundTripResult, error) {
	conn, err := dial(ctx)
	if err != nil {
		return RoundTripResult{}, fmt.Errorf("connect to the echo peer: %w", err)
	}
	defer func() { _ = conn.Close() }()
	// A cancelled context must end a read that waits for a silent peer.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	out, in := make([]byte, echoBytes), make([]byte, echoBytes)
	n := byte(0)
	res, err := pace(ctx, opts, func() error {
		n++
		out[0], out[echoBytes-1] = n, n
		if err := unlessDone(ctx, conn.SetDeadline(time.Now().Add(10*time.Second))); err != nil {
			return err
		}
		if _, err := conn.Write(out); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, in); err != nil {
			return err
		}
		if in[0] != n || in[echoBytes-1] != n {
			return errors.New("the peer did not send back what it got: it is no echo peer")
		}
		return nil
	})
	if err != nil {
		return res, fmt.Errorf("round trip to the echo peer: %w", err)
	}
	return res, nil
}

// SelectOne measures SELECT 1 over the simple protocol on one connection.
// config comes from pgconn.ParseConfig; its DialFunc may lead into a host's
// network namespace.
func SelectOne(ctx context.Context, config *pgconn.Config, opts RoundTripOptions) (RoundTripResult, error) {
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return RoundTripResult{}, fmt.Errorf("connect to Postgres: %w", err)
	}
	defer func() {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(bye)
	}()
	res, err := pace(ctx, opts, func() error {
		rs, err := conn.Exec(ctx, "SELECT 1").ReadAll()
		if err == nil && (len(rs) != 1 || len(rs[0].Rows) != 1) {
			err = errors.New("no row came back")
		}
		return err
	})
	if err != nil {
		return res, fmt.Errorf("SELECT 1: %w", err)
	}
	return res, nil
}

// pace repeats trip and records what each took, after a warm-up.
func pace(ctx context.Context, opts RoundTripOptions, trip func() error) (RoundTripResult, error) {
	if opts.For <= 0 {
		opts.For = time.Second
	}
	h := newHistogram()
	begin := time.Now()
	for range 20 {
		if time.Since(begin) > opts.For/10 {
			break
		}
		if err := tripOnce(ctx, trip); err != nil {
			return RoundTripResult{}, err
		}
	}
	begin = time.Now()
	for n := 0; n == 0 || (time.Since(begin) < opts.For && (opts.Count == 0 || n < opts.Count)); n++ {
		t := time.Now()
		if err := tripOnce(ctx, trip); err != nil {
			return RoundTripResult{}, err
		}
		if err := h.RecordValue(int64(time.Since(t))); err != nil {
			return RoundTripResult{}, err
		}
	}
	lat, err := latency(h)
	return RoundTripResult{Count: h.TotalCount(), Latency: lat}, err
}

// tripOnce prefers the context's error to the one that it caused.
func tripOnce(ctx context.Context, trip func() error) error {
	return unlessDone(ctx, trip())
}

func unlessDone(ctx context.Context, err error) error {
	if cerr := ctx.Err(); cerr != nil {
		return cerr
	}
	return err
}

// ServeEcho sends back what each connection sends, until ctx ends; then it
// closes the listener and every connection, and returns nil.
func ServeEcho(ctx context.Context, l net.Listener) error {
	var (
		mu    sync.Mutex
		conns = map[net.Conn]bool{}
		wg    sync.WaitGroup
	)
	stop := context.AfterFunc(ctx, func() {
		_ = l.Close()
		mu.Lock()
		defer mu.Unlock()
		for c := range conns {
			_ = c.Close()
		}
	})
	defer stop()
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept a connection: %w", err)
		}
		mu.Lock()
		conns[c] = true
		mu.Unlock()
		if ctx.Err() != nil { // cancelled between the two
			_ = c.Close()
		}
		wg.Go(func() {
			echo(c)
			mu.Lock()
			delete(conns, c)
			mu.Unlock()
		})
	}
}

// echo does not use io.Copy: that would splice through a pipe, which adds a
// few microseconds to each round trip.
func echo(c net.Conn) {
	defer func() { _ = c.Close() }()
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
	}
}
