// Package lab runs a study: setups × experiments at a place, into a run folder
// with run.json, histories and logs. It treats every setup as programs on hosts.
package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/experiment"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/result"
)

// Progress is told what goes on. Both are called from one goroutine at a time.
type Progress interface {
	Step(text string) // something was finished
	Live(text string) // what is going on; replaces the former Live
}

// Runner runs one study.
type Runner struct {
	Study       *config.Study
	Seed        uint64
	Out         string // the run folder, made by Create
	Binary      string // this program, for what it runs on hosts
	BinDir      string // of the PostgreSQL programs
	Command     string // how the run was started, for the report
	Environment map[string]string
	Facts       place.Facts
	NewPlace    func(context.Context) (place.Place, error)
	Progress    Progress
	Now         func() time.Time
	Resume      *result.Run // an interrupted run that goes on, nil for a new one

	run      *result.Run
	log      *os.File
	started  time.Time
	deployed int
	active   *deployment
	all      map[config.Setup]*deployment
	failures map[config.Setup]int
}

// repeatable says whether an attempt was a measurement that must not be used. A
// fault is never done again: it is judged by what it did.
func repeatable(cells []result.Cell) bool {
	return len(cells) == 1 && cells[0].Verdict == result.Invalid && cells[0].Fault == ""
}

// maxFailures is how often a setup may fail in a row before the rest of its
// cells is skipped.
const maxFailures = 3

// Run runs every cell and returns the run, also when it was interrupted or
// failed half-way: then with the error. run.json is written after every cell.
func (r *Runner) Run(ctx context.Context) (_ *result.Run, err error) {
	cells, err := plan(r.Study, r.Seed)
	if err != nil {
		return nil, err
	}
	if err := r.begin(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.log.Close()) }()
	defer func() { err = errors.Join(err, r.endAll(ctx)) }()
	if err := r.save(); err != nil {
		return nil, err
	}
	have := done(r.run)
	for i, c := range cells {
		c.number = i + 1
		if have[c.number] {
			continue
		}
		if ctx.Err() != nil {
			return r.run, context.Cause(ctx)
		}
		prefix := fmt.Sprintf("[%d/%d] %s", c.number, len(cells), c)
		r.Progress.Live(prefix)
		text := r.cell(ctx, c, fmt.Sprintf("%04d", c.number), prefix)
		if ctx.Err() != nil {
			return r.run, context.Cause(ctx)
		}
		r.Progress.Step(prefix + ": " + text)
		if err := r.save(); err != nil {
			return r.run, err
		}
	}
	r.run.Finished = r.Now().UTC().Format(time.RFC3339)
	Conclude(r.run)
	return r.run, r.save()
}

