package diagnose

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/stats"
)

// What storage did, from counters where the server keeps times, else by
// Little's law: the time of one = the mean number under way ÷ the rate.
func (a *assessor) storage() {
	a.flush()
	a.reads()
	a.limit()
	a.regime()
}

const (
	fromCounters = "the server's counters"
	fromLittle   = "sampled waits ÷ rate"
)

// underWay is the mean number of processes, of whatever kind, in an event ("io:walsync").
func (a *assessor) underWay(events ...string) float64 {
	n := 0
	for _, e := range events {
		n += a.all[e]
	}
	return float64(n) / float64(max(len(a.e.Samples), 1))
}

// walColumns are where the flushes of WAL and their times are counted: in
// pg_stat_wal from 14 to 17, in pg_stat_io since 18. With an O_DSYNC method a
// write is the flush.
func (a *assessor) walFlushes() (count float64, timeMs float64, counted, timed bool) {
	isWAL := func(r Row) bool { return r.Text("object") == "wal" }
	byWrite := strings.HasPrefix(a.e.setting("wal_sync_method"), "open_")
	names := [2]string{"wal_sync", "wal_sync_time"}
	ioNames := [2]string{"fsyncs", "fsync_time"}
	if byWrite {
		names, ioNames = [2]string{"wal_write", "wal_write_time"}, [2]string{"writes", "write_time"}
	}
	if count, counted = a.e.delta("pg_stat_wal", nil, names[0]); counted {
		timeMs, timed = a.e.delta("pg_stat_wal", nil, names[1])
	} else if count, counted = a.e.delta("pg_stat_io", isWAL, ioNames[0]); counted {
		timeMs, timed = a.e.delta("pg_stat_io", isWAL, ioNames[1])
	}
	return count, timeMs, counted, timed && a.e.setting("track_wal_io_timing") == "on"
}

func (a *assessor) flush() {
	s, span := &a.d.Storage, a.fullSpan()
	count, timeMs, counted, timed := a.walFlushes()
	if !counted || span <= 0 || count < 10 {
		return
	}
	s.FlushesPerS = ptr(round(count/span, 2))
	if timed {
		s.FlushMs, s.FlushSource = ptr(round(timeMs/count, 4)), fromCounters
		return
	}
	event := "io:walsync"
	if strings.HasPrefix(a.e.setting("wal_sync_method"), "open_") {
		event = "io:walwrite"
	}
	if a.all[event] >= 10 {
		s.FlushMs, s.FlushSource = ptr(round(1000*a.underWay(event)/(count/span), 4)), fromLittle
	}
}

var pageReadEvents = []string{"io:datafileread", "io:aioiocompletion", "io:aioiouringexecution"}

func (a *assessor) reads() {
	s := &a.d.Storage
	if a.span <= 0 || a.d.Rates.ReadsPerS == nil || *a.d.Rates.ReadsPerS < 5 {
		return
	}
	first, last := a.e.Ticks[0], a.e.Ticks[len(a.e.Ticks)-1]
	n, spent := last.Reads-first.Reads, last.ReadMs-first.ReadMs
	seen := 0
	for _, e := range pageReadEvents {
		seen += a.all[e]
	}
	switch {
	case a.e.setting("track_io_timing") == "on" && spent > 0:
		s.ReadMs, s.ReadSource = ptr(round(spent/n, 4)), fromCounters
	case seen >= 10:
		s.ReadMs, s.ReadSource = ptr(round(1000*a.underWay(pageReadEvents...)/(n/a.span), 4)), fromLittle
	default:
		return
	}
	var each []float64
	for _, sec := range a.seconds() {
		if sec.reads >= 20 && sec.waiting > 0 {
			each = append(each, 1000*sec.waiting/sec.reads)
		}
	}
	if len(each) >= 10 {
		s.ReadP95Ms = ptr(round(stats.Quantile(each, 0.95), 3))
	}
}

// second is what happened between two ticks.
type second struct {
	from, to   float64 // seconds
	tps, reads float64 // a second
	readMs     float64 // by the server's clock; 0 where it is off
	waiting    float64 // for pages, on average
	active     float64
	checkpoint float64 // share of the samples
	samples    int
}

// counterLag is by how much counters trail what is sampled: a backend reports
// what it did once a second at most.
const counterLag = 500 * time.Millisecond

// seconds pairs the ticks with the samples between them.
func (a *assessor) seconds() []second { return a.windows(0) }

// windows are stretches of at least so much time between two ticks.
func (a *assessor) windows(least time.Duration) []second {
	var out []second
	next, from := 0, 0
	for i := 1; i < len(a.e.Ticks); i++ {
		p, q := a.e.Ticks[from], a.e.Ticks[i]
		if q.At-p.At < least {
			continue
		}
		from = i
		dt := (q.At - p.At).Seconds()
		if dt < 0.5 || q.Xacts < p.Xacts || q.Reads < p.Reads {
			continue
		}
		s := second{from: p.At.Seconds(), to: q.At.Seconds(),
			tps: max(0, q.Xacts-p.Xacts-float64(q.OwnXacts-p.OwnXacts)) / dt, reads: (q.Reads - p.Reads) / dt}
		if q.Reads > p.Reads {
			s.readMs = (q.ReadMs - p.ReadMs) / (q.Reads - p.Reads)
		}
		for next < len(a.e.Samples) && a.e.Samples[next].At < q.At-counterLag {
			if a.e.Samples[next].At >= p.At-counterLag {
				s.samples++
				s.waiting += float64(a.seen[PageReads].each[next])
				s.active += float64(a.active.each[next])
				if a.check[next] {
					s.checkpoint++
				}
			}
			next++
		}
		if s.samples > 0 {
			n := float64(s.samples)
			s.waiting, s.active, s.checkpoint = s.waiting/n, s.active/n, s.checkpoint/n
			out = append(out, s)
		}
	}
	return out
}

