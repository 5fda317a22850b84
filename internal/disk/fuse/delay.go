package fuse

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// coarse is how long before the end a delay leaves the runtime's timers,
	// which are a millisecond late, for the kernel's.
	coarse = 2 * time.Millisecond
	// maxBias bounds how much earlier than asked the kernel is to wake us, and
	// with it how long is spent spinning.
	maxBias = 60 * time.Microsecond
)

// sleeper delays for exact times. The bias is how late the kernel has been.
type sleeper struct{ bias atomic.Int64 }

// sleep waits for d, or until stop is closed: then it returns false.
func (s *sleeper) sleep(d time.Duration, stop <-chan struct{}) bool {
	end := time.Now().Add(d)
	if d > coarse {
		t := time.NewTimer(d - coarse)
		select {
		case <-t.C:
		case <-stop:
			t.Stop()
			return false
		}
	}
	runtime.LockOSThread()
	s.fine(end)
	runtime.UnlockOSThread()
	select {
	case <-stop:
		return false
	default:
		return true
	}
}

// fine sleeps on the kernel's timer until shortly before end and spins the rest.
func (s *sleeper) fine(end time.Time) {
	bias := time.Duration(s.bias.Load())
	left := time.Until(end)
	if nap := left - bias; nap > 0 {
		// The default slack of 50 µs would be added to every nap.
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
		ts := unix.NsecToTimespec(int64(nap))
		_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil)
		late := bias - time.Until(end)
		bias += (late - bias) / 8
		s.bias.Store(int64(min(max(bias, 0), maxBias)))
	}
	for time.Now().Before(end) {
	}
}

// lane is the disk's one flush lane: while a flush is under way, those who ask
// for one wait together for the next.
type lane struct {
	mu      sync.Mutex
	busy    bool
	next    *batch
	batches *atomic.Int64
}

// batch is one flush with its waiters. The first waiter carries it out.
type batch struct{ begin, done chan struct{} }

// flush waits for one whole flush that began after the call; delay carries it
// out. It returns false if stop was closed first.
func (l *lane) flush(delay func() bool, stop <-chan struct{}) bool {
	l.mu.Lock()
	b := l.next
	switch {
	case !l.busy:
		l.busy = true
		l.mu.Unlock()
		return l.lead(nil, delay)
	case b == nil:
		b = &batch{make(chan struct{}), make(chan struct{})}
		l.next = b
		l.mu.Unlock()
		select {
		case <-b.begin:
			return l.lead(b, delay)
		case <-stop:
			return false
		}
	default:
		l.mu.Unlock()
		select {
		case <-b.done:
			return true
		case <-stop:
			return false
		}
	}
}

func (l *lane) lead(b *batch, delay func() bool) bool {
	l.batches.Add(1)
	ok := delay()
	l.mu.Lock()
	if n := l.next; n != nil {
		l.next = nil
		close(n.begin)
	} else {
		l.busy = false
	}
	l.mu.Unlock()
	if b != nil && ok {
		close(b.done)
	}
	return ok
}
