package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

// The script that stands for the operator of a plain setup.

func (p *plain) Recover(ctx context.Context) (Recovery, error) {
	if len(p.members) == 1 {
		return p.powerOn(ctx)
	}
	return p.promote(ctx)
}

func (p *plain) powerOn(ctx context.Context) (Recovery, error) {
	rec := Recovery{Operator: true, How: "the host was powered on again and Postgres started (crash recovery)"}
	if err := powerOn(ctx, p.env.Hosts[0]); err != nil {
		return rec, err
	}
	if err := p.mustStart(ctx, p.members[0]); err != nil {
		return rec, err
	}
	rec.Done = time.Now()
	return rec, nil
}

// mustStart starts a server without which there is nothing to be had.
func (p *plain) mustStart(ctx context.Context, m *postgres.Instance) error {
	err := p.start(ctx, m)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", ErrNoStart, err)
	}
	return err
}

func powerOn(ctx context.Context, h place.Host) error {
	pc, ok := h.(place.PowerCycler)
	if !ok {
		return fmt.Errorf("host %s cannot be powered on", h.Name())
	}
	if pc.Powered() {
		return nil
	}
	return pc.On(ctx)
}

// TakeOver first parts the standbys from the former primary: while one still
// listens to it, what they hold may grow after it was compared, and a commit be
// confirmed that the promoted one lacks.
func (p *plain) TakeOver(ctx context.Context) (Recovery, error) {
	if len(p.members) == 1 {
		return Recovery{}, errors.New("nobody is there to take over from a single server")
	}
	parting, cancel := context.WithTimeoutCause(ctx, promoteDeadline, fmt.Errorf("not within %s", promoteDeadline))
	defer cancel()
	err := p.each(p.standbys(), func(m *postgres.Instance) error { return p.part(parting, m) })
	if err != nil {
		return Recovery{Operator: true}, err
	}
	rec, err := p.promote(ctx)
	if rec.How != "" {
		rec.How = "the standbys were parted from the former primary, and " + rec.How
	}
	return rec, err
}

// partedFor is how long no walreceiver may have been seen: one can be on its way
// for some milliseconds after the settings were read again.
const partedFor = 100 * time.Millisecond

// part ends a standby's stream and lets none begin.
func (p *plain) part(ctx context.Context, m *postgres.Instance) error {
	if err := m.Configure(ctx, p.settings(m)); err != nil { // without primary_conninfo
		return err
	}
	if err := m.Reload(); err != nil {
		return err
	}
	const q = "SELECT (current_setting('primary_conninfo') = '' AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'walreceiver'))::text"
	var since time.Time
	return until(ctx, m.Name+" is parted from its primary", func() (bool, error) {
		v, err := m.QueryText(ctx, q)
		switch {
		case err != nil || v != "true":
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		}
		return !since.IsZero() && time.Since(since) >= partedFor, err
	})
}

// until asks until the answer is yes; errors before ctx ends are passing ones.
func until(ctx context.Context, what string, ask func() (bool, error)) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := ask()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w (last: %v)", what, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

func (p *plain) standbys() []*postgres.Instance {
	return slices.DeleteFunc(slices.Clone(p.members), func(m *postgres.Instance) bool { return m == p.members[p.primary] })
}

// promote makes the standby that holds most WAL the primary. With ANY 1 of two
// standbys both must answer: a commit may be on either.
func (p *plain) promote(ctx context.Context) (Recovery, error) {
	rec := Recovery{Operator: true}
	ctx, cancel := context.WithTimeout(ctx, promoteDeadline)
	defer cancel()
	best, bestLSN := -1, postgres.LSN(0)
	for i, m := range p.members {
		if i == p.primary {
			continue
		}
		l, err := m.ReceivedLSN(ctx)
		if err != nil {
			return rec, fmt.Errorf("ask %s how much it holds: %w", m.Name, err)
		}
		p.env.Trace("%s holds WAL up to %s", m.Name, l)
		if best < 0 || l > bestLSN {
			best, bestLSN = i, l
		}
	}
	next := p.members[best]
	others := slices.DeleteFunc(p.standbys(), func(m *postgres.Instance) bool { return m == next })
	p.alone = len(others) == 0
	if err := next.Configure(ctx, p.settings(next)); err != nil {
		return rec, err
	}
	if err := next.Reload(); err != nil {
		return rec, err
	}
	follow := make(chan error, 1)
	go func() {
		follow <- p.each(others, func(m *postgres.Instance) error { return m.Follow(ctx, next, p.settings(m)) })
	}()
	err := next.Promote(ctx)
	rec.Promoted = time.Now()
	if err := errors.Join(err, <-follow); err != nil {
		return rec, fmt.Errorf("%w: %w", ErrNoStart, err)
	}
	p.former, p.primary = p.primary, best
	rec.How = "the standby that held the most WAL (" + next.Name + ") was promoted and the other one follows it"
	if p.alone {
		rec.How = "the standby (" + next.Name + ") was promoted and takes writes alone until the other one is back"
	}
	rec.Done = time.Now()
	return rec, nil
}

