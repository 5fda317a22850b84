package history

import (
	"errors"
	"fmt"
	"hash/crc32"
)

// Version is the format that this package writes, and the newest that it reads.
const Version = 1

// The sizes and limits of the format; DESIGN.md describes each byte.
const (
	magic = "HFHIST\x1a\n"

	headerSize      = 32
	blockHeaderSize = 16
	blockTailSize   = 4

	blockEvents = 'B'
	blockEnd    = 'E'

	flushAt      = 60 << 10 // a block is written when its payload reaches this
	maxPayload   = 1 << 20  // no reader accepts more
	maxCode      = 48
	maxText      = 4 << 10
	maxMicros    = 1 << 53 // 285 years; keeps a time.Duration from overflowing
	endPayload   = 8
	kindMask     = 0b11
	intentRetry  = 1 << 2
	intentJump   = 1 << 3
	outcomeShift = 2
	outcomeCode  = 1 << 4
)

var (
	// ErrNotHistory: the file does not begin as a history does.
	ErrNotHistory = errors.New("not a history")
	// ErrNewer: a newer program wrote the file.
	ErrNewer = errors.New("history of a newer version")
	// ErrCorrupt: a part that is there in full does not agree with its checksum.
	ErrCorrupt = errors.New("corrupt history")
	// ErrTruncated: the file ends without an end record. Every event before the
	// end of the last whole block has been delivered.
	ErrTruncated = errors.New("truncated history")
	// ErrBusy: a writer has the file open.
	ErrBusy = errors.New("history is being written")
)

// FormatError says where a history stops being readable. It unwraps to one of
// ErrNotHistory, ErrNewer, ErrCorrupt and ErrTruncated.
type FormatError struct {
	Kind   error
	Offset int64 // bytes from the start of the file
	What   string
}

func (e *FormatError) Error() string {
	switch {
	case errors.Is(e.Kind, ErrNotHistory), errors.Is(e.Kind, ErrNewer):
		return fmt.Sprintf("%v: %s", e.Kind, e.What)
	default:
		return fmt.Sprintf("%v at byte %d: %s", e.Kind, e.Offset, e.What)
	}
}

func (e *FormatError) Unwrap() error { return e.Kind }

// castagnoli is read only: hash/crc32 builds it once and shares it.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func zigzag(v int64) uint64   { return uint64(v<<1) ^ uint64(v>>63) }
func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }
