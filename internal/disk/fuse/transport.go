package fuse

import (
	"encoding/binary"
	"io"
	"log"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	// maxWrite is the largest read or write request.
	maxWrite = 1 << 20
	// headroom is what a request or reply has besides its data.
	headroom = 8 << 10
	// keepReaders is how many threads go on waiting for requests when there are
	// none. Fewer would be made and ended all the time, the kernel wakes more in
	// turn and none stays warm.
	keepReaders = 6
	// yieldInterval keeps readers from running for so long without the scheduler
	// that its monitor takes their slot away, and then polls for a millisecond.
	yieldInterval = 8 * time.Millisecond
)

// transport carries requests from the kernel to a fileSystem and replies back.
// It parses with go-fuse but reads itself: a request goes through one thread,
// from the read to the reply, and waiting threads are few.
type transport struct {
	fd    int
	proto *gofuse.ProtocolServer
	idle  atomic.Int32 // readers that wait
	pool  sync.Pool    // of *buffers
	wg    sync.WaitGroup
	ended chan struct{} // closed when the kernel let go of the mount
}

// buffers of one reader.
type buffers struct{ in, out [maxWrite + headroom]byte }

// mountOptions of the protocol: the kernel's cache is never wrong, since all
// changes come through it.
func mountOptions(panicked func(any)) *gofuse.MountOptions {
	return &gofuse.MountOptions{
		Name:                     fsType,
		MaxBackground:            64,
		MaxWrite:                 maxWrite,
		MaxReadAhead:             maxWrite,
		ExplicitDataCacheControl: true,
		EnableSymlinkCaching:     true,
		DisableXAttrs:            true,
		DisableReadDirPlus:       true,
		ExtraCapabilities:        gofuse.CAP_NO_OPENDIR_SUPPORT,
		Logger:                   log.New(io.Discard, "", 0),
		PanicHandler: func(v any) gofuse.Status {
			panicked(v)
			return gofuse.EIO
		},
	}
}

// serve begins to answer the requests that come from fd, which it closes in the
// end. ended is called when the mount is gone.
func serve(fd int, fs gofuse.RawFileSystem, panicked func(any), ended func()) *transport {
	t := &transport{fd: fd, proto: gofuse.NewProtocolServer(fs, mountOptions(panicked)), ended: make(chan struct{})}
	t.pool.New = func() any { return new(buffers) }
	t.spawn()
	go func() {
		t.wg.Wait()
		unix.Close(fd)
		close(t.ended)
		ended()
	}()
	return t
}

func (t *transport) spawn() {
	t.idle.Add(1)
	t.wg.Add(1)
	go t.loop()
}

// loop reads and answers requests until the mount is gone or enough others wait.
func (t *transport) loop() {
	defer t.wg.Done()
	b := t.pool.Get().(*buffers)
	defer t.pool.Put(b)
	in, out := b.in[:], b.out[:]
	yielded := time.Now()
	for {
		n, err := unix.Read(t.fd, in)
		switch {
		case err == nil:
		case err == unix.EINTR, err == unix.EAGAIN, err == unix.ENOENT: // ENOENT: the caller gave up
			continue
		default: // ENODEV: unmounted
			t.idle.Add(-1)
			return
		}
		if t.idle.Add(-1) == 0 {
			t.spawn()
		}
		t.answer(in[:n], out)
		if t.idle.Add(1) > keepReaders {
			t.idle.Add(-1)
			return
		}
		if now := time.Now(); now.Sub(yielded) > yieldInterval {
			runtime.Gosched()
			yielded = now
		}
	}
}

// answer handles one request.
func (t *transport) answer(in, out []byte) {
	const header = 16
	n, st := t.proto.HandleRequest([][]byte{in}, [][]byte{out})
	if n == 0 && st != gofuse.OK && len(in) >= header {
		// It could not be parsed, but its sender waits.
		n = header
		binary.NativeEndian.PutUint32(out[0:], header)
		binary.NativeEndian.PutUint32(out[4:], uint32(-int32(st)))
		copy(out[8:16], in[8:16])
	}
	if n == 0 {
		return
	}
	for {
		// An error means that the caller is gone (ENOENT) or the mount is.
		if _, err := unix.Write(t.fd, out[:n]); err != unix.EINTR {
			return
		}
	}
}
