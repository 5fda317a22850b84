package measure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	segment   = 16 << 20 // size of a file, as a WAL segment
	prepare   = 30 * time.Second
	stuckFor  = 10 * time.Second // how much later than due a flush may be
	stuckStop = 3 * time.Second  // the same once the user has interrupted
)

// refused is a step that the file system does not offer.
type refused struct{ why string }

func (r refused) Error() string { return r.why }

// runStep measures one step in dir. It returns within prepare, d and
// stuckFor, even when a flush hangs in the kernel, where nothing can end it.
func runStep(ctx context.Context, dir string, s Step, d time.Duration) (StepResult, error) {
	type answer struct {
		r   StepResult
		err error
	}
	done := make(chan answer, 1)
	go func() {
		// A thread of its own: another goroutine's blocking call must not be
		// able to take the processor between a flush's return and the clock.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		r, err := doStep(ctx, dir, s, d)
		done <- answer{r, err}
	}()
	limit := time.NewTimer(prepare + d + stuckFor)
	defer limit.Stop()
	select {
	case a := <-done:
		return a.r, a.err
	case <-limit.C:
		return StepResult{}, fmt.Errorf("%w: no flush came back for %v", ErrStuck, stuckFor)
	case <-ctx.Done():
	}
	limit.Reset(stuckStop)
	select {
	case a := <-done:
		return a.r, a.err
	case <-limit.C:
		return StepResult{}, fmt.Errorf("%w: interrupted, and no flush came back for %v", ErrStuck, stuckStop)
	}
}

func doStep(ctx context.Context, dir string, s Step, d time.Duration) (StepResult, error) {
	w := &writer{dir: dir, step: s, buf: alignedBlock()}
	defer w.close()
	rec := newRecorder()
	err := w.open(ctx)
	if err == nil {
		err = w.run(ctx, d, rec)
	}
	var no refused
	if errors.As(err, &no) {
		return StepResult{Step: s, Skipped: no.why}, nil
	}
	if err != nil {
		return StepResult{}, err
	}
	return rec.result(s)
}

// writer writes the blocks of one step.
type writer struct {
	dir   string
	step  Step
	buf   []byte
	fd    int
	path  string
	off   int64
	files int
}

// open makes the step's file as its pattern wants it, durable, and removes the
// one before it. None of it is measured.
func (w *writer) open(ctx context.Context) error {
	w.close()
	w.files++
	w.off = 0
	path := filepath.Join(w.dir, fmt.Sprintf("%s-%d", w.step.Pattern, w.files))
	if err := w.fill(ctx, path); err != nil {
		return err
	}
	flags := unix.O_RDWR | unix.O_CLOEXEC
	if w.step.Direct {
		flags |= unix.O_DIRECT
	}
	if w.step.Call == ODsync {
		flags |= unix.O_DSYNC
	}
	fd, err := retry(func() (int, error) { return unix.Open(path, flags, 0) })
	if err != nil {
		_ = os.Remove(path)
		if w.step.Direct && errors.Is(err, unix.EINVAL) {
			return refused{"the file system refuses O_DIRECT (EINVAL)"}
		}
		return fmt.Errorf("open %s: %w", path, err)
	}
	w.fd, w.path = fd, path
	return nil
}

// fill makes the file of a pattern through the page cache.
func (w *writer) fill(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	switch w.step.Pattern {
	case Fallocated:
		_, err = retry(func() (int, error) { return 0, unix.Fallocate(int(f.Fd()), 0, 0, segment) })
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			_ = os.Remove(path)
			return refused{fmt.Sprintf("the file system has no fallocate (%v)", err)}
		}
	case ZeroFilled:
		err = zeros(ctx, f, segment)
	case SameBlock:
		err = zeros(ctx, f, Block)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return fmt.Errorf("prepare %s: %w", path, err)
	}
	return nil
}

func zeros(ctx context.Context, f *os.File, n int) error {
	buf := make([]byte, min(n, 1<<20))
	for ; n > 0; n -= len(buf) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := f.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

// run writes and flushes until d has passed in the measured part. The time
// for a fresh file between two writes is taken out of the step's clock.
func (w *writer) run(ctx context.Context, d time.Duration, rec *recorder) error {
	begin := time.Now()
	var unmeasured time.Duration
	for n := byte(1); ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := time.Since(begin) - unmeasured
		if at >= d && rec.count > 0 {
			return nil
		}
		for i := 0; i < Block; i += 512 { // a block that is never twice the same
			w.buf[i] = n
		}
		t := time.Now()
		if err := w.writeAndFlush(); err != nil {
			return err
		}
		took := time.Since(t)
		if err := rec.record(at+took, took); err != nil {
			return err
		}
		pause, err := w.advance(ctx)
		if err != nil {
			return err
		}
		unmeasured += pause
	}
}

func (w *writer) writeAndFlush() error {
	n, err := retry(func() (int, error) { return unix.Pwrite(w.fd, w.buf, w.off) })
	switch {
	case err != nil && w.step.Direct && errors.Is(err, unix.EINVAL):
		return refused{"the file system refuses O_DIRECT writes of 8 KiB (EINVAL)"}
	case err != nil:
		return fmt.Errorf("write %s at %d: %w", w.path, w.off, err)
	case n != Block:
		return fmt.Errorf("write %s at %d: %d of %d bytes were written", w.path, w.off, n, Block)
	}
	switch w.step.Call {
	case Fdatasync:
		_, err = retry(func() (int, error) { return 0, unix.Fdatasync(w.fd) })
	case Fsync:
		_, err = retry(func() (int, error) { return 0, unix.Fsync(w.fd) })
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", w.step.Call, w.path, err)
	}
	return nil
}

// advance moves to the next block, by way of a fresh file where the pattern
// has used this one up. It returns the time that took.
func (w *writer) advance(ctx context.Context) (time.Duration, error) {
	if w.step.Pattern == SameBlock {
		return 0, nil
	}
	w.off += Block
	if w.off < segment {
		return 0, nil
	}
	if w.step.Pattern == ZeroFilled { // as a recycled segment
		w.off = 0
		return 0, nil
	}
	t := time.Now()
	err := w.open(ctx)
	return time.Since(t), err
}

func (w *writer) close() {
	if w.path == "" {
		return
	}
	_ = unix.Close(w.fd)
	_ = os.Remove(w.path)
	w.path = ""
}

// retry repeats a call that a signal interrupted (the Go runtime sends itself
// SIGURG, and FUSE answers it with EINTR).
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// alignedBlock is a block at an address that O_DIRECT takes on any disk.
func alignedBlock() []byte {
	const align = 4096
	raw := make([]byte, Block+align)
	skip := (align - int(uintptr(unsafe.Pointer(&raw[0]))%align)) % align
	return raw[skip : skip+Block : skip+Block]
}
