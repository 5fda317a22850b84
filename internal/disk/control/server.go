package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Disk is what a Server controls. Calls may come from several clients at once.
type Disk interface {
	Cut() error
	On() (Dropped, error)
	Wipe() error
	Stats() map[string]float64
	Set(values map[string]string) error
	Sync() error
	Stop() error
	Detach() error
	Attach(mountpoint string, delay time.Duration) (Dropped, error)
}

// maxDelayMs bounds how long a disk takes to be attached.
const maxDelayMs = 3_600_000

// Server answers requests on a unix socket.
type Server struct {
	disk Disk
	l    *net.UnixListener
	wg   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	shut  bool
}

// Listen makes the socket, for its owner alone. A socket that nobody answers on
// is replaced.
func Listen(path string, d Disk) (*Server, error) {
	if c, err := new(net.Dialer).DialContext(context.Background(), "unix", path); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("control socket %s: another simulated disk answers on it", path)
	} else if st, serr := os.Lstat(path); serr == nil && st.Mode()&os.ModeSocket != 0 && errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path)
	}
	old := syscall.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	s := &Server{disk: d, l: l, conns: map[net.Conn]struct{}{}}
	s.wg.Add(1)
	go s.accept()
	return s, nil
}

// Close stops listening, removes the socket and waits for requests under way.
func (s *Server) Close() error {
	err := s.l.Close()
	s.mu.Lock()
	s.shut = true
	for c := range s.conns {
		// Ends the reading; a reply that is due can still be written.
		_ = c.SetReadDeadline(time.Now())
	}
	s.mu.Unlock()
	s.wg.Wait()
	return err
}

func (s *Server) accept() {
	defer s.wg.Done()
	for {
		c, err := s.l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors: it passes
			continue
		}
		s.mu.Lock()
		if s.shut {
			_ = c.Close()
		} else {
			s.conns[c] = struct{}{}
			s.wg.Add(1)
			go s.serve(c)
		}
		s.mu.Unlock()
	}
}

func (s *Server) serve(c net.Conn) {
	defer s.wg.Done()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		_ = c.Close()
	}()
	in := bufio.NewScanner(c)
	in.Buffer(make([]byte, 4096), maxLine)
	for in.Scan() {
		r, err := decodeRequest(in.Bytes())
		var reply Reply
		if err == nil {
			began := time.Now()
			reply, err = s.do(r)
			reply.TookMs = float64(time.Since(began).Microseconds()) / 1000
		}
		if reply.OK = err == nil; err != nil {
			reply.Error = err.Error()
		}
		b, err := json.Marshal(reply)
		if err != nil {
			return
		}
		if _, err := c.Write(append(b, '\n')); err != nil {
			return
		}
	}
}

func (s *Server) do(r Request) (Reply, error) {
	switch r.Op {
	case OpCut:
		return Reply{}, s.disk.Cut()
	case OpOn:
		lost, err := s.disk.On()
		return Reply{Dropped: &lost}, err
	case OpWipe:
		return Reply{}, s.disk.Wipe()
	case OpStats:
		return Reply{Stats: s.disk.Stats()}, nil
	case OpSet:
		return Reply{}, s.disk.Set(r.Values)
	case OpSync:
		return Reply{}, s.disk.Sync()
	case OpDetach:
		return Reply{}, s.disk.Detach()
	case OpAttach:
		ms, err := strconv.ParseFloat(r.Values["delay_ms"], 64)
		if err != nil || !(ms >= 0 && ms <= maxDelayMs) {
			return Reply{}, fmt.Errorf("attach: delay_ms %q: want milliseconds up to %d", r.Values["delay_ms"], maxDelayMs)
		}
		lost, err := s.disk.Attach(r.Values["mountpoint"], time.Duration(ms*float64(time.Millisecond)))
		return Reply{Dropped: &lost}, err
	}
	return Reply{}, s.disk.Stop()
}

// RefusedError is a disk's answer that it did not do what it was asked.
type RefusedError struct{ Op, Reason string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s the simulated disk: %s", e.Op, e.Reason)
}

// Client controls one disk. Its methods may be called at once, and each takes
// its own connection, so that a slow request holds up no other.
type Client struct{ path string }

// Dial checks that a disk answers on the socket.
func Dial(path string) (*Client, error) {
	c, err := new(net.Dialer).DialContext(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	_ = c.Close()
	return &Client{path}, nil
}

// call sends one request and waits for its reply.
func (c *Client) call(ctx context.Context, r Request) (Reply, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.path)
	if err != nil {
		return Reply{}, fmt.Errorf("control socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	b, err := json.Marshal(r)
	if err != nil {
		return Reply{}, err
	}
	var reply Reply
	if _, err = conn.Write(append(b, '\n')); err == nil {
		err = json.NewDecoder(conn).Decode(&reply)
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return Reply{}, fmt.Errorf("%s the simulated disk: %w", r.Op, err)
	}
	if !reply.OK {
		return Reply{}, &RefusedError{Op: r.Op, Reason: reply.Error}
	}
	return reply, nil
}

// Cut cuts the power. When it returns, every pending and later call on the disk
// fails with EIO. took is the time that the disk needed for it.
func (c *Client) Cut(ctx context.Context) (took time.Duration, err error) {
	r, err := c.call(ctx, Request{Op: OpCut})
	return time.Duration(r.TookMs * float64(time.Millisecond)), err
}

// On powers the disk on again and says what the cut cost.
func (c *Client) On(ctx context.Context) (Dropped, error) {
	r, err := c.call(ctx, Request{Op: OpOn})
	if err != nil || r.Dropped == nil {
		return Dropped{}, err
	}
	return *r.Dropped, nil
}

// Wipe empties a disk whose power is cut.
func (c *Client) Wipe(ctx context.Context) error {
	_, err := c.call(ctx, Request{Op: OpWipe})
	return err
}

// Detach unmounts the disk cleanly, or lets go of the mount of one whose power is
// cut. It stays off until On or Attach.
func (c *Client) Detach(ctx context.Context) error {
	_, err := c.call(ctx, Request{Op: OpDetach})
	return err
}

// Attach mounts a disk that is off at a mount point, after a delay, and says what
// a cut before it cost.
func (c *Client) Attach(ctx context.Context, mountpoint string, delay time.Duration) (Dropped, error) {
	ms := strconv.FormatFloat(float64(delay)/float64(time.Millisecond), 'f', -1, 64)
	r, err := c.call(ctx, Request{Op: OpAttach, Values: map[string]string{"mountpoint": mountpoint, "delay_ms": ms}})
	if err != nil || r.Dropped == nil {
		return Dropped{}, err
	}
	return *r.Dropped, nil
}

// Stats returns the disk's counters.
func (c *Client) Stats(ctx context.Context) (map[string]float64, error) {
	r, err := c.call(ctx, Request{Op: OpStats})
	return r.Stats, err
}

// Set changes settings; either all of them or none.
func (c *Client) Set(ctx context.Context, values map[string]string) error {
	_, err := c.call(ctx, Request{Op: OpSet, Values: values})
	return err
}

// Sync makes everything durable that was done before.
func (c *Client) Sync(ctx context.Context) error {
	_, err := c.call(ctx, Request{Op: OpSync})
	return err
}

// Stop shuts the disk down cleanly: all durable, unmounted, its process gone
// soon after the reply.
func (c *Client) Stop(ctx context.Context) error {
	_, err := c.call(ctx, Request{Op: OpStop})
	return err
}
