package pgbench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/holdfast-db/holdfast/internal/stats"
)

// maxUs is the longest latency that is counted: a day. Longer ones are an
// error, never clamped.
const maxUs = int64(24 * 3600 * 1e6)

// Output is what a run left behind.
type Output struct {
	Stdout, Stderr string
	Exit           int         // exit status, -1 if a signal ended it
	HardStopped    bool        // the caller killed it after Deadline
	Logs           []io.Reader // one per thread; nil without LogPrefix
}

// Second counts the transactions that ended in one second of the load.
type Second struct {
	T            float64 // since the start of the load
	Done, Failed int
	P50Ms        float64 // of those done; NaN if none
}

// Result is a run, judged.
type Result struct {
	Summary
	// Invalid holds why no figure of this run may be printed; empty if none.
	Invalid []string
	// NotSteady says that the latency's level or trend changed inside the run:
	// no one average is then true. It is among the reasons in Invalid.
	NotSteady string

	// From the logs; nil or empty without them.
	Latency   *hdrhistogram.Histogram // µs; with a rate since the scheduled start
	Service   *hdrhistogram.Histogram // µs since the real start; nil without a rate
	Seconds   []Second
	LongestMs float64 // longest stretch without an end of any transaction
	Done      int64
	FailedLog int64
	Skipped   int64
	StartUs   int64 // of the first transaction, µs since the epoch by the load host's clock
}

// Valid says that the figures may be printed.
func (r *Result) Valid() bool { return len(r.Invalid) == 0 }

// Why is the reason for "invalid", for result.Cell.
func (r *Result) Why() string { return strings.Join(r.Invalid, "; ") }

// Metrics are those of a commit cell, by the names of run.json: latency_mean_ms,
// latency_p50_ms, latency_p99_ms, latency_p999_ms (from the logs), tps and
// failed. What was not measured, and everything of an invalid run, is absent.
func (r *Result) Metrics() map[string]float64 {
	m := map[string]float64{}
	if !r.Valid() {
		return m
	}
	if r.TPS != nil {
		m["tps"] = *r.TPS
	}
	if r.Failed != nil {
		m["failed"] = float64(*r.Failed)
	} else if r.Latency != nil {
		m["failed"] = float64(r.FailedLog)
	}
	if r.Latency != nil && r.Latency.TotalCount() > 0 {
		m["latency_mean_ms"] = r.Latency.Mean() / 1000
		m["latency_p50_ms"] = float64(r.Latency.ValueAtQuantile(50)) / 1000
		m["latency_p99_ms"] = float64(r.Latency.ValueAtQuantile(99)) / 1000
		m["latency_p999_ms"] = float64(r.Latency.ValueAtQuantile(99.9)) / 1000
	}
	return m
}

// EncodeHistogram is Latency as result.Cell holds it; "" without logs.
func (r *Result) EncodeHistogram() (string, error) {
	if r.Latency == nil {
		return "", nil
	}
	b, err := r.Latency.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	return string(b), err
}

// Read judges a run of cfg. A broken run is no error but a Result with reasons
// in Invalid; an error means that a log is none, which is the caller's fault.
func Read(cfg Config, out Output) (*Result, error) {
	cfg = cfg.withDefaults()
	r := &Result{}
	var unprinted error
	r.Summary, unprinted = ParseOutput(out.Stdout, out.Stderr)
	logs := &logReader{clients: map[int64]int64{}}
	for i, l := range out.Logs {
		cut, err := ParseLog(l, cfg.Rate > 0, logs.add)
		if err != nil {
			return nil, fmt.Errorf("log %d of %d: %w", i+1, len(out.Logs), err)
		}
		logs.truncated = logs.truncated || cut
	}
	if len(out.Logs) > 0 {
		if err := r.fromLogs(cfg, logs); err != nil {
			return nil, err
		}
	}
	r.judge(cfg, out, unprinted)
	if len(out.Logs) > 0 {
		r.judgeLogs(cfg, logs)
	}
	return r, nil
}

// logReader holds the entries of all threads' logs.
type logReader struct {
	entries   []Entry
	clients   map[int64]int64 // the last end per client
	truncated bool
}

