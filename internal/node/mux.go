package node

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Three kinds of connection come in at an agent's one address. The first byte,
// before TLS, tells; nobody gets anything without a certificate of the cluster.
const (
	forRegister = 'r'
	forMessages = 'm'
	forRequests = 'h'
)

const (
	firstByteWithin = 2 * time.Second
	dialWithin      = time.Second
	// deadPeer is when the kernel gives up a connection whose peer acknowledges nothing.
	deadPeer = time.Second
)

// mux parts the connections that come in.
type mux struct {
	net.Listener
	kinds map[byte]*feed
	once  sync.Once
	work  sync.WaitGroup
	ctx   context.Context
	end   context.CancelFunc
}

// feed is a net.Listener of the connections of one kind.
type feed struct {
	m *mux
	c chan net.Conn
}

func newMux(l net.Listener) *mux {
	m := &mux{Listener: l, kinds: map[byte]*feed{}}
	m.ctx, m.end = context.WithCancel(context.Background())
	for _, k := range []byte{forRegister, forMessages, forRequests} {
		m.kinds[k] = &feed{m, make(chan net.Conn)}
	}
	m.work.Go(m.accept)
	return m
}

func (m *mux) accept() {
	for {
		c, err := m.Accept()
		if err != nil {
			if m.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select { // out of descriptors, perhaps
			case <-m.ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		m.work.Go(func() { m.part(c) })
	}
}

func (m *mux) part(c net.Conn) {
	stop := context.AfterFunc(m.ctx, func() { _ = c.Close() })
	defer stop()
	_ = c.SetReadDeadline(time.Now().Add(firstByteWithin))
	var b [1]byte
	if _, err := c.Read(b[:]); err != nil {
		_ = c.Close()
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	f := m.kinds[b[0]]
	if f == nil {
		_ = c.Close()
		return
	}
	select {
	case f.c <- c:
	case <-m.ctx.Done():
		_ = c.Close()
	case <-time.After(firstByteWithin): // nobody takes it: this part is not up
		_ = c.Close()
	}
}

// Close ends all of it.
func (m *mux) Close() error {
	var err error
	m.once.Do(func() {
		m.end()
		err = m.Listener.Close()
		m.work.Wait()
	})
	return err
}

// Accept implements net.Listener.
func (f *feed) Accept() (net.Conn, error) {
	select {
	case c := <-f.c:
		return c, nil
	case <-f.m.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close leaves the other kinds alone; the mux is closed as a whole.
func (f *feed) Close() error   { return nil }
func (f *feed) Addr() net.Addr { return f.m.Addr() }

// dial connects to an agent for one kind of talk, not yet encrypted.
func dial(ctx context.Context, address string, kind byte) (net.Conn, error) {
	d := net.Dialer{Timeout: dialWithin, KeepAlive: 5 * time.Second, Control: quickDeath}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	_ = c.SetWriteDeadline(time.Now().Add(dialWithin))
	if _, err := c.Write([]byte{kind}); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, c.SetWriteDeadline(time.Time{})
}

// dialTLS is dial and the handshake.
func dialTLS(ctx context.Context, address string, kind byte, conf *tls.Config) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*dialWithin)
	defer cancel()
	c, err := dial(ctx, address, kind)
	if err != nil {
		return nil, err
	}
	t := tls.Client(c, conf)
	if err := t.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return t, nil
}

func quickDeath(_, _ string, c syscall.RawConn) error {
	var serr error
	err := c.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadPeer/time.Millisecond))
	})
	return errors.Join(err, serr)
}

// nodeOf is whom a certificate of the cluster names.
func nodeOf(s tls.ConnectionState) string {
	if len(s.PeerCertificates) == 0 {
		return ""
	}
	return s.PeerCertificates[0].Subject.CommonName
}

// lend returns a listener of one kind that can be closed, and lent again.
func (m *mux) lend(kind byte) net.Listener {
	l := &lent{feed: m.kinds[kind]}
	l.ctx, l.end = context.WithCancel(m.ctx)
	return l
}

type lent struct {
	*feed
	ctx context.Context
	end context.CancelFunc
}

func (l *lent) Accept() (net.Conn, error) {
	select {
	case c := <-l.c:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (l *lent) Close() error { l.end(); return nil }
