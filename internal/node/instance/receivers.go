package instance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// This file is a recruit's cut: no walreceiver lives, and none can come back.

// The files that a walreceiver reads whenever it connects.
const (
	credentialDir = "credential"
	clientCert    = "client.crt"
	clientKey     = "client.key"
	serverRoot    = "root.crt"
)

func (i *Instance) credentialPath(name string) string {
	return filepath.Join(i.cfg.RunDir, credentialDir, name)
}

// unlinkCredential removes what admits a walreceiver to its upstream, for good:
// the name is gone from the directory on disk when it returns.
func (i *Instance) unlinkCredential(context.Context) error {
	dir := filepath.Join(i.cfg.RunDir, credentialDir)
	for _, name := range []string{clientKey, clientCert, serverRoot} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("unlink the replication credential: %w", err)
		}
	}
	if err := syncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unlink the replication credential: %w", err)
	}
	return nil
}

// receiverState says what a child of the postmaster may be to us.
type receiverState uint8

const (
	notReceiver receiverState = iota
	receiver
	unborn // forked, and its title does not say yet what it will be
)

// receives reads a child's title. What has the postmaster's own title still may
// become anything.
func receives(title, clusterName string) receiverState {
	what, ok := strings.CutPrefix(title, "postgres: ")
	if !ok {
		if title == "" {
			return notReceiver // it ends: its memory is gone already
		}
		return unborn
	}
	if clusterName != "" {
		what = strings.TrimPrefix(what, clusterName+": ")
	}
	if strings.HasPrefix(what, "walreceiver") {
		return receiver
	}
	return notReceiver
}

// receivers are the processes on the directory that receive WAL, or may be about
// to. They need not have a postmaster: one that was killed leaves them for a moment.
func (i *Instance) receivers() []process {
	all := processesOn(i.cfg.DataDir)
	return slices.DeleteFunc(slices.Clone(all), func(p process) bool {
		switch receives(p.title, i.cfg.Cluster) {
		case receiver:
			return false
		case unborn:
			return !slices.ContainsFunc(all, func(q process) bool { return q.pid == p.ppid })
		}
		return true
	})
}

// stopReceivers ends every walreceiver that exists now, and answers when they
// are gone as processes. The upstream is cleared already. Nothing here needs the
// server to answer: its sessions may be exhausted, its replay not consistent.
func (i *Instance) stopReceivers(ctx context.Context) cluster.Done {
	// They existed at the unlink, or came later and cannot authenticate.
	left := i.receivers()
	for _, p := range left {
		if receives(p.title, i.cfg.Cluster) == receiver {
			_ = signal(p, syscall.SIGTERM) // before the reload, which would keep it busy first
		}
	}
	pm := i.current()
	if pm != nil {
		if err := signal(pm.process, syscall.SIGHUP); err != nil {
			i.log.Warn("reload for a recruit", "error", err)
		}
		i.wg.Add(1)
		go func() { // not waited for: the server may not answer
			defer i.wg.Done()
			i.freeReplay(i.ctx, pm.pid)
		}()
	}
	began := time.Now()
	again := began.Add(termEvery)
	for len(left) > 0 {
		now := time.Now()
		for _, p := range left {
			if now.After(again) && receives(titleOf(p.pid), i.cfg.Cluster) == receiver {
				_ = signal(p, syscall.SIGTERM)
			}
		}
		if now.After(again) {
			again = now.Add(termEvery)
		}
		if now.Sub(began) > receiverPatience {
			// One that a signal does not end would let us wait for ever. A standby that
			// is down can be recruited as well.
			i.log.Warn("a walreceiver does not end: Postgres is stopped at once", "pid", left[0].pid)
			if pm != nil {
				_ = signal(pm.process, syscall.SIGQUIT)
			}
			began = now
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return cluster.Done{Why: err.Error()}
		}
		left = slices.DeleteFunc(left, func(p process) bool {
			return !p.same() || receives(titleOf(p.pid), i.cfg.Cluster) == notReceiver
		})
	}
	return cluster.Done{OK: true}
}

// termEvery is how often a walreceiver is told to end.
const termEvery = 50 * time.Millisecond

// receiverPatience is how long a walreceiver may ignore SIGTERM.
const receiverPatience = 1500 * time.Millisecond

// freeReplay lets replay go on: a pause is ended, and sessions that it might
// wait for are ended too.
func (i *Instance) freeReplay(ctx context.Context, postmaster int) {
	for _, p := range childrenOf(i.cfg.DataDir, postmaster) {
		if p.client() {
			_ = signal(p, syscall.SIGTERM)
		}
	}
	ctx, end := context.WithTimeout(ctx, time.Second)
	defer end()
	w := i.ready(ctx)
	defer i.giveBack(w)
	c, err := i.sessionOf(ctx, w)
	if err != nil {
		i.log.Info("replay could not be told to go on", "error", err)
		return
	}
	if _, err := c.Exec(ctx, "SELECT CASE WHEN pg_is_in_recovery() THEN pg_wal_replay_resume() END"); err != nil {
		i.log.Info("replay could not be told to go on", "error", err)
	}
}

// hup has the server read its files again, if it runs.
func (i *Instance) hup() {
	if s := i.current(); s != nil {
		_ = signal(s.process, syscall.SIGHUP)
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
