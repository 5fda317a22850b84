package experiment

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"strconv"
	"time"

	"github.com/holdfast-db/holdfast/internal/disk"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/pgbench"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

const (
	// mbPerScale is what pgbench's accounts and their index take for each unit of
	// scale, in MB of 2^20 bytes.
	mbPerScale = 14.95
	// memoryMB is small, so that filling a table of so many times it takes a
	// minute; it leaves 64 sessions and a quarter of buffers some room for a cache.
	memoryMB = 256
)

// stage is a server whose memory is small against its data, and whose disk is
// filled as fast as it goes and then takes its time.
type stage struct {
	env     Env
	host    place.Host
	pg      *postgres.Instance
	restart func(context.Context) error
	memory  int64 // bytes
}

// scaleFor is the scale at which the table is so many times the memory.
func scaleFor(memoryMB int, dataToRAM float64) int {
	return max(1, int(math.Ceil(float64(memoryMB)*dataToRAM/mbPerScale)))
}

// errNoStage says why a host cannot be one.
var errNoStage = errors.New("cannot be measured here")

func newStage(env Env, memoryMB int) (*stage, error) {
	db, ok := env.System.(setup.SQL)
	if !ok {
		return nil, fmt.Errorf("setup %s has no Postgres that could be loaded", env.Kind.Name)
	}
	h, err := primary(env)
	if err != nil {
		return nil, err
	}
	op, ok := env.System.(setup.Operated)
	if !ok {
		return nil, fmt.Errorf("setup %s cannot be restarted", env.Kind.Name)
	}
	restart := func(ctx context.Context) error {
		_, _, err := op.Restart(ctx)
		return err
	}
	return stageOn(env, h, db.Instance(), restart, memoryMB)
}

func stageOn(env Env, h place.Host, pg *postgres.Instance, restart func(context.Context) error, memoryMB int) (*stage, error) {
	if _, ok := h.(place.MemoryLimiter); !ok {
		return nil, fmt.Errorf("%w: the memory of host %s cannot be limited", errNoStage, h.Name())
	}
	return &stage{env: env, host: h, pg: pg, restart: restart, memory: int64(memoryMB) << 20}, nil
}

// quick takes the time out of the disk while do runs. It is for what is made
// before anything is measured.
func (s *stage) quick(ctx context.Context, do func() error) (err error) {
	d, ok := s.host.(place.DiskController)
	if !ok {
		return do()
	}
	if err := d.SetDisk(ctx, map[string]string{"disk": "null"}); err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, d.SyncDisk(ctx), d.SetDisk(ctx, map[string]string{"disk": s.env.Disk}))
	}()
	return do()
}

// fill makes pgbench's tables, once for each deployment.
func (s *stage) fill(ctx context.Context, scale int) error {
	const q = "SELECT CASE WHEN to_regclass('pgbench_branches') IS NULL THEN 0 ELSE (xpath('/row/n/text()', query_to_xml('SELECT count(*) AS n FROM pgbench_branches', false, true, '')))[1]::text::int END::text"
	have, err := s.pg.QueryText(ctx, q)
	if err != nil {
		return err
	}
	if have == strconv.Itoa(scale) {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, initDeadline, fmt.Errorf("not within %s", initDeadline))
	defer cancel()
	return s.quick(ctx, func() error {
		s.env.Live(fmt.Sprintf("filling pgbench's tables, %.0f MB", float64(scale)*mbPerScale))
		cfg := pgbench.Config{Host: s.pg.SockDir, Port: s.pg.Port, User: s.pg.User, Database: "postgres"}
		_, err := s.host.Run(ctx, place.Cmd{Path: path.Join(s.env.BinDir, "pgbench"), Args: pgbench.InitArgs(cfg, scale), Env: s.pg.ClientEnv()})
		if err != nil {
			return fmt.Errorf("fill pgbench's tables: %w", err)
		}
		return s.pg.Exec(ctx, "CHECKPOINT")
	})
}

