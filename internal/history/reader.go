package history

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"syscall"
	"time"
)

// Reader streams the events of a history.
type Reader struct {
	// Started is the wall clock when the history was created; information only.
	Started time.Time

	r      io.Reader
	closer io.Closer
	crc    *crc32.Table
	offset int64  // of the next block
	at     int64  // of the block in buf
	buf    []byte // payload not yet decoded
	size   int    // of the whole payload, to locate an error
	left   uint32 // events in buf
	total  uint64 // events delivered
	clock  uint64
	id     uint64
	codes  []string
	intern map[string]string
	store  []byte
	err    error
}

// Open opens a history. It refuses one that a writer still has open (ErrBusy).
func Open(path string) (*Reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open history: %w", err)
	}
	// A writer holds the lock exclusively from Create to Close.
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		f.Close()
		return nil, fmt.Errorf("open %s: %w: wait for its run to end", path, ErrBusy)
	}
	r, err := NewReader(bufio.NewReaderSize(f, 256<<10))
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	r.closer = f
	return r, nil
}

// NewReader reads the header of a history from r.
func NewReader(r io.Reader) (*Reader, error) {
	h := make([]byte, headerSize)
	n, err := io.ReadFull(r, h)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, fmt.Errorf("read history: %w", err)
	}
	if m := min(n, len(magic)); string(h[:m]) != magic[:m] {
		return nil, &FormatError{ErrNotHistory, 0, "the file begins with something else"}
	}
	if n >= 10 {
		if v := binary.LittleEndian.Uint16(h[8:]); v > Version {
			return nil, &FormatError{ErrNewer, 8, fmt.Sprintf("it has version %d and this program reads up to %d; use a newer holdfast", v, Version)}
		}
	}
	if n < headerSize {
		return nil, &FormatError{ErrTruncated, int64(n), "the file ends within its header"}
	}
	crc := castagnoli()
	if binary.LittleEndian.Uint32(h[28:]) != crc32.Checksum(h[:28], crc) {
		return nil, &FormatError{ErrCorrupt, 0, "the header does not agree with its checksum"}
	}
	if v := binary.LittleEndian.Uint16(h[8:]); v != Version {
		return nil, &FormatError{ErrCorrupt, 8, fmt.Sprintf("there is no version %d", v)}
	}
	return &Reader{
		Started: time.Unix(0, int64(binary.LittleEndian.Uint64(h[12:]))).UTC(),
		r:       r, crc: crc, offset: headerSize, intern: map[string]string{},
	}, nil
}

// Close closes the file that Open opened.
func (r *Reader) Close() error {
	if r.closer == nil {
		return nil
	}
	return r.closer.Close()
}

// Next stores the next event in e. It returns io.EOF after the end record, and
// a FormatError where the history is corrupt or truncated; what was delivered
// before is sound.
func (r *Reader) Next(e *Event) error {
	for r.left == 0 {
		if r.err == nil {
			r.err = r.block()
		}
		if r.err != nil {
			return r.err
		}
	}
	if err := r.event(e); err != nil {
		r.err, r.left = err, 0
		return err
	}
	r.left--
	r.total++
	if r.left == 0 && len(r.buf) != 0 {
		r.err = r.corrupt("a block is longer than its events")
	}
	return nil
}

// corrupt names the byte in the current block that decoding has come to.
func (r *Reader) corrupt(what string) error {
	return &FormatError{ErrCorrupt, r.at + blockHeaderSize + int64(r.size-len(r.buf)), what}
}

// block reads the next block, or the end record (io.EOF).
func (r *Reader) block() error {
	var h [blockHeaderSize]byte
	r.at, r.size, r.buf = r.offset, 0, nil
	truncated := func(got int) error {
		return &FormatError{ErrTruncated, r.offset, fmt.Sprintf("no end record; %d bytes of an unfinished block follow", got)}
	}
	n, err := io.ReadFull(r.r, h[:])
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return truncated(n)
	case err != nil:
		return fmt.Errorf("read history at byte %d: %w", r.offset, err)
	}
	size, count := binary.LittleEndian.Uint32(h[4:]), binary.LittleEndian.Uint32(h[8:])
	if binary.LittleEndian.Uint32(h[12:]) != crc32.Checksum(h[:12], r.crc) {
		return &FormatError{ErrCorrupt, r.offset, "a block's header does not agree with its checksum"}
	}
	if size > maxPayload || (h[0] != blockEvents && h[0] != blockEnd) {
		return &FormatError{ErrCorrupt, r.offset, fmt.Sprintf("a block of type %d with %d bytes", h[0], size)}
	}
	if need := int(size) + blockTailSize; cap(r.store) < need {
		r.store = make([]byte, need)
	}
	r.store = r.store[:int(size)+blockTailSize]
	m, err := io.ReadFull(r.r, r.store)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return truncated(n + m)
	case err != nil:
		return fmt.Errorf("read history at byte %d: %w", r.offset, err)
	}
	payload := r.store[:size]
	if binary.LittleEndian.Uint32(r.store[size:]) != crc32.Checksum(payload, r.crc) {
		return &FormatError{ErrCorrupt, r.offset, "a block does not agree with its checksum"}
	}
	r.offset += blockHeaderSize + int64(size) + blockTailSize
	if h[0] == blockEnd {
		return r.end(payload, count)
	}
	before := r.clock
	r.buf, r.size, r.left, r.codes = payload, int(size), count, r.codes[:0]
	if r.clock, err = r.uvarint(); err == nil {
		r.id, err = r.uvarint()
	}
	switch {
	case err != nil:
		r.left = 0
		return err
	case count == 0 || r.clock < before || r.clock >= maxMicros:
		r.left = 0
		return r.corrupt("a block without events or with an impossible time")
	}
	return nil
}

