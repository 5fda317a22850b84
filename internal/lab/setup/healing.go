package setup

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

// What a self-healing setup is given to do by itself. It is generous: how long
// it took is measured, and a setup that needs longer did not come back.
const (
	healDeadline = 2 * time.Minute
	fullDeadline = 2 * time.Minute // until everybody is back, with a base backup on the way
	agentGrace   = 45 * time.Second
)

// product is what one self-healing setup has that others do not.
type product interface {
	// furnish writes the files that a member's services need, when it is new or
	// its disk is empty.
	furnish(ctx context.Context, c *healing, m *member) error
	// services are the programs on a member's host, the agent last.
	services(c *healing, m *member) []service
	// replace makes room for a member whose disk was lost; operator says that it
	// took somebody who is not part of the setup.
	replace(ctx context.Context, c *healing, m *member) (operator bool, err error)
	// halt stops the servers cleanly, so that all can be started again as they were.
	halt(ctx context.Context, c *healing, prim *member, others []*member) error
	// counted is how many of so many standbys may confirm a commit once all is well.
	counted(standbys int) int
	// switchover asks for another primary and returns when that was accepted.
	switchover(ctx context.Context, c *healing, from, to *member) error
	versions(ctx context.Context, c *healing) (map[string]string, error)
	// noticed says whether a line of an agent's log means that it misses its primary.
	noticed(line string) bool
	// health is the address, as on m's host, of an HTTP server which answers GET
	// /primary with 200 on the primary alone.
	health(m *member) string
	// sockets is the directory on m's host that has the server's unix socket.
	sockets(m *member) string
	// admit makes the role that clients log in with, when the setup runs for the
	// first time, and returns it.
	admit(ctx context.Context, c *healing) (Login, error)
}

// healing is what setups share that fail over by themselves: on each host an
// agent runs Postgres, perhaps beside other services. The lab powers hosts on,
// starts what their service manager would start, and waits.
type healing struct {
	product product
	lose    func(f Fault) Bound // nil: nothing

	env      Env
	members  []*member
	password string // of the superuser, where that has one
	clients  Login
	primary  int // as last confirmed
	sync     int // a standby that its commits wait for, as last seen
}

// member is one host with its Postgres, which the agent there starts and stops.
type member struct {
	host     place.Host
	pg       *postgres.Instance
	kept     []*kept // in the order of product.services; nil before the first start
	log      *lineWatch
	replaced bool // its disk was lost once, so it is not among the founders any more
}

func newHealing(p func() product) func() System {
	return func() System { return &healing{product: p()} }
}

func (c *healing) Promise(f Fault) Bound {
	if c.lose != nil {
		return c.lose(f)
	}
	return Bound{Lose: loseNothing}
}

func (c *healing) Deploy(ctx context.Context, env Env) error {
	c.env, c.password = env, rand.Text()
	for _, h := range env.Hosts {
		m := &member{
			host: h, log: watchLines(env.Log(h.Name()), c.product.noticed),
			pg: &postgres.Instance{
				Runner: onHost{h}, Name: h.Name(), BinDir: env.BinDir,
				DataDir: filepath.Join(h.DataDir(), "pgdata"),
				Addr:    h.Addr(), Port: port, User: "holdfast", Password: c.password,
				PassFile: filepath.Join(h.RunDir(), "pgpass"),
			},
		}
		m.pg.SockDir = c.product.sockets(m)
		c.members = append(c.members, m)
	}
	err := c.each(c.members, func(m *member) error { return c.product.furnish(ctx, c, m) })
	if err != nil {
		return err
	}
	if err := c.Start(ctx); err != nil {
		return err
	}
	if c.clients, err = c.product.admit(ctx, c); err != nil {
		return fmt.Errorf("let clients in: %w", err)
	}
	flush, _ := flusher(env.Hosts)
	return flush(ctx)
}