// begin makes the run, or takes up the interrupted one.
func (r *Runner) begin() (err error) {
	r.started = r.Now()
	r.all, r.failures = map[config.Setup]*deployment{}, map[config.Setup]int{}
	if r.log, err = os.OpenFile(filepath.Join(r.Out, "lab.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
		return err
	}
	if r.Resume != nil {
		r.run = r.Resume
		if at, err := time.Parse(time.RFC3339, r.run.Started); err == nil {
			r.started = at
		}
		r.run.Resumed = append(r.run.Resumed, r.Now().UTC().Format(time.RFC3339))
		return nil
	}
	r.run = &result.Run{
		Schema: result.Schema, Study: r.Study.Name, Seed: r.Seed, Started: r.started.UTC().Format(time.RFC3339),
		Command: r.Command, Simulated: r.Facts.Simulated, Environment: r.Environment, Cells: []result.Cell{},
	}
	r.run.StudySHA256, err = keepStudy(r.Out, r.Study)
	return err
}

func (r *Runner) save() error {
	if err := result.Write(r.Out, r.run); err != nil {
		return fmt.Errorf("write the run: %w", err)
	}
	return nil
}

func (r *Runner) trace(format string, a ...any) {
	fmt.Fprintf(r.log, "%s %s\n", r.Now().UTC().Format("15:04:05.000"), fmt.Sprintf(format, a...))
}

// cell runs one planned cell and returns what to say of it.
func (r *Runner) cell(ctx context.Context, c planned, key, prefix string) string {
	if r.failures[c.setup] >= maxFailures {
		why := fmt.Sprintf("%s failed %d times in a row", c.setup.Setup, maxFailures)
		r.run.Skipped = append(r.run.Skipped, result.Skipped{Cell: c.String(), Why: why, Planned: c.number})
		return "skipped: " + why
	}
	r.trace("cell %s: %s", key, c)
	at := r.Now()
	var discarded []result.Discarded
	cells, err := r.attempt(ctx, c, key, prefix)
	for err == nil && ctx.Err() == nil && repeatable(cells) && len(discarded) < experiment.MaxDiscarded {
		r.trace("cell %s is invalid and repeated: %s", key, cells[0].Why)
		r.Progress.Step(prefix + ": invalid, and repeated: " + cells[0].Why)
		discarded = append(discarded, result.Discarded{StartedS: at.Sub(r.started).Seconds(), Why: cells[0].Why, Series: cells[0].Series})
		at = r.Now()
		cells, err = r.attempt(ctx, c, key, prefix)
	}
	if ctx.Err() != nil {
		return "interrupted"
	}
	switch {
	case errors.Is(err, experiment.ErrSpent):
		defer r.abandon(ctx, c.setup)
	case err != nil:
		r.trace("cell %s failed: %v", key, err)
		r.failures[c.setup]++
		r.abandon(ctx, c.setup)
		cells = []result.Cell{{Metrics: map[string]float64{}, Verdict: result.Unknown, Why: "the lab failed: " + err.Error()}}
	default:
		r.failures[c.setup] = 0
	}
	for i := range cells {
		r.complete(&cells[i], c, at)
		cells[i].Discarded = append(cells[i].Discarded, discarded...)
		if cells[i].Verdict == experiment.Skipped {
			label := fmt.Sprintf("%s: %v", c, cells[i].Params)
			r.run.Skipped = append(r.run.Skipped, result.Skipped{Cell: label, Why: cells[i].Why, Planned: c.number})
			continue
		}
		r.run.Cells = append(r.run.Cells, cells[i])
	}
	return describe(cells)
}

func (r *Runner) attempt(ctx context.Context, c planned, key, prefix string) ([]result.Cell, error) {
	if err := removeEvidence(r.Out, key); err != nil {
		return nil, err
	}
	d, err := r.activate(ctx, c)
	if err != nil {
		return nil, err
	}
	return c.experiment.Run(ctx, experiment.Env{
		System: d.system, Kind: d.kind, Client: d.client, Facts: r.Facts, Disk: c.setup.Disk, Volume: place.VolumeKind(c.setup.Volume), Binary: r.Binary, BinDir: r.BinDir,
		Dir: r.Out, Key: key, Seed: r.Seed + uint64(len(r.run.Cells)), Spec: c.spec, Params: c.params,
		Live:  func(t string) { r.Progress.Live(prefix + ": " + t) },
		Trace: r.trace,
	})
}

// complete adds what all cells of a planned one have in common.
func (r *Runner) complete(cell *result.Cell, c planned, at time.Time) {
	cell.Planned = c.number
	cell.Setup, cell.Experiment, cell.Repetition = c.setup.Setup, c.experiment.Name(), c.repetition
	cell.Simulated = r.Facts.Simulated
	cell.StartedS = at.Sub(r.started).Seconds()
	params := map[string]any{"disk": c.setup.Disk}
	if c.setup.Twin {
		params["twin"] = true
	}
	if c.setup.Volume != string(place.HostBound) {
		params["volume"] = c.setup.Volume
	}
	if c.setup.Crash != "lose-all" {
		params["crash"] = c.setup.Crash
	}
	for _, more := range []map[string]any{c.params, cell.Params} {
		for k, v := range more {
			params[k] = v
		}
	}
	cell.Params = params
	if d := r.all[c.setup]; d != nil && cell.Versions == nil {
		cell.Versions = d.versions
	}
}

// activate makes c's setup the only one that runs.
func (r *Runner) activate(ctx context.Context, c planned) (*deployment, error) {
	d := r.all[c.setup]
	if r.active != nil && r.active != d {
		if err := r.active.stop(ctx); err != nil {
			r.trace("%v; it is given up", err)
			r.abandon(ctx, r.active.setup)
		}
		r.active = nil
	}
	if d == nil {
		var err error
		if d, err = r.deploy(ctx, c); err != nil {
			return nil, fmt.Errorf("deploy %s: %w", c.setup.Setup, err)
		}
		r.all[c.setup] = d
	}
	r.active = d
	if c.experiment.NeedsDatabase() {
		return d, d.start(ctx)
	}
	return d, d.stop(ctx)
}

// abandon ends a deployment; the next cell of its setup gets a new one.
func (r *Runner) abandon(ctx context.Context, s config.Setup) {
	d := r.all[s]
	if d == nil {
		return
	}
	if err := d.end(ctx); err != nil {
		r.trace("end %s: %v", s.Setup, err)
	}
	delete(r.all, s)
	if r.active == d {
		r.active = nil
	}
}

func (r *Runner) endAll(ctx context.Context) error {
	var errs []error
	for s, d := range r.all {
		errs = append(errs, d.end(ctx))
		delete(r.all, s)
	}
	return errors.Join(errs...)
}

// describe is a finished cell in a few words.
func describe(cells []result.Cell) string {
	if len(cells) != 1 {
		return fmt.Sprintf("%d cells", len(cells))
	}
	c := cells[0]
	text := c.Verdict
	switch {
	case c.Verdict == result.Unknown || c.Verdict == result.Invalid:
		return text + ": " + c.Why
	case c.Fault != "":
		text += fmt.Sprintf(", %.0f acknowledged, %.0f lost", c.Metrics["acked"], c.Metrics["lost"])
		if v, ok := c.Metrics["first_ack_ms"]; ok {
			text += fmt.Sprintf(", writes again after %.0f ms", v)
		}
	default:
		if v, ok := c.Metrics["latency_mean_ms"]; ok {
			text += fmt.Sprintf(", %.2f ms a transaction, %.0f tps", v, c.Metrics["tps"])
		}
		if v, ok := c.Metrics["select1_p50_ms"]; ok {
			text += fmt.Sprintf(", SELECT 1 %.3f ms", v)
		}
	}
	return text
}
