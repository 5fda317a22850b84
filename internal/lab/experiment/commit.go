package experiment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/pgbench"
	"github.com/holdfast-db/holdfast/internal/postgres"
	"github.com/holdfast-db/holdfast/internal/result"
)

const (
	commitSeconds = 20
	initDeadline  = 10 * time.Minute
	pgbenchJobs   = 2
)

// commit measures what a transaction costs, with the real pgbench: on the
// primary's host over its unix socket, or from the client's host over TCP.
type commit struct{}

func (commit) Name() string { return "commit" }
func (commit) About() string {
	return "what a transaction costs, by pgbench: closed or open loop, over the socket or TCP"
}
func (commit) NeedsDatabase() bool { return true }

func (commit) Groups(spec config.Experiment, _ setup.Kind) []Params {
	var gs []Params
	for _, f := range spec.FlushTimes {
		gs = append(gs, commitGroups(spec, f)...)
	}
	return gs
}

func commitGroups(spec config.Experiment, flushTimes float64) []Params {
	var gs []Params
	for _, c := range spec.Clients {
		p := Params{
			"clients": c, "seconds": orDefault(spec.Seconds, commitSeconds), "workload": spec.Workload,
			"protocol": spec.Protocol, "scale": spec.Scale, "mode": "closed-loop",
		}
		if spec.Rate > 0 {
			p["mode"], p["rate"] = "open-loop", spec.Rate
		}
		if spec.Via != "socket" {
			p["via"] = spec.Via
		}
		if flushTimes != 1 {
			p["flush_times"] = flushTimes
		}
		gs = append(gs, p)
	}
	return gs
}

func (commit) Estimate(spec config.Experiment, _ Params) time.Duration {
	return seconds(orDefault(spec.Seconds, commitSeconds) + settleBase + settlePerScale*float64(spec.Scale))
}

func (commit) Run(ctx context.Context, env Env) (cells []result.Cell, err error) {
	db, ok := env.System.(setup.SQL)
	if !ok {
		return nil, fmt.Errorf("setup %s has no Postgres that pgbench could use", env.Kind.Name)
	}
	h, err := primary(env)
	if err != nil {
		return nil, err
	}
	pg := db.Instance()
	if err := fill(ctx, env, h, pg, env.Spec.Scale); err != nil {
		return nil, err
	}
	load, login, cfg, err := pgbenchRun(ctx, env, h, pg)
	if err != nil {
		return nil, err
	}
	if err := settle(ctx, env, pg); err != nil {
		return nil, err
	}
	normal, err := slowFlush(ctx, h, env.Disk, env.Params)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, normal()) }()
	if err := warmUp(ctx, env, load, login, cfg); err != nil {
		return nil, err
	}
	env.Live(fmt.Sprintf("pgbench, %d clients, %d s", cfg.Clients, cfg.Seconds))
	m, err := startMeter(ctx, env, pg, time.Duration(cfg.Seconds)*time.Second)
	if err != nil {
		return nil, err
	}
	defer m.stop()
	o, err := observe(ctx, env, pg, h, cfg.Clients)
	if err != nil {
		return nil, err
	}
	out, err := runPgbench(ctx, env, load, login, cfg)
	if err := errors.Join(err, o.stop()); err != nil {
		return nil, err
	}
	res, err := pgbench.Read(cfg, out)
	if err != nil {
		return nil, err
	}
	cell, err := commitCell(res, out)
	if err != nil || cell.Verdict != result.Held {
		return []result.Cell{cell}, err
	}
	costs, err := m.metrics(ctx, res.Done)
	if err != nil {
		return nil, err
	}
	maps.Copy(cell.Metrics, costs)
	o.addTo(&cell)
	return []result.Cell{cell}, nil
}

// pgbenchRun is where pgbench runs, how it logs in, and what it is to do.
func pgbenchRun(ctx context.Context, env Env, primary place.Host, pg *postgres.Instance) (place.Host, []string, pgbench.Config, error) {
	clients := env.Params["clients"].(int)
	cfg := pgbench.Config{
		Script: env.Spec.Workload, Clients: clients, Jobs: min(clients, pgbenchJobs), Protocol: env.Spec.Protocol,
		Seconds: int(max(1, orDefault(env.Spec.Seconds, commitSeconds))), Seed: env.Seed, Rate: env.Spec.Rate,
		LogPrefix: path.Join(primary.RunDir(), "pgbench-"+env.Key), Host: pg.SockDir, Port: pg.Port, User: pg.User, Database: "postgres",
	}
	h, login := primary, pg.ClientEnv()
	if env.Spec.Via == "tcp" {
		var err error
		if login, err = loginFrom(ctx, env.Client, pg); err != nil {
			return nil, nil, cfg, err
		}
		h = env.Client
		cfg.Host, cfg.LogPrefix = pg.Addr, path.Join(h.RunDir(), "pgbench-"+env.Key)
	}
	return h, login, cfg, cfg.Validate()
}

// loginFrom lets programs on another host log in at pg.
func loginFrom(ctx context.Context, h place.Host, pg *postgres.Instance) ([]string, error) {
	file := path.Join(h.RunDir(), "pgpass")
	if err := h.Put(ctx, file, []byte(pg.PassLine()), 0o600); err != nil {
		return nil, err
	}
	return []string{"PGPASSFILE=" + file, "LC_ALL=C"}, nil
}

