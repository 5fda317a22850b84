package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// deployment is a setup on hosts of its own, at a place of its own: nothing
// that happens to one can reach another.
type deployment struct {
	setup    config.Setup
	kind     setup.Kind
	place    place.Place
	hosts    []place.Host
	client   place.Host
	system   setup.System
	versions map[string]string
	running  bool
	logs     []io.Closer
}

const (
	deployDeadline = 5 * time.Minute
	switchDeadline = 2 * time.Minute
	endDeadline    = 30 * time.Second
)

func (r *Runner) deploy(ctx context.Context, p planned) (_ *deployment, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, deployDeadline, fmt.Errorf("not within %s", deployDeadline))
	defer cancel()
	pl, err := r.NewPlace(ctx)
	if err != nil {
		return nil, err
	}
	d := &deployment{setup: p.setup, kind: p.kind, place: pl, system: p.kind.New()}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.end(ctx))
		}
	}()
	r.deployed++
	specs := hostSpecs(p, r.Seed+uint64(r.deployed)*1000)
	hosts, err := pl.Acquire(ctx, specs)
	if err != nil {
		return nil, fmt.Errorf("get hosts: %w", err)
	}
	last := len(hosts) - 1
	d.hosts, d.client = hosts[:last], hosts[last]
	dir := filepath.Join(r.Out, "logs", fmt.Sprintf("%s-%s-%d", p.setup.Setup, p.setup.Disk, r.deployed))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	logs := map[string]io.Writer{}
	for _, h := range d.hosts {
		f, err := os.OpenFile(filepath.Join(dir, h.Name()+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return nil, err
		}
		d.logs = append(d.logs, f)
		logs[h.Name()] = f
	}
	env := setup.Env{Hosts: d.hosts, BinDir: r.BinDir, Log: func(h string) io.Writer { return logs[h] }, Trace: r.trace}
	if err := d.system.Deploy(ctx, env); err != nil {
		return nil, err
	}
	d.running = true
	if p.kind.Lying {
		if err := lie(ctx, d.hosts); err != nil {
			return nil, err
		}
	}
	d.versions, err = d.system.Versions(ctx)
	return d, err
}

func hostSpecs(p planned, seed uint64) []place.HostSpec {
	var specs []place.HostSpec
	for i := range p.kind.Hosts {
		specs = append(specs, place.HostSpec{
			Name: fmt.Sprintf("h%d", i+1), Disk: p.setup.Disk, Volume: place.VolumeKind(p.setup.Volume),
			Crash: p.setup.Crash, Seed: seed + uint64(i),
		})
	}
	return append(specs, place.HostSpec{Name: "client", Seed: seed + 100})
}

// lie makes disks acknowledge flushes and keep nothing from now on: what was
// deployed is on them, what is written from here on is not.
func lie(ctx context.Context, hosts []place.Host) error {
	for _, h := range hosts {
		d, ok := h.(place.DiskController)
		if !ok {
			return fmt.Errorf("host %s has no disk that can be made to lie", h.Name())
		}
		if err := d.SyncDisk(ctx); err != nil {
			return err
		}
		if err := d.SetDisk(ctx, map[string]string{"crash": "lying"}); err != nil {
			return err
		}
	}
	return nil
}

func (d *deployment) start(ctx context.Context) error {
	if d.running {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, switchDeadline, fmt.Errorf("not within %s", switchDeadline))
	defer cancel()
	if err := d.system.Start(ctx); err != nil {
		return fmt.Errorf("start %s: %w", d.setup.Setup, err)
	}
	d.running = true
	return nil
}

func (d *deployment) stop(ctx context.Context) error {
	if !d.running {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, switchDeadline, fmt.Errorf("not within %s", switchDeadline))
	defer cancel()
	d.running = false
	if err := d.system.Stop(ctx); err != nil {
		return fmt.Errorf("stop %s: %w", d.setup.Setup, err)
	}
	return nil
}

// end gives the hosts back, also when ctx has been cancelled.
func (d *deployment) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endDeadline)
	defer cancel()
	err := d.place.Release(ctx)
	for _, l := range d.logs {
		err = errors.Join(err, l.Close())
	}
	d.logs = nil
	return err
}
