package instance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// server is one run of Postgres on the data directory, started by us or found.
type server struct {
	process
	ours    bool // started by this agent, in this or an earlier life
	dead    chan struct{}
	startup int64 // where its part of the log began; -1: unknown
}

// onCommandLine is what our own starts say there: it outranks every file, and no
// reload changes it.
var onCommandLine = map[string]func(*Instance) string{
	"hba_file":                func(i *Instance) string { return i.hbaPath() },
	"ident_file":              func(i *Instance) string { return i.identPath() },
	"unix_socket_directories": func(i *Instance) string { return i.cfg.RunDir },
	"unix_socket_permissions": func(*Instance) string { return "0777" },
	"listen_addresses":        func(i *Instance) string { return i.cfg.Address },
	"port":                    func(i *Instance) string { return strconv.Itoa(i.cfg.Port) },
	"ssl":                     func(*Instance) string { return "on" },
	"ssl_ca_file":             func(i *Instance) string { return filepath.Join(i.cfg.RunDir, "tls", "ca.crt") },
	"ssl_cert_file":           func(i *Instance) string { return filepath.Join(i.cfg.RunDir, "tls", "server.crt") },
	"ssl_key_file":            func(i *Instance) string { return filepath.Join(i.cfg.RunDir, "tls", "server.key") },
	"fsync":                   func(*Instance) string { return "on" },
	"full_page_writes":        func(*Instance) string { return "on" },
	"restart_after_crash":     func(*Instance) string { return "off" },
	"logging_collector":       func(*Instance) string { return "off" },
	"log_destination":         func(*Instance) string { return "stderr" },
	"data_directory":          func(i *Instance) string { return i.cfg.DataDir },
}

// current is the server that runs now, nil if none does.
func (i *Instance) current() *server {
	i.procMu.Lock()
	defer i.procMu.Unlock()
	return i.living()
}

// living is current with procMu held.
func (i *Instance) living() *server {
	if i.srv == nil {
		return nil
	}
	select {
	case <-i.srv.dead:
		return nil
	default:
		return i.srv
	}
}

