package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/lab/place/local/guest"
)

// Sockets that the lab itself has on a host are made in the host's network
// namespace, but by this process. They are closed when the host loses power.

func (h *host) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := h.dial(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("dial from host %s: %w", h.spec.Name, err)
	}
	return c, nil
}

func (h *host) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	m, err := h.running()
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	if network == "unix" {
		dir, err := m.openDir(path.Dir(addr))
		if err != nil {
			return nil, err
		}
		defer func() { _ = unix.Close(dir) }()
		c, err := d.DialContext(ctx, network, socketPath(dir, addr))
		if err != nil {
			return nil, &net.OpError{Op: "dial", Net: network, Addr: &net.UnixAddr{Name: addr, Net: network}, Err: unwrapOp(err)}
		}
		return m.guard(c)
	}
	if addr, err = h.resolve(network, addr); err != nil {
		return nil, err
	}
	// The power may go in the middle of connecting.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pending := closerFunc(func() error { cancel(); return nil })
	if err := m.track(&pending); err != nil {
		return nil, err
	}
	defer m.forget(&pending)
	var c net.Conn
	err = m.withinNet(func() error {
		c, err = d.DialContext(ctx, network, addr)
		return err
	})
	if err != nil {
		if c != nil {
			_ = c.Close()
		}
		return nil, err
	}
	return m.guard(c)
}

func (h *host) Listen(ctx context.Context, network, addr string) (net.Listener, error) {
	l, err := h.listen(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("listen on host %s: %w", h.spec.Name, err)
	}
	return l, nil
}

func (h *host) listen(ctx context.Context, network, addr string) (net.Listener, error) {
	m, err := h.running()
	if err != nil {
		return nil, err
	}
	if network == "unix" {
		return m.listenUnix(ctx, addr, h.lab.userID)
	}
	if addr, err = h.resolve(network, addr); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	var l net.Listener
	err = m.withinNet(func() error {
		l, err = lc.Listen(ctx, network, addr)
		return err
	})
	if err != nil {
		if l != nil {
			_ = l.Close()
		}
		return nil, err
	}
	g := &listener{Listener: l, machine: m, addr: l.Addr(), cleanup: func() {}}
	if err := m.track(g); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return g, nil
}

func (m *machine) listenUnix(ctx context.Context, addr string, owner int) (net.Listener, error) {
	dir, err := m.openDir(path.Dir(addr))
	if err != nil {
		return nil, err
	}
	name := path.Base(addr)
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", socketPath(dir, addr))
	if err != nil {
		_ = unix.Close(dir)
		return nil, &net.OpError{Op: "listen", Net: "unix", Addr: &net.UnixAddr{Name: addr, Net: "unix"}, Err: unwrapOp(err)}
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // its path holds only while dir is open
	g := &listener{Listener: l, machine: m, addr: &net.UnixAddr{Name: addr, Net: "unix"}, cleanup: func() {
		_ = unix.Unlinkat(dir, name, 0)
		_ = unix.Close(dir)
	}}
	if err := unix.Fchownat(dir, name, owner, owner, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, errors.Join(fmt.Errorf("give %s to %s: %w", addr, guest.User, err), g.Close())
	}
	if err := m.track(g); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// withinNet calls f in the machine's network namespace.
func (m *machine) withinNet(f func() error) error {
	fd, err := m.hold(func() int { return int(m.port.ns) })
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return within(netns.NsHandle(fd), f)
}

// openDir opens a directory of the host, with links in it meant as the host
// means them.
func (m *machine) openDir(dir string) (int, error) {
	root, err := m.hold(func() int { return m.root })
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(root) }()
	fd, err := unix.Openat2(root, dir, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT,
	})
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", dir, err)
	}
	return fd, nil
}

// socketPath names a socket by its directory's descriptor: that fits a socket
// address whatever the length of the whole path.
func socketPath(dir int, addr string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir, path.Base(addr))
}

// unwrapOp drops the part of an error that holds socketPath.
func unwrapOp(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// resolve turns a host's name into its address: no resolver is asked, as it
// would be the machine's.
func (h *host) resolve(network, addr string) (string, error) {
	if !strings.HasPrefix(network, "tcp") && !strings.HasPrefix(network, "udp") {
		return "", net.UnknownNetworkError(network)
	}
	name, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "", &net.AddrError{Err: "want a number as port", Addr: addr}
	}
	if name == "" {
		return addr, nil
	}
	if name == "localhost" {
		return net.JoinHostPort("127.0.0.1", port), nil
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return addr, nil
	}
	h.lab.mu.Lock()
	defer h.lab.mu.Unlock()
	for _, other := range h.lab.hosts {
		if other.spec.Name == name {
			return net.JoinHostPort(other.Addr(), port), nil
		}
	}
	return "", &net.AddrError{Err: "no such host", Addr: addr}
}

type closerFunc func() error

func (f *closerFunc) Close() error { return (*f)() }

// guard has c closed when the host loses power.
func (m *machine) guard(c net.Conn) (net.Conn, error) {
	var g net.Conn
	switch c := c.(type) {
	case *net.TCPConn:
		g = &tcpConn{c, m}
	case *net.UnixConn:
		g = &unixConn{c, m}
	default:
		g = &otherConn{c, m}
	}
	if err := m.track(g); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return g, nil
}

// The connections keep the methods of what they wrap, such as SyscallConn.
type tcpConn struct {
	*net.TCPConn
	machine *machine
}

func (c *tcpConn) Close() error {
	c.machine.forget(c)
	return c.TCPConn.Close()
}

type unixConn struct {
	*net.UnixConn
	machine *machine
}

func (c *unixConn) Close() error {
	c.machine.forget(c)
	return c.UnixConn.Close()
}

type otherConn struct {
	net.Conn
	machine *machine
}

func (c *otherConn) Close() error {
	c.machine.forget(c)
	return c.Conn.Close()
}

// listener hands out guarded connections.
type listener struct {
	net.Listener
	machine *machine
	addr    net.Addr
	cleanup func()
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.machine.guard(c)
}

func (l *listener) Close() error {
	l.machine.forget(l)
	err := l.Listener.Close()
	if err == nil {
		l.cleanup()
	}
	return err
}
