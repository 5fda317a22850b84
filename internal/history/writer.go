package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// Writer appends events to a history. It is not safe for concurrent use: a
// history has one writer. After an error every call returns that error.
type Writer struct {
	f     *os.File
	crc   *crc32.Table
	buf   []byte // block header, then payload
	count uint32 // events in buf
	total uint64 // events in the file and in buf
	clock uint64 // microseconds, of the last intent or outcome
	id    uint64 // of the last intent
	codes map[string]uint64
	err   error
}

// Create makes a new history at path and locks it until Close. It refuses a
// file that exists: a history is written once, by one writer. started is the
// wall clock, kept as information only.
func Create(path string, started time.Time) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o644)
	if err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("create history %s: there is one already; a history is written once, by one writer", path)
		}
		return nil, fmt.Errorf("create history: %w", err)
	}
	w := &Writer{f: f, crc: castagnoli(), codes: map[string]uint64{}}
	if err := w.begin(started); err != nil {
		f.Close()
		_ = os.Remove(path)
		return nil, fmt.Errorf("create history %s: %w", path, err)
	}
	return w, nil
}

func (w *Writer) begin(started time.Time) error {
	if err := syscall.Flock(int(w.f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	h := make([]byte, 0, headerSize)
	h = append(h, magic...)
	h = binary.LittleEndian.AppendUint16(h, Version)
	h = append(h, 0, 0)
	h = binary.LittleEndian.AppendUint64(h, uint64(started.UnixNano()))
	h = append(h, make([]byte, 8)...)
	h = binary.LittleEndian.AppendUint32(h, crc32.Checksum(h, w.crc))
	w.newBlock()
	_, err := w.f.Write(h)
	return err
}

// newBlock starts an empty block, which repeats what its events are relative to.
func (w *Writer) newBlock() {
	w.buf = append(w.buf[:0], make([]byte, blockHeaderSize)...)
	w.buf = binary.AppendUvarint(w.buf, w.clock)
	w.buf = binary.AppendUvarint(w.buf, w.id)
	w.count = 0
	clear(w.codes)
}

// Append adds e. Times are kept in microseconds. Intents and outcomes come in
// the order of their time; a mark may name a moment in the past. A code longer
// than 48 bytes and a text longer than 4 KiB are cut short.
func (w *Writer) Append(e *Event) error {
	if w.err != nil {
		return w.err
	}
	micros := uint64(max(e.At, 0) / time.Microsecond)
	switch e.Kind {
	case KindIntent, KindOutcome:
		if micros < w.clock {
			return fmt.Errorf("append to history: event at %v after one at %v", e.At, time.Duration(w.clock)*time.Microsecond)
		}
		if e.Kind == KindIntent {
			w.intent(e, micros)
		} else if err := w.outcome(e, micros); err != nil {
			return err
		}
		w.clock = micros
	case KindMark:
		w.buf = append(w.buf, byte(KindMark))
		w.buf = binary.AppendUvarint(w.buf, zigzag(int64(micros)-int64(w.clock)))
		text := e.Text[:min(len(e.Text), maxText)]
		w.buf = binary.AppendUvarint(w.buf, uint64(len(text)))
		w.buf = append(w.buf, text...)
	default:
		return fmt.Errorf("append to history: event of kind %d", e.Kind)
	}
	w.count++
	w.total++
	if len(w.buf) >= blockHeaderSize+flushAt {
		return w.Flush()
	}
	return nil
}

func (w *Writer) intent(e *Event, micros uint64) {
	tag := byte(KindIntent)
	if e.RetryOf != 0 {
		tag |= intentRetry
	}
	if e.ID != w.id+1 {
		tag |= intentJump
	}
	w.buf = append(w.buf, tag)
	w.buf = binary.AppendUvarint(w.buf, micros-w.clock)
	if e.ID != w.id+1 {
		w.buf = binary.AppendUvarint(w.buf, zigzag(int64(e.ID-w.id)))
	}
	w.buf = binary.AppendUvarint(w.buf, uint64(e.Writer))
	if e.RetryOf != 0 {
		w.buf = binary.AppendUvarint(w.buf, zigzag(int64(e.ID-e.RetryOf)))
	}
	w.id = e.ID
}

func (w *Writer) outcome(e *Event, micros uint64) error {
	if e.Outcome < Acked || e.Outcome > Unknown {
		return fmt.Errorf("append to history: outcome %d of write %d", e.Outcome, e.ID)
	}
	tag := byte(KindOutcome) | byte(e.Outcome)<<outcomeShift
	if e.Code != "" {
		tag |= outcomeCode
	}
	w.buf = append(w.buf, tag)
	w.buf = binary.AppendUvarint(w.buf, micros-w.clock)
	w.buf = binary.AppendUvarint(w.buf, zigzag(int64(w.id-e.ID)))
	w.buf = binary.AppendUvarint(w.buf, uint64(max(e.Latency, 0)/time.Microsecond))
	if e.Code == "" {
		return nil
	}
	code := e.Code[:min(len(e.Code), maxCode)]
	n, known := w.codes[code]
	if !known {
		n = uint64(len(w.codes))
		w.codes[code] = n
	}
	w.buf = binary.AppendUvarint(w.buf, n)
	if !known {
		w.buf = binary.AppendUvarint(w.buf, uint64(len(code)))
		w.buf = append(w.buf, code...)
	}
	return nil
}

// Flush hands what was appended to the operating system.
func (w *Writer) Flush() error {
	if w.err != nil || w.count == 0 {
		return w.err
	}
	w.seal(blockEvents)
	w.newBlock()
	return w.err
}

// seal completes the block in buf and writes it.
func (w *Writer) seal(kind byte) {
	payload := w.buf[blockHeaderSize:]
	sum := crc32.Checksum(payload, w.crc)
	h := w.buf[:blockHeaderSize]
	h[0] = kind
	binary.LittleEndian.PutUint32(h[4:], uint32(len(payload)))
	binary.LittleEndian.PutUint32(h[8:], w.count)
	binary.LittleEndian.PutUint32(h[12:], crc32.Checksum(h[:12], w.crc))
	w.buf = binary.LittleEndian.AppendUint32(w.buf, sum)
	if _, err := w.f.Write(w.buf); err != nil {
		w.err = fmt.Errorf("write history: %w", err)
	}
}

// Close writes the end record, makes the history durable and unlocks it. It
// returns the first error that the writer met; the history is then truncated.
func (w *Writer) Close() error {
	if w.f == nil {
		return w.err
	}
	_ = w.Flush()
	if w.err == nil {
		w.buf = binary.LittleEndian.AppendUint64(w.buf[:blockHeaderSize], w.total)
		w.count = 0
		w.seal(blockEnd)
	}
	if err := w.f.Sync(); err != nil && w.err == nil {
		w.err = fmt.Errorf("sync history: %w", err)
	}
	if err := w.f.Close(); err != nil && w.err == nil {
		w.err = fmt.Errorf("close history: %w", err)
	}
	w.f = nil
	if w.err == nil {
		w.err = errClosed
		return nil
	}
	return w.err
}

var errClosed = errors.New("history is closed")
