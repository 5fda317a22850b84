package fuse

import (
	"encoding/binary"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/holdfast-db/holdfast/internal/disk"
)

// Opcodes and places within a request of the FUSE protocol (linux/fuse.h).
const (
	opRead, opWrite, opFsync, opFallocate, opFsyncDir = 15, 16, 20, 43, 30

	atOpcode, atUnique, atNode, atExtensions, headerSize      = 4, 8, 16, 36, 40
	atOffset, atSize, atFlags, writeSize, readSize, fsyncSize = 48, 56, 72, 80, 80, 56
	atFsyncFlags, replySize                                   = 48, 16
)

// hot answers the two requests that every commit consists of without the
// general parser, which makes several objects for each. It returns the length
// of the reply in out, or 0 for a request that is not its own.
func (f *fileSystem) hot(in, out []byte) (n int) {
	if len(in) < fsyncSize || binary.NativeEndian.Uint16(in[atExtensions:]) != 0 {
		return 0
	}
	node := binary.NativeEndian.Uint64(in[atNode:])
	n = replySize
	var st gofuse.Status
	defer func() {
		if v := recover(); v != nil {
			f.bug(v)
			n, st = replySize, gofuse.EIO
		}
		if n > 0 {
			reply(in, out, n, st)
		}
	}()
	switch binary.NativeEndian.Uint32(in[atOpcode:]) {
	case opFsync, opFsyncDir:
		st = f.fsync(node, binary.NativeEndian.Uint32(in[atFsyncFlags:]))
	case opWrite:
		if len(in) < writeSize || uint64(binary.NativeEndian.Uint32(in[atSize:])) != uint64(len(in)-writeSize) {
			return 0
		}
		data := in[writeSize:]
		st = f.write(node, data, int64(binary.NativeEndian.Uint64(in[atOffset:])), binary.NativeEndian.Uint32(in[atFlags:]))
		if st == gofuse.OK {
			n = replySize + 8
			binary.NativeEndian.PutUint64(out[replySize:], 0)
			binary.NativeEndian.PutUint32(out[replySize:], uint32(len(data)))
		}
	default:
		return 0
	}
	return n
}

// reply fills in the header of the reply to a request.
func reply(in, out []byte, n int, st gofuse.Status) {
	binary.NativeEndian.PutUint32(out[0:], uint32(n))
	binary.NativeEndian.PutUint32(out[4:], uint32(-int32(st)))
	copy(out[8:16], in[atUnique:atUnique+8])
}

// quickPages bounds what is read, written or written back while others wait.
const quickPages = 32

// slow says whether a request may take so long that others must not wait for it.
func (f *fileSystem) slow(in []byte) bool {
	if len(in) < headerSize {
		return false
	}
	if l := f.d.limits.Load(); l != nil && l.waits(binary.NativeEndian.Uint32(in[atOpcode:])) {
		return true
	}
	t := f.d.timing.Load()
	switch node := binary.NativeEndian.Uint64(in[atNode:]); binary.NativeEndian.Uint32(in[atOpcode:]) {
	case opFsync, opFsyncDir:
		return t.Flush.Median > 0 || f.s.DirtyPages(node) > quickPages
	case opRead:
		return t.Read.Median > 0 || len(in) < readSize || binary.NativeEndian.Uint32(in[atSize:]) > quickPages*disk.PageSize
	case opWrite:
		direct := len(in) >= writeSize && binary.NativeEndian.Uint32(in[atFlags:])&syscall.O_DIRECT != 0
		return len(in) > quickPages*disk.PageSize || f.s.Full() || direct && t.Write.Median > 0
	case opFallocate:
		return true
	}
	return false
}
