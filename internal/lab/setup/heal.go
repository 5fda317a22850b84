package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

// How a setup heals is its own affair. The lab looks on: it asks each server
// whether it is a standby, and believes that one is the primary when its agent
// says so and a commit comes back from it.

const (
	lookAgain    = 10 * time.Millisecond // between two looks at a server
	askDeadline  = time.Second           // of one look, which a frozen server does not answer
	canaryWithin = 2 * time.Second       // of a commit that shows that a server takes writes
)

// canary is a commit that leaves nothing behind and yet waits as any other does.
const canary = "SELECT pg_logical_emit_message(true, 'holdfast-lab', 'canary')::text"

// sighting is a server that was seen not to be a standby.
type sighting struct {
	member int
	at     time.Time
}

// find waits until a member other than not (-1: any) is the primary and takes
// writes. promoted is when it was first seen not to be a standby.
func (c *healing) find(ctx context.Context, not int) (prim int, promoted time.Time, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, healDeadline, fmt.Errorf("not within %s", healDeadline))
	defer cancel()
	seen := make(chan sighting)
	told := map[int]string{} // why not, in short: it is asked again and again
	for i := range c.members {
		if i != not {
			go c.look(ctx, i, seen)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return -1, promoted, fmt.Errorf("%w: no server takes writes: %w", ErrNoStart, context.Cause(ctx))
		case s := <-seen:
			if err := c.confirm(ctx, s.member); err != nil {
				if why := fmt.Sprintf("%.60s", err); told[s.member] != why {
					told[s.member] = why
					c.env.Trace("%s is no standby, and no primary either: %v", c.members[s.member].pg.Name, err)
				}
				continue
			}
			c.primary = s.member
			return s.member, s.at, nil
		}
	}
}

// look tells of a server that is no standby, again and again, until ctx ends.
// It keeps its session: a new one for each look would cost more than all else.
func (c *healing) look(ctx context.Context, i int, seen chan<- sighting) {
	var conn *pgx.Conn
	closeConn := func() {
		if conn != nil {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), askDeadline)
			_ = conn.Close(closing)
			cancel()
			conn = nil
		}
	}
	defer closeConn()
	var first time.Time
	for ctx.Err() == nil {
		standby, err := func() (standby bool, err error) {
			asking, cancel := context.WithTimeout(ctx, askDeadline)
			defer cancel()
			if conn == nil {
				if conn, err = c.members[i].pg.Connect(asking); err != nil {
					conn = nil
					return false, err
				}
			}
			return standby, conn.QueryRow(asking, "SELECT pg_is_in_recovery()").Scan(&standby)
		}()
		switch {
		case err != nil:
			closeConn()
			first = time.Time{}
		case standby:
			first = time.Time{}
		default:
			if first.IsZero() {
				first = time.Now()
			}
			select {
			case seen <- sighting{i, first}:
			case <-ctx.Done():
			}
		}
		pause(ctx, lookAgain)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// confirm says why a server that is no standby is not the primary.
func (c *healing) confirm(ctx context.Context, i int) error {
	m := c.members[i]
	ctx, cancel := context.WithTimeout(ctx, canaryWithin)
	defer cancel()
	if err := ask(ctx, m.host, c.product.health(m), "/primary"); err != nil {
		return err
	}
	if _, err := m.pg.QueryText(ctx, canary); err != nil {
		return fmt.Errorf("a commit: %w", err)
	}
	return nil
}

// ask sends a GET to a server on its own host and expects 200.
func ask(ctx context.Context, h place.Host, addr, path string) error {
	return request(ctx, h, http.MethodGet, addr, path, "")
}

// request sends a request to a server on its own host, which is to say yes.
func request(ctx context.Context, h place.Host, method, addr, path, body string) error {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return h.Dial(ctx, "tcp", addr) },
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s http://%s%s: %s: %s", method, addr, path, resp.Status, strings.TrimSpace(string(said)))
	}
	return nil
}

// full waits until there is a primary, every other member whose host has power
// streams from it and holds what it holds, and those are counted that should be.
func (c *healing) full(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, fullDeadline, fmt.Errorf("not within %s", fullDeadline))
	defer cancel()
	for {
		i, _, err := c.find(ctx, -1)
		if err != nil {
			return err
		}
		// The role may move on meanwhile, so the primary is looked for again.
		trying, done := context.WithTimeout(ctx, 10*time.Second)
		err = c.streaming(trying, c.members[i])
		done()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w (last: %w)", ErrNotWhole, context.Cause(ctx), err)
		}
	}
}

