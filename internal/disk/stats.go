package disk

import "sync/atomic"

// counters are the disk's own, over all its sessions.
type counters struct {
	reads, readBytes, deviceReads   atomic.Int64
	writes, writeBytes              atomic.Int64
	fsyncs, fdatasyncs, dirFsyncs   atomic.Int64
	metadata, commits, journalBytes atomic.Int64
	writebacks, writebackBytes      atomic.Int64
	stalls, cuts                    atomic.Int64
	droppedBytes, droppedOps        atomic.Int64
	failedWritebacks, failedBytes   atomic.Int64
	fulls                           atomic.Int64
	backOps, backBytes              atomic.Int64 // see Background
}

// Stats returns the disk's counters by name. Bytes end in _bytes; all others
// are counts.
func (d *Disk) Stats() map[string]float64 {
	c := &d.stats
	m := map[string]float64{
		"reads": float64(c.reads.Load()), "read_bytes": float64(c.readBytes.Load()), "device_reads": float64(c.deviceReads.Load()),
		"writes": float64(c.writes.Load()), "write_bytes": float64(c.writeBytes.Load()),
		"fsyncs": float64(c.fsyncs.Load()), "fdatasyncs": float64(c.fdatasyncs.Load()), "directory_fsyncs": float64(c.dirFsyncs.Load()),
		"metadata_operations": float64(c.metadata.Load()), "journal_commits": float64(c.commits.Load()), "journal_bytes": float64(c.journalBytes.Load()),
		"writebacks": float64(c.writebacks.Load()), "writeback_bytes": float64(c.writebackBytes.Load()),
		"stalls": float64(c.stalls.Load()), "cuts": float64(c.cuts.Load()),
		"dropped_bytes": float64(c.droppedBytes.Load()), "dropped_operations": float64(c.droppedOps.Load()),
		"dirty_limit_bytes": float64(d.limit.Load()),
		"failed_writebacks": float64(c.failedWritebacks.Load()), "failed_bytes": float64(c.failedBytes.Load()),
		"no_space": float64(c.fulls.Load()),
	}
	bound, taken := d.Space()
	m["size_bytes"], m["used_bytes"] = float64(bound), float64(taken)
	if s := d.session.Load(); s != nil && !s.dead.Load() {
		m["dirty_bytes"] = float64(s.dirtyBytes.Load())
		s.logMu.Lock()
		m["metadata_log"] = float64(len(s.log))
		s.logMu.Unlock()
	}
	return m
}
