package fuse

import (
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
	// keepReaders is how many readers wait for their turn when there is nothing
	// to do. Fewer would be made and ended all the time.
	keepReaders = 8
	// yieldInterval keeps readers from running for so long without the scheduler
	// that its monitor takes their slot away, and then polls for a millisecond.
	yieldInterval = 8 * time.Millisecond
)

// transport carries requests from the kernel to a fileSystem and replies back.
// It parses with go-fuse but reads itself. One reader leads: it alone waits for
// requests, and answers those that are quick at once, so that under load hardly
// anybody has to be woken. Before a slow one it lets another reader lead.
type transport struct {
	fd      int
	proto   *gofuse.ProtocolServer
	fs      *fileSystem
	lead    chan struct{} // holds a token when nobody leads
	waiting atomic.Int32  // readers that wait to lead
	pool    sync.Pool     // of *buffers
	wg      sync.WaitGroup
	ended   chan struct{} // closed when the kernel let go of the mount
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
func serve(fd int, fs *fileSystem, ended func()) *transport {
	t := &transport{
		fd: fd, proto: gofuse.NewProtocolServer(fs, mountOptions(fs.bug)), fs: fs,
		lead: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	t.pool.New = func() any { return new(buffers) }
	t.giveLead()
	go func() {
		t.wg.Wait()
		_ = unix.Close(fd)
		close(t.ended)
		ended()
	}()
	return t
}

// giveLead lets another reader lead; the caller leads, or nobody does.
func (t *transport) giveLead() {
	if t.waiting.Load() == 0 {
		t.waiting.Add(1)
		t.wg.Add(1)
		go t.read()
	}
	t.lead <- struct{}{}
}

// read takes its turns in leading until the mount is gone or enough others wait.
func (t *transport) read() {
	defer t.wg.Done()
	b := t.pool.Get().(*buffers)
	defer t.pool.Put(b)
	for {
		<-t.lead
		t.waiting.Add(-1)
		n := t.leadUntilSlow(b)
		if n < 0 {
			t.lead <- struct{}{} // the others are to see the end, too
			return
		}
		t.giveLead()
		t.answer(b.in[:n], b.out[:])
		if t.waiting.Add(1) > keepReaders {
			t.waiting.Add(-1)
			return
		}
	}
}

// leadUntilSlow reads and answers requests until there is one that is slow: its
// length is returned, or -1 when the mount is gone.
func (t *transport) leadUntilSlow(b *buffers) int {
	yielded := time.Now()
	for {
		n, err := unix.Read(t.fd, b.in[:])
		switch err {
		case nil:
		case unix.EINTR, unix.EAGAIN, unix.ENOENT: // ENOENT: the caller gave up
			continue
		default: // ENODEV: unmounted
			return -1
		}
		if t.fs.slow(b.in[:n]) {
			return n
		}
		t.answer(b.in[:n], b.out[:])
		if now := time.Now(); now.Sub(yielded) > yieldInterval {
			runtime.Gosched()
			yielded = now
		}
	}
}

// answer handles one request.
func (t *transport) answer(in, out []byte) {
	n := t.fs.hot(in, out)
	if n == 0 {
		var st gofuse.Status
		n, st = t.proto.HandleRequest([][]byte{in}, [][]byte{out})
		if n == 0 && st != gofuse.OK && len(in) >= headerSize {
			// It could not be parsed, but its sender waits.
			n = replySize
			reply(in, out, n, st)
		}
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