// streaming waits until all other members that have power follow prim.
func (c *healing) streaming(ctx context.Context, prim *member) error {
	want := 0
	for _, m := range c.members {
		if pc, ok := m.host.(place.PowerCycler); m != prim && (!ok || pc.Powered()) {
			want++
		}
	}
	if want == 0 {
		return nil
	}
	end, err := prim.pg.QueryText(ctx, "SELECT pg_current_wal_flush_lsn()::text")
	if err != nil {
		return err
	}
	q := "SELECT (count(*) || ' of ' || count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')))::text FROM pg_stat_replication" +
		" WHERE state = 'streaming' AND flush_lsn >= '" + end + "'"
	return until(ctx, fmt.Sprintf("%d members follow %s", want, prim.pg.Name), func() (bool, error) {
		v, err := prim.pg.QueryText(ctx, q)
		if err != nil {
			return false, err
		}
		var streams, waited int
		if _, err := fmt.Sscanf(v, "%d of %d", &streams, &waited); err != nil {
			return false, err
		}
		if streams < want || waited < c.product.counted(want) {
			return false, fmt.Errorf("%d stream, %d are waited for", streams, waited)
		}
		return true, c.rank(ctx, prim)
	})
}

// rank notes which standby commits wait for: that one comes first.
func (c *healing) rank(ctx context.Context, prim *member) error {
	v, err := prim.pg.QueryText(ctx, "SELECT client_addr::text FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum') ORDER BY sync_state DESC, client_addr LIMIT 1")
	if err != nil {
		return err
	}
	addr, _, _ := strings.Cut(v, "/")
	c.sync = slices.IndexFunc(c.members, func(m *member) bool { return m.host.Addr() == addr })
	if c.sync < 0 {
		return fmt.Errorf("no member that commits wait for has the address %q", addr)
	}
	return nil
}

// healed waits for a primary other than not and says what happened since.
func (c *healing) healed(ctx context.Context, not int, since time.Time) (Recovery, error) {
	before := c.primary
	i, promoted, err := c.find(ctx, not)
	rec := Recovery{How: "automatic: it had no time to heal"}
	if err != nil {
		return rec, err
	}
	rec.Done = time.Now()
	name := c.members[i].pg.Name
	rec.How = "automatic: " + name + " stayed the primary"
	if i != before {
		rec.Promoted = promoted
		rec.How = "automatic: " + name + " became the primary"
		for _, m := range c.members {
			if at := m.log.after(since); !at.IsZero() && at.Before(promoted) && (rec.Detected.IsZero() || at.Before(rec.Detected)) {
				rec.Detected = at
			}
		}
	}
	return rec, nil
}

// Recover waits until another member took over from the one whose host is off.
func (c *healing) Recover(ctx context.Context) (Recovery, error) {
	return c.healed(ctx, c.primary, time.Now())
}

// TakeOver is the same: whether the former primary is alive is the setup's affair.
func (c *healing) TakeOver(ctx context.Context) (Recovery, error) { return c.Recover(ctx) }

func (c *healing) Settle(ctx context.Context, since time.Time) (Recovery, error) {
	return c.healed(ctx, -1, since)
}

// PowerOn gives a host its power back, and starts what runs there.
func (c *healing) PowerOn(ctx context.Context, h place.Host) error {
	m := c.on(h)
	if m == nil {
		return fmt.Errorf("%s is no host of the setup", h.Name())
	}
	_, _, err := c.powerOn(ctx, m)
	return err
}

func (c *healing) Rejoin(ctx context.Context) (Recovery, error) {
	return c.back(ctx, c.members...)
}

func (c *healing) Return(ctx context.Context, h place.Host) (Recovery, error) {
	m := c.on(h)
	if m == nil {
		return Recovery{}, fmt.Errorf("%s is no host of the setup", h.Name())
	}
	return c.back(ctx, m)
}

// back powers members on that are off and waits until they have joined.
func (c *healing) back(ctx context.Context, ms ...*member) (Recovery, error) {
	var rec Recovery
	var on, copied []string
	for _, m := range ms {
		pc, ok := m.host.(place.PowerCycler)
		if !ok || pc.Powered() {
			continue
		}
		empty, operator, err := c.powerOn(ctx, m)
		if err != nil {
			return rec, err
		}
		rec.Operator = rec.Operator || operator
		if on = append(on, m.pg.Name); empty {
			copied = append(copied, m.pg.Name)
		}
	}
	if err := c.full(ctx); err != nil {
		return rec, err
	}
	rec.Done = time.Now()
	rec.How = "automatic: all members follow the primary"
	if len(on) > 0 {
		rec.How = "automatic: " + strings.Join(on, ", ") + " got its power back and joined"
	}
	if len(copied) > 0 {
		rec.How += ", copied anew"
	}
	if rec.Operator {
		rec.How += "; the member that was lost had to be replaced by hand"
	}
	return rec, nil
}

