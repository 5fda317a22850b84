package fuse_test

import (
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// aligned is a buffer for direct I/O.
func aligned(n int) []byte {
	b := make([]byte, n+4096)
	off := 4096 - int(uintptr(unsafe.Pointer(&b[0]))%4096)
	return b[off : off+n]
}

// directReads reads blocks from many threads for a while, and returns how many
// came back and in what time.
func directReads(t *testing.T, path string, size, threads int, d time.Duration) (int64, time.Duration) {
	t.Helper()
	var count atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range threads {
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECT, 0)
		must(t, err)
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer f.Close()
			b := aligned(size)
			for i := 0; time.Since(began) < d; i++ {
				if _, err := f.ReadAt(b, int64(i%4*size)); err != nil {
					t.Error(err)
					return
				}
				count.Add(1)
			}
		}()
	}
	wg.Wait()
	return count.Load(), time.Since(began)
}

// large makes a file whose blocks are on the disk and not dirty.
func large(t *testing.T, d *daemon, bytes int) string {
	t.Helper()
	must(t, os.WriteFile(d.path("large"), make([]byte, bytes), 0o644))
	d.fsync("large")
	return d.path("large")
}

// readsNear reads for a while and compares bytes or operations per second with a
// limit. More than the limit is an error at once; a busy machine can make it less,
// so that has several tries.
func readsNear(t *testing.T, what, path string, size, threads int, unit, want float64) (n int64) {
	t.Helper()
	const within = 0.15
	var got float64
	for range 6 {
		var took time.Duration
		n, took = directReads(t, path, size, threads, time.Second)
		got = float64(n) * unit / took.Seconds()
		if got > want*(1+within) {
			break
		}
		if got >= want*(1-within) {
			return n
		}
	}
	t.Errorf("%s: %.0f, want %.0f within %.0f %%", what, got, want, 100*within)
	return n
}

// TestLimitsAreKept measures what a small volume lets through.
func TestLimitsAreKept(t *testing.T) {
	d := mount(t, "null", "lose-all")
	path := large(t, d, 1<<20)
	d.set(map[string]string{"iops": "400"})
	before, err := d.Stats(d.ctx())
	must(t, err)
	n, _ := directReads(t, path, 4096, 8, time.Second)
	stats, err := d.Stats(d.ctx())
	must(t, err)
	if got := stats["io_operations"] - before["io_operations"]; got != float64(n) {
		t.Errorf("the disk counted %.0f operations of %d", got, n)
	}
	if stats["throttled_ms"] < 1000 {
		t.Errorf("8 threads waited for %.0f ms of a second together", stats["throttled_ms"])
	}
	readsNear(t, "reads per second at 400 IOPS", path, 4096, 8, 1, 400)
	d.set(map[string]string{"iops": "0", "mbps": "8"})
	readsNear(t, "bytes per second at 8 MB/s", path, 256<<10, 2, 256<<10, 8e6)
}

// TestCreditIsSpent lets a burst go by at its own rate, and then the plateau.
func TestCreditIsSpent(t *testing.T) {
	d := mount(t, "null", "lose-all")
	path := large(t, d, 1<<20)
	d.set(map[string]string{"iops": "100", "iops_burst": "1000", "iops_credit": "500"})
	n, took := directReads(t, path, 4096, 8, 400*time.Millisecond)
	if rate := float64(n) / took.Seconds(); rate > 1150 || rate < 250 {
		t.Errorf("%.0f reads per second on credit, want up to 1000", rate)
	}
	for spent := false; !spent; {
		_, _ = directReads(t, path, 4096, 8, 200*time.Millisecond)
		stats, err := d.Stats(d.ctx())
		must(t, err)
		spent = stats["iops_credit"] < 20 // some comes back until the counters are read
	}
	readsNear(t, "reads per second without credit", path, 4096, 8, 1, 100)
}

// TestParallelCap holds reads of 20 ms each to two at once.
func TestParallelCap(t *testing.T) {
	d := mount(t, "null", "lose-all")
	path := large(t, d, 1<<20)
	d.set(map[string]string{"read_ms": "20", "parallel": "2"})
	readsNear(t, "reads per second, two at once of 20 ms", path, 4096, 8, 1, 100)
	stats, err := d.Stats(d.ctx())
	must(t, err)
	if stats["queued_ms"] < 1000 {
		t.Errorf("reads waited for a slot for %.0f ms", stats["queued_ms"])
	}
}

// TestCutEndsWhatWaitsForTokens cuts while requests owe seconds of tokens.
func TestCutEndsWhatWaitsForTokens(t *testing.T) {
	d := mount(t, "null", "lose-all")
	path := large(t, d, 1<<20)
	d.set(map[string]string{"iops": "0.05", "parallel": "1"})
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_DIRECT, 0)
	must(t, err)
	defer f.Close()
	var reads []chan error
	for range 3 {
		reads = append(reads, start(func() error {
			_, err := f.ReadAt(aligned(4096), 0)
			return err
		}))
	}
	for _, r := range reads[1:] {
		waits(t, "a read", r)
	}
	_, err = d.Cut(d.ctx())
	must(t, err)
	for _, r := range reads[1:] {
		ends(t, "a read", r, syscall.EIO)
	}
}
