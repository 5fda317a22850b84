// Package frame is what driver and collector say to each other over one
// connection. A frame is a length (unsigned varint, of what follows), a type
// byte and a body; numbers are unsigned varints, a text is its length and its
// bytes:
//
//	driver to collector
//	 1 hello    version, id base, flags (bit 0: waits for confirmations, bit 1: reads), token, name
//	 2 intent   id, retry of (0 for none), writer
//	 3 outcome  id, outcome (1 acked, 2 refused, 3 unknown), latency in µs, code
//	 4 note     text, for people
//	 5 bye      text: why it ends; every write before it has its outcome
//	 6 ping
//	 7 read     id of an acked write, answer (1 fresh, 2 stale, 3 failed), latency in µs
//	collector to driver
//	16 welcome
//	17 reject   text: why
//	18 confirm  id: every intent up to this id is recorded
//	19 stop     finish the writes in flight, then say bye
//	20 newest   id of the newest acked write of any driver, to one that reads
//	 6 ping     a driver that hears nothing for its deadline stops
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Version of the protocol; both ends are the same program, so it only guards
// against a stale binary.
const Version = 2

// MaxSize is the longest frame after its length.
const MaxSize = 8 << 10

// Type of a frame.
type Type uint8

// The types, with the fields of Frame that they use.
const (
	Hello   Type = 1  // Version, ID (the id base), Confirm, Reads, Token, Text (the name)
	Intent  Type = 2  // ID, RetryOf, Writer
	Outcome Type = 3  // ID, Outcome, Micros, Code
	Note    Type = 4  // Text
	Bye     Type = 5  // Text
	Ping    Type = 6  //
	Read    Type = 7  // ID, Outcome (one of the answers below), Micros
	Welcome Type = 16 //
	Reject  Type = 17 // Text
	Confirm Type = 18 // ID
	Stop    Type = 19 //
	Newest  Type = 20 // ID
)

// Answers to a read: the write was there, it was not, or there was no answer.
const (
	Fresh  = 1
	Stale  = 2
	Failed = 3
)

// Flags of a hello.
const (
	flagConfirm = 1 << iota
	flagReads
)

// Frame is any frame. Decoded byte slices point into the reader's buffer and
// are good until the next frame is read.
type Frame struct {
	Type    Type
	Version uint64
	ID      uint64
	RetryOf uint64
	Writer  uint32
	Outcome uint8
	Micros  uint64
	Confirm bool
	Reads   bool
	Token   []byte
	Code    []byte
	Text    []byte
}

// ErrBad means that the bytes are no frame.
var ErrBad = errors.New("malformed frame")

// Append encodes f after b. Texts too long for a frame are cut short.
func Append(b []byte, f *Frame) []byte {
	start := len(b)
	// One byte is enough for the length of almost every frame.
	b = append(b, 0, byte(f.Type))
	switch f.Type {
	case Hello:
		b = binary.AppendUvarint(b, f.Version)
		b = binary.AppendUvarint(b, f.ID)
		flags := byte(0)
		if f.Confirm {
			flags |= flagConfirm
		}
		if f.Reads {
			flags |= flagReads
		}
		b = append(b, flags)
		b = appendText(b, f.Token)
		b = appendText(b, f.Text)
	case Intent:
		b = binary.AppendUvarint(b, f.ID)
		b = binary.AppendUvarint(b, f.RetryOf)
		b = binary.AppendUvarint(b, uint64(f.Writer))
	case Outcome:
		b = binary.AppendUvarint(b, f.ID)
		b = append(b, f.Outcome)
		b = binary.AppendUvarint(b, f.Micros)
		b = appendText(b, f.Code)
	case Note, Bye, Reject:
		b = appendText(b, f.Text)
	case Read:
		b = binary.AppendUvarint(b, f.ID)
		b = append(b, f.Outcome)
		b = binary.AppendUvarint(b, f.Micros)
	case Confirm, Newest:
		b = binary.AppendUvarint(b, f.ID)
	}
	n := len(b) - start - 1
	if n < 0x80 {
		b[start] = byte(n)
		return b
	}
	var head [binary.MaxVarintLen64]byte
	h := binary.PutUvarint(head[:], uint64(n))
	b = append(b, head[1:h]...) // room for the rest of the length
	copy(b[start+h:], b[start+1:start+1+n])
	copy(b[start:], head[:h])
	return b
}

