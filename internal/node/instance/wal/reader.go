package wal

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// How much of a segment is read at once: at first little, since most looks begin
// near the end.
const (
	firstChunk = 4 * blockSize
	nextChunks = 32 * blockSize
)

// errNoSegment: there is no file for a position, on any timeline of the path.
var errNoSegment = errors.New("no segment there")

// reader reads WAL along one history, from the files as they are now. Who writes
// to them meanwhile is noticed by what a record says of itself.
type reader struct {
	dir     string
	size    uint64 // of a segment
	magic   uint16
	system  uint64
	path    []cluster.Branch
	have    map[Segment]bool
	chunk   []byte
	chunkAt cluster.LSN
	held    int // bytes of chunk that are there
	file    *os.File
	seg     Segment
	used    map[Segment]bool
}

func (r *reader) close() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// segment is the file that Postgres would take for a position: the newest
// timeline of the path that had begun by the end of that segment.
func (r *reader) segment(at cluster.LSN) (Segment, bool) {
	n := uint64(at) / r.size
	for i := len(r.path) - 1; i >= 0; i-- {
		if uint64(r.path[i].Fork)/r.size > n {
			continue
		}
		if s := (Segment{r.path[i].Timeline, n}); r.have[s] {
			return s, true
		}
	}
	return Segment{}, false
}

// block returns the page at addr (a multiple of blockSize), which is valid until
// the next call, and its header. A page that was written for another position,
// cluster or history is an error.
func (r *reader) block(addr cluster.LSN) ([]byte, page, error) {
	if r.held == 0 || addr < r.chunkAt || uint64(addr-r.chunkAt)+blockSize > uint64(r.held) {
		if err := r.load(addr); err != nil {
			return nil, page{}, err
		}
	}
	b := r.chunk[addr-r.chunkAt:][:blockSize]
	p, err := parsePage(b)
	if err != nil {
		return nil, p, fmt.Errorf("page at %s: %w", Text(addr), err)
	}
	long := uint64(addr)%r.size == 0
	switch {
	case p.addr != addr:
		return nil, p, fmt.Errorf("page at %s was written for %s", Text(addr), Text(p.addr))
	case p.magic != r.magic:
		return nil, p, fmt.Errorf("page at %s is of another version", Text(addr))
	case long != (p.info&hasLongHeader != 0):
		return nil, p, fmt.Errorf("page at %s has the wrong kind of header", Text(addr))
	case long && (p.system != r.system || uint64(p.segSize) != r.size):
		return nil, p, fmt.Errorf("page at %s is of another cluster", Text(addr))
	case !r.onPath(p.timeline):
		return nil, p, fmt.Errorf("page at %s is of timeline %d", Text(addr), p.timeline)
	}
	return b, p, nil
}

func (r *reader) onPath(t cluster.Timeline) bool {
	for _, b := range r.path {
		if b.Timeline == t {
			return t <= r.seg.Timeline
		}
	}
	return false
}

func (r *reader) load(addr cluster.LSN) error {
	s, ok := r.segment(addr)
	if !ok {
		return fmt.Errorf("%s: %w", Text(addr), errNoSegment)
	}
	if r.file == nil || r.seg != s {
		r.close()
		f, err := os.Open(filepath.Join(r.dir, s.Name(r.size)))
		if err != nil {
			return err
		}
		r.file, r.seg, r.used[s] = f, s, true
	}
	switch len(r.chunk) {
	case 0:
		r.chunk = make([]byte, firstChunk)
	case firstChunk:
		r.chunk = make([]byte, nextChunks)
	}
	off := uint64(addr) % r.size
	n, err := r.file.ReadAt(r.chunk[:min(uint64(len(r.chunk)), r.size-off)], int64(off))
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read WAL: %w", err)
	}
	r.chunkAt, r.held = addr, n
	if n < blockSize {
		r.held = 0
		return fmt.Errorf("%s: the file ends before", Text(addr))
	}
	return nil
}

// record is one whole record with a right checksum.
type record struct {
	start, end cluster.LSN // end is where the next one may begin
	prev       cluster.LSN
}

// bad says why there is no whole record at a position.
type bad struct {
	at    cluster.LSN
	why   error
	until cluster.LSN // it says itself that it ends here; 0: it does not say
	// overwritten is the page at which a restarted server gave up a record that it
	// had not finished, and went on; 0: none.
	overwritten cluster.LSN
}

