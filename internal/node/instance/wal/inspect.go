// Package wal reads the WAL of a data directory as it lies there, whether its
// server runs or not: which timeline its last record is on, where that record
// ends, and how far replay can get. A record counts when all of it is there and
// its checksum is right; nothing is concluded from time or from pg_control.
package wal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// Options says what is known of the server besides its files.
type Options struct {
	// From has been replayed: reading begins a little before it. 0: where a start
	// of the server would begin to replay.
	From cluster.LSN
	// Received is what the server says that it has received and flushed; 0: unknown.
	// What cannot be read below it is broken, not unfinished.
	Received cluster.LSN
	// Live: a receiver writes at this moment. Nothing beyond Received counts, since
	// it may not be flushed yet.
	Live bool
	// Sync flushes what was read, so that all that is reported is on disk.
	Sync bool
	// Fresh: the host may have lost power since this was written. Records beyond a
	// gap in one segment may then be what never was flushed; they do not make the
	// gap a damage.
	Fresh bool
	// Debris is the end of such records as found before: up to here they prove nothing.
	Debris cluster.LSN
}

// Report is what a data directory holds.
type Report struct {
	Control
	History    []cluster.Branch // ends in the timeline of the last record
	End        cluster.LSN      // of the last whole record
	Replayable cluster.LSN      // below End: replay cannot get there
	Why        string           // what ends the reading at Replayable
	Start      cluster.LSN      // reading began here
	Last       cluster.LSN      // the last record before Replayable begins here
	Debris     cluster.LSN      // as in Options, for the next time
	SegSize    uint64
}

