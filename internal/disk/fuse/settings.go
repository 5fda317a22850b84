package fuse

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/disk"
)

// Stats returns the disk's own counters and latencies.
func (d *Drive) Stats() map[string]float64 {
	m := d.disk.Stats()
	m["flushes"] = float64(d.flushes.Count())
	m["flush_batches"] = float64(d.batches.Load())
	ms := func(t time.Duration) float64 { return float64(t.Microseconds()) / 1000 }
	if n := d.flushes.Count(); n > 0 {
		m["flush_total_ms"] = float64(d.flushes.Mean().Nanoseconds()) * float64(n) / 1e6
		m["flush_mean_ms"] = ms(d.flushes.Mean())
		m["flush_p50_ms"] = ms(d.flushes.Quantile(0.5))
		m["flush_p99_ms"] = ms(d.flushes.Quantile(0.99))
		m["flush_p999_ms"] = ms(d.flushes.Quantile(0.999))
	}
	t := d.timing.Load()
	m["flush_set_ms"], m["read_set_ms"], m["write_set_ms"] = ms(t.Flush.Median), ms(t.Read.Median), ms(t.Write.Median)
	d.limitStats(m)
	m["on"] = 1
	if d.fs.Load().s.Dead() {
		m["on"] = 0
	}
	return m
}

// settings are what Set changes, before it is in force.
type settings struct {
	timing disk.Timing
	policy disk.Policy
	limit  int64
	space  int64
	hang   bool
	fail   int64 // -1: leave it
}

// setting changes one of the settings.
type setting func(s *settings, v string) error

// number is a setting between 0 and limit.
func number(to func(*settings) *float64, limit float64) setting {
	return func(s *settings, v string) error { return setFloat(to(s), v, limit) }
}

func millis(to func(*settings) *time.Duration) setting {
	return func(s *settings, v string) error { return setMillis(to(s), v) }
}

// megabytes is a setting in MB that is kept in bytes.
func megabytes(to func(*settings) *float64) setting {
	return func(s *settings, v string) error {
		err := setFloat(to(s), v, 1e9)
		*to(s) *= 1e6
		return err
	}
}

// allSettings is what `simdisk set` knows.
func allSettings() map[string]setting {
	return map[string]setting{
		"flush_ms":       millis(func(s *settings) *time.Duration { return &s.timing.Flush.Median }),
		"read_ms":        millis(func(s *settings) *time.Duration { return &s.timing.Read.Median }),
		"write_ms":       millis(func(s *settings) *time.Duration { return &s.timing.Write.Median }),
		"flush_spread":   number(func(s *settings) *float64 { return &s.timing.Flush.Spread }, 3),
		"flush_tail":     number(func(s *settings) *float64 { return &s.timing.Flush.Tail }, 1),
		"flush_tail_mul": number(func(s *settings) *float64 { return &s.timing.Flush.TailMul }, 1e6),
		"iops":           number(func(s *settings) *float64 { return &s.timing.IOPS.Rate }, 1e9),
		"iops_burst":     number(func(s *settings) *float64 { return &s.timing.IOPS.Burst }, 1e9),
		"iops_credit":    number(func(s *settings) *float64 { return &s.timing.IOPS.Credit }, 1e12),
		"mbps":           megabytes(func(s *settings) *float64 { return &s.timing.Bytes.Rate }),
		"mbps_burst":     megabytes(func(s *settings) *float64 { return &s.timing.Bytes.Burst }),
		"mb_credit":      megabytes(func(s *settings) *float64 { return &s.timing.Bytes.Credit }),
		"parallel": func(s *settings, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < 0 || n > 1<<16 {
				return errors.New("want a number of transfers at once, 0 for no limit")
			}
			s.timing.Parallel = n
			return nil
		},
		"crash": func(s *settings, v string) (err error) {
			s.policy, err = disk.ParsePolicy(v)
			return err
		},
		"dirty_limit": func(s *settings, v string) (err error) {
			if s.limit, err = strconv.ParseInt(v, 10, 64); err != nil || s.limit < 1<<20 {
				return errors.New("want bytes, at least 1048576")
			}
			return nil
		},
		"size": func(s *settings, v string) (err error) {
			s.space, err = ParseSize(v)
			return err
		},
		"hang": func(s *settings, v string) (err error) {
			if s.hang, err = strconv.ParseBool(v); err != nil {
				return errors.New("want true or false")
			}
			return nil
		},
		"fail_writebacks": func(s *settings, v string) (err error) {
			if s.fail, err = strconv.ParseInt(v, 10, 64); err != nil || s.fail < 0 {
				return errors.New("want how many write-backs are to fail")
			}
			return nil
		},
	}
}

// Settings lists the keys of Set.
func Settings() []string {
	return append([]string{"disk"}, slices.Sorted(maps.Keys(allSettings()))...)
}

// Set changes settings, see Settings: the latencies (medians in ms), the limits
// (iops, mbps and their bursts and credits, parallel), what fails (crash, hang,
// fail_writebacks, size), dirty_limit, and disk for all of a named disk's
// latencies and limits. Either all of them or, on an error, none.
func (d *Drive) Set(values map[string]string) error {
	d.power.Lock()
	defer d.power.Unlock()
	old := *d.timing.Load()
	space, _ := d.disk.Space()
	s := settings{timing: old, policy: d.disk.Policy(), limit: d.disk.DirtyLimit(), space: space, hang: d.hangs(), fail: -1}
	if name, ok := values["disk"]; ok {
		kind, err := disk.ByName(name)
		if err != nil {
			return err
		}
		s.timing = kind.Timing
	}
	all := allSettings()
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if key == "disk" {
			continue
		}
		set, ok := all[key]
		if !ok {
			return fmt.Errorf("set %s=%s: no such setting, use one of %s", key, values[key], strings.Join(Settings(), ", "))
		}
		if err := set(&s, values[key]); err != nil {
			return fmt.Errorf("set %s=%s: %w", key, values[key], err)
		}
	}
	if err := d.disk.SetPolicy(s.policy); err != nil {
		return fmt.Errorf("set crash=%s: make everything durable first: %w", s.policy, err)
	}
	d.timing.Store(&s.timing)
	d.disk.SetDirtyLimit(s.limit)
	d.disk.SetSpace(s.space)
	if s.fail >= 0 {
		d.disk.FailWriteBacks(s.fail)
	}
	d.limit(&old, &s.timing, s.hang)
	return nil
}

// ParseSize reads a size in bytes, with K, M, G or T for powers of 1024; 0 is
// no bound.
func ParseSize(v string) (int64, error) {
	const units = "KMGT"
	digits, shift := v, 0
	if n := len(v); n > 0 {
		if i := strings.IndexByte(units, v[n-1]); i >= 0 {
			digits, shift = v[:n-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift || n > 0 && n<<shift < 1<<20 {
		return 0, errors.New("want bytes, or a number with K, M, G or T; at least 1M, or 0 for no bound")
	}
	return n << shift, nil
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
