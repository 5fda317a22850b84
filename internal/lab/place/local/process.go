package local

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/place/local/guest"
)

// process is a program that a host's first process started for the lab.
type process struct {
	host string
	path string
	pid  int
	conn *net.UnixConn
	copy *copying
	done chan struct{}
	err  error // set before done is closed

	mu    sync.Mutex
	pidfd int // -1 once the program has ended
}

func (h *host) Start(ctx context.Context, cmd place.Cmd) (place.Process, error) {
	p, err := h.start(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (h *host) start(ctx context.Context, cmd place.Cmd) (*process, error) {
	m, err := h.running()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	c, err := newCopying(cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s on host %s: %w", cmd.Path, h.spec.Name, err)
	}
	p := &process{host: h.spec.Name, path: cmd.Path, copy: c, done: make(chan struct{}), pidfd: -1}
	rest, err := p.request(ctx, m, h.requestFor(cmd))
	c.closeTheirs()
	if err != nil {
		c.closeOurs()
		return nil, fmt.Errorf("start %s on host %s: %w", cmd.Path, h.spec.Name, err)
	}
	c.begin()
	go p.await(m, rest)
	return p, nil
}

func (h *host) requestFor(cmd place.Cmd) guest.Request {
	dir := cmd.Dir
	if dir == "" {
		if dir = h.DataDir(); dir == "" {
			dir = h.RunDir()
		}
	}
	return guest.Request{Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: dir, Root: cmd.Root}
}

// request has the program started and fills in p. What follows on the stream
// is read from rest.
func (p *process) request(ctx context.Context, m *machine, req guest.Request) (rest io.Reader, err error) {
	conn, theirs, err := guest.Pair(unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = conn.Close()
			if ctx.Err() != nil {
				err = ctx.Err()
			}
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, _, err = m.control.WriteMsgUnix([]byte{0}, unix.UnixRights(int(theirs.Fd())), nil)
	_ = theirs.Close()
	if err != nil {
		return nil, m.gone(err)
	}
	if err := guest.Send(conn, req, p.copy.fds()...); err != nil {
		return nil, m.gone(err)
	}
	var started guest.Started
	fds, rest, err := guest.Receive(conn, &started)
	if err != nil {
		return nil, m.gone(err)
	}
	if started.Error != "" {
		guest.CloseAll(fds)
		return nil, startError{started.Error, syscall.Errno(started.Errno)}
	}
	if len(fds) != 1 {
		guest.CloseAll(fds)
		return nil, fmt.Errorf("%d descriptors came with the program instead of 1", len(fds))
	}
	if !stop() {
		guest.CloseAll(fds) // closing the stream kills the program
		return nil, context.Cause(ctx)
	}
	p.conn, p.pidfd, p.pid = conn, fds[0], pidOf(fds[0])
	return rest, nil
}

// gone explains an error on a socket to the host's first process.
func (m *machine) gone(err error) error {
	select {
	case <-m.dead:
	case <-time.After(100 * time.Millisecond):
		return err
	}
	if said := m.says.String(); said != "" {
		return fmt.Errorf("%w (its first process said: %q)", place.ErrNoPower, said)
	}
	return place.ErrNoPower
}

// startError keeps the reason for which errors.Is can look.
type startError struct {
	text  string
	errno syscall.Errno
}

func (e startError) Error() string { return e.text }
func (e startError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

// pidOf returns the process's number in this process's namespace, 0 when it
// has ended already.
func pidOf(pidfd int) int {
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(info)) {
		if v, ok := strings.CutPrefix(line, "Pid:"); ok {
			pid, _ := strconv.Atoi(strings.TrimSpace(v))
			return max(pid, 0)
		}
	}
	return 0
}

// await waits for the program's end, or for the host's.
func (p *process) await(m *machine, rest io.Reader) {
	line, err := bufio.NewReader(rest).ReadBytes('\n')
	var ended guest.Ended
	if err == nil {
		err = json.Unmarshal(line, &ended)
	}
	if err != nil {
		<-m.dead // nothing of the host acts any more when Wait returns
		p.err = fmt.Errorf("%s on host %s: %w", p.path, p.host, place.ErrNoPower)
	} else {
		p.err = exitError(p.path, syscall.WaitStatus(ended.Status))
	}
	p.copy.finish()
	_ = p.conn.Close()
	p.mu.Lock()
	_ = unix.Close(p.pidfd)
	p.pidfd = -1
	p.mu.Unlock()
	close(p.done)
}

func exitError(path string, s syscall.WaitStatus) error {
	switch {
	case s.Signaled():
		return &place.ExitError{Path: path, Code: -1, Signal: int(s.Signal())}
	case s.ExitStatus() != 0:
		return &place.ExitError{Path: path, Code: s.ExitStatus()}
	}
	return nil
}

func (p *process) Pid() int              { return p.pid }
func (p *process) Done() <-chan struct{} { return p.done }

func (p *process) Wait() error {
	<-p.done
	return p.err
}

func (p *process) Signal(sig int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := error(unix.ESRCH)
	if p.pidfd >= 0 {
		err = unix.PidfdSendSignal(p.pidfd, unix.Signal(sig), nil, 0)
	}
	if errors.Is(err, unix.ESRCH) {
		err = os.ErrProcessDone
	}
	if err != nil {
		return fmt.Errorf("signal %d to %s on host %s: %w", sig, p.path, p.host, err)
	}
	return nil
}

// kill ends the program and its process group.
func (p *process) kill() {
	_ = guest.Send(p.conn, guest.Kill{})
	_ = p.Signal(int(unix.SIGKILL)) // also where the first process is frozen
}

// killGrace is how long Run waits for a program that it killed; a frozen one
// may not go at all.
const killGrace = 2 * time.Second

func (h *host) Run(ctx context.Context, cmd place.Cmd) ([]byte, error) {
	var out bytes.Buffer
	capture := cmd.Stdout == nil
	if capture {
		cmd.Stdout = &out
		if cmd.Stderr == nil {
			cmd.Stderr = &out
		}
	}
	said := &tail{}
	if cmd.Stderr == nil {
		cmd.Stderr = said
	}
	p, err := h.start(ctx, cmd)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.kill()
		select {
		case <-p.done:
		case <-time.After(killGrace):
			return nil, fmt.Errorf("%s on host %s: %w", cmd.Path, h.spec.Name, ctx.Err())
		}
		return out.Bytes(), fmt.Errorf("%s on host %s: %w", cmd.Path, h.spec.Name, ctx.Err())
	}
	if p.err == nil {
		return out.Bytes(), nil
	}
	_, _ = said.Write(out.Bytes())
	if text := said.String(); text != "" {
		return out.Bytes(), fmt.Errorf("on host %s: %w: %s", h.spec.Name, p.err, text)
	}
	return out.Bytes(), fmt.Errorf("on host %s: %w", h.spec.Name, p.err)
}

// Put goes through a program on the host, so that it is the unprivileged user
// who writes, and through to the disk: a file that an operator placed long ago
// must not vanish in a power cut.
func (h *host) Put(ctx context.Context, path string, data []byte, perm uint32) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("put %s on host %s: want an absolute path", path, h.spec.Name)
	}
	_, err := h.Run(ctx, place.Cmd{
		Path: guest.Program, Args: []string{"lab-host", "put", strconv.FormatUint(uint64(perm), 8), path},
		Dir: "/", Stdin: bytes.NewReader(data),
	})
	if err != nil {
		return fmt.Errorf("put %s: %w", path, err)
	}
	return nil
}

func (h *host) Get(ctx context.Context, path string) ([]byte, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("get %s from host %s: want an absolute path", path, h.spec.Name)
	}
	var data bytes.Buffer
	_, err := h.Run(ctx, place.Cmd{
		Path: guest.Program, Args: []string{"lab-host", "get", path}, Dir: "/", Stdout: &data,
	})
	var exit *place.ExitError
	if errors.As(err, &exit) && exit.Code == guest.ExitNotExist {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("get %s from host %s: %w", path, h.spec.Name, err)
	}
	return data.Bytes(), nil
}
