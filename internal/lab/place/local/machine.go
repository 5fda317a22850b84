package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/place/local/guest"
)

// machine is a host from one power on to the next power off: a first process,
// the namespaces that it holds, and a link.
type machine struct {
	name    string
	cmd     *exec.Cmd
	control *net.UnixConn
	root    int // descriptor of the host's root directory
	port    *port
	freezer freezer
	memory  memoryGroup
	says    *tail         // what the first process wrote to stderr
	dead    chan struct{} // closed when the first process, and so all, has ended

	mu    sync.Mutex
	ended bool
	socks map[io.Closer]struct{} // the lab's own sockets on this host
}

// bootDeadline bounds the furnishing of a host, which takes milliseconds.
const bootDeadline = 20 * time.Second

func bootMachine(ctx context.Context, h *host) (_ *machine, err error) {
	ctx, cancel := context.WithTimeout(ctx, bootDeadline)
	defer cancel()
	m := &machine{
		name: h.spec.Name, root: -1, says: &tail{}, dead: make(chan struct{}),
		socks: map[io.Closer]struct{}{},
	}
	if m.freezer, err = h.lab.newFreezer(h.spec.Name); err != nil {
		return nil, err
	}
	if m.memory, err = h.lab.newMemoryGroup(h.spec.Name, m.freezer); err != nil {
		return nil, errors.Join(err, m.freezer.remove())
	}
	if err := m.spawn(h); err != nil {
		return nil, errors.Join(err, m.freezer.remove(), m.memory.remove())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.end())
		}
	}()
	c := guest.Config{
		Name: h.spec.Name, ID: h.lab.userID, Hosts: h.lab.hostsFile(), Binary: h.lab.opts.Binary,
	}
	if h.disk != nil {
		c.Disk = h.disk.mount
	}
	if err := m.furnish(ctx, c); err != nil {
		return nil, err
	}
	// Kept open, as the process's number could one day be another's.
	m.root, err = unix.Open(fmt.Sprintf("/proc/%d/root", m.pid()), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the host's root directory: %w", err)
	}
	m.port, err = h.lab.net.attach(m.pid(), h.number, h.generation, h.lab.peers(h))
	if err != nil {
		return nil, err
	}
	return m, nil
}

// spawn starts the first process in new namespaces, in a session of its own so
// that a terminal's Ctrl-C reaches only the lab.
func (m *machine) spawn(h *host) error {
	control, theirs, err := guest.Pair(unix.SOCK_SEQPACKET)
	if err != nil {
		return err
	}
	defer theirs.Close()
	m.control = control
	m.cmd = exec.CommandContext(context.Background(), h.lab.opts.Binary, "lab-host")
	m.cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	m.cmd.Dir = "/"
	m.cmd.Stderr = m.says
	m.cmd.ExtraFiles = []*os.File{theirs} // becomes guest.ControlFD
	m.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC |
			unix.CLONE_NEWUTS | unix.CLONE_NEWNET,
	}
	if err := m.cmd.Start(); err != nil {
		_ = control.Close()
		return fmt.Errorf("start the host's first process: %w", err)
	}
	go m.watch(h.lab.log)
	err = errors.Join(h.lab.state.record(m.pid()), m.freezer.adopt(m.pid()), m.memory.adopt(m.pid()))
	if h.memoryLimit > 0 && err == nil {
		err = m.memory.limit(h.memoryLimit)
	}
	if err != nil {
		err = errors.Join(err, m.end())
	}
	return err
}

// watch waits for the first process.
func (m *machine) watch(log *slog.Logger) {
	err := m.cmd.Wait()
	m.mu.Lock()
	expected := m.ended
	m.mu.Unlock()
	if !expected {
		log.Warn("the first process of a host ended by itself, and so the host", "host", m.name, "error", err, "said", m.says)
	}
	close(m.dead)
}

// furnish hands the first process its configuration and waits until it is done.
func (m *machine) furnish(ctx context.Context, c guest.Config) error {
	stop := context.AfterFunc(ctx, func() { _ = m.control.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var ready guest.Ready
	err := guest.Send(m.control, c)
	if err == nil {
		_, _, err = guest.Receive(m.control, &ready)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("the host's first process did not answer: %w; it said: %q", err, m.says)
	case ready.Error != "":
		return errors.New(ready.Error)
	}
	return nil
}

// pid is the first process's.
func (m *machine) pid() int { return m.cmd.Process.Pid }

// silence takes the host off the network.
func (m *machine) silence() error {
	if m.port == nil {
		return nil
	}
	return m.port.down()
}

// end kills every program of the host, waits until none is left, and removes
// the host's link. The first process of a PID namespace ends only after all
// others have, so waiting for it is enough.
func (m *machine) end() error {
	m.closeSockets()
	var errs []error
	errs = append(errs, m.freezer.kill())
	if err := m.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		errs = append(errs, fmt.Errorf("kill the host's first process: %w", err))
	}
	errs = append(errs, m.freezer.thaw())
	select {
	case <-m.dead:
	case <-time.After(endDeadline):
		return errors.Join(append(errs, fmt.Errorf("programs of the host are still there %v after they were killed (see /proc/%d)", endDeadline, m.pid()))...)
	}
	_ = m.control.Close()
	if m.root >= 0 {
		_ = unix.Close(m.root)
		m.root = -1
	}
	if m.port != nil {
		errs = append(errs, m.port.remove())
	}
	return errors.Join(append(errs, m.freezer.remove(), m.memory.remove())...)
}

// endDeadline bounds how long killed programs may take to go; one in the middle
// of a disk access goes when the disk is cut.
const endDeadline = 20 * time.Second

// hold duplicates a descriptor of the machine's, for use while the power may go
// at any moment: then the machine's own is closed, and its number soon another's.
func (m *machine) hold(fd func() int) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return -1, place.ErrNoPower
	}
	return unix.FcntlInt(uintptr(fd()), unix.F_DUPFD_CLOEXEC, 0)
}

// track remembers a socket of the lab's on this host, to close it with the
// host's power.
func (m *machine) track(c io.Closer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return place.ErrNoPower
	}
	m.socks[c] = struct{}{}
	return nil
}

func (m *machine) forget(c io.Closer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.socks, c)
}

func (m *machine) closeSockets() {
	m.mu.Lock()
	socks := m.socks
	m.socks, m.ended = nil, true
	m.mu.Unlock()
	for c := range socks {
		_ = c.Close()
	}
}

// tail keeps the last bytes written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 2 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if n := len(t.buf) - tailSize; n > 0 {
		t.buf = append(t.buf[:0], t.buf[n:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.buf))
}
