package result

import (
	"math"

	"github.com/holdfast-db/holdfast/internal/stats"
)

const confidence = 0.95

// Part is one share of a commit's time over the repetitions of a group, in ms:
// their mean with its 95 % interval.
type Part struct {
	Name   string
	Ms     float64
	Lo, Hi float64 // both NaN where one repetition bounds nothing
}

// Bounded says whether the part has an interval.
func (p Part) Bounded() bool { return !math.IsNaN(p.Lo) && !math.IsNaN(p.Hi) }

// Names of the parts of a commit.
const (
	PartFlush       = "flush"
	PartReplication = "replication"
	PartLocks       = "row locks"
	PartRest        = "rest"
)

// Composition is what the transactions of a group are made of.
type Composition struct {
	Whole     Part
	Parts     []Part // in the order in which they come, the rest last; they add up to the whole
	DiskFlush *Part  // what one flush took by the disk's own clock, nil where it has none
	N         int    // repetitions
	Samples   float64
}

// lockShare is the part of the whole from which waiting for rows is told apart
// from the rest.
const lockShare = 0.02

// Compose takes a group's mean transaction apart; ok is false where the parts
// were not measured. The whole is the time that a transaction itself took: of an
// open loop, without the time that it waited for its start. The parts are
// those of the waits that were sampled, the rest is the difference; it can come
// out below zero where sampling erred by more than there is.
func Compose(g *Group) (c Composition, ok bool) {
	var whole, flush, replication, locks, rest, disk []float64
	for _, cell := range g.Usable() {
		m := cell.Metrics
		total, have := m["service_mean_ms"]
		if !have {
			total, have = m["latency_mean_ms"]
		}
		f, haveFlush := m["commit_flush_ms"]
		r, haveReplication := m["replication_ms"]
		if !have || !haveFlush || !haveReplication {
			continue
		}
		whole, flush, replication, locks = append(whole, total), append(flush, f), append(replication, r), append(locks, m["lock_ms"])
		c.Samples += m["wait_samples"]
		if d, ok := m["disk_flush_mean_ms"]; ok {
			disk = append(disk, d)
		}
	}
	if len(whole) == 0 {
		return c, false
	}
	c.N, c.Whole = len(whole), newPart("", whole)
	apart := stats.Mean(locks) >= lockShare*c.Whole.Ms
	for i := range whole {
		left := whole[i] - flush[i] - replication[i]
		if apart {
			left -= locks[i]
		}
		rest = append(rest, left)
	}
	c.Parts = []Part{newPart(PartFlush, flush), newPart(PartReplication, replication)}
	if apart {
		c.Parts = append(c.Parts, newPart(PartLocks, locks))
	}
	c.Parts = append(c.Parts, newPart(PartRest, rest))
	if len(disk) > 0 {
		p := newPart("", disk)
		c.DiskFlush = &p
	}
	return c, true
}

func newPart(name string, v []float64) Part {
	p := Part{Name: name, Ms: stats.Mean(v), Lo: math.NaN(), Hi: math.NaN()}
	if len(v) > 1 {
		iv := stats.MeanInterval(v, confidence, 1)
		p.Lo, p.Hi = iv.Lo, iv.Hi
	}
	return p
}