func (l *logReader) add(e Entry) {
	l.entries = append(l.entries, e)
	if e.Kind != Skipped {
		l.clients[e.Client] = max(l.clients[e.Client], e.EndUs)
	}
}

func (r *Result) fromLogs(cfg Config, l *logReader) error {
	r.Latency = hdrhistogram.New(1, maxUs, 3)
	if cfg.Rate > 0 {
		r.Service = hdrhistogram.New(1, maxUs, 3)
	}
	slices.SortFunc(l.entries, func(a, b Entry) int { return int(max(-1, min(1, a.EndUs-b.EndUs))) })
	start := int64(math.MaxInt64)
	for _, e := range l.entries {
		if e.Kind != Skipped {
			start = min(start, e.EndUs-e.LatencyUs)
		}
	}
	if len(l.entries) == 0 || start == math.MaxInt64 {
		return nil
	}
	last := start
	r.StartUs = start
	for _, e := range l.entries {
		switch e.Kind {
		case Skipped:
			r.Skipped++
			continue
		case Failed:
			r.FailedLog++
		case Done:
			r.Done++
			if err := r.Latency.RecordValue(e.LatencyUs); err != nil {
				return fmt.Errorf("record a latency of %d µs: %w", e.LatencyUs, err)
			}
			if r.Service != nil {
				if err := r.Service.RecordValue(e.LatencyUs - e.LagUs); err != nil {
					return fmt.Errorf("record a service time of %d µs: %w", e.LatencyUs-e.LagUs, err)
				}
			}
		}
		r.LongestMs = max(r.LongestMs, float64(e.EndUs-last)/1000)
		last = e.EndUs
	}
	r.perSecond(cfg, l.entries)
	return nil
}

// perSecond fills Seconds up to the asked time, empty ones too, and looks for
// changes in their medians. What was still under way at the asked time, at most
// one transaction per client, counts into the last second: a second of its own
// would look like a stall.
func (r *Result) perSecond(cfg Config, entries []Entry) {
	last := entries[len(entries)-1].EndUs
	asked := int64(cfg.Seconds)
	n := max(cfg.Seconds, int(min((last-r.StartUs)/1_000_000+1, 10*asked)))
	if n == cfg.Seconds+1 {
		n--
	}
	latencies := make([][]float64, n)
	r.Seconds = make([]Second, n)
	for _, e := range entries {
		s := (e.EndUs - r.StartUs) / 1_000_000
		if s == asked && int64(n) == asked {
			s--
		}
		if s < 0 || s >= int64(n) {
			continue // a wall clock that jumped; judged as a run too long or too short
		}
		switch e.Kind {
		case Done:
			r.Seconds[s].Done++
			latencies[s] = append(latencies[s], float64(e.LatencyUs)/1000)
		case Failed:
			r.Seconds[s].Failed++
		}
	}
	for i := range r.Seconds {
		r.Seconds[i].T = float64(i)
		r.Seconds[i].P50Ms = stats.Median(latencies[i])
	}
	r.NotSteady = notSteady(r.windows(cfg, entries))
}

// A run is cut into steadyWindows windows, fewer where one would be shorter
// than shortestWindow or hold too few transactions for a median; below
// leastWindows nothing can be said.
const (
	steadyWindows  = 20
	leastWindows   = 10
	shortestWindow = 250 * time.Millisecond
	perWindow      = 30
)

// windows are the median latencies (ms) of equal stretches of the asked time,
// and how long one is. Stretches in which nothing ended are left out: they are
// judged as stalls.
func (r *Result) windows(cfg Config, entries []Entry) (medians []float64, width time.Duration) {
	asked := time.Duration(cfg.Seconds) * time.Second
	n := min(steadyWindows, int(asked/shortestWindow), int(r.Done)/perWindow)
	if n < leastWindows {
		return nil, 0
	}
	width = asked / time.Duration(n)
	latencies := make([][]float64, n)
	for _, e := range entries {
		if w := (e.EndUs - r.StartUs) / width.Microseconds(); e.Kind == Done && w >= 0 && w < int64(n) {
			latencies[w] = append(latencies[w], float64(e.LatencyUs)/1000)
		}
	}
	for _, l := range latencies {
		if len(l) > 0 {
			medians = append(medians, stats.Median(l))
		}
	}
	return medians, width
}

