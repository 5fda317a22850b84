package pgbench

import (
	"io"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// TestCaseSysbenchIssue242: a latency far beyond all others is counted as what
// it was, in the percentiles and in the histogram that is kept.
func TestCaseSysbenchIssue242(t *testing.T) {
	const threeHours = int64(3 * 3600 * 1e6)
	// The client that waited for three hours ended with all the others.
	log, n := steadyLog(1, 10, 10, func(_ int, at float64, us int64) (int64, bool) {
		if at == 10 {
			return threeHours, true
		}
		return us, true
	})
	r := read(t, Config{Clients: 1, Seconds: 10}, summary(n), log)
	if got := r.Latency.Max(); got < threeHours*999/1000 {
		t.Errorf("three hours became %d µs", got)
	}
	if got := r.Latency.ValueAtQuantile(99.9); got < threeHours*999/1000 {
		t.Errorf("the 99.9th percentile of %d is %d µs", n, got)
	}
	text, err := r.EncodeHistogram()
	if err != nil {
		t.Fatal(err)
	}
	kept, err := hdrhistogram.Decode([]byte(text))
	if err != nil || kept.Max() != r.Latency.Max() || kept.TotalCount() != int64(n) {
		t.Errorf("kept: %v, %v", kept.Max(), err)
	}
	// What is longer than can be counted is an error, not the longest that can.
	if _, err := Read(Config{Clients: 1, Seconds: 1}, Output{Stdout: summary(1), Logs: []io.Reader{strings.NewReader("0 1 90000000000 0 1000 0\n")}}); err == nil {
		t.Error("a latency of 25 hours is counted as something else")
	}
}
