package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// demoNode is one node of a demo: an agent that is a process of its own, and the
// Postgres that it leaves behind when it dies.
type demoNode struct {
	d    *demo
	name string
	dir  string

	cmd     *exec.Cmd
	log     *os.File
	done    chan struct{} // closed when the agent has ended
	endedAt time.Time
	err     error
}

func (n *demoNode) config() string { return filepath.Join(n.d.dir, "etc", n.name, "node.yaml") }
func (n *demoNode) data() string   { return filepath.Join(n.dir, "pg") }

func (n *demoNode) start() error {
	log, err := os.OpenFile(filepath.Join(n.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.Background(), n.d.program, "node", "--config", n.config())
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us, and we tell it
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start the agent of %s: %w", n.name, err), log.Close())
	}
	n.cmd, n.log, n.done = cmd, log, make(chan struct{})
	go func(done chan struct{}) {
		n.err = cmd.Wait()
		n.endedAt = time.Now()
		_ = log.Close()
		close(done)
	}(n.done)
	return os.WriteFile(filepath.Join(n.dir, "agent.pid"), []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o600)
}

func (n *demoNode) ended() bool {
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

// early is an agent that ended before there was a cluster: it says why itself.
func (n *demoNode) early() error {
	if n.done == nil || !n.ended() {
		return nil
	}
	b, _ := os.ReadFile(filepath.Join(n.dir, "agent.log"))
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return infraError(fmt.Errorf("the agent of %s ended (%w): %s", n.name, n.err, lines[len(lines)-1]))
}

// revive starts an agent again that ended, as a service manager would.
func (n *demoNode) revive() {
	if !n.ended() || time.Since(n.endedAt) < 2*time.Second {
		return
	}
	n.d.say.Step(fmt.Sprintf("%s the agent of %s ended (%v): it is started again", time.Now().Format("15:04:05"), n.name, n.err))
	if err := n.start(); err != nil {
		n.d.say.Step(err.Error())
	}
}

const (
	demoAgentStop = 10 * time.Second
	demoFastStop  = 10 * time.Second
)

// stopAgent ends the agent.
func (n *demoNode) stopAgent() {
	if n.done == nil {
		return
	}
	_ = n.cmd.Process.Signal(syscall.SIGCONT) // it may have been frozen for trying out
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-n.done:
	case <-time.After(demoAgentStop):
		_ = n.cmd.Process.Kill()
		<-n.done
	}
}

// postmaster is the pid of the Postgres on the node's data directory; 0: none.
// A pid from a file of before may be somebody else's by now: it counts only with
// this directory as its own.
func (n *demoNode) postmaster() int {
	b, err := os.ReadFile(filepath.Join(n.data(), "postmaster.pid"))
	if err != nil {
		return 0
	}
	first, _, _ := bytes.Cut(b, []byte("\n"))
	pid, err := strconv.Atoi(strings.TrimSpace(string(first)))
	if err != nil || pid <= 1 {
		return 0
	}
	want, err1 := os.Stat(n.data())
	have, err2 := os.Stat(fmt.Sprintf("/proc/%d/cwd", pid))
	if err1 != nil || err2 != nil || !os.SameFile(want, have) {
		return 0
	}
	return pid
}

// stopPostgres stops what runs on the node's data directory: fast if it is to
// be kept, else at once.
func (n *demoNode) stopPostgres(fast bool) error {
	pid := n.postmaster()
	if pid == 0 {
		return nil
	}
	how, within := syscall.SIGQUIT, demoFastStop
	if fast {
		how = syscall.SIGINT
	}
	for {
		_ = syscall.Kill(pid, syscall.SIGCONT)
		if err := syscall.Kill(pid, how); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop the Postgres of %s (pid %d): %w", n.name, pid, err)
		}
		for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if n.postmaster() != pid {
				return nil
			}
		}
		if how == syscall.SIGQUIT {
			return fmt.Errorf("the Postgres of %s (pid %d) does not end: its files in %s are left", n.name, pid, n.dir)
		}
		how = syscall.SIGQUIT
	}
}

// end stops everything, and removes what was made.
func (d *demo) end(cause error) error {
	d.say.done()
	if len(d.nodes) > 0 {
		d.say.Step("Stopping …")
	}
	var all sync.WaitGroup
	for _, n := range d.nodes {
		all.Go(n.stopAgent)
	}
	all.Wait()
	errs := make([]error, len(d.nodes))
	for i, n := range d.nodes {
		all.Go(func() { errs[i] = n.stopPostgres(d.keep) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return infraError(err)
	}
	if d.keep {
		d.say.Step(fmt.Sprintf("Kept: `holdfast cluster demo --dir %s` goes on with it; `rm -rf %s` removes it.", d.dir, d.dir))
		return infraError(os.RemoveAll(d.run))
	}
	made := d.made
	if _, err := os.Stat(filepath.Join(d.dir, demoMark)); err == nil && cause == nil || len(d.nodes) > 0 {
		made = append(made, filepath.Join(d.dir, "a"), filepath.Join(d.dir, "b"), filepath.Join(d.dir, "c"), filepath.Join(d.dir, "etc"),
			filepath.Join(d.dir, "pgpass"), filepath.Join(d.dir, demoMark))
	}
	for _, p := range made {
		if err := os.RemoveAll(p); err != nil {
			errs = append(errs, err)
		}
	}
	return infraError(errors.Join(errs...))
}
