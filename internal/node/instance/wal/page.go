package wal

import (
	"encoding/binary"
	"fmt"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// What every supported server (13 to 18) has in common: the headers of pages and
// records did not change, and blocks of WAL have 8 kB on every packaged build.
const (
	blockSize   = 8192
	shortHeader = 24
	longHeader  = 40
	headerSize  = 24 // of a record
	maxRecord   = 1 << 30

	firstIsContinued = 1 << 0
	hasLongHeader    = 1 << 1
	firstOverwrites  = 1 << 3

	rmXLOG     = 0
	xlogSwitch = 0x40
)

var order = binary.LittleEndian

// page is the header of one block of WAL.
type page struct {
	magic    uint16
	info     uint16
	timeline cluster.Timeline
	addr     cluster.LSN
	rest     uint32 // bytes of the record that began on an earlier page
	system   uint64 // long headers only, as are the following
	segSize  uint32
	block    uint32
}

func (p page) size() int {
	if p.info&hasLongHeader != 0 {
		return longHeader
	}
	return shortHeader
}

// parsePage reads the header of a page from its first bytes.
func parsePage(b []byte) (page, error) {
	if len(b) < shortHeader {
		return page{}, fmt.Errorf("page of %d bytes is too short for its header", len(b))
	}
	p := page{
		magic: order.Uint16(b), info: order.Uint16(b[2:]), timeline: cluster.Timeline(order.Uint32(b[4:])),
		addr: cluster.LSN(order.Uint64(b[8:])), rest: order.Uint32(b[16:]),
	}
	// D106 is version 13; each major since took the next number or a few more.
	if p.magic < 0xD106 || p.magic > 0xD1FF {
		return page{}, fmt.Errorf("page magic %#x is not one of versions 13 to 18", p.magic)
	}
	if p.info&hasLongHeader != 0 {
		if len(b) < longHeader {
			return page{}, fmt.Errorf("page of %d bytes is too short for a long header", len(b))
		}
		p.system, p.segSize, p.block = order.Uint64(b[24:]), order.Uint32(b[32:]), order.Uint32(b[36:])
		if p.block != blockSize {
			return page{}, fmt.Errorf("WAL blocks of %d bytes: only servers built with %d are supported", p.block, blockSize)
		}
		if p.segSize < 1<<20 || p.segSize > 1<<30 || p.segSize&(p.segSize-1) != 0 {
			return page{}, fmt.Errorf("WAL segments of %d bytes are not possible", p.segSize)
		}
	}
	return p, nil
}

// first is where the first record that begins on this page begins, relative to
// the page; blockSize or more if none does.
func (p page) first() int {
	if p.info&firstIsContinued == 0 {
		return p.size()
	}
	return p.size() + int(align(uint64(p.rest)))
}

// Text is an LSN as Postgres writes it.
func Text(l cluster.LSN) string { return fmt.Sprintf("%X/%X", uint64(l)>>32, uint32(l)) }

// align rounds up to 8 bytes, at which every record begins.
func align(n uint64) uint64 { return (n + 7) &^ 7 }

// header is that of one record.
type header struct {
	total uint32 // bytes, header included
	prev  cluster.LSN
	info  uint8
	rmgr  uint8
	crc   uint32
}

// parseHeader reads a record's header and checks what can be checked without
// its contents. at is where it begins; prev, unless 0, where the one before did.
func parseHeader(b []byte, at, prev cluster.LSN) (header, error) {
	h := header{total: order.Uint32(b), prev: cluster.LSN(order.Uint64(b[8:])), info: b[16], rmgr: b[17], crc: order.Uint32(b[20:])}
	if h.total < headerSize || h.total > maxRecord {
		return h, fmt.Errorf("record length %d at %s is not possible", h.total, Text(at))
	}
	if prev != 0 && h.prev != prev || h.prev >= at {
		return h, fmt.Errorf("record at %s names %s as the one before it", Text(at), Text(h.prev))
	}
	return h, nil
}
