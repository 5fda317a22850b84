package experiment

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/result"
)

// TestLooks: sessions seen in a wait become ms per transaction, by number of
// sessions and throughput alone; few looks say nothing.
func TestLooks(t *testing.T) {
	// Eight sessions at 4,000 a second: 2 ms each. Half of all waited for a
	// flush, a quarter for a standby.
	l := looks{n: 1000, sessions: 8000, flush: 4000, replication: 2000, lock: 80}
	m := l.metrics(4000)
	for name, want := range map[string]float64{"commit_flush_ms": 1, "replication_ms": 0.5, "lock_ms": 0.02, "page_read_ms": 0, "wait_samples": 1000} {
		if got, ok := m[name]; !ok || math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if m := (looks{n: fewestLooks - 1, sessions: 99, flush: 50}).metrics(1000); m != nil {
		t.Errorf("from few looks: %v", m)
	}
	if m := l.metrics(0); m != nil {
		t.Errorf("without throughput: %v", m)
	}
}

func TestDiskSeries(t *testing.T) {
	zero := time.Unix(1000, 0)
	at := func(s, ops, flushes, total float64) diskSample {
		return diskSample{zero.Add(time.Duration(s * float64(time.Second))), map[string]float64{
			"device_reads": ops / 2, "writebacks": ops / 4, "flush_batches": ops / 4, "flushes": flushes, "flush_total_ms": total, "write_bytes": ops * 8192,
		}}
	}
	samples := []diskSample{at(-0.5, 0, 0, 0), at(0.5, 100, 50, 100), at(1.5, 1100, 550, 200), at(3.5, 5100, 2550, 1200)}
	got := diskSeries(samples, zero)
	want := []result.DiskSecond{{T: 0.5, Ops: 1000, Flushes: 500, Bytes: 8192000}, {T: 1.5, Ops: 2000, Flushes: 1000, Bytes: 16384000}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%+v, want %+v", got, want)
	}
	if ms, ok := meanFlush(samples, zero); !ok || math.Abs(ms-1100.0/2500) > 1e-9 {
		t.Errorf("a flush took %v ms, want 0.44", ms)
	}
	if _, ok := meanFlush(samples[:2], zero); ok {
		t.Error("one sample within the load gives a mean")
	}
}

// TestDiskWithACap: its own count of what is charged against the cap goes before ours.
func TestDiskWithACap(t *testing.T) {
	zero := time.Unix(1000, 0)
	o := &observer{first: zero}
	for s := range 3 {
		o.samples = append(o.samples, diskSample{zero.Add(time.Duration(s) * time.Second), map[string]float64{
			"io_operations": float64(s) * 2900, "flush_batches": float64(s) * 500, "iops_set": 3000,
		}})
	}
	c := result.Cell{Metrics: map[string]float64{}}
	o.addTo(&c)
	if c.Metrics["disk_iops"] != 2900 || c.Metrics["disk_iops_max"] != 2900 || c.Metrics["disk_iops_cap"] != 3000 {
		t.Errorf("%v", c.Metrics)
	}
}

// TestDiskWithoutCounters: a disk that keeps none is no error, and adds nothing.
func TestDiskWithoutCounters(t *testing.T) {
	o := &observer{}
	if err := o.countOn(context.Background()); err != nil {
		t.Error(err)
	}
	c := result.Cell{Metrics: map[string]float64{"tps": 100}}
	o.addTo(&c)
	if len(c.Metrics) != 1 || c.DiskSeries != nil {
		t.Errorf("added %v", c)
	}
}