func (b *bad) Error() string { return b.why.Error() }
func (b *bad) Unwrap() error { return b.why }

// record reads the record that begins at position at, where the one before ended.
// prev is where that one began; 0: unknown. Its error is always a *bad.
func (r *reader) record(at, prev cluster.LSN) (record, error) {
	base := at &^ (blockSize - 1)
	b, p, err := r.block(base)
	if err != nil {
		return record{}, &bad{at: at, why: err}
	}
	off := int(at - base)
	switch {
	case off == 0 && p.info&firstIsContinued != 0:
		return record{}, &bad{at: at, why: fmt.Errorf("the page at %s goes on with a record that did not begin", Text(at))}
	case off == 0:
		off = p.size()
	case off < p.size() || off&7 != 0:
		return record{}, &bad{at: at, why: fmt.Errorf("no record can begin at %s", Text(at))}
	}
	start := base + cluster.LSN(off)
	total := order.Uint32(b[off:])
	if total < headerSize || total > maxRecord {
		return record{}, &bad{at: at, why: fmt.Errorf("record length %d at %s is not possible", total, Text(start))}
	}
	return r.body(start, prev, total, b[off:])
}

// body reads a record of total bytes from start on; rest is its first page's.
func (r *reader) body(start, prev cluster.LSN, total uint32, rest []byte) (record, error) {
	var head [headerSize]byte
	var h header
	crc, got := uint32(0), uint32(0)
	base := start &^ (blockSize - 1)
	var end cluster.LSN
	fail := &bad{at: start}
	for {
		part := rest[:min(uint32(len(rest)), total-got)]
		end = base + blockSize - cluster.LSN(len(rest)) + cluster.LSN(align(uint64(len(part))))
		if got < headerSize {
			n := copy(head[got:], part)
			part, got = part[n:], got+uint32(n)
			if got == headerSize {
				if h, fail.why = parseHeader(head[:], start, prev); fail.why != nil {
					return record{}, fail
				}
				fail.until = r.extent(start, total)
			}
		}
		crc, got = crc32.Update(crc, castagnoli, part), got+uint32(len(part))
		if got == total {
			break
		}
		base += blockSize
		b, p, err := r.block(base)
		switch {
		case err != nil:
			fail.why = fmt.Errorf("record at %s does not go on: %w", Text(start), err)
			return record{}, fail
		case p.info&firstOverwrites != 0:
			fail.overwritten = base
			fail.why = fmt.Errorf("record at %s was given up", Text(start))
			return record{}, fail
		case p.info&firstIsContinued == 0 || p.rest != total-got:
			fail.why = fmt.Errorf("record at %s does not go on at %s", Text(start), Text(base))
			return record{}, fail
		}
		rest = b[p.size():]
	}
	if crc32.Update(crc, castagnoli, head[:20]) != h.crc {
		fail.why = fmt.Errorf("record at %s has a wrong checksum", Text(start))
		return record{}, fail
	}
	if h.rmgr == rmXLOG && h.info&0xF0 == xlogSwitch && uint64(end)%r.size != 0 {
		end = cluster.LSN((uint64(end)/r.size + 1) * r.size) // the rest of the segment is left out
	}
	return record{start, end, h.prev}, nil
}

// extent is where a record of total bytes that begins at start ends.
func (r *reader) extent(start cluster.LSN, total uint32) cluster.LSN {
	left := align(uint64(total))
	at := start
	for {
		room := blockSize - uint64(at)%blockSize
		if left <= room {
			return at + cluster.LSN(left)
		}
		left -= room
		at += cluster.LSN(room)
		if uint64(at)%r.size == 0 {
			at += longHeader
		} else {
			at += shortHeader
		}
	}
}

// before finds a place before at where a record begins, by the headers of pages
// alone; least, where one begins, if none is found above it.
func (r *reader) before(at, least cluster.LSN) cluster.LSN {
	for base := (at - 1) &^ (blockSize - 1); base > least; base -= blockSize {
		_, p, err := r.block(base)
		if err != nil {
			return least // the rest of a segment may have been left out
		}
		if first := p.first(); first < blockSize && base+cluster.LSN(first) < at {
			return max(least, base+cluster.LSN(first))
		}
	}
	return least
}