// What a drift takes to be called one: it is no chance (at this level, after
// the values' dependence on their predecessors is allowed for) and changes the
// median by so much over the run.
const (
	driftP    = 0.01
	driftSize = 0.2
)

func notSteady(medians []float64, width time.Duration) string {
	if len(medians) < leastWindows {
		return ""
	}
	if c, ok := stats.ChangePoint(medians); ok {
		return fmt.Sprintf("not steady: the median latency changed after %.1f s from %.3f to %.3f ms, as a throttled disk's does", (time.Duration(c.At) * width).Seconds(), c.Before, c.After)
	}
	if tr := stats.TestTrend(medians, 0.95); tr.P < driftP && math.Abs(tr.Change) >= driftSize {
		return fmt.Sprintf("not steady: the median latency drifted by %+.0f %% over the run", 100*tr.Change)
	}
	return ""
}

func (r *Result) invalid(format string, args ...any) {
	r.Invalid = append(r.Invalid, fmt.Sprintf(format, args...))
}

// judge looks at what pgbench printed and how it ended.
func (r *Result) judge(cfg Config, out Output, unprinted error) {
	if out.HardStopped {
		r.invalid("pgbench did not end by itself after the asked %d s and was killed (hard stop): the server did not answer", cfg.Seconds)
	}
	if r.AbortedClients > 0 {
		r.invalid("%d of %d clients aborted: %s", r.AbortedClients, cfg.Clients, gist(out.Stderr))
	} else if r.Incomplete {
		r.invalid("pgbench aborted: %s", gist(out.Stderr))
	}
	if out.Exit != 0 && len(r.Invalid) == 0 {
		r.invalid("pgbench ended with status %d: %s", out.Exit, gist(out.Stderr))
	}
	switch {
	case out.HardStopped:
	case unprinted != nil:
		r.invalid("%v", unprinted)
	case r.Transactions < int64(cfg.MinTransactions):
		r.invalid("only %d transactions, fewer than %d", r.Transactions, cfg.MinTransactions)
	case r.TPS == nil || *r.TPS <= 0:
		r.invalid("pgbench printed no TPS")
	case r.LatencyMs == nil || *r.LatencyMs <= 0:
		r.invalid("pgbench printed no latency, or 0.000 ms")
	}
}

// judgeLogs looks for what the printed summary hides.
func (r *Result) judgeLogs(cfg Config, l *logReader) {
	if r.Done == 0 {
		r.invalid("the log holds no finished transaction")
		return
	}
	if l.truncated {
		r.invalid("the log is cut off")
	}
	asked := int64(cfg.Seconds) * 1_000_000
	last := l.entries[len(l.entries)-1].EndUs
	stall := cfg.StallLimit.Microseconds()
	if r.ConnectMs != nil {
		// The asked time runs while the clients connect; on a busy machine that
		// takes seconds for many of them.
		asked -= int64(*r.ConnectMs * 1000)
	}
	if ran := last - r.StartUs; ran < asked-stall {
		r.invalid("the last transaction ended after %.1f of %d s", float64(ran)/1e6, cfg.Seconds)
	}
	// At a rate, chance alone leaves a gap of the limit once in e^20 at most.
	dense := cfg.Rate == 0 || cfg.Rate*cfg.StallLimit.Seconds() >= 20
	if r.LongestMs >= float64(stall)/1000 && dense {
		r.invalid("no transaction ended for %.1f s", r.LongestMs/1000)
	}
	idle := 0
	for c := range int64(cfg.Clients) {
		if l.clients[c] < r.StartUs+asked-stall && cfg.Rate == 0 {
			idle++
		}
	}
	if idle > 0 && last-r.StartUs >= asked-stall { // otherwise said above
		r.invalid("%d of %d clients had ended nothing for the last %v", idle, cfg.Clients, cfg.StallLimit)
	}
	if r.NotSteady != "" && len(r.Invalid) == 0 { // a stalled or aborted run is no steady one either
		r.invalid("%s", r.NotSteady)
	}
	if r.Transactions > 0 && r.Transactions != r.Done && !l.truncated {
		r.invalid("pgbench counted %d transactions, its logs hold %d", r.Transactions, r.Done)
	}
}