// limit tells a cap on the rate of reads from slow reads. With a cap the rate
// stays when more wait; with a latency it grows as they do.
func (a *assessor) limit() {
	s := &a.d.Storage
	var waiting, rate []float64
	for _, sec := range a.windows(2 * time.Second) {
		if sec.reads >= 20 && sec.waiting >= 0.5 {
			waiting, rate = append(waiting, sec.waiting), append(rate, sec.reads)
		}
	}
	if len(rate) < 6 || s.ReadMs == nil {
		return
	}
	spread := stats.Quantile(waiting, 0.9) / max(stats.Quantile(waiting, 0.1), 0.1)
	if slope, ok := elasticity(waiting, rate); ok && spread >= 1.6 {
		s.Elasticity = ptr(round(slope, 2))
		switch {
		case slope < 0.4:
			s.Limit = "rate"
			s.LimitWhy = fmt.Sprintf("reads stayed near %.0f a second while between %.1f and %.1f sessions waited for one",
				stats.Median(rate), stats.Quantile(waiting, 0.1), stats.Quantile(waiting, 0.9))
		case slope > 0.6:
			s.Limit = "latency"
			s.LimitWhy = fmt.Sprintf("reads a second grew with the sessions that waited for one (from %.0f to %.0f a second)", stats.Quantile(rate, 0.1), stats.Quantile(rate, 0.9))
		}
		return
	}
	// About the same number waited all the time: what is left is whether the
	// rate is level and the time of one beyond what a device's latency is.
	level := stats.StdDev(rate) / stats.Mean(rate)
	if level <= 0.05 && *s.ReadMs >= queueMs && stats.Mean(waiting) >= 4 {
		s.Limit = "rate"
		s.LimitWhy = fmt.Sprintf("reads stayed level at %.0f a second (± %.0f %%) while %.0f sessions waited: %s ms each is a queue, no device's latency",
			stats.Mean(rate), 100*level, stats.Mean(waiting), figure(*s.ReadMs))
	}
}

// queueMs is a read time that is beyond a flash device or a network volume at
// rest: network volumes are specified with single-digit ms at most.
const queueMs = 4.0

// elasticity is d ln(y) / d ln(x) by Wald's grouping ("The Fitting of Straight
// Lines if Both Variables are Subject to Error", 1940): the slope between the
// means of the lower and of the upper third by x. Unlike least squares it is
// not flattened by errors in x.
func elasticity(x, y []float64) (float64, bool) {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return int(sign(x[i] - x[j])) })
	third := len(order) / 3
	if third < 2 {
		return 0, false
	}
	mean := func(v []float64, idx []int) float64 {
		sum := 0.0
		for _, i := range idx {
			sum += v[i]
		}
		return sum / float64(len(idx))
	}
	low, high := order[:third], order[len(order)-third:]
	x0, x1, y0, y1 := mean(x, low), mean(x, high), mean(y, low), mean(y, high)
	if x0 <= 0 || y0 <= 0 || y1 <= 0 || x1 <= x0*1.2 {
		return 0, false
	}
	return math.Log(y1/y0) / math.Log(x1/x0), true
}

// regime looks for a lasting change of speed while the demand stayed: burst
// credits that are used up, a neighbour, a throttle.
func (a *assessor) regime() {
	secs := a.seconds()
	var reads, waiting []float64
	for _, s := range secs {
		reads, waiting = append(reads, s.reads), append(waiting, s.waiting)
	}
	if len(reads) < 10 || slices.Min(reads) <= 20 {
		return
	}
	c, ok := stats.ChangePoint(reads)
	if !ok || c.Before <= 0 || c.After/c.Before > 0.7 {
		return
	}
	w0, w1 := stats.Mean(waiting[:c.At]), stats.Mean(waiting[c.At:])
	if w1 < 0.8*w0 || w1 < 1 {
		return // less was asked for
	}
	s := &a.d.Storage
	s.RegimeAtS = ptr(round(secs[c.At].from, 1))
	s.RegimeText = fmt.Sprintf("at %.0f s reads fell from %.0f to %.0f a second while as many sessions waited for them: burst credits used up, or a throttle", *s.RegimeAtS, c.Before, c.After)
}

// series is the course by seconds.
func (a *assessor) series() {
	for _, s := range a.seconds() {
		out := Second{T: round(s.from, 2), TPS: ptr(round(s.tps, 1)), Active: ptr(round(s.active, 2)), Reads: ptr(round(s.reads, 1)), Checkpoint: s.checkpoint > 0.5}
		switch {
		case s.reads < 1:
		case s.readMs > 0:
			out.ReadMs = ptr(round(s.readMs, 3))
		case s.waiting > 0:
			out.ReadMs = ptr(round(1000*s.waiting/s.reads, 3))
		}
		a.d.Series = append(a.d.Series, out)
	}
}
