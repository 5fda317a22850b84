package experiment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/diagnose"
	"github.com/holdfast-db/holdfast/internal/disk"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

// DiagnosisFile is where a cell's diagnosis lies within the run folder.
func DiagnosisFile(key string) string { return filepath.Join("diagnoses", key+".json") }

// diagnosing is `holdfast diagnose` at work on a host.
type diagnosing struct {
	env       Env
	host      place.Host
	proc      place.Process
	page      string // its page, on the host
	out, said bytes.Buffer
}

// diagnosis is what it found.
type diagnosis struct {
	env Env
	diagnose.Diagnosis
}

const (
	// diagnoseAfter is how long a load runs before it is looked at, and how long
	// before its end that is over.
	diagnoseAfter = time.Second
	// diagnoseGrace is how long it may take to begin and to judge.
	diagnoseGrace = 20 * time.Second
)

// untilStopped is the length of a load that nobody knows before.
const untilStopped = time.Duration(0)

// startDiagnosis starts it on the server's host for a load that takes so long and
// is about to start. wait must be called; stop, where the load is untilStopped.
func startDiagnosis(ctx context.Context, env Env, h place.Host, pg *postgres.Instance, load time.Duration) (*diagnosing, error) {
	d := &diagnosing{env: env, host: h, page: path.Join(h.RunDir(), "diagnosis-"+env.Key+".html")}
	begin, length := diagnoseAfter, max(load-2*diagnoseAfter, time.Second)
	if load == untilStopped {
		begin, length = 0, time.Hour
	}
	var err error
	d.proc, err = h.Start(ctx, place.Cmd{
		Path: "/bin/sh", Args: []string{"-c", `sleep "$1"; shift; exec "$@"`, "sh", fmt.Sprint(begin.Seconds()), env.Binary,
			"diagnose", "--json", "--for", length.String(), "--html", d.page},
		Env: pg.ClientEnv(), Dir: h.RunDir(), Stdout: &d.out, Stderr: &d.said,
	})
	if err != nil {
		return nil, fmt.Errorf("start the diagnosis: %w", err)
	}
	return d, nil
}

// stop ends it early and returns what was found until then, nil if that is too
// little for a diagnosis.
func (d *diagnosing) stop(ctx context.Context) (*diagnosis, error) {
	const sigint, interrupted = 2, 130
	if err := d.proc.Signal(sigint); err != nil {
		return nil, fmt.Errorf("end the diagnosis: %w", err)
	}
	t := time.NewTimer(diagnoseGrace)
	defer t.Stop()
	select {
	case <-d.proc.Done():
	case <-t.C:
	}
	if code := exitStatus(d.proc.Wait()); code != interrupted && code != 0 {
		return nil, fmt.Errorf("diagnose the load: it ended with status %d and said: %s", code, lastLines(d.said.String(), 5))
	}
	if d.out.Len() == 0 {
		return nil, nil
	}
	found := &diagnosis{env: d.env}
	if err := json.Unmarshal(d.out.Bytes(), &found.Diagnosis); err != nil {
		return nil, fmt.Errorf("read the diagnosis: %w", err)
	}
	return found, d.keep(ctx)
}

// wait returns what was found, after the load, and keeps it in the run folder.
func (d *diagnosing) wait(ctx context.Context) (*diagnosis, error) {
	t := time.NewTimer(diagnoseGrace)
	defer t.Stop()
	const sigkill = 9
	var late error
	select {
	case <-d.proc.Done():
	case <-t.C:
		late = errors.Join(fmt.Errorf("it did not end within %v of the load", diagnoseGrace), d.proc.Signal(sigkill))
	case <-ctx.Done():
		late = errors.Join(context.Cause(ctx), d.proc.Signal(sigkill))
	}
	if err := errors.Join(late, d.proc.Wait()); err != nil {
		return nil, fmt.Errorf("diagnose the load: %w; it said: %s", err, lastLines(d.said.String(), 5))
	}
	found := &diagnosis{env: d.env}
	if err := json.Unmarshal(d.out.Bytes(), &found.Diagnosis); err != nil {
		return nil, fmt.Errorf("read the diagnosis: %w", err)
	}
	return found, d.keep(ctx)
}

