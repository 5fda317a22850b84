package quorumtest

import (
	"context"
	"net"
	"os"
	"sync"
	"time"
)

// Link is one node's way to the network. While it is cut nothing passes in
// either direction and nothing is refused: as when the power of the other side
// is gone, connections stay and dialing waits.
type Link struct {
	mu     sync.Mutex
	cut    bool
	after  int           // CutAfter; 0: not
	lost   int           // how often Drop was called
	change chan struct{} // closed and replaced when cut changes
}

// NewLink returns a link that is whole.
func NewLink() *Link { return &Link{change: make(chan struct{})} }

// Cut or heal the link.
func (l *Link) Cut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	close(l.change)
	l.change = make(chan struct{})
}

// CutAfter cuts the link as soon as one connection, on which so many bytes were
// written from now on, is read from: the question has passed, the answer does not.
func (l *Link) CutAfter(bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.after = bytes
}

// Drop loses what arrived on the present connections while the link is cut: they
// end when it is healed.
func (l *Link) Drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost++
}

func (l *Link) drops() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// asked tells that c is read from.
func (l *Link) asked(c *conn) {
	l.mu.Lock()
	due := l.after > 0 && c.written >= l.after
	if due {
		l.after = 0
	}
	l.mu.Unlock()
	if due {
		l.Cut(true)
	}
}

// wrote tells that n bytes have passed on c.
func (l *Link) wrote(c *conn, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.after > 0 {
		c.written += n
	}
}

func (l *Link) state() (bool, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut, l.change
}

// Dial is for quorum.Options.
func (l *Link) Dial(ctx context.Context, address string) (net.Conn, error) {
	for {
		cut, change := l.state()
		if !cut {
			break
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return newConn(c, l), nil
}

// Listen wraps a listener.
func (l *Link) Listen(in net.Listener) net.Listener { return listener{in, l} }

type listener struct {
	net.Listener
	link *Link
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return newConn(c, l.link), nil
}

// conn loses what is written while the link is cut, and holds what arrives.
type conn struct {
	net.Conn
	link    *Link
	written int // since CutAfter; link.mu
	closed  chan struct{}
	once    sync.Once
	mu      sync.Mutex
	until   time.Time
	moved   chan struct{} // closed and replaced when until changes
}

func newConn(c net.Conn, l *Link) *conn {
	return &conn{Conn: c, link: l, closed: make(chan struct{}), moved: make(chan struct{})}
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *conn) Write(b []byte) (int, error) {
	if cut, _ := c.link.state(); cut {
		return len(b), nil
	}
	n, err := c.Conn.Write(b)
	c.link.wrote(c, n)
	return n, err
}

func (c *conn) Read(b []byte) (int, error) {
	c.link.asked(c)
	had := c.link.drops()
	n, err := c.Conn.Read(b)
	for {
		cut, change := c.link.state()
		if c.link.drops() != had {
			return 0, net.ErrClosed
		}
		if !cut || os.IsTimeout(err) {
			return n, err
		}
		c.mu.Lock()
		until, moved := c.until, c.moved
		c.mu.Unlock()
		var expired <-chan time.Time
		if !until.IsZero() {
			expired = time.After(time.Until(until))
		}
		select {
		case <-change:
		case <-moved:
		case <-expired:
			return 0, os.ErrDeadlineExceeded
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
}

func (c *conn) SetDeadline(t time.Time) error {
	c.deadline(t)
	return c.Conn.SetDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.deadline(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) deadline(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	close(c.moved)
	c.moved = make(chan struct{})
}