func (p *plain) Rejoin(ctx context.Context) (Recovery, error) {
	rec := Recovery{Operator: true}
	if p.former < 0 {
		return rec, nil
	}
	old, prim := p.members[p.former], p.members[p.primary]
	how, err := p.ready(ctx, p.env.Hosts[p.former], old)
	if err != nil {
		return rec, err
	}
	rec.How = "the former primary was " + how + " and rewound (pg_rewind)"
	anew := "the former primary was " + how + " and copied anew (pg_basebackup)"
	empty, err := isEmpty(ctx, old)
	if err != nil {
		return rec, err
	}
	if !empty {
		if err = old.Rewind(ctx, prim); err != nil {
			p.env.Trace("%v; taking a base backup instead", err)
		}
	}
	if empty || err != nil {
		rec.How = anew
		if err := p.reclone(ctx, old, prim); err != nil {
			return rec, err
		}
	}
	if err := old.Follow(ctx, prim, p.settings(old)); err != nil {
		return rec, err
	}
	if err := p.start(ctx, old); err != nil {
		p.env.Trace("%v; taking a base backup instead", err)
		rec.How = anew
		if err := p.reclone(ctx, old, prim); err != nil {
			return rec, err
		}
		if err := p.start(ctx, old); err != nil {
			return rec, err
		}
	}
	if err := p.join(ctx, old); err != nil {
		return rec, err
	}
	p.former = -1
	rec.Done = time.Now()
	return rec, nil
}

// ready leaves a former primary's host on and its server stopped; how says what
// it took.
func (p *plain) ready(ctx context.Context, h place.Host, old *postgres.Instance) (how string, err error) {
	if !old.Running() {
		return "powered on", powerOn(ctx, h)
	}
	// It may be full of commits that wait for standbys which will not come back.
	const grace = 5 * time.Second
	return "stopped", old.Stop(ctx, grace)
}

// isEmpty says whether a member has lost its data directory.
func isEmpty(ctx context.Context, m *postgres.Instance) (bool, error) {
	_, err := m.ReadFile(ctx, filepath.Join(m.DataDir, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// join waits until a member that was away streams and counts again.
func (p *plain) join(ctx context.Context, m *postgres.Instance) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	prim := p.members[p.primary]
	if err := prim.WaitStandbys(ctx, m.Name); err != nil {
		return err
	}
	if !p.alone {
		return nil
	}
	p.alone = false
	if err := prim.Configure(ctx, p.settings(prim)); err != nil {
		return err
	}
	if err := prim.Reload(); err != nil {
		return err
	}
	return p.waitSync(ctx)
}

func (p *plain) reclone(ctx context.Context, m, from *postgres.Instance) error {
	if err := m.Stop(ctx, time.Second); err != nil {
		return err
	}
	if _, err := m.Run(ctx, postgres.Command{Path: "/bin/rm", Args: []string{"-rf", m.DataDir}}); err != nil {
		return fmt.Errorf("empty %s: %w", m.Name, err)
	}
	return m.BaseBackup(ctx, from, p.settings(m))
}

func (p *plain) Return(ctx context.Context, h place.Host) (Recovery, error) {
	rec := Recovery{Operator: true, How: "the standby was powered on again and caught up"}
	i := slices.Index(p.env.Hosts, h)
	if i < 0 || i == p.primary {
		return rec, fmt.Errorf("%s is no standby that could be brought back", h.Name())
	}
	m := p.members[i]
	if err := powerOn(ctx, h); err != nil {
		return rec, err
	}
	empty, err := isEmpty(ctx, m)
	if err != nil {
		return rec, err
	}
	if empty {
		rec.How = "the standby was powered on again and copied anew (pg_basebackup)"
		if err := p.reclone(ctx, m, p.members[p.primary]); err != nil {
			return rec, err
		}
	}
	if err := p.start(ctx, m); err != nil {
		return rec, err
	}
	if err := p.join(ctx, m); err != nil {
		return rec, err
	}
	rec.Done = time.Now()
	return rec, nil
}

// nextHostAfter bounds how long a host keeps the next one from getting its power
// back: a standby need not accept connections before its primary runs.
const nextHostAfter = 2 * time.Second

// RecoverAll leaves the former primary the primary, whatever comes back first.
func (p *plain) RecoverAll(ctx context.Context, order []place.Host) (Recovery, error) {
	if len(p.members) == 1 {
		return p.powerOn(ctx)
	}
	rec := Recovery{Operator: true}
	var names []string
	var started []chan error
	for _, h := range order {
		i := slices.Index(p.env.Hosts, h)
		if i < 0 {
			return rec, fmt.Errorf("%s is no host of the setup", h.Name())
		}
		names = append(names, h.Name())
		if err := powerOn(ctx, h); err != nil {
			return rec, err
		}
		done := make(chan error, 1)
		started = append(started, done)
		up := make(chan struct{})
		go func() {
			defer close(up)
			if i == p.primary {
				done <- p.mustStart(ctx, p.members[i])
				return
			}
			done <- p.start(ctx, p.members[i])
		}()
		t := time.NewTimer(nextHostAfter)
		select {
		case <-up:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
	var errs []error
	for _, done := range started {
		errs = append(errs, <-done)
	}
	if err := errors.Join(errs...); err != nil {
		return rec, err
	}
	rec.How = "all hosts were powered on again (" + strings.Join(names, ", ") + ") and the former primary stayed the primary"
	rec.Done = time.Now()
	return rec, nil
}

func (p *plain) Restart(ctx context.Context) (stopped time.Time, rec Recovery, err error) {
	rec = Recovery{Operator: true, How: "the primary was stopped (fast) and started again"}
	m := p.members[p.primary]
	if err := m.Stop(ctx, stopGrace); err != nil {
		return stopped, rec, err
	}
	stopped = time.Now()
	if err := p.mustStart(ctx, m); err != nil {
		return stopped, rec, err
	}
	rec.Done = time.Now()
	return stopped, rec, nil
}

func (p *plain) SurvivorsOn(ctx context.Context, h place.Host, table string, sink func(Scan, uint64)) error {
	i := slices.Index(p.env.Hosts, h)
	if i < 0 {
		return fmt.Errorf("%s is no host of the setup", h.Name())
	}
	return survivorsOn(ctx, p.members[p.primary], p.members[i], table, sink)
}
