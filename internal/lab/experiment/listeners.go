package experiment

import (
	"errors"
	"net"
	"sync"
)

// listeners are several that are accepted from as one: a driver on a host that
// is cut off from the others reaches the collector by a socket of its own.
type listeners struct {
	all    []net.Listener
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	wg     sync.WaitGroup
}

func join(all ...net.Listener) net.Listener {
	if len(all) == 1 {
		return all[0]
	}
	l := &listeners{all: all, conns: make(chan net.Conn), closed: make(chan struct{})}
	for _, one := range all {
		l.wg.Go(func() { l.accept(one) })
	}
	return l
}

// accept ends with its listener, which may be gone before the others: with its
// host's power.
func (l *listeners) accept(one net.Listener) {
	for {
		c, err := one.Accept()
		if err != nil {
			return
		}
		select {
		case l.conns <- c:
		case <-l.closed:
			_ = c.Close()
			return
		}
	}
}

func (l *listeners) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Addr is the first one's.
func (l *listeners) Addr() net.Addr { return l.all[0].Addr() }

func (l *listeners) Close() error {
	var errs []error
	l.once.Do(func() {
		close(l.closed)
		for _, one := range l.all {
			if err := one.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
		l.wg.Wait()
	})
	return errors.Join(errs...)
}
