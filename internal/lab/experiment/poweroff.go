package experiment

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-db/holdfast/internal/check"
	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/result"
)

const (
	loadSeconds     = 5
	afterSeconds    = 5
	writableAgain   = 60 * time.Second
	lookEvery       = 5 * time.Second
	sustainedWindow = 10 * time.Second
)

// ErrSpent accompanies cells whose setup must not be used for another one.
var ErrSpent = errors.New("the setup is spent")

// powerOff cuts the power of the primary's host while a driver writes.
type powerOff struct{}

func (powerOff) Name() string        { return "power-off" }
func (powerOff) About() string       { return "the primary's host loses its power, silently, under load" }
func (powerOff) NeedsDatabase() bool { return true }

func (powerOff) Groups(spec config.Experiment, hosts int) []Params {
	var gs []Params
	for _, lag := range spec.LagMs {
		if lag > 0 && hosts == 1 {
			continue // nobody lags behind a single host
		}
		gs = append(gs, Params{
			"lag_ms": lag, "seconds": orDefault(spec.Seconds, loadSeconds), "after_s": orDefault(spec.After, afterSeconds),
			"writers": spec.Writers, "rate": spec.Rate, "payload_bytes": spec.Payload,
		})
	}
	return gs
}

func (powerOff) Estimate(spec config.Experiment, p Params) time.Duration {
	const around = 5 // starting the load, recovery, reading, the former primary's return
	return seconds(orDefault(spec.Seconds, loadSeconds)+orDefault(spec.After, afterSeconds)+around) +
		time.Duration(p["lag_ms"].(int))*time.Millisecond
}

func (powerOff) Run(ctx context.Context, env Env) ([]result.Cell, error) {
	cl, ok := env.System.(setup.Cluster)
	if !ok {
		return nil, fmt.Errorf("setup %s has no primary whose power could be cut", env.Kind.Name)
	}
	c := &cut{env: env, cluster: cl, lag: time.Duration(env.Params["lag_ms"].(int)) * time.Millisecond}
	err := c.pull(ctx)
	if err == nil {
		err = c.survivors(ctx)
	}
	if c.load != nil {
		err = errors.Join(err, c.load.stop(ctx))
	}
	if err != nil {
		return nil, err
	}
	cell, err := c.judge()
	if err != nil {
		return nil, err
	}
	if c.noStart != nil || env.Kind.Liar {
		return []result.Cell{*cell}, ErrSpent
	}
	return []result.Cell{*cell}, nil
}

// cut is one power cut under way.
type cut struct {
	env     Env
	cluster setup.Cluster
	lag     time.Duration
	load    *load

	lagBegan         time.Time
	began, confirmed time.Time // of the cut
	recovered        setup.Recovery
	noStart          error // why the setup did not come back
	rejoinBegan      time.Time
	rejoined         setup.Recovery
	found            Survivors
}

// pull loads the setup, cuts the power and brings the setup back.
func (c *cut) pull(ctx context.Context) (err error) {
	primary := c.cluster.Primary()
	power, ok := primary.(place.PowerCycler)
	if !ok {
		return fmt.Errorf("the power of %s cannot be cut at this place", primary.Name())
	}
	if c.load, err = startLoad(ctx, c.env, nil); err != nil {
		return err
	}
	c.env.Trace("the load runs on %s", primary.Name())
	if err := c.load.run(ctx, seconds(c.env.Params["seconds"].(float64))); err != nil {
		return err
	}
	if err := c.cutStandbysOff(ctx, primary); err != nil {
		return err
	}
	c.began, c.confirmed, err = power.Off(ctx)
	if err != nil {
		return fmt.Errorf("cut the power of %s: %w", primary.Name(), err)
	}
	c.load.coll.MarkAt(c.began, history.MarkCut)
	c.load.coll.MarkAt(c.confirmed, history.MarkDead)
	if err := c.healStandbys(ctx, primary); err != nil {
		return err
	}
	c.recovered, err = c.cluster.Recover(ctx)
	if errors.Is(err, setup.ErrNoStart) {
		c.noStart = err
		c.env.Trace("%v", err)
		return nil
	} else if err != nil {
		return fmt.Errorf("bring the setup back: %w", err)
	}
	c.load.coll.MarkAt(c.recovered.Done, "setup is back")
	c.env.Trace("%s, %s after the cut", c.recovered.How, c.recovered.Done.Sub(c.began).Round(time.Millisecond))
	return c.writeOn(ctx)
}

