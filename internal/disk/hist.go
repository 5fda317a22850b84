package disk

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// histSub is the number of buckets per power of two: a value is off by at most
// one part in it.
const histSub = 32

// Hist counts durations in logarithmic buckets. It may be used from many
// goroutines; the zero Hist is empty.
type Hist struct {
	buckets [64 * histSub]atomic.Int64
	count   atomic.Int64
	sum     atomic.Int64
}

func histBucket(ns int64) int {
	v := uint64(max(ns, 0))
	if v < histSub {
		return int(v)
	}
	shift := bits.Len64(v) - bits.Len64(histSub)
	return (shift+1)*histSub + int(v>>shift) - histSub
}

// histLow is the lowest value of a bucket.
func histLow(b int) int64 {
	if b < histSub {
		return int64(b)
	}
	return int64(b%histSub+histSub) << (b/histSub - 1)
}

// Add counts one duration.
func (h *Hist) Add(d time.Duration) {
	h.buckets[histBucket(int64(d))].Add(1)
	h.count.Add(1)
	h.sum.Add(int64(max(d, 0)))
}

// Count is the number of durations.
func (h *Hist) Count() int64 { return h.count.Load() }

// Mean is their mean, 0 if there are none.
func (h *Hist) Mean() time.Duration {
	if n := h.count.Load(); n > 0 {
		return time.Duration(h.sum.Load() / n)
	}
	return 0
}

// Quantile returns the value below which a part q (0 to 1) of the durations
// lies, to within 3 %; 0 if there are none.
func (h *Hist) Quantile(q float64) time.Duration {
	left := int64(q*float64(h.count.Load()-1)) + 1
	for i := range h.buckets {
		if left -= h.buckets[i].Load(); left <= 0 {
			return time.Duration((histLow(i) + histLow(i+1)) / 2)
		}
	}
	return 0
}
