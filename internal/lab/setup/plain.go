package setup

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

const (
	loseNothing   = "nothing"
	loseUnbounded = "unbounded"

	port = 5432

	startDeadline   = 60 * time.Second
	promoteDeadline = 30 * time.Second
	stopGrace       = 30 * time.Second
)

// plain is Postgres as PostgreSQL ships it: no failover of its own.
type plain struct {
	commit string            // synchronous_commit; on if empty
	sync   string            // synchronous_standby_names is this ("ANY 1") of all others; asynchronous if empty
	extra  postgres.Settings // over everything else
	lose   string            // what it may lose when another server takes over; nothing if empty

	env     Env
	members []*postgres.Instance
	primary int
	former  int  // the primary before the last promotion, -1 for none
	alone   bool // nobody is left to wait for, so commits do not
}

func newPlain(p plain) func() System {
	return func() System {
		c := p
		c.former = -1
		return &c
	}
}

// Promise: a server that comes back with its disk has all that it acknowledged,
// however it replicates. What is lost with one depends on who waited for whom.
func (p *plain) Promise(f Fault) Bound {
	switch {
	case f == HostLost && !p.replicated():
		return Bound{Lose: loseUnbounded} // there is no other copy
	case f.takenOver() && p.lose != "":
		return Bound{Lose: p.lose}
	}
	return Bound{Lose: loseNothing}
}

func (p *plain) replicated() bool { return p.sync != "" || p.lose == loseUnbounded }

func (p *plain) Deploy(ctx context.Context, env Env) error {
	p.env = env
	password := rand.Text()
	for _, h := range env.Hosts {
		p.members = append(p.members, &postgres.Instance{
			Runner: onHost{h}, Name: h.Name(), BinDir: env.BinDir,
			DataDir: filepath.Join(h.DataDir(), "pgdata"), SockDir: h.RunDir(),
			Addr: h.Addr(), Port: port, User: "holdfast", Password: password,
			PassFile: filepath.Join(h.RunDir(), "pgpass"), Log: env.Log(h.Name()),
		})
	}
	flush, canFlush := flusher(env.Hosts)
	for _, m := range p.members {
		m.NoSync = canFlush
	}
	if err := p.build(ctx); err != nil {
		return err
	}
	for _, m := range p.members {
		m.NoSync = false
	}
	if err := flush(ctx); err != nil {
		return fmt.Errorf("flush what was deployed: %w", err)
	}
	return p.settle(ctx)
}

// flusher makes everything on the hosts' disks durable at once, which saves
// thousands of single flushes while a setup is built. ok is false where a disk
// cannot do it.
func flusher(hosts []place.Host) (flush func(context.Context) error, ok bool) {
	var disks []place.DiskController
	for _, h := range hosts {
		d, can := h.(place.DiskController)
		if !can {
			return func(context.Context) error { return nil }, false
		}
		disks = append(disks, d)
	}
	return func(ctx context.Context) error {
		var errs []error
		for _, d := range disks {
			errs = append(errs, d.SyncDisk(ctx))
		}
		return errors.Join(errs...)
	}, true
}

// build makes the first member and copies it to the others.
func (p *plain) build(ctx context.Context) error {
	first := p.members[0]
	began := time.Now()
	if err := first.Init(ctx, p.settings(first)); err != nil {
		return err
	}
	// Until the standbys are there, commits must not wait for them.
	s := p.settings(first)
	delete(s, "synchronous_standby_names")
	if err := first.Configure(ctx, s); err != nil {
		return err
	}
	if err := p.start(ctx, first); err != nil {
		return err
	}
	p.env.Trace("%s runs after %s", first.Name, time.Since(began).Round(time.Millisecond))
	return p.each(p.members[1:], func(m *postgres.Instance) error {
		if err := m.BaseBackup(ctx, first, p.settings(m)); err != nil {
			return err
		}
		p.env.Trace("%s is copied after %s", m.Name, time.Since(began).Round(time.Millisecond))
		return p.start(ctx, m)
	})
}