// writeOn waits for the first write after the cut and lets the load go on.
func (c *cut) writeOn(ctx context.Context) error {
	for waited := time.Duration(0); waited < writableAgain; waited += lookEvery {
		first, cancel := context.WithTimeout(ctx, lookEvery)
		err := c.load.waitAck(first, c.confirmed)
		timeout := first.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			return c.load.run(ctx, seconds(c.env.Params["after_s"].(float64)))
		case !timeout:
			return fmt.Errorf("wait for the first write after the cut: %w", err)
		}
		// A server that came back without its ledger will never take a write.
		if pe, _ := c.readable(ctx); pe != nil {
			c.env.Trace("the ledger is gone: %v", pe)
			return nil
		}
	}
	c.env.Trace("no write came back within %s of the recovery", writableAgain)
	return nil
}

// readable returns the server's own error when it cannot give out the ledger,
// and in err what else is in the way.
func (c *cut) readable(ctx context.Context) (pe *pgconn.PgError, err error) {
	err = c.env.System.(setup.Ledger).Survivors(ctx, ledgerTable, func(setup.Scan, uint64) {})
	if errors.As(err, &pe) {
		return pe, nil
	}
	return nil, err
}

// cutStandbysOff makes the standbys lag: for lag ms nothing reaches them.
func (c *cut) cutStandbysOff(ctx context.Context, primary place.Host) error {
	if c.lag == 0 {
		return nil
	}
	c.lagBegan = time.Now()
	c.load.coll.Mark(history.MarkFault)
	for _, s := range c.cluster.Standbys() {
		if err := eachWay(primary, s, func(p place.Partitioner, to place.Host) error { return p.Cut(ctx, to) }); err != nil {
			return fmt.Errorf("cut %s off: %w", s.Name(), err)
		}
	}
	return c.load.run(ctx, c.lag-time.Since(c.lagBegan))
}

func (c *cut) healStandbys(ctx context.Context, primary place.Host) error {
	if c.lag == 0 {
		return nil
	}
	for _, s := range c.cluster.Standbys() {
		if err := eachWay(primary, s, func(p place.Partitioner, to place.Host) error { return p.Heal(ctx, to) }); err != nil {
			return fmt.Errorf("heal the partition of %s: %w", s.Name(), err)
		}
	}
	return nil
}

func eachWay(a, b place.Host, do func(place.Partitioner, place.Host) error) error {
	pa, ok := a.(place.Partitioner)
	pb, ok2 := b.(place.Partitioner)
	if !ok || !ok2 {
		return errors.New("this place cannot partition hosts")
	}
	return errors.Join(do(pa, b), do(pb, a))
}

// survivors ends the load and reads what is there, before and after the former
// primary rejoined.
func (c *cut) survivors(ctx context.Context) error {
	c.found.WindowMs = min(sustainedWindow, seconds(c.env.Params["after_s"].(float64))).Milliseconds()
	if err := c.load.stop(ctx); err != nil {
		return err
	}
	if c.noStart == nil {
		if err := c.read(ctx, check.FirstScan, check.FirstIndex); err != nil {
			return err
		}
	} else {
		c.found.Why = c.noStart.Error()
		c.found.Add(check.FirstScan, nil)
		c.found.Add(check.FirstIndex, nil)
	}
	if c.found.Why == "" && !c.recovered.Promoted.IsZero() {
		c.rejoinBegan = time.Now()
		var err error
		if c.rejoined, err = c.cluster.Rejoin(ctx); err != nil {
			return fmt.Errorf("bring the former primary back: %w", err)
		}
		if err := c.read(ctx, check.SecondScan, check.SecondIndex); err != nil {
			return err
		}
	}
	return c.found.write(c.env.Dir, HistoryFile(c.env.Key))
}

