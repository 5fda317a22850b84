package measure

import (
	"fmt"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/holdfast-db/holdfast/internal/stats"
)

const (
	window    = 100 * time.Millisecond
	enough    = 10                 // windows from which a word on steadiness can be said
	mostWins  = 600                // windows looked at; longer steps are coarsened
	driftP    = 0.01               // a drift must be this unlikely by chance
	driftSize = 0.20               // and this large over the step
	topNs     = int64(24 * 3.6e12) // a day, the longest latency that can be recorded
)

// newHistogram counts nanoseconds with three digits, unclamped up to a day.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, topNs, 3) }

// recorder keeps the latencies of one step, in all and per 100 ms.
type recorder struct {
	count   int64
	total   *hdrhistogram.Histogram
	samples []sample
}

type sample struct{ at, took time.Duration }

func newRecorder() *recorder { return &recorder{total: newHistogram()} }

// record adds a flush that ended at (on the step's clock) and took that long.
func (r *recorder) record(at, took time.Duration) error {
	if err := r.total.RecordValue(int64(took)); err != nil {
		return fmt.Errorf("record a flush of %v: %w", took, err)
	}
	r.count++
	r.samples = append(r.samples, sample{at, took})
	return nil
}

// result closes the step: one distribution, or two regimes.
func (r *recorder) result(s Step) (StepResult, error) {
	res := StepResult{Step: s, Count: r.count}
	ends, medians := r.windows()
	if c, ok := stats.ChangePoint(medians); ok && len(medians) >= enough {
		split := ends[c.At-1]
		var err error
		res.Regimes, err = r.regimes(split)
		res.NotSteady = fmt.Sprintf("the level changed after %.1f s from %.3f to %.3f ms (throttling, burst credits or another load): no single average is true",
			split.Seconds(), c.Before/1e6, c.After/1e6)
		return res, err
	}
	lat, err := latency(r.total)
	if err != nil {
		return res, err
	}
	res.Latency = &lat
	if len(medians) >= enough {
		tr := stats.TestTrend(medians, 0.95)
		if tr.P < driftP && math.Abs(tr.Change) >= driftSize {
			res.NotSteady = fmt.Sprintf("the median drifted by %+.0f %% over the step", 100*tr.Change)
		}
	}
	return res, nil
}

// windows returns the end and the median latency (ns) of each stretch of 100
// ms in which a flush ended. A longer stall is an empty window and shows in
// the maximum.
func (r *recorder) windows() (ends []time.Duration, medians []float64) {
	if r.count == 0 {
		return nil, nil
	}
	width := window
	for r.samples[len(r.samples)-1].at/width > mostWins {
		width *= 2
	}
	for i := 0; i < len(r.samples); {
		w := r.samples[i].at / width
		var v []float64
		for ; i < len(r.samples) && r.samples[i].at/width == w; i++ {
			v = append(v, float64(r.samples[i].took))
		}
		ends = append(ends, (w+1)*width)
		medians = append(medians, stats.Median(v))
	}
	return ends, medians
}

func (r *recorder) regimes(split time.Duration) ([]Regime, error) {
	last := r.samples[len(r.samples)-1].at
	out := []Regime{{ToS: split.Seconds()}, {FromS: split.Seconds(), ToS: last.Seconds()}}
	hist := []*hdrhistogram.Histogram{newHistogram(), newHistogram()}
	for _, s := range r.samples {
		i := 0
		if s.at >= split {
			i = 1
		}
		if err := hist[i].RecordValue(int64(s.took)); err != nil {
			return nil, err
		}
		out[i].Count++
	}
	for i := range out {
		var err error
		if out[i].Latency, err = latency(hist[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// latency sums up a histogram of nanoseconds.
func latency(h *hdrhistogram.Histogram) (Latency, error) {
	us := hdrhistogram.New(1, topNs/1000, 3)
	for _, b := range h.Distribution() {
		if b.Count == 0 {
			continue
		}
		if err := us.RecordValues((b.From+b.To)/2/1000, b.Count); err != nil {
			return Latency{}, fmt.Errorf("convert a histogram: %w", err)
		}
	}
	enc, err := us.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return Latency{}, fmt.Errorf("encode a histogram: %w", err)
	}
	const ms = 1e6
	return Latency{
		P50Ms:     float64(h.ValueAtQuantile(50)) / ms,
		P99Ms:     float64(h.ValueAtQuantile(99)) / ms,
		MeanMs:    h.Mean() / ms,
		MaxMs:     float64(h.Max()) / ms,
		Histogram: string(enc),
	}, nil
}
