package quorum

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Two kinds of connections come in at one address; the first byte tells.
const (
	forRaft    = 'R'
	forRequest = 'Q'
)

// maxFrame bounds what a peer can make us hold: the register is a few kilobytes.
const maxFrame = 8 << 20

const handshakeTime = 5 * time.Second

type requestKind uint8

const (
	askPropose requestKind = iota + 1
	askRead
	askTerm
)

type request struct {
	Kind     requestKind
	Proposal Proposal
	Within   time.Duration // how long the asker waits
}

type response struct {
	Outcome Outcome
	Value   Value
	Voter   uint64 // who answers
	Term    uint64
	Error   string
	Again   bool // nothing was begun: it may be asked again, elsewhere
}

// wire is the node's end of all connections: a raft.StreamLayer, and requests
// between the nodes beside it.
type wire struct {
	net.Listener
	config *tls.Config
	dial   func(ctx context.Context, address string) (net.Conn, error)
	serve  func(context.Context, request) response
	raft   chan net.Conn
	ctx    context.Context
	cancel context.CancelFunc

	mu   sync.Mutex
	open map[net.Conn]bool
	idle map[string][]net.Conn
	work sync.WaitGroup
}

func newWire(l net.Listener, c *tls.Config, dial func(context.Context, string) (net.Conn, error)) *wire {
	w := &wire{Listener: l, config: c, dial: dial, raft: make(chan net.Conn), open: map[net.Conn]bool{}, idle: map[string][]net.Conn{}}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

// start lets connections in; serve answers requests.
func (w *wire) start(serve func(context.Context, request) response) {
	w.serve = serve
	w.work.Go(func() {
		for {
			c, err := w.Listener.Accept()
			if err != nil {
				if w.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
					return
				}
				select { // out of descriptors, perhaps
				case <-w.ctx.Done():
					return
				case <-time.After(50 * time.Millisecond):
				}
				continue
			}
			if !w.hold(c) {
				return
			}
			w.work.Go(func() { w.admit(c) })
		}
	})
}

// hold keeps c to be closed with the rest.
func (w *wire) hold(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		_ = c.Close()
		return false
	}
	w.open[c] = true
	return true
}

func (w *wire) drop(c net.Conn) {
	_ = c.Close()
	w.mu.Lock()
	delete(w.open, c)
	w.mu.Unlock()
}

// admit lets nobody past who does not prove to be of this cluster.
func (w *wire) admit(c net.Conn) {
	t := tls.Server(c, w.config)
	_ = c.SetDeadline(time.Now().Add(handshakeTime))
	var kind [1]byte
	if err := t.HandshakeContext(w.ctx); err != nil {
		w.drop(c)
		return
	}
	if _, err := io.ReadFull(t, kind[:]); err != nil {
		w.drop(c)
		return
	}
	_ = c.SetDeadline(time.Time{})
	switch kind[0] {
	case forRaft:
		select {
		case w.raft <- held{t, w, c}:
		case <-w.ctx.Done():
			w.drop(c)
		}
	case forRequest:
		w.answer(t)
		w.drop(c)
	default:
		w.drop(c)
	}
}

// held is a connection that is forgotten when it is closed.
type held struct {
	*tls.Conn
	w   *wire
	raw net.Conn
}

func (h held) Close() error {
	h.w.drop(h.raw) // without a farewell, which could block on a dead peer
	return nil
}

func (w *wire) answer(c net.Conn) {
	for {
		var q request
		if err := readFrame(c, &q); err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(w.ctx, q.Within)
		r := w.serve(ctx, q)
		cancel()
		if err := writeFrame(c, r); err != nil {
			return
		}
	}
}

// Accept implements raft.StreamLayer.
func (w *wire) Accept() (net.Conn, error) {
	select {
	case c := <-w.raft:
		return c, nil
	case <-w.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Dial implements raft.StreamLayer.
func (w *wire) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(w.ctx, timeout)
	defer cancel()
	return w.connect(ctx, string(address), forRaft)
}

func (w *wire) connect(ctx context.Context, address string, kind byte) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	c, err := w.dial(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	if !w.hold(c) {
		return nil, net.ErrClosed
	}
	t := tls.Client(c, w.config)
	if d, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(d)
	}
	if err := t.HandshakeContext(ctx); err != nil {
		w.drop(c)
		return nil, fmt.Errorf("secure the connection to %s: %w", address, err)
	}
	if _, err := t.Write([]byte{kind}); err != nil {
		w.drop(c)
		return nil, fmt.Errorf("greet %s: %w", address, err)
	}
	_ = c.SetDeadline(time.Time{})
	return held{t, w, c}, nil
}

// Close ends all connections and waits for their handlers.
func (w *wire) Close() error {
	w.mu.Lock()
	w.cancel()
	err := w.Listener.Close()
	for c := range w.open {
		_ = c.Close()
	}
	w.mu.Unlock()
	w.work.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// ask sends q to the node at address. sent: it may have arrived. Only what does
// no harm when it arrives twice may go over a used connection.
func (w *wire) ask(ctx context.Context, address string, q request) (r response, sent bool, err error) {
	if d, ok := ctx.Deadline(); ok {
		q.Within = time.Until(d)
	} else {
		q.Within = time.Minute
	}
	if q.Kind != askPropose {
		for c := w.used(address); c != nil; c = w.used(address) {
			if r, err := w.exchange(ctx, c, q); err == nil {
				w.keep(address, c)
				return r, true, nil
			}
			if err := c.Close(); err != nil || ctx.Err() != nil {
				return response{}, true, fmt.Errorf("ask %s: %w", address, errors.Join(ctx.Err(), err))
			}
		}
	}
	c, err := w.connect(ctx, address, forRequest)
	if err != nil {
		return response{}, false, err
	}
	r, err = w.exchange(ctx, c, q)
	if err != nil {
		_ = c.Close()
		return response{}, true, fmt.Errorf("ask %s: %w", address, err)
	}
	w.keep(address, c)
	return r, true, nil
}

func (w *wire) exchange(ctx context.Context, c net.Conn, q request) (response, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := writeFrame(c, q); err != nil {
		return response{}, err
	}
	var r response
	if err := readFrame(c, &r); err != nil {
		return response{}, errors.Join(err, ctx.Err())
	}
	if !stop() { // the deadline may be set any moment
		_ = c.Close()
	}
	return r, nil
}

// maxIdle bounds the connections kept for a peer.
const maxIdle = 2

func (w *wire) used(address string) net.Conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.idle[address]
	if len(l) == 0 {
		return nil
	}
	c := l[len(l)-1]
	w.idle[address] = l[:len(l)-1]
	return c
}

// ready says whether a connection to address waits for a request.
func (w *wire) ready(address string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.idle[address]) > 0
}

func (w *wire) keep(address string, c net.Conn) {
	w.mu.Lock()
	if len(w.idle[address]) < maxIdle && w.ctx.Err() == nil {
		w.idle[address] = append(w.idle[address], c)
		c = nil
	}
	w.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
}

func writeFrame(c io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if len(b) > maxFrame {
		return fmt.Errorf("a message of %d bytes: the register is meant for kilobytes", len(b))
	}
	_, err = c.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(b)), uint32(len(b))), b...))
	return err
}

func readFrame(c io.Reader, v any) error {
	var n [4]byte
	if _, err := io.ReadFull(c, n[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(n[:])
	if size > maxFrame {
		return fmt.Errorf("a message of %d bytes: more than a peer sends", size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(c, b); err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decode a message: %w", err)
	}
	return nil
}