func (c *healing) each(ms []*member, f func(*member) error) error {
	errs := make([]error, len(ms))
	var wg sync.WaitGroup
	for i, m := range ms {
		wg.Go(func() { errs[i] = f(m) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Start starts the services of every host and waits until all is well.
func (c *healing) Start(ctx context.Context) error {
	if err := c.each(c.members, func(m *member) error { return c.up(ctx, m) }); err != nil {
		return err
	}
	return c.full(ctx)
}

// up starts what is to run on a host that has power and does not run there.
func (c *healing) up(ctx context.Context, m *member) error {
	pass := m.pg.PassLine() // for programs of the lab; the directory is in memory
	if err := m.host.Put(ctx, m.pg.PassFile, []byte(pass), 0o600); err != nil {
		return err
	}
	m.down()
	m.kept = nil
	for _, s := range c.product.services(c, m) {
		s.cmd.Stdout, s.cmd.Stderr = m.log, m.log
		k, err := keep(ctx, m.host, s, c.env.Trace)
		if err != nil {
			return err
		}
		m.kept = append(m.kept, k)
	}
	return nil
}

// down lets go of services whose host lost its power.
func (m *member) down() {
	for _, k := range m.kept {
		k.release()
	}
}

func (m *member) agent() *kept {
	if len(m.kept) == 0 {
		return nil
	}
	return m.kept[len(m.kept)-1]
}

// powerOn brings a host back whose power was cut, with what runs on it. operator
// says that somebody had to help.
func (c *healing) powerOn(ctx context.Context, m *member) (empty, operator bool, err error) {
	if pc, ok := m.host.(place.PowerCycler); ok && pc.Powered() {
		return false, false, nil
	}
	if err := powerOn(ctx, m.host); err != nil {
		return false, false, err
	}
	if empty, err = isEmpty(ctx, m.pg); err != nil {
		return empty, false, err
	}
	if empty {
		if operator, err = c.product.replace(ctx, c, m); err != nil {
			return empty, operator, fmt.Errorf("make room for %s, whose disk was lost: %w", m.pg.Name, err)
		}
		if err := c.product.furnish(ctx, c, m); err != nil {
			return empty, operator, err
		}
	}
	return empty, operator, c.up(ctx, m)
}

// Stop stops the servers so that nobody takes over, and then all else.
func (c *healing) Stop(ctx context.Context) error {
	prim := c.members[c.primary]
	if i, _, err := c.find(ctx, -1); err == nil {
		prim = c.members[i]
	}
	others := slices.DeleteFunc(slices.Clone(c.members), func(m *member) bool { return m == prim })
	if err := c.product.halt(ctx, c, prim, others); err != nil {
		return err
	}
	return c.each(c.members, func(m *member) error {
		for _, k := range slices.Backward(m.kept) {
			if err := k.stop(ctx, agentGrace); err != nil {
				return err
			}
		}
		m.kept = nil
		return nil
	})
}

func (c *healing) Versions(ctx context.Context) (map[string]string, error) {
	v, err := c.product.versions(ctx, c)
	if err != nil {
		return nil, err
	}
	v["postgres"], err = c.members[0].pg.Version(ctx)
	return v, err
}

func (c *healing) Instance() *postgres.Instance { return c.members[c.primary].pg }

func (c *healing) Targets() []Target {
	var t []Target
	for _, m := range c.members {
		t = append(t, Target{Host: m.pg.Addr, Port: m.pg.Port})
	}
	return t
}

func (c *healing) Primary() place.Host { return c.members[c.primary].host }

// Standbys has the one first that commits wait for, where there is one such.
func (c *healing) Standbys() []place.Host {
	var hs []place.Host
	for i, m := range c.members {
		switch i {
		case c.primary:
		case c.sync:
			hs = append([]place.Host{m.host}, hs...)
		default:
			hs = append(hs, m.host)
		}
	}
	return hs
}

func (c *healing) Postgres(h place.Host) *postgres.Instance {
	if m := c.on(h); m != nil {
		return m.pg
	}
	return nil
}

func (c *healing) on(h place.Host) *member {
	for _, m := range c.members {
		if m.host == h {
			return m
		}
	}
	return nil
}

// SignalAgent sends a signal to the agent on h alone.
func (c *healing) SignalAgent(h place.Host, sig int) error {
	m := c.on(h)
	if m == nil || m.agent() == nil {
		return fmt.Errorf("no agent runs on %s", h.Name())
	}
	return m.agent().signal(sig)
}