// begin sets the server up for a machine of so little memory, restarts it there,
// and returns what undoes all that.
func (s *stage) begin(ctx context.Context, more postgres.Settings) (end func() error, err error) {
	limit := s.host.(place.MemoryLimiter)
	end = func() error {
		ctx := context.WithoutCancel(ctx)
		errs := []error{limit.LimitMemory(ctx, 0), s.writeBack(ctx, disk.DefaultDirtyLimit)}
		if err := s.pg.Exec(ctx, "ALTER SYSTEM RESET ALL"); err != nil {
			return errors.Join(append(errs, err)...)
		}
		return errors.Join(append(errs, s.restart(ctx))...)
	}
	settings := postgres.Settings{
		// A quarter, as published, and as is usual.
		"shared_buffers": strconv.FormatInt(s.memory>>22, 10) + "MB",
		"wal_buffers":    "16MB", "max_wal_size": "16GB", "checkpoint_timeout": "30min",
		"autovacuum": "off", "track_io_timing": "on",
		// Programs that write to one file of the simulated disk wait for each other.
		// One writer that is early keeps that from the sessions.
		"bgwriter_delay": "10ms", "bgwriter_lru_maxpages": "1000", "bgwriter_lru_multiplier": "4",
	}
	for k, v := range more {
		settings[k] = v
	}
	if have, err := s.pg.QueryText(ctx, "SELECT count(*)::text FROM pg_settings WHERE name = 'track_wal_io_timing'"); err != nil {
		return nil, err
	} else if have == "1" { // from PostgreSQL 14 on
		settings["track_wal_io_timing"] = "on"
	}
	var sql []string
	for k, v := range settings {
		sql = append(sql, fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", k, v))
	}
	s.env.Live("restarting with little memory")
	if err = s.pg.Exec(ctx, sql...); err == nil {
		err = s.restart(ctx)
	}
	if err == nil {
		err = limit.LimitMemory(ctx, s.memory)
	}
	if err == nil {
		err = s.earlyWriteBack(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return end, nil
}

// earlyWriteBack has a disk with a cap write back as early as Linux does by
// default (vm.dirty_background_ratio is a tenth of memory), so that a short load
// meets what a long one does: writes that share the cap with reads. Elsewhere
// nobody would notice but by the moments that it takes.
func (s *stage) earlyWriteBack(ctx context.Context) error {
	kind, err := disk.ByName(s.env.Disk)
	if err != nil || kind.Timing.IOPS.Rate == 0 && kind.Timing.Bytes.Rate == 0 {
		return err
	}
	return s.writeBack(ctx, s.memory/10)
}

// writeBack bounds how much a simulated disk holds before it writes back.
func (s *stage) writeBack(ctx context.Context, bytes int64) error {
	d, ok := s.host.(place.DiskController)
	if !ok {
		return nil
	}
	return d.SetDisk(ctx, map[string]string{"dirty_limit": strconv.FormatInt(bytes, 10)})
}

// prompt is a host whose load generator does not queue for processors behind
// the server: it stands for a machine of its own.
type prompt struct{ place.Host }

func (p prompt) Start(ctx context.Context, c place.Cmd) (place.Process, error) {
	c.Args = append([]string{"-n", "-10", c.Path}, c.Args...)
	c.Path, c.Root = "/usr/bin/nice", true
	return p.Host.Start(ctx, c)
}

// diskCounts reads a disk's counters while a load runs.
func diskCounts(ctx context.Context, h place.Host) *observer {
	o := &observer{began: time.Now(), first: time.Now(), ended: make(chan error, 2)}
	o.disk, _ = h.(place.DiskStatser)
	ctx, o.cancel = context.WithCancel(ctx)
	go func() { o.ended <- o.countOn(ctx) }()
	o.ended <- nil
	return o
}

// perSecond is how fast one of the disk's counters grew.
func (o *observer) perSecond(name string) (float64, bool) {
	if len(o.samples) < 2 {
		return 0, false
	}
	a, b := o.samples[0], o.samples[len(o.samples)-1]
	took := b.at.Sub(a.at).Seconds()
	return (b.stats[name] - a.stats[name]) / took, took > 0
}
