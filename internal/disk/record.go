package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// op is the kind of a metadata record.
type op uint8

const (
	opFormat   op = iota + 1 // a: inode base, b: next inode number
	opInode                  // snapshot: an inode as it is, not yet named
	opEntry                  // snapshot: name in dir is ino
	opCreate                 // new inode ino, named name in dir (no name if dir is 0)
	opLink                   // one more name for ino
	opUnlink                 // a file's name goes; ino is the file
	opRmdir                  // a directory's name goes; ino is the directory
	opRename                 // dir/name (ino) to dir2/name2 (b: the inode there, or 0), flags
	opAttr                   // mask says which of attr's fields
	opTruncate               // size; pages beyond it are freed
	opPunch                  // pages of runs are freed
	opWritten                // pages of runs now hold data, size is at least size
	opDrop                   // an inode without a name is gone
	opLast     = opDrop
)

// Which attributes an opAttr record sets.
const (
	setMode uint32 = 1 << iota
	setUID
	setGID
	setAtime
	setMtime
	setCtime
	setAll = 1<<iota - 1
)

// record is one metadata operation. The durable and the live name space change
// only by applying records, so they cannot drift apart.
type record struct {
	op          op
	mask        uint32 // opAttr: set*; opRename: Rename*
	ino         uint64
	dir, dir2   uint64
	name, name2 string
	target      string // of a symbolic link
	a, b        int64
	size        int64
	now         int64 // sets the times that the operation touches, Unix ns
	attr        Attr
	runs        extents

	seq   uint64 // position in the log; not in the journal
	moves bool   // opRename: of a directory, to another one; not in the journal
}

// old is the inode whose name a rename takes or exchanges, 0 if there is none.
func (r *record) old() uint64 { return uint64(r.b) }

// Journal framing: magic once, then frames of length, checksum, payload.
const (
	journalMagic = "holdfast simdisk journal 1\n"
	frameHeader  = 8
	maxFrame     = 64 << 20
	maxName      = 255
	maxTarget    = 4095
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errJournal is wrapped by every error about a journal that cannot be read.
var errJournal = errors.New("metadata journal is damaged")

// beginFrame reserves the header of a frame at the end of b.
func beginFrame(b []byte) []byte { return append(b, make([]byte, frameHeader)...) }

// endFrame fills in the header of the frame that begins at start.
func endFrame(b []byte, start int) []byte {
	payload := b[start+frameHeader:]
	binary.LittleEndian.PutUint32(b[start:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(b[start+4:], crc32.Checksum(payload, castagnoli))
	return b
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// appendRecord encodes r. Every field is written: an absent one costs a byte.
func appendRecord(b []byte, r *record) []byte {
	b = append(b, byte(r.op))
	for _, v := range [...]uint64{
		uint64(r.mask), r.ino, r.dir, r.dir2, uint64(r.a), uint64(r.b), uint64(r.size), uint64(r.now),
		uint64(r.attr.Mode), uint64(r.attr.Nlink), uint64(r.attr.UID), uint64(r.attr.GID), uint64(r.attr.Rdev),
		uint64(r.attr.Atime), uint64(r.attr.Mtime), uint64(r.attr.Ctime),
	} {
		b = binary.AppendUvarint(b, v)
	}
	b = appendString(b, r.name)
	b = appendString(b, r.name2)
	b = appendString(b, r.target)
	b = binary.AppendUvarint(b, uint64(len(r.runs)))
	var last int64
	for _, e := range r.runs {
		b = binary.AppendUvarint(b, uint64(e.from-last))
		b = binary.AppendUvarint(b, uint64(e.to-e.from))
		last = e.to
	}
	return b
}

// decoder reads a frame's payload; the first error sticks.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", errJournal, what)
	}
	d.b = nil
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail("number cut short")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) uint32() uint32 {
	v := d.uvarint()
	if v > math.MaxUint32 {
		d.fail("number too large")
	}
	return uint32(v)
}

// offset reads a byte or page count, which is never negative.
func (d *decoder) offset() int64 {
	v := d.uvarint()
	if v > math.MaxInt64 {
		d.fail("offset too large")
		return 0
	}
	return int64(v)
}

func (d *decoder) string(limit int) string {
	n := d.uvarint()
	if n > uint64(limit) || n > uint64(len(d.b)) {
		d.fail("string too long")
		return ""
	}
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

// record decodes the next record.
func (d *decoder) record() record {
	var r record
	if len(d.b) == 0 {
		d.fail("record cut short")
		return r
	}
	r.op = op(d.b[0])
	if r.op == 0 || r.op > opLast {
		d.fail(fmt.Sprintf("unknown operation %d", d.b[0]))
		return r
	}
	d.b = d.b[1:]
	r.mask = d.uint32()
	r.ino, r.dir, r.dir2 = d.uvarint(), d.uvarint(), d.uvarint()
	r.a, r.b, r.size = d.offset(), d.offset(), d.offset()
	r.now = int64(d.uvarint())
	r.attr.Mode, r.attr.Nlink, r.attr.UID, r.attr.GID, r.attr.Rdev = d.uint32(), d.uint32(), d.uint32(), d.uint32(), d.uint32()
	r.attr.Atime, r.attr.Mtime, r.attr.Ctime = int64(d.uvarint()), int64(d.uvarint()), int64(d.uvarint())
	r.name, r.name2, r.target = d.string(maxName), d.string(maxName), d.string(maxTarget)
	n := d.uvarint()
	if n > uint64(len(d.b))/2 {
		d.fail("too many extents")
		return r
	}
	var last int64
	for range n {
		from := d.offset()
		length := d.offset()
		if d.err != nil || from > math.MaxInt64/PageSize-last || length > math.MaxInt64/PageSize-last-from || length == 0 {
			d.fail("extent out of range")
			return r
		}
		r.runs = append(r.runs, run{last + from, last + from + length})
		last += from + length
	}
	return r
}

// replay calls apply for every record of a journal, frame by frame. A frame that
// is cut short or fails its checksum ends the journal, as a torn write does:
// valid is the length up to there. A damaged record within a sound frame, or one
// that apply refuses, is an error.
func replay(journal []byte, apply func(*record) error) (valid int, err error) {
	if len(journal) < len(journalMagic) || string(journal[:len(journalMagic)]) != journalMagic {
		return 0, fmt.Errorf("%w: it does not begin as one", errJournal)
	}
	at := len(journalMagic)
	for len(journal)-at >= frameHeader {
		n := int(binary.LittleEndian.Uint32(journal[at:]))
		sum := binary.LittleEndian.Uint32(journal[at+4:])
		if n == 0 || n > maxFrame || n > len(journal)-at-frameHeader {
			break
		}
		payload := journal[at+frameHeader : at+frameHeader+n]
		if crc32.Checksum(payload, castagnoli) != sum {
			break
		}
		d := decoder{b: payload}
		for len(d.b) > 0 {
			r := d.record()
			if d.err != nil {
				return at, d.err
			}
			if err := apply(&r); err != nil {
				return at, fmt.Errorf("%w: %w", errJournal, err)
			}
		}
		at += frameHeader + n
	}
	return at, nil
}