func (c *healing) RecoverAll(ctx context.Context, order []place.Host) (Recovery, error) {
	since := time.Now()
	var names []string
	for i, h := range order {
		m := c.on(h)
		if m == nil {
			return Recovery{}, fmt.Errorf("%s is no host of the setup", h.Name())
		}
		if i > 0 {
			pause(ctx, nextHostAfter)
		}
		if _, _, err := c.powerOn(ctx, m); err != nil {
			return Recovery{}, err
		}
		names = append(names, h.Name())
	}
	rec, err := c.healed(ctx, -1, since)
	rec.How += " after all hosts got their power back (" + strings.Join(names, ", ") + ")"
	return rec, err
}

// Restart is not asked for: who restarts a primary of such a setup switches over first.
func (c *healing) Restart(context.Context) (stopped time.Time, rec Recovery, err error) {
	return stopped, rec, errors.New("a setup that heals itself is not restarted by hand")
}

// Switchover hands the primary's role to a standby that the lab picks: the one
// that commits wait for, since only that one may have it everywhere.
func (c *healing) Switchover(ctx context.Context) (Recovery, error) {
	if err := c.full(ctx); err != nil {
		return Recovery{}, err
	}
	from, to, since := c.primary, c.sync, time.Now()
	if err := c.product.switchover(ctx, c, c.members[from], c.members[to]); err != nil {
		return Recovery{}, fmt.Errorf("switch over from %s to %s: %w", c.members[from].pg.Name, c.members[to].pg.Name, err)
	}
	rec, err := c.healed(ctx, from, since)
	if err == nil {
		rec.How = "automatic: asked for, " + c.members[c.primary].pg.Name + " became the primary"
	}
	return rec, err
}

func (c *healing) Login() Login { return c.clients }

func (c *healing) Prepare(ctx context.Context, table string) error {
	if err := c.full(ctx); err != nil {
		return err
	}
	prim := c.members[c.primary]
	if err := prim.pg.Exec(ctx, ledgerStatements(table)...); err != nil {
		return fmt.Errorf("make the ledger: %w", err)
	}
	return c.streaming(ctx, prim)
}

// Survivors are read on the primary as it is now.
func (c *healing) Survivors(ctx context.Context, table string, sink func(Scan, uint64)) error {
	i, _, err := c.find(ctx, -1)
	if err != nil {
		return err
	}
	return survivors(ctx, c.members[i].pg, table, sink)
}

func (c *healing) SurvivorsOn(ctx context.Context, h place.Host, table string, sink func(Scan, uint64)) error {
	i, _, err := c.find(ctx, -1)
	if err != nil {
		return err
	}
	m := c.on(h)
	if m == nil {
		return fmt.Errorf("%s is no host of the setup", h.Name())
	}
	return survivorsOn(ctx, c.members[i].pg, m.pg, table, sink)
}

// survivorsOn reads m, which may be prim or one of its standbys, and tries again
// what a standby broke off because it replayed.
func survivorsOn(ctx context.Context, prim, m *postgres.Instance, table string, sink func(Scan, uint64)) error {
	if m != prim {
		if err := replayed(ctx, prim, m); err != nil {
			return err
		}
	}
	const tries, conflict = 5, "40001"
	for n := 1; ; n++ {
		by := map[Scan][]uint64{}
		err := survivors(ctx, m, table, func(s Scan, id uint64) { by[s] = append(by[s], id) })
		var pe *pgconn.PgError
		if errors.As(err, &pe) && pe.Code == conflict && n < tries {
			continue
		}
		for s, ids := range by {
			for _, id := range ids {
				sink(s, id)
			}
		}
		return err
	}
}

// replayed waits until a standby has replayed what the primary has flushed.
func replayed(ctx context.Context, prim, m *postgres.Instance) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startDeadline, fmt.Errorf("not within %s", startDeadline))
	defer cancel()
	end, err := prim.QueryText(ctx, "SELECT pg_current_wal_flush_lsn()::text")
	if err != nil {
		return err
	}
	return until(ctx, m.Name+" has replayed up to "+end, func() (bool, error) {
		v, err := m.QueryText(ctx, "SELECT (pg_last_wal_replay_lsn() >= '"+end+"'::pg_lsn)::text")
		return v == "true", err
	})
}