func commitCell(res *pgbench.Result, out pgbench.Output) (result.Cell, error) {
	c := result.Cell{Metrics: res.Metrics(), Verdict: result.Held}
	for _, s := range res.Seconds {
		c.Series = append(c.Series, result.Second{T: s.T, Acked: s.Done, Refused: s.Failed})
	}
	if !res.Valid() {
		c.Verdict, c.Why = result.Invalid, res.Why()
		if said := lastLines(out.Stderr, 3); said != "" && res.NotSteady == "" {
			c.Why += "; pgbench said: " + said
		}
		return c, nil
	}
	if s := res.Service; s != nil {
		c.Metrics["service_mean_ms"] = s.Mean() / 1000
		c.Metrics["service_p50_ms"] = float64(s.ValueAtQuantile(50)) / 1000
		c.Metrics["service_p99_ms"] = float64(s.ValueAtQuantile(99)) / 1000
	}
	var err error
	c.Histogram, err = res.EncodeHistogram()
	return c, err
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " / ")
}

// fill makes pgbench's tables, once for each deployment.
func fill(ctx context.Context, env Env, h place.Host, pg *postgres.Instance, scale int) error {
	have, err := pg.QueryText(ctx, "SELECT (to_regclass('pgbench_branches') IS NOT NULL)::text")
	if err == nil && have == "true" {
		have, err = pg.QueryText(ctx, "SELECT count(*)::text FROM pgbench_branches")
		if err == nil && have == fmt.Sprint(scale) {
			return nil
		}
	}
	if err != nil {
		return err
	}
	env.Live(fmt.Sprintf("filling pgbench's tables, scale %d", scale))
	ctx, cancel := context.WithTimeout(ctx, initDeadline)
	defer cancel()
	cfg := pgbench.Config{Host: pg.SockDir, Port: pg.Port, User: pg.User, Database: "postgres"}
	_, err = h.Run(ctx, place.Cmd{Path: path.Join(env.BinDir, "pgbench"), Args: pgbench.InitArgs(cfg, scale), Env: pg.ClientEnv()})
	if err != nil {
		return fmt.Errorf("fill pgbench's tables: %w", err)
	}
	// Filled pages have no room for a new version of a row: the first updates go
	// elsewhere and touch the index, later ones do not. Age them to the latter.
	return pg.Exec(ctx, "UPDATE pgbench_accounts SET abalance = abalance WHERE aid % 8 = 0", "VACUUM ANALYZE pgbench_accounts")
}

// runPgbench runs it with the hard stop: -T alone does not end it on a server
// that hangs.
func runPgbench(ctx context.Context, env Env, h place.Host, login []string, cfg pgbench.Config) (out pgbench.Output, err error) {
	var stdout, stderr bytes.Buffer
	p, err := h.Start(ctx, place.Cmd{
		Path: path.Join(env.BinDir, "pgbench"), Args: pgbench.Args(cfg), Env: login, Dir: h.RunDir(),
		Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil {
		return out, fmt.Errorf("start pgbench: %w", err)
	}
	defer func() { err = errors.Join(err, removeLogs(ctx, h, cfg)) }()
	hard := time.NewTimer(pgbench.Deadline(cfg))
	defer hard.Stop()
	select {
	case <-p.Done():
	case <-hard.C:
		out.HardStopped = true
	case <-ctx.Done():
	}
	const sigkill = 9
	select {
	case <-p.Done():
	default:
		if err := p.Signal(sigkill); err != nil {
			return out, fmt.Errorf("stop pgbench: %w", err)
		}
	}
	werr := p.Wait()
	if ctx.Err() != nil {
		return out, context.Cause(ctx)
	}
	out.Exit = exitStatus(werr)
	out.Stdout, out.Stderr = stdout.String(), stderr.String()
	out.Logs, err = readLogs(ctx, h, cfg)
	return out, err
}

// exitStatus is the exit status in an error of Wait, -1 if a signal ended it.
func exitStatus(err error) int {
	if err == nil {
		return 0
	}
	var exit *place.ExitError
	if errors.As(err, &exit) {
		return exit.Code
	}
	return -1
}

func logNames(ctx context.Context, h place.Host, cfg pgbench.Config) ([]string, error) {
	if cfg.LogPrefix == "" {
		return nil, nil // it writes none
	}
	out, err := h.Run(ctx, place.Cmd{Path: "/bin/sh", Args: []string{"-c", `for f in "$1".*; do [ -e "$f" ] && echo "$f"; done; true`, "sh", cfg.LogPrefix}})
	if err != nil {
		return nil, fmt.Errorf("list pgbench's logs: %w", err)
	}
	return strings.Fields(string(out)), nil
}

func readLogs(ctx context.Context, h place.Host, cfg pgbench.Config) ([]io.Reader, error) {
	names, err := logNames(ctx, h, cfg)
	if err != nil {
		return nil, err
	}
	var logs []io.Reader
	for _, n := range names {
		data, err := h.Get(ctx, n)
		if err != nil {
			return nil, fmt.Errorf("read pgbench's log: %w", err)
		}
		logs = append(logs, bytes.NewReader(data))
	}
	return logs, nil
}

func removeLogs(ctx context.Context, h place.Host, cfg pgbench.Config) error {
	names, err := logNames(context.WithoutCancel(ctx), h, cfg)
	if err != nil || len(names) == 0 {
		return err
	}
	_, err = h.Run(context.WithoutCancel(ctx), place.Cmd{Path: "/bin/rm", Args: append([]string{"-f"}, names...)})
	return err
}
