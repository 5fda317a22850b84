package disk

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Latency is a distribution of delays: log-normal around the median, and now
// and then the tail.
type Latency struct {
	Median  time.Duration
	Spread  float64 // sigma of the logarithm; 0.2 puts 95 % within a factor of 1.5
	Tail    float64 // how often a delay is in the tail, 0 to 1
	TailMul float64 // how much longer it is then
}

// Sample draws one delay.
func (l Latency) Sample(rng *rand.Rand) time.Duration {
	if l.Median <= 0 {
		return 0
	}
	f := math.Exp(l.Spread * rng.NormFloat64())
	if l.Tail > 0 && rng.Float64() < l.Tail {
		f *= l.TailMul
	}
	return time.Duration(float64(l.Median) * f)
}

// Timing is how long a disk takes, and what it is sold with.
type Timing struct {
	Flush    Latency
	Read     Latency // of a read that the page cache does not have
	Write    Latency // of a direct write
	IOPS     Limit   // operations, of MaxIO bytes at most each
	Bytes    Limit
	Parallel int // how many transfers may be at the device at once; 0: no limit
}

// Named is a kind of disk.
type Named struct {
	Name   string
	About  string
	Timing Timing
}

// NamedDisks returns the kinds of disk, the fastest first.
func NamedDisks() []Named {
	const us = time.Microsecond
	return []Named{
		{"null", "no added latency", Timing{}},
		{"local-nvme", "a cloud server's local NVMe, flush 0.34 ms", Timing{
			Flush: Latency{340 * us, 0.12, 0.005, 4},
			Read:  Latency{90 * us, 0.15, 0.002, 5},
			Write: Latency{25 * us, 0.15, 0.002, 5},
		}},
		{"instance-nvme", "an instance store (NVMe with a capacitor), flush 0.1 ms", Timing{
			Flush: Latency{100 * us, 0.15, 0.002, 5},
			Read:  Latency{85 * us, 0.15, 0.002, 5},
			Write: Latency{20 * us, 0.15, 0.002, 5},
		}},
		{"gp3-3000", "a baseline gp3 volume (3,000 IOPS, 125 MB/s), flush 1.1 ms", Timing{
			Flush: Latency{1100 * us, 0.25, 0.01, 6},
			Read:  Latency{700 * us, 0.3, 0.01, 6},
			Write: Latency{900 * us, 0.3, 0.01, 6},
			IOPS:  Limit{Rate: 3000}, Bytes: Limit{Rate: 125e6},
		}},
		{"cloud-volume", "a cloud server's network volume, flush 2.7 ms", Timing{
			Flush: Latency{2700 * us, 0.15, 0.01, 4},
			Read:  Latency{900 * us, 0.3, 0.01, 4},
			Write: Latency{1200 * us, 0.3, 0.01, 4},
		}},
	}
}

// ByName finds a kind of disk.
func ByName(name string) (Named, error) {
	all := NamedDisks()
	i := slices.IndexFunc(all, func(n Named) bool { return n.Name == name })
	if i < 0 {
		var names []string
		for _, n := range all {
			names = append(names, n.Name)
		}
		return Named{}, fmt.Errorf("unknown disk %q: use one of %s", name, strings.Join(names, ", "))
	}
	return all[i], nil
}