// launch starts the postmaster if gen is still in force, so that no start that a
// stop has ended can come after it. It does not wait until Postgres is ready.
// Nothing in here touches the data directory's disk.
func (i *Instance) launch(ctx context.Context) (*server, error) {
	i.procMu.Lock()
	defer i.procMu.Unlock()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if i.living() != nil {
		return nil, errors.New("a server already runs")
	}
	mark := strconv.FormatInt(time.Now().UnixNano(), 36)
	// Before the start: an agent that dies right after it finds what it began.
	if err := i.writeVolatile(i.markPath(), []byte(mark)); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(i.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	at, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	lock, err := i.lockServer()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	path := filepath.Join(i.cfg.BinDir, "postgres")
	args := []string{path, "-D", i.cfg.DataDir}
	for name, value := range onCommandLine {
		args = append(args, "-c", name+"="+value(i))
	}
	pidfd := -1
	pid, err := syscall.ForkExec(path, args, &syscall.ProcAttr{
		// A service manager may spare the agent when memory runs out; the postmaster inherits that, its sessions must not.
		Dir: "/", Env: append(environment(i.cfg.RunDir), startMark+"="+mark, "PG_OOM_ADJUST_FILE=/proc/self/oom_score_adj", "PG_OOM_ADJUST_VALUE=0"),
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd(), lock.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Credential: i.user.credential(), PidFD: &pidfd},
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	p, ok := readProcess(pid)
	if !ok {
		p = process{pid: pid}
	}
	s := &server{process: p, ours: true, dead: make(chan struct{}), startup: at}
	i.srv = s
	i.attend(s, pidfd)
	return s, nil
}

func (i *Instance) markPath() string { return filepath.Join(i.cfg.RunDir, "started") }
func (i *Instance) lockPath() string { return filepath.Join(i.cfg.RunDir, "server.lock") }
func (i *Instance) logPath() string  { return filepath.Join(i.cfg.StateDir, "postgres.log") }

// errLocked says that processes of an earlier start of ours are still there.
var errLocked = errors.New("processes of an earlier start are still there")

// lockServer takes the lock that every process of a start of ours holds, from
// its fork to its end: it inherits the file. So one that cannot be told for
// Postgres yet, since it has not come to its directory, is known to be there.
func (i *Instance) lockServer() (*os.File, error) {
	f, err := os.OpenFile(i.lockPath(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errLocked
		}
		return nil, err
	}
	return f, nil
}

// locked says whether a process of a start of ours is there.
func (i *Instance) locked() bool {
	f, err := i.lockServer()
	if err == nil {
		f.Close()
	}
	return errors.Is(err, errLocked)
}

// foundWithin is how long a process that holds the lock is waited for until it
// shows what it is.
const foundWithin = time.Second

// find takes over a server that runs and is not known yet.
func (i *Instance) find() {
	i.procMu.Lock()
	defer i.procMu.Unlock()
	if i.living() != nil {
		return
	}
	all := processesOn(i.cfg.DataDir)
	for began := time.Now(); len(all) == 0 && i.locked() && time.Since(began) < foundWithin; all = processesOn(i.cfg.DataDir) {
		time.Sleep(time.Millisecond)
	}
	for _, p := range all {
		if !p.serves() {
			continue
		}
		pidfd, err := unix.PidfdOpen(p.pid, 0)
		if err != nil || !p.same() {
			if err == nil {
				_ = unix.Close(pidfd)
			}
			continue
		}
		s := &server{process: p, dead: make(chan struct{}), startup: -1}
		mark, err := os.ReadFile(i.markPath())
		s.ours = err == nil && len(mark) > 0 && p.startedBy() == string(mark)
		if !s.ours {
			i.log.Warn("Postgres runs on our data directory and was started by somebody else", "pid", p.pid)
		}
		i.srv = s
		i.attend(s, pidfd)
		return
	}
}

// socketOf reads where a server listens from postmaster.pid.
func socketOf(dir string) (socket string, port int) {
	data, _ := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	lines := strings.Split(string(data), "\n")
	if len(lines) > 4 {
		port, _ = strconv.Atoi(strings.TrimSpace(lines[3]))
		socket = strings.TrimSpace(lines[4])
	}
	return socket, port
}

// attend waits for the server's end in a goroutine: the door is closed on tmpfs
// before anybody can start it again, and Watch looks at once.
func (i *Instance) attend(s *server, pidfd int) {
	i.wg.Add(1)
	go func() {
		defer i.wg.Done()
		defer func() { _ = unix.Close(pidfd) }()
		for i.ctx.Err() == nil {
			fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
			n, err := unix.Poll(fds, 200)
			if errors.Is(err, unix.EINTR) || err == nil && n == 0 {
				continue
			}
			// Ours is our child in the life that started it.
			_, _ = unix.Wait4(s.pid, nil, unix.WNOHANG, nil)
			i.shutDoor()
			close(s.dead)
			i.changed()
			return
		}
	}()
}

// complaint is the last thing that a server said before it ended at its start.
func (i *Instance) complaint(s *server) string {
	if s.startup < 0 {
		return "see " + i.logPath()
	}
	f, err := os.Open(i.logPath())
	if err != nil {
		return "see " + i.logPath()
	}
	defer f.Close()
	data, _ := io.ReadAll(io.NewSectionReader(f, s.startup, 1<<20))
	said := ""
	for line := range strings.Lines(string(data)) {
		for _, level := range []string{"FATAL:", "PANIC:"} {
			if at := strings.Index(line, level); at >= 0 {
				said = strings.TrimSpace(line[at:])
			}
		}
	}
	if said == "" {
		return "see " + i.logPath()
	}
	return said
}
