package experiment

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

// ticksPerSecond is USER_HZ, in which /proc counts processor time: 100 on every
// architecture that Linux's ABI fixes (proc(5)).
const ticksPerSecond = 100

// hostsOf are all hosts of a setup.
func hostsOf(env Env) []place.Host {
	c, ok := env.System.(setup.Cluster)
	if !ok {
		return nil
	}
	return append([]place.Host{c.Primary()}, c.Standbys()...)
}

// cpuSeconds is the processor time that the servers of all hosts have used,
// those of their processes included that have ended.
func cpuSeconds(ctx context.Context, hosts []place.Host) (float64, error) {
	var ticks uint64
	for _, h := range hosts {
		out, err := onRoot(ctx, h, "cat /proc/[0-9]*/stat 2>/dev/null; true")
		if err != nil {
			return 0, fmt.Errorf("read the processor time of %s: %w", h.Name(), err)
		}
		n, err := sumTicks(out, "postgres")
		if err != nil {
			return 0, fmt.Errorf("read the processor time of %s: %w", h.Name(), err)
		}
		ticks += n
	}
	return float64(ticks) / ticksPerSecond, nil
}

// sumTicks adds utime, stime, cutime and cstime (fields 14 to 17 of
// /proc/PID/stat) of the programs of one name.
func sumTicks(stats []byte, comm string) (uint64, error) {
	var sum uint64
	lines := bufio.NewScanner(bytes.NewReader(stats))
	for lines.Scan() {
		line := lines.Text()
		open, shut := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
		if open < 0 || shut < open {
			return 0, fmt.Errorf("no process: %.40q", line)
		}
		if line[open+1:shut] != comm {
			continue
		}
		fields := strings.Fields(line[shut+1:])
		if len(fields) < 15 {
			return 0, fmt.Errorf("too few fields: %.80q", line)
		}
		for _, f := range fields[11:15] {
			n, err := strconv.ParseUint(f, 10, 63)
			if err != nil {
				return 0, fmt.Errorf("processor time %q: %w", f, err)
			}
			sum += n
		}
	}
	return sum, lines.Err()
}

// memory is what the servers of all hosts hold, in MB, pages that several
// processes share counted once (Pss of /proc/PID/smaps_rollup).
func memory(ctx context.Context, hosts []place.Host) (float64, error) {
	var kb uint64
	for _, h := range hosts {
		out, err := onRoot(ctx, h, `for p in /proc/[0-9]*; do [ "$(cat $p/comm 2>/dev/null)" = postgres ] && grep '^Pss:' $p/smaps_rollup 2>/dev/null; done; true`)
		if err != nil {
			return 0, fmt.Errorf("read the memory of %s: %w", h.Name(), err)
		}
		n, err := sumPss(out)
		if err != nil {
			return 0, fmt.Errorf("read the memory of %s: %w", h.Name(), err)
		}
		kb += n
	}
	return float64(kb) * 1024 / 1e6, nil
}

func sumPss(out []byte) (uint64, error) {
	var sum uint64
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 3 || f[0] != "Pss:" || f[2] != "kB" {
			return 0, fmt.Errorf("no Pss: %.40q", lines.Text())
		}
		n, err := strconv.ParseUint(f[1], 10, 63)
		if err != nil {
			return 0, fmt.Errorf("memory %q: %w", f[1], err)
		}
		sum += n
	}
	return sum, lines.Err()
}

// diskBytes is what all data directories take.
func diskBytes(ctx context.Context, hosts []place.Host) (float64, error) {
	var sum float64
	for _, h := range hosts {
		out, err := h.Run(ctx, place.Cmd{Path: "/usr/bin/du", Args: []string{"-s", "-B1", h.DataDir()}})
		if err != nil {
			return 0, fmt.Errorf("read what the disk of %s holds: %w", h.Name(), err)
		}
		size, _, _ := strings.Cut(string(out), "\t")
		n, err := strconv.ParseFloat(size, 64)
		if err != nil {
			return 0, fmt.Errorf("read what the disk of %s holds: %w", h.Name(), err)
		}
		sum += n
	}
	return sum, nil
}

func onRoot(ctx context.Context, h place.Host, script string) ([]byte, error) {
	return h.Run(ctx, place.Cmd{Path: "/bin/sh", Args: []string{"-c", script}, Root: true, Dir: "/"})
}

// meter takes what a run costs its setup besides time.
type meter struct {
	hosts   []place.Host
	pg      *postgres.Instance
	before  float64
	counted counters
	flushes float64 // of the primary's disk
	flushMs float64
	memory  chan measured
	stop    context.CancelFunc
}

type measured struct {
	mb  float64
	err error
}

// startMeter begins before the load, and looks at the memory in its middle.
func startMeter(ctx context.Context, env Env, pg *postgres.Instance, load time.Duration) (*meter, error) {
	m := &meter{hosts: hostsOf(env), pg: pg, memory: make(chan measured, 1)}
	var err error
	if m.counted, err = readCounters(ctx, pg); err != nil {
		return nil, err
	}
	if len(m.hosts) > 0 {
		m.flushes, m.flushMs, _ = flushed(ctx, m.hosts[0])
	}
	if m.before, err = cpuSeconds(ctx, m.hosts); err != nil {
		return nil, err
	}
	ctx, m.stop = context.WithCancel(ctx)
	go func() {
		select {
		case <-time.After(load / 2):
			mb, err := memory(ctx, m.hosts)
			m.memory <- measured{mb, err}
		case <-ctx.Done():
			m.memory <- measured{err: context.Cause(ctx)}
		}
	}()
	return m, nil
}

// metrics are rss_mb, cpu_s_per_1000 and disk_bytes of the whole setup, and
// what its primary and that one's disk counted.
func (m *meter) metrics(ctx context.Context, transactions int64) (map[string]float64, error) {
	now, err := readCounters(ctx, m.pg)
	if err != nil {
		return nil, err
	}
	cpu, err := cpuSeconds(ctx, m.hosts)
	mem := <-m.memory
	disk, err2 := diskBytes(ctx, m.hosts)
	if err := errors.Join(err, mem.err, err2); err != nil {
		return nil, err
	}
	out := map[string]float64{"rss_mb": mem.mb, "disk_bytes": disk}
	if transactions > 0 {
		out["cpu_s_per_1000"] = (cpu - m.before) / float64(transactions) * 1000
	}
	maps.Copy(out, now.since(m.counted, transactions))
	if len(m.hosts) > 0 {
		if n, ms, ok := flushed(ctx, m.hosts[0]); ok && n > m.flushes {
			out["disk_flush_mean_ms"] = (ms - m.flushMs) / (n - m.flushes)
		}
	}
	return out, nil
}