// Inspect reads what dataDir holds.
func Inspect(dataDir string, o Options) (Report, error) {
	ctl, err := ReadControl(dataDir)
	if err != nil {
		return Report{}, err
	}
	redo, base := ctl.Redo, ctl.Timeline
	if label, err := os.ReadFile(filepath.Join(dataDir, "backup_label")); err == nil {
		if at, t, ok := parseLabel(string(label)); ok && at <= redo {
			redo, base = at, t
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return Report{}, err
	}
	d, err := openDir(filepath.Join(dataDir, "pg_wal"), ctl.System)
	if err != nil {
		return Report{}, err
	}
	var first error
	for _, path := range d.paths(base, redo) {
		r := d.reader(path)
		rep, err := inspectPath(r, redo, o)
		if err == nil && o.Sync {
			err = d.flush(r.used, rep.Start)
		}
		r.close()
		if err == nil {
			rep.Control, rep.SegSize = ctl, d.size
			return rep, nil
		}
		first = errors.Join(first, err)
	}
	return Report{}, fmt.Errorf("WAL of %s: %w", dataDir, first)
}

// errEmpty: a history has no record of its last timeline.
var errEmpty = errors.New("no record of this timeline")

// inspectPath reads along one history. It is the right one if there is a record
// of its last timeline, or if it is that of the checkpoint.
func inspectPath(r *reader, redo cluster.LSN, o Options) (Report, error) {
	own := r.path[len(r.path)-1]
	start := redo
	if o.From > redo {
		start = r.before(o.From, redo)
	}
	limit := ^cluster.LSN(0)
	if o.Live {
		limit = max(o.Received, o.From)
	}
	s := r.scan(start, 0, limit)
	if s.records == 0 {
		return Report{}, fmt.Errorf("timeline %d: %w", own.Timeline, s.stop)
	}
	if s.last.start < own.Fork {
		return Report{}, fmt.Errorf("timeline %d: %w", own.Timeline, errEmpty)
	}
	rep := Report{History: r.path, End: s.end, Replayable: s.end, Start: start, Last: s.last.start, Debris: o.Debris}
	if s.stop != nil {
		rep.Why = s.stop.Error()
	}
	if !o.Live {
		r.judge(&rep, s, o)
	} else if s.stop != nil && s.stop.certain(limit) {
		rep.End = limit
	}
	return rep, nil
}

// judge tells the end of WAL from damage within it.
func (r *reader) judge(rep *Report, s scanned, o Options) {
	if s.stop == nil {
		return
	}
	if o.Received > s.end {
		if s.stop.certain(o.Received) {
			rep.End = max(o.Received, r.beyond(s.end))
		}
		return
	}
	if o.Received != 0 && o.Received >= s.last.end {
		return // all that was received can be read
	}
	far := r.beyond(s.end)
	switch {
	case far <= max(s.end, o.Debris):
	case o.Fresh && (uint64(far)-1)/r.size == uint64(s.end)/r.size:
		// A receiver, like a primary, flushes a segment before it begins the next:
		// within one, what lies beyond a gap may never have been flushed.
		rep.Debris = far
	default:
		rep.End = far
	}
}

// certain says whether the record should have been whole, given that all below
// received was there.
func (b *bad) certain(received cluster.LSN) bool {
	if b.until != 0 {
		return b.until <= received
	}
	return b.at+headerSize+longHeader <= received
}

// scanned is a run of records.
type scanned struct {
	records int
	last    record
	end     cluster.LSN
	stop    *bad // what ended it; nil: the limit
}

// scan reads records from start on until one is not whole, or ends beyond limit.
func (r *reader) scan(start, prev, limit cluster.LSN) scanned {
	s := scanned{end: start}
	at := start
	for {
		rec, err := r.record(at, prev)
		if err != nil {
			var b *bad
			errors.As(err, &b)
			if b.overwritten != 0 && b.overwritten < limit {
				// A restarted server gave this record up: reading goes on behind it.
				if _, p, err := r.block(b.overwritten); err == nil {
					at = b.overwritten + cluster.LSN(p.size())
					continue
				}
			}
			s.stop = b
			return s
		}
		if rec.end > limit {
			return s
		}
		s.records, s.last, s.end = s.records+1, rec, rec.end
		at, prev = rec.end, rec.start
	}
}

// beyond looks for whole records after a gap at position gap and returns the end
// of the last one; gap if there is none. Segments are reused without being
// cleared, so a record counts only where it says that those before it lie
// beyond the gap too.
func (r *reader) beyond(gap cluster.LSN) cluster.LSN {
	far := gap
	for at := (gap &^ (blockSize - 1)) + blockSize; ; {
		within := uint64(at) % r.size
		if within == 0 {
			if _, ok := r.segment(at); !ok {
				return far
			}
		}
		found := false
		if _, p, err := r.block(at); err == nil {
			if first := p.first(); first < blockSize {
				rec, err := r.record(at+cluster.LSN(first), 0)
				if first == p.size() && p.info&firstIsContinued == 0 {
					rec, err = r.record(at, 0)
				}
				if err == nil && rec.prev >= gap {
					s := r.scan(rec.end, rec.start, ^cluster.LSN(0))
					far, found = max(far, rec.end, s.end), true
					at = max(at, (far-1)&^(blockSize-1))
				}
			}
		} else if errors.Is(err, errNoSegment) {
			return far
		}
		at += blockSize
		// A segment that begins with nothing new was not begun.
		if !found && within >= 16*blockSize && uint64(at)/r.size > (uint64(max(far, gap))-1)/r.size {
			at = cluster.LSN((uint64(at)/r.size + 1) * r.size)
		}
	}
}

// dir is a listing of pg_wal.
type dir struct {
	path    string
	size    uint64
	magic   uint16
	system  uint64
	have    map[Segment]bool
	history map[cluster.Timeline][]cluster.Branch
}

func openDir(path string, system uint64) (*dir, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	d := &dir{path: path, system: system, have: map[Segment]bool{}, history: map[cluster.Timeline][]cluster.Branch{}}
	var names []string
	for _, e := range entries {
		name := e.Name()
		if len(name) == 24 {
			names = append(names, name)
		}
		var t uint32
		if n, err := fmt.Sscanf(name, "%08X.history", &t); n != 1 || err != nil || HistoryName(cluster.Timeline(t)) != name || t == 0 {
			continue
		}
		b, err := os.ReadFile(filepath.Join(path, name))
		if err != nil {
			return nil, err
		}
		h, reserved, err := ParseHistory(cluster.Timeline(t), b)
		if err == nil && !reserved {
			d.history[cluster.Timeline(t)] = h
		}
	}
	if err := d.form(names); err != nil {
		return nil, err
	}
	for _, name := range names {
		if s, ok := ParseSegment(name, d.size); ok {
			d.have[s] = true
			if s.Timeline == 1 {
				d.history[1] = []cluster.Branch{{Timeline: 1}}
			}
		}
	}
	return d, nil
}

// form finds the size of segments and the version from a segment of this cluster.
func (d *dir) form(names []string) error {
	slices.SortFunc(names, strings.Compare)
	for _, name := range slices.Backward(names) {
		f, err := os.Open(filepath.Join(d.path, name))
		if err != nil {
			continue // it may have been removed or renamed meanwhile
		}
		b := make([]byte, longHeader)
		_, err = f.ReadAt(b, 0)
		f.Close()
		if err != nil {
			continue
		}
		if p, err := parsePage(b); err == nil && p.info&hasLongHeader != 0 && p.system == d.system {
			d.size, d.magic = uint64(p.segSize), p.magic
			return nil
		}
	}
	return fmt.Errorf("%s: no segment of this cluster in it", d.path)
}

// paths returns the histories that the directory may be on, newest first: those
// of which there is WAL, and which the checkpoint at redo on timeline base lies on.
func (d *dir) paths(base cluster.Timeline, redo cluster.LSN) [][]cluster.Branch {
	with := map[cluster.Timeline]bool{}
	for s := range d.have {
		with[s.Timeline] = true
	}
	var out [][]cluster.Branch
	if h := d.history[base]; h != nil {
		out = append(out, h)
	} else {
		out = append(out, []cluster.Branch{{Timeline: base}})
	}
	for t, h := range d.history {
		if t <= base || !with[t] {
			continue
		}
		for i, b := range h[:len(h)-1] {
			if b.Timeline == base && redo <= h[i+1].Fork {
				out = append(out, h)
			}
		}
	}
	slices.SortFunc(out, func(a, b []cluster.Branch) int { return int(b[len(b)-1].Timeline) - int(a[len(a)-1].Timeline) })
	return out
}

func (d *dir) reader(path []cluster.Branch) *reader {
	return &reader{dir: d.path, size: d.size, magic: d.magic, system: d.system, path: path, have: d.have, used: map[Segment]bool{}}
}

// flush makes what was read durable, and the segment before where reading began.
func (d *dir) flush(used map[Segment]bool, start cluster.LSN) error {
	n := uint64(start) / d.size
	for s := range d.have {
		if !used[s] && s.Number+1 != n {
			continue
		}
		if err := syncFile(filepath.Join(d.path, s.Name(d.size))); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return syncFile(d.path)
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}
