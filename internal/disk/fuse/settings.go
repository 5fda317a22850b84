package fuse

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-db/holdfast/internal/disk"
)

// Stats returns the disk's own counters and latencies.
func (d *Drive) Stats() map[string]float64 {
	m := d.disk.Stats()
	m["flushes"] = float64(d.flushes.Count())
	m["flush_batches"] = float64(d.batches.Load())
	ms := func(t time.Duration) float64 { return float64(t.Microseconds()) / 1000 }
	if d.flushes.Count() > 0 {
		m["flush_mean_ms"] = ms(d.flushes.Mean())
		m["flush_p50_ms"] = ms(d.flushes.Quantile(0.5))
		m["flush_p99_ms"] = ms(d.flushes.Quantile(0.99))
		m["flush_p999_ms"] = ms(d.flushes.Quantile(0.999))
	}
	t := d.timing.Load()
	m["flush_set_ms"], m["read_set_ms"], m["write_set_ms"] = ms(t.Flush.Median), ms(t.Read.Median), ms(t.Write.Median)
	m["on"] = 1
	if d.fs.Load().s.Dead() {
		m["on"] = 0
	}
	return m
}

// Set changes settings: flush_ms, read_ms, write_ms (medians), flush_spread,
// flush_tail, flush_tail_mul, disk (all latencies of a named disk), crash,
// dirty_limit (bytes). Either all of them or, on an error, none.
func (d *Drive) Set(values map[string]string) error {
	d.power.Lock()
	defer d.power.Unlock()
	t := *d.timing.Load()
	policy, limit := d.disk.Policy(), d.disk.DirtyLimit()
	if name, ok := values["disk"]; ok {
		kind, err := disk.ByName(name)
		if err != nil {
			return err
		}
		t = kind.Timing
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		v := values[key]
		var err error
		switch key {
		case "disk":
		case "flush_ms":
			err = setMillis(&t.Flush.Median, v)
		case "read_ms":
			err = setMillis(&t.Read.Median, v)
		case "write_ms":
			err = setMillis(&t.Write.Median, v)
		case "flush_spread":
			err = setFloat(&t.Flush.Spread, v, 3)
		case "flush_tail":
			err = setFloat(&t.Flush.Tail, v, 1)
		case "flush_tail_mul":
			err = setFloat(&t.Flush.TailMul, v, 1e6)
		case "crash":
			policy, err = disk.ParsePolicy(v)
		case "dirty_limit":
			if limit, err = strconv.ParseInt(v, 10, 64); err != nil || limit < 1<<20 {
				err = errors.New("want bytes, at least 1048576")
			}
		default:
			err = errors.New("no such setting")
		}
		if err != nil {
			return fmt.Errorf("set %s=%s: %w", key, v, err)
		}
	}
	d.timing.Store(&t)
	if err := d.disk.SetPolicy(policy); err != nil {
		return err
	}
	d.disk.SetDirtyLimit(limit)
	return nil
}

func setMillis(d *time.Duration, v string) error {
	var ms float64
	if err := setFloat(&ms, v, 1e6); err != nil {
		return err
	}
	*d = time.Duration(ms * float64(time.Millisecond))
	return nil
}

func setFloat(f *float64, v string, limit float64) error {
	x, err := strconv.ParseFloat(v, 64)
	if err != nil || !(x >= 0 && x <= limit) {
		return fmt.Errorf("want a number from 0 to %g", limit)
	}
	*f = x
	return nil
}
