package diagnose

import (
	"fmt"
	"math"
	"slices"
)

// crossCheck holds the sampled parts against the server's own counters.
func (a *assessor) crossCheck() {
	span := a.fullSpan()
	if !a.busy() || span <= 0 || len(a.d.Breakdown) == 0 {
		return
	}
	perTx := func(total float64) float64 { return total / span / a.tps }
	if a.e.setting("track_io_timing") == "on" {
		if v, ok := a.e.delta("pg_stat_database", nil, "blk_read_time"); ok {
			// The counters are those of all backends, so is what they are held against.
			a.compare(PageReads, perTx(v), 1000*a.underWay(pageReadEvents...)/a.tps, "pg_stat_database.blk_read_time", "")
		}
		if v, ok := a.e.delta("pg_stat_database", nil, "blk_write_time"); ok {
			a.compare(DataWrites, perTx(v), 1000*a.underWay("io:datafilewrite", "io:datafileextend")/a.tps, "pg_stat_database.blk_write_time", "")
		}
	}
	if _, timeMs, _, timed := a.walFlushes(); timed {
		a.compare(CommitFlush, perTx(timeMs), 1000*a.underWay("io:walsync")/a.tps, "wal_sync_time",
			"the leaders of group commits only; followers wait in a lock that has no clock")
	}
	if h := a.d.Host; h != nil && h.ServerCPUMs != nil {
		if p := a.part(CPU); p != nil && p.Ms != nil {
			c := &Counter{Ms: *h.ServerCPUMs, Seen: *p.Ms, Source: "processor time of the server's processes",
				Agrees: *h.ServerCPUMs <= *p.Ms*(1.25+2/math.Sqrt(float64(max(p.Samples, 1))))+0.05}
			if wait := *p.Ms - *h.ServerCPUMs; wait > 0.1**p.Ms {
				c.Note = fmt.Sprintf("the rest, %s ms, is waiting for a processor", figure(wait))
			} else if !c.Agrees {
				c.Note = "the server's other processes and the beginnings of sessions count here too"
			}
			p.Counter = c
		}
	}
	if v, ok := a.e.delta("pg_stat_database", nil, "active_time"); ok {
		own := ms(a.e.OwnQuery) // our own session is active while it asks
		a.d.CounterMs = ptr(round(perTx(max(v-own, 0)), 4))
	}
}

// compare adds a counter to a part. They agree within a fifth, and sampling
// cannot be closer than its own noise.
func (a *assessor) compare(part string, counter, seen float64, source, note string) {
	p := a.part(part)
	if p == nil || p.Ms == nil || counter < 0.005 && seen < 0.005 {
		return
	}
	hits := seen * a.tps / 1000 * float64(len(a.e.Samples))
	noise := 2 / math.Sqrt(max(hits, 1)) // of a count, at two standard errors
	tolerance := max(0.2, noise)*max(counter, seen) + 0.01
	c := &Counter{Ms: round(counter, 4), Seen: round(seen, 4), Source: source, Agrees: math.Abs(counter-seen) <= tolerance, Note: note}
	if !c.Agrees && c.Note == "" {
		c.Note = "they disagree: trust the counter for the sum, the samples for who waited"
	}
	p.Counter = c
}

const statementsShown = 5

type statementDelta struct {
	id, query               string
	calls, total, io, reads float64
}