func (d *diagnosing) keep(ctx context.Context) error {
	file := filepath.Join(d.env.Dir, DiagnosisFile(d.env.Key))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	page, err := d.host.Get(ctx, d.page)
	if err == nil {
		err = os.WriteFile(strings.TrimSuffix(file, ".json")+".html", page, 0o644)
	}
	return errors.Join(err, os.WriteFile(file, d.out.Bytes(), 0o644))
}

// share is how much of the time that was seen went to some parts, in percent.
func (d *diagnosis) share(names ...string) float64 {
	sum := 0.0
	for _, p := range d.Breakdown {
		if slices.Contains(names, p.Name) {
			sum += 100 * p.Share
		}
	}
	return sum
}

// part is ms a transaction, and the sessions in it on average.
func (d *diagnosis) part(names ...string) (ms, sessions float64) {
	for _, p := range d.Breakdown {
		for _, n := range names {
			if p.Name == n {
				sessions += p.Sessions
				if p.Ms != nil {
					ms += *p.Ms
				}
			}
		}
	}
	return ms, sessions
}

// into puts the parts of a transaction into a cell's metrics. mean is its latency
// by pgbench, in ms, which their sum is held against.
func (d *diagnosis) into(m map[string]float64, mean float64, clients int) {
	if d.Ms == nil || mean <= 0 {
		return // too little was seen
	}
	put := func(name string, parts ...string) { m[name], _ = d.part(parts...) }
	put("page_read_ms", diagnose.PageReads)
	put("commit_flush_ms", diagnose.CommitFlush)
	put("replication_ms", diagnose.Replication)
	put("lock_ms", diagnose.RowLocks, diagnose.OtherLocks)
	put("cpu_ms", diagnose.CPU)
	put("data_write_ms", diagnose.DataWrites)
	put("client_ms", diagnose.Client)
	put("other_ms", diagnose.OtherWAL, diagnose.Unexplained)
	unnamed, _ := d.part(diagnose.Unexplained)
	m["explained_pct"] = 100 * (*d.Ms - unnamed) / mean
	_, reading := d.part(diagnose.PageReads)
	m["page_read_sessions_pct"] = 100 * reading / float64(clients)
	m["wait_samples"] = float64(d.Sampling.Samples)
	m["diagnose_core_pct"] = d.Sampling.CorePercent
	set := func(name string, v *float64, times float64) {
		if v != nil {
			m[name] = *v * times
		}
	}
	set("wal_flush_ms", d.Storage.FlushMs, 1)
	set("page_ms", d.Storage.ReadMs, 1)
	set("buffer_hit_pct", d.Rates.HitRatio, 100)
	set("page_reads_per_tx", d.Rates.ReadsPerTx, 1)
	if d.Host != nil {
		set("busy_pct", d.Host.BusyPercent, 1)
	}
	if d.Host != nil && d.Seconds > 0 {
		set("server_cores", d.Host.ServerCPU, 1/d.Seconds)
	}
	own, err := disk.ByName(d.env.Disk)
	for _, n := range disk.NamedDisks() {
		if err != nil || n.Timing.Flush.Median == 0 || n.Timing.Flush.Median >= own.Timing.Flush.Median {
			continue // no faster one
		}
		if p, ok := diagnose.Predict(d.Diagnosis, onDisk(n)); ok {
			m[WhatIfMetric(n.Name)] = p.Ms
		}
	}
}

// WhatIfMetric is the metric of what a transaction would take on a named disk, in
// ms, predicted from a diagnosis on another.
func WhatIfMetric(disk string) string {
	return "whatif_" + strings.ReplaceAll(disk, "-", "_") + "_ms"
}

// callMs is what a call to the simulated disk costs besides its own latency, in ms.
const callMs = 0.05

// onDisk is a named disk as a prediction takes it.
func onDisk(n disk.Named) diagnose.Disk {
	ms := func(l disk.Latency) float64 { return float64(l.Median)/float64(time.Millisecond) + callMs }
	return diagnose.Disk{Name: n.Name, FlushMs: ms(n.Timing.Flush), ReadMs: ms(n.Timing.Read)}
}
