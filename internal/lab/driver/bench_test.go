package driver

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/collector"
)

// BenchmarkLoad is the cost of one acked write to driver, collector and the
// scripted server together: cpu-µs/op counts all three, which run in this process.
func BenchmarkLoad(b *testing.B) {
	f := newFake(b, nil)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	c, err := collector.New(ln, token, filepath.Join(b.TempDir(), "h"), collector.Options{})
	if err != nil {
		b.Fatal(err)
	}
	cfg := testConfig(f.target())
	cfg.Collector, cfg.Writers, cfg.PayloadBytes = ln.Addr().String(), 8, 100
	done := make(chan error, 1)
	go func() { done <- Run(b.Context(), cfg) }()
	if err := c.WaitAcks(b.Context(), 1000); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	cpu, start := cpuTime(b), c.Live().Acked
	if err := c.WaitAcks(b.Context(), start+b.N); err != nil {
		b.Fatal(err)
	}
	n := c.Live().Acked - start
	b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/float64(n), "cpu-µs/op")
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "acks/s")
	b.StopTimer()
	if err := c.Stop(b.Context()); err != nil {
		b.Fatal(err)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}

func cpuTime(b *testing.B) time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}