// read reads the ids by scan and by index. A server that cannot give them out
// has none; a connection that the lab itself cannot make is the lab's failure.
func (c *cut) read(ctx context.Context, scan, index check.Source) error {
	by := map[setup.Scan][]uint64{}
	err := c.env.System.(setup.Ledger).Survivors(ctx, ledgerTable, func(s setup.Scan, id uint64) { by[s] = append(by[s], id) })
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		c.found.Why = "the survivors cannot be read: " + err.Error()
		c.noStart = err
	} else if err != nil {
		return fmt.Errorf("read the survivors: %w", err)
	}
	c.found.Add(scan, by[setup.BySequence])
	c.found.Add(index, by[setup.ByIndex])
	return nil
}

// judge turns the evidence into a cell.
func (c *cut) judge() (*result.Cell, error) {
	b := c.env.System.Promise(setup.HostPower)
	cell := &result.Cell{
		Fault: string(setup.HostPower), Promise: &result.Promise{Lose: b.Lose, Ms: b.Ms},
		Evidence: c.env.Facts.Evidence, Silent: true, History: HistoryFile(c.env.Key), Recovery: c.recovered.How,
	}
	j, err := Judge(c.env.Dir, cell.History, cell.Promise)
	if err != nil {
		return nil, err
	}
	cell.Verdict, cell.Why = j.Verdict, j.Why
	cell.Metrics = j.Findings.Metrics()
	for _, s := range j.Findings.Series {
		cell.Series = append(cell.Series, result.Second{T: s.T, Acked: s.Acked, Refused: s.Refused, Unknown: s.Unknown})
	}
	for _, r := range j.Findings.Ranges {
		cell.IDs = append(cell.IDs, result.IDRange{From: r.From, To: r.To, Outcome: r.Outcome, Survived: r.Survived})
	}
	if cell.Histogram, err = latencies(filepath.Join(c.env.Dir, cell.History)); err != nil {
		return nil, err
	}
	c.timeline(cell)
	return cell, nil
}

// timeline adds what happened, in ms after the beginning of the cut, and the
// phases that the lab saw first-hand.
func (c *cut) timeline(cell *result.Cell) {
	at := func(t time.Time) float64 { return float64(t.Sub(c.began).Microseconds()) / 1000 }
	add := func(what string, from, until time.Time) {
		if from.IsZero() {
			return
		}
		e := result.Event{AtMs: at(from), What: what}
		if !until.IsZero() {
			e.UntilMs = at(until)
		}
		cell.Events = append(cell.Events, e)
	}
	add("standbys cut off from the primary", c.lagBegan, c.began)
	add("power of the primary's host cut", c.began, c.confirmed)
	add("a standby was promoted", c.recovered.Promoted, time.Time{})
	add("the setup is back", c.recovered.Done, time.Time{})
	if v, ok := cell.Metrics["first_ack_ms"]; ok {
		cell.Events = append(cell.Events, result.Event{AtMs: v, What: "first acknowledged write"})
	}
	add("the former primary comes back", c.rejoinBegan, c.rejoined.Done)
	if !c.recovered.Promoted.IsZero() {
		cell.Metrics["promoted_ms"] = at(c.recovered.Promoted)
	}
	if !c.rejoined.Done.IsZero() {
		cell.Metrics["rejoined_ms"] = float64(c.rejoined.Done.Sub(c.rejoinBegan).Microseconds()) / 1000
		cell.Recovery += "; " + c.rejoined.How
	}
	if c.recovered.Operator {
		cell.Recovery += " (by the lab's script, which stands for an operator and holds no time for noticing)"
	}
}
