package guest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Init is the first process of a host. It returns when the lab closed the
// control socket or went away; its return ends every program of the host.
func Init() error {
	if os.Getpid() != 1 {
		return errors.New("lab-host is started by the lab, as the first process of a host")
	}
	// Notify, and not Ignore: ignored signals would be inherited by programs.
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, unix.SIGCHLD, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)

	unix.CloseOnExec(ControlFD)
	control, err := Conn(ControlFD)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	defer func() { _ = control.Close() }()
	var c Config
	if err := receiveConfig(control, &c); err != nil {
		return fmt.Errorf("read the host's configuration: %w", err)
	}
	err = furnish(c)
	var ready Ready
	if err != nil {
		ready.Error = err.Error()
	}
	if sendErr := Send(control, ready); err != nil || sendErr != nil {
		return errors.Join(err, sendErr)
	}
	s := &supervisor{id: c.ID, binary: c.Binary, programs: map[int]chan<- syscall.WaitStatus{}}
	go func() {
		for range signals {
			s.reap()
		}
	}()
	return s.serve(control)
}

func receiveConfig(control *net.UnixConn, c *Config) error {
	buf := make([]byte, 128<<10)
	n, fds, err := ReceiveFDs(control, buf)
	CloseAll(fds)
	if err != nil {
		return err
	}
	return json.Unmarshal(buf[:n], c)
}

// supervisor starts programs and reaps them, and whatever they orphan.
type supervisor struct {
	id     int
	binary string

	mu       sync.Mutex // held while forking, so that no child is reaped unknown
	programs map[int]chan<- syscall.WaitStatus
}

func (s *supervisor) serve(control *net.UnixConn) error {
	var buf [16]byte
	for {
		_, fds, err := ReceiveFDs(control, buf[:])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("control socket: %w", err)
		}
		for _, fd := range fds {
			if c, err := Conn(fd); err == nil {
				go s.handle(c)
			}
		}
	}
}

// handle serves one Request from start to end.
func (s *supervisor) handle(c *net.UnixConn) {
	defer func() { _ = c.Close() }()
	var req Request
	fds, rest, err := Receive(c, &req)
	if err != nil {
		return
	}
	if hungUp(c) {
		CloseAll(fds) // the lab gave up, maybe while this host was frozen
		return
	}
	pid, pidfd, ended, err := s.start(req, fds)
	CloseAll(fds)
	if err != nil {
		reply := Started{Error: err.Error()}
		var errno syscall.Errno
		if errors.As(err, &errno) {
			reply.Errno = int(errno)
		}
		_ = Send(c, reply)
		return
	}
	err = Send(c, Started{}, pidfd)
	_ = unix.Close(pidfd)
	if err != nil {
		s.kill(pid) // nobody knows of the program, nobody would end it
		return
	}
	go func() {
		lines := bufio.NewScanner(rest)
		for lines.Scan() {
			s.kill(pid)
		}
		s.kill(pid) // nobody waits for it, if it has not ended
	}()
	_ = Send(c, Ended{Status: uint32(<-ended)})
}

// hungUp says whether the other end of c was closed.
func hungUp(c *net.UnixConn) (gone bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd)}} // a hang-up is always reported
		n, err := unix.Poll(poll, 0)
		gone = err == nil && n > 0 && poll[0].Revents&unix.POLLHUP != 0
	})
	return gone || err != nil
}

func (s *supervisor) start(req Request, fds []int) (pid, pidfd int, ended <-chan syscall.WaitStatus, err error) {
	if len(fds) != 3 {
		return 0, -1, nil, fmt.Errorf("start %s: %d standard streams instead of 3", req.Path, len(fds))
	}
	path, err := s.lookPath(req.Path)
	if err != nil {
		return 0, -1, nil, err
	}
	sys := &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if !req.Root {
		sys.Credential = &syscall.Credential{Uid: uint32(s.id), Gid: uint32(s.id)}
	}
	attr := &syscall.ProcAttr{
		Dir:   req.Dir,
		Env:   s.environment(req),
		Files: []uintptr{uintptr(fds[0]), uintptr(fds[1]), uintptr(fds[2])},
		Sys:   sys,
	}
	ch := make(chan syscall.WaitStatus, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	pid, err = syscall.ForkExec(path, append([]string{req.Path}, req.Args...), attr)
	if err != nil {
		return 0, -1, nil, &os.PathError{Op: "start", Path: req.Path, Err: err}
	}
	s.programs[pid] = ch
	return pid, pidfd, ch, nil
}

const searchPath = binDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func (s *supervisor) environment(req Request) []string {
	user, home := User, RunDir
	if req.Root {
		user, home = "root", "/root"
	}
	all := []string{"PATH=" + searchPath, "HOME=" + home, "USER=" + user, "LOGNAME=" + user, "LANG=C.UTF-8"}
	// A variable that is given twice counts as it was given last.
	all = append(all, req.Env...)
	last := map[string]int{}
	for i, v := range all {
		name, _, _ := strings.Cut(v, "=")
		last[name] = i
	}
	out := make([]string, 0, len(all))
	for i, v := range all {
		if name, _, _ := strings.Cut(v, "="); last[name] == i {
			out = append(out, v)
		}
	}
	return out
}

func (s *supervisor) lookPath(name string) (string, error) {
	if name == s.binary {
		return Program, nil
	}
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range filepath.SplitList(searchPath) {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", &exec.Error{Name: name, Err: syscall.ENOENT}
}

func (s *supervisor) kill(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.programs[pid] != nil { // not reaped yet, so the number is still its own
		_ = unix.Kill(-pid, unix.SIGKILL)
	}
}

func (s *supervisor) reap() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if ended := s.programs[pid]; ended != nil {
			delete(s.programs, pid)
			ended <- status
		}
	}
}