const maxText = 2 << 10

func appendText(b, s []byte) []byte {
	s = s[:min(len(s), maxText)]
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// Decode decodes the frame at the start of b into f and returns its length;
// 0 when b does not hold a whole frame yet.
func Decode(b []byte, f *Frame) (int, error) {
	size, h := binary.Uvarint(b)
	switch {
	case h < 0 || h > 0 && (size == 0 || size > MaxSize):
		return 0, fmt.Errorf("%w: length %d", ErrBad, size)
	case h == 0 && len(b) >= binary.MaxVarintLen64:
		return 0, fmt.Errorf("%w: its length has no end", ErrBad)
	case h == 0 || uint64(len(b)-h) < size:
		return 0, nil
	}
	d := decoder{b: b[h : h+int(size)]}
	*f = Frame{Type: Type(d.byte())}
	switch f.Type {
	case Hello:
		f.Version = d.uvarint()
		f.ID = d.uvarint()
		flags := d.byte()
		f.Confirm, f.Reads = flags&flagConfirm != 0, flags&flagReads != 0
		f.Token = d.text()
		f.Text = d.text()
	case Intent:
		f.ID = d.uvarint()
		f.RetryOf = d.uvarint()
		w := d.uvarint()
		d.bad = d.bad || w > 1<<32-1
		f.Writer = uint32(w)
	case Outcome:
		f.ID = d.uvarint()
		f.Outcome = d.byte()
		d.bad = d.bad || f.Outcome < 1 || f.Outcome > 3
		f.Micros = d.uvarint()
		f.Code = d.text()
	case Note, Bye, Reject:
		f.Text = d.text()
	case Read:
		f.ID = d.uvarint()
		f.Outcome = d.byte()
		d.bad = d.bad || f.Outcome < Fresh || f.Outcome > Failed
		f.Micros = d.uvarint()
	case Confirm, Newest:
		f.ID = d.uvarint()
	case Ping, Welcome, Stop:
	default:
		return 0, fmt.Errorf("%w: type %d", ErrBad, f.Type)
	}
	if d.bad || len(d.b) != 0 {
		return 0, fmt.Errorf("%w: type %d with %d bytes", ErrBad, f.Type, size)
	}
	return h + int(size), nil
}

// decoder takes fields off b; bad stays set once something is missing.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) text() []byte {
	n := d.uvarint()
	if n > uint64(len(d.b)) || n > maxText {
		d.bad = true
		return nil
	}
	s := d.b[:n:n]
	d.b = d.b[n:]
	return s
}

// Reader decodes the frames of a connection.
type Reader struct {
	r          io.Reader
	buf        []byte
	start, end int
}

// NewReader returns a reader of frames.
func NewReader(r io.Reader) *Reader { return &Reader{r: r, buf: make([]byte, 64<<10)} }

// Next decodes the next frame that is already here; ok is false when there is
// none and Fill is needed.
func (r *Reader) Next(f *Frame) (ok bool, err error) {
	n, err := Decode(r.buf[r.start:r.end], f)
	r.start += n
	return n > 0, err
}

// Fill reads once; after it, frames that were decoded are no longer valid.
func (r *Reader) Fill() error {
	if r.start > 0 {
		r.end = copy(r.buf, r.buf[r.start:r.end])
		r.start = 0
	}
	n, err := r.r.Read(r.buf[r.end:])
	r.end += n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// Read waits for the next frame.
func (r *Reader) Read(f *Frame) error {
	for {
		ok, err := r.Next(f)
		if ok || err != nil {
			return err
		}
		if err := r.Fill(); err != nil {
			return err
		}
	}
}