func (r *Reader) end(payload []byte, count uint32) error {
	if len(payload) != endPayload || count != 0 || binary.LittleEndian.Uint64(payload) != r.total {
		return &FormatError{ErrCorrupt, r.at, fmt.Sprintf("the end record does not agree with the %d events before it", r.total)}
	}
	var one [1]byte
	switch n, err := io.ReadFull(r.r, one[:]); {
	case n != 0:
		return &FormatError{ErrCorrupt, r.offset, "something follows the end record"}
	case err != io.EOF:
		return fmt.Errorf("read history at byte %d: %w", r.offset, err)
	}
	return io.EOF
}

func (r *Reader) uvarint() (uint64, error) {
	// Most numbers of a history fit one byte or two.
	if b := r.buf; len(b) > 1 {
		if b[0] < 0x80 {
			r.buf = b[1:]
			return uint64(b[0]), nil
		}
		if b[1] < 0x80 {
			r.buf = b[2:]
			return uint64(b[0]&0x7f) | uint64(b[1])<<7, nil
		}
	}
	v, n := binary.Uvarint(r.buf)
	if n <= 0 {
		return 0, r.corrupt("a number has no end")
	}
	r.buf = r.buf[n:]
	return v, nil
}

func (r *Reader) text(limit uint64) ([]byte, error) {
	n, err := r.uvarint()
	if err != nil {
		return nil, err
	}
	if n > limit || n > uint64(len(r.buf)) {
		return nil, r.corrupt("a text is longer than it may be")
	}
	b := r.buf[:n]
	r.buf = r.buf[n:]
	return b, nil
}

func (r *Reader) event(e *Event) error {
	if len(r.buf) == 0 {
		return r.corrupt("a block has fewer events than it says")
	}
	tag := r.buf[0]
	r.buf = r.buf[1:]
	delta, err := r.uvarint()
	if err != nil {
		return err
	}
	*e = Event{Kind: Kind(tag & kindMask)}
	if e.Kind == KindMark {
		return r.mark(e, tag, delta)
	}
	if delta >= maxMicros || r.clock+delta >= maxMicros {
		return r.corrupt("an impossible time")
	}
	r.clock += delta
	e.At = time.Duration(r.clock) * time.Microsecond
	switch {
	case e.Kind == KindIntent && tag < intentJump<<1:
		return r.intent(e, tag)
	case e.Kind == KindOutcome && tag < outcomeCode<<1:
		return r.outcome(e, tag)
	}
	return r.corrupt(fmt.Sprintf("an event with tag %d", tag))
}

func (r *Reader) mark(e *Event, tag byte, delta uint64) error {
	micros := int64(r.clock) + unzigzag(delta)
	if tag != byte(KindMark) || delta >= 2*maxMicros || micros < 0 || micros >= maxMicros {
		return r.corrupt("a mark with an impossible tag or time")
	}
	e.At = time.Duration(micros) * time.Microsecond
	b, err := r.text(maxText)
	e.Text = string(b)
	return err
}

func (r *Reader) intent(e *Event, tag byte) error {
	e.ID = r.id + 1
	if tag&intentJump != 0 {
		d, err := r.uvarint()
		if err != nil {
			return err
		}
		e.ID = r.id + uint64(unzigzag(d))
	}
	r.id = e.ID
	w, err := r.uvarint()
	if err != nil {
		return err
	}
	if w > 1<<32-1 {
		return r.corrupt("an impossible writer")
	}
	e.Writer = uint32(w)
	if tag&intentRetry != 0 {
		d, err := r.uvarint()
		if err != nil {
			return err
		}
		e.RetryOf = e.ID - uint64(unzigzag(d))
	}
	return nil
}

func (r *Reader) outcome(e *Event, tag byte) error {
	e.Outcome = Outcome(tag >> outcomeShift & 0b11)
	if e.Outcome == Unfinished {
		return r.corrupt("an outcome that is none")
	}
	d, err := r.uvarint()
	if err != nil {
		return err
	}
	e.ID = r.id - uint64(unzigzag(d))
	l, err := r.uvarint()
	if err != nil {
		return err
	}
	if l >= maxMicros {
		return r.corrupt("an impossible latency")
	}
	e.Latency = time.Duration(l) * time.Microsecond
	if tag&outcomeCode == 0 {
		return nil
	}
	n, err := r.uvarint()
	if err != nil {
		return err
	}
	switch {
	case n < uint64(len(r.codes)):
	case n > uint64(len(r.codes)):
		return r.corrupt("a code that was not introduced")
	default:
		b, err := r.text(maxCode)
		if err != nil {
			return err
		}
		s, ok := r.intern[string(b)]
		if !ok {
			s = string(b)
			if len(r.intern) < 4096 {
				r.intern[s] = s
			}
		}
		r.codes = append(r.codes, s)
	}
	e.Code = r.codes[n]
	return nil
}