// settle waits for the standbys and lets the synchronous settings act.
func (p *plain) settle(ctx context.Context) error {
	prim := p.members[p.primary]
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	if err := prim.WaitStandbys(ctx, p.standbyNames()...); err != nil {
		return err
	}
	if err := prim.Configure(ctx, p.settings(prim)); err != nil {
		return err
	}
	if err := prim.Reload(); err != nil {
		return err
	}
	return p.waitSync(ctx)
}

// waitSync waits until the primary counts its standbys.
func (p *plain) waitSync(ctx context.Context) error {
	switch {
	case p.sync == "":
		return nil
	case strings.HasPrefix(p.sync, "FIRST"):
		return p.members[p.primary].WaitSync(ctx, "sync", p.standbyNames()...)
	}
	return p.members[p.primary].WaitSync(ctx, "quorum", p.standbyNames()...)
}

func (p *plain) standbyNames() []string {
	var names []string
	for i, m := range p.members {
		if i != p.primary {
			names = append(names, m.Name)
		}
	}
	return names
}

// settings are those of m in its role as primary or standby: a standby has the
// synchronous ones too, since they must act from its first commit on.
func (p *plain) settings(m *postgres.Instance) postgres.Settings {
	s := postgres.Settings{
		"max_connections":             "100",
		"shared_buffers":              "128MB",
		"wal_level":                   "replica",
		"max_wal_senders":             "10",
		"wal_keep_size":               "256MB",
		"hot_standby":                 "on",
		"lc_messages":                 "C",
		"log_line_prefix":             "%m [%p] ",
		"wal_retrieve_retry_interval": "100ms",
		"max_standby_streaming_delay": "200ms",
		"synchronous_commit":          "on",
		"tcp_keepalives_idle":         "5",
		"unix_socket_permissions":     "0700",
		"log_autovacuum_min_duration": "-1",
		"password_encryption":         "scram-sha-256",
	}
	if p.commit != "" {
		s["synchronous_commit"] = p.commit
	}
	if p.sync != "" && !p.alone {
		var others []string
		for _, o := range p.members {
			if o != m {
				others = append(others, o.Name)
			}
		}
		s["synchronous_standby_names"] = p.sync + " (" + strings.Join(others, ",") + ")"
	}
	maps.Copy(s, p.extra)
	return s
}

func (p *plain) start(ctx context.Context, m *postgres.Instance) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startDeadline, fmt.Errorf("not within %s", startDeadline))
	defer cancel()
	return m.Start(ctx)
}

func (p *plain) each(ms []*postgres.Instance, f func(*postgres.Instance) error) error {
	errs := make([]error, len(ms))
	var wg sync.WaitGroup
	for i, m := range ms {
		wg.Go(func() { errs[i] = f(m) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (p *plain) Start(ctx context.Context) error {
	if err := p.each(p.members, func(m *postgres.Instance) error { return p.start(ctx, m) }); err != nil {
		return err
	}
	return p.settle(ctx)
}

func (p *plain) Stop(ctx context.Context) error {
	// The primary first: standbys then hold its shutdown checkpoint.
	if err := p.members[p.primary].Stop(ctx, stopGrace); err != nil {
		return err
	}
	return p.each(p.members, func(m *postgres.Instance) error { return m.Stop(ctx, stopGrace) })
}

func (p *plain) Versions(ctx context.Context) (map[string]string, error) {
	v, err := p.members[p.primary].Version(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]string{"postgres": v}, nil
}

func (p *plain) Instance() *postgres.Instance { return p.members[p.primary] }

func (p *plain) Postgres(h place.Host) *postgres.Instance {
	if i := slices.Index(p.env.Hosts, h); i >= 0 {
		return p.members[i]
	}
	return nil
}

func (p *plain) Targets() []Target {
	var t []Target
	for _, m := range p.members {
		t = append(t, Target{Host: m.Addr, Port: m.Port})
	}
	return t
}

func (p *plain) Primary() place.Host { return p.env.Hosts[p.primary] }

func (p *plain) Standbys() []place.Host {
	var hs []place.Host
	for i, h := range p.env.Hosts {
		if i != p.primary {
			hs = append(hs, h)
		}
	}
	return hs
}