// statementDeltas are the statements that did the most I/O between the
// readings: by time where it is kept, by pages read where not, by time of execution else.
func statementDeltas(e *Evidence, most int) []statementDelta {
	if e.Begin == nil || e.End == nil {
		return nil
	}
	before := map[string]Row{}
	for _, r := range e.Begin.Views["pg_stat_statements"] {
		before[r.Text("id")] = r
	}
	var out []statementDelta
	for _, r := range e.End.Views["pg_stat_statements"] {
		old := before[r.Text("id")]
		diff := func(names ...string) float64 {
			b, _ := r.Num(names...)
			a, _ := old.Num(names...)
			if b < a {
				return b
			}
			return b - a
		}
		d := statementDelta{id: r.Text("queryid"), query: r.Text("query"), calls: diff("calls"), total: diff("total_exec_time"), reads: diff("shared_blks_read"),
			io: diff("shared_blk_read_time", "blk_read_time") + diff("shared_blk_write_time", "blk_write_time")}
		if d.calls > 0 {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(x, y statementDelta) int {
		for _, by := range [][2]float64{{x.io, y.io}, {x.reads, y.reads}, {x.total, y.total}} {
			if by[0] != by[1] {
				return int(sign(by[1] - by[0]))
			}
		}
		return 0
	})
	return out[:min(most, len(out))]
}

func statements(e *Evidence) []Statement {
	var out []Statement
	for _, d := range statementDeltas(e, statementsShown) {
		out = append(out, Statement{Query: d.query, Calls: d.calls, MeanMs: round(d.total/d.calls, 4), IOMs: round(d.io/d.calls, 4), Reads: round(d.reads/d.calls, 3)})
	}
	return out
}

// simulatedFS is how the kernel calls a disk of holdfast simdisk.
const simulatedFS = "fuse.holdfast"

// host works out the machine's share.
func (a *assessor) host() {
	h := a.e.Host
	if h == nil {
		return
	}
	out := &Host{Cores: h.Cores, Clock: h.Clock, SameDevice: h.SameDevice, CPULimit: h.CPULimit, MemoryLimit: h.MemoryLimit}
	a.d.Host = out
	out.Data, out.WAL = device(h.Data, h.Begin.Data, h.End.Data), device(h.WAL, h.Begin.WAL, h.End.WAL)
	for _, d := range []*Device{out.Data, out.WAL} {
		a.d.Simulated = a.d.Simulated || d != nil && d.FileSystem == simulatedFS
	}
	if out.Data != nil {
		out.Data.Plateau = a.plateau()
	}
	dt := (h.End.At - h.Begin.At).Seconds()
	if dt <= 0 {
		return
	}
	grew := func(b, e *float64) *float64 {
		if b == nil || e == nil || *e < *b {
			return nil
		}
		return ptr(*e - *b)
	}
	percent := func(b, e *float64, of float64) *float64 {
		if v := grew(b, e); v != nil && of > 0 {
			return ptr(round(100**v/of, 1))
		}
		return nil
	}
	out.CPUSeconds, out.ServerCPU = roundPtr(grew(h.Begin.Busy, h.End.Busy), 2), roundPtr(grew(h.Begin.Server, h.End.Server), 2)
	if all := grew(h.Begin.All, h.End.All); all != nil {
		out.BusyPercent, out.StealPercent, out.IOWait = percent(h.Begin.Busy, h.End.Busy, *all), percent(h.Begin.Steal, h.End.Steal, *all), percent(h.Begin.IOWait, h.End.IOWait, *all)
	}
	out.PSICPU, out.PSIIO, out.PSIMemory = percent(h.Begin.PSICPU, h.End.PSICPU, dt), percent(h.Begin.PSIIO, h.End.PSIIO, dt), percent(h.Begin.PSIMemory, h.End.PSIMemory, dt)
	out.Throttled = percent(h.Begin.Throttled, h.End.Throttled, dt)
	if a.busy() && out.ServerCPU != nil && *out.ServerCPU > 0 {
		out.ServerCPUMs = ptr(round(1000**out.ServerCPU/dt/a.tps, 4))
	}
}

func device(f DeviceFacts, b, e *DeviceCounters) *Device {
	if f.Path == "" {
		return nil
	}
	d := &Device{Path: f.Path, Device: f.Device, FileSystem: f.FileSystem, Options: f.Options}
	if b == nil || e == nil || e.At <= b.At {
		return d
	}
	dt := (e.At - b.At).Seconds()
	mean := func(n, spent float64) *float64 {
		if n < 1 || spent < 0 {
			return nil
		}
		return ptr(round(spent/n, 3))
	}
	d.ReadMs, d.WriteMs, d.FlushMs = mean(e.Reads-b.Reads, e.ReadMs-b.ReadMs), mean(e.Writes-b.Writes, e.WriteMs-b.WriteMs), mean(e.Flushes-b.Flushes, e.FlushMs-b.FlushMs)
	d.Util, d.Queue = ptr(round(min(1, (e.BusyMs-b.BusyMs)/1000/dt), 3)), ptr(round((e.QueueMs-b.QueueMs)/1000/dt, 2))
	d.IOPS = ptr(round((e.Reads+e.Writes+e.Flushes-b.Reads-b.Writes-b.Flushes)/dt, 1))
	d.MBps = ptr(round((e.Bytes-b.Bytes)/1e6/dt, 2))
	return d
}

// plateau says where a device's operations, or its throughput, stay level
// while requests queue for it: a cap.
func (a *assessor) plateau() string {
	var ops, mb, queue []float64
	for i := 1; i < len(a.e.Ticks); i++ {
		p, q := a.e.Ticks[i-1].Device, a.e.Ticks[i].Device
		if p == nil || q == nil || q.At-p.At <= 0 {
			continue
		}
		dt := (q.At - p.At).Seconds()
		if dt < 0.5 {
			continue
		}
		ops, mb = append(ops, (q.Reads+q.Writes-p.Reads-p.Writes)/dt), append(mb, (q.Bytes-p.Bytes)/1e6/dt)
		queue = append(queue, (q.QueueMs-p.QueueMs)/1000/dt)
	}
	if len(ops) < 8 {
		return ""
	}
	depth := slices.Clone(queue)
	slices.Sort(depth)
	if depth[len(depth)/4] < 2 {
		return "" // it was not asked for more than it did
	}
	for _, s := range []struct {
		v    []float64
		unit string
		from float64
	}{{ops, "operations a second", 50}, {mb, "MB/s", 10}} {
		v := slices.Clone(s.v)
		slices.Sort(v)
		lo, mid, hi := v[len(v)/10], v[len(v)/2], v[len(v)*9/10]
		if mid >= s.from && (hi-lo)/mid <= 0.06 {
			return fmt.Sprintf("level at %.0f %s while requests queued (%.1f on average): a cap", mid, s.unit, depth[len(depth)/2])
		}
	}
	return ""
}
