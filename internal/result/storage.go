package result

import (
	"fmt"
	"math"

	"github.com/holdfast-db/holdfast/internal/stats"
)

// Ratio is how many times as large a metric is in one group as in another, over
// the repetitions (blocks) that both have.
type Ratio struct {
	Point, Lo, Hi float64 // Lo and Hi are NaN where one repetition bounds nothing
	N             int
}

// RatioOf compares a to b; ok is false where they share no repetition.
func RatioOf(a, b *Group, metric string, seed uint64) (r Ratio, ok bool) {
	of := map[int]float64{}
	for _, c := range b.Usable() {
		if v, have := c.Metrics[metric]; have && v > 0 {
			of[c.Repetition] = v
		}
	}
	var va, vb []float64
	for _, c := range a.Usable() {
		v, have := c.Metrics[metric]
		if w, both := of[c.Repetition]; have && both && v > 0 {
			va, vb = append(va, v), append(vb, w)
		}
	}
	if len(va) == 0 {
		return r, false
	}
	iv := stats.RatioPaired(va, vb, confidence, seed)
	r = Ratio{Point: iv.Point, Lo: iv.Lo, Hi: iv.Hi, N: len(va)}
	if math.IsInf(iv.Hi, 0) || r.N < 2 {
		r.Lo, r.Hi = math.NaN(), math.NaN()
	}
	return r, !math.IsNaN(iv.Point)
}

// Names of the parts of a transaction that waits for storage, besides those of a
// commit.
const (
	PartReads  = "page reads"
	PartWrites = "data writes"
	PartCPU    = "processor"
	PartClient = "client and others"
)

// ComposeStorage takes the mean transaction of a group apart by what diagnose
// found; ok is false where it found nothing. The last part is what is left of the
// whole, which is what the client saw.
func ComposeStorage(g *Group) (c Composition, ok bool) {
	names := []struct{ part, metric string }{
		{PartReads, "page_read_ms"}, {PartFlush, "commit_flush_ms"}, {PartWrites, "data_write_ms"},
		{PartReplication, "replication_ms"}, {PartLocks, "lock_ms"}, {PartCPU, "cpu_ms"},
	}
	var whole, rest []float64
	values := make([][]float64, len(names))
	for _, cell := range g.Usable() {
		m := cell.Metrics
		total, have := allLatency(m)
		if _, seen := m["page_read_ms"]; !have || !seen {
			continue
		}
		whole = append(whole, total)
		for i, n := range names {
			values[i] = append(values[i], m[n.metric])
			total -= m[n.metric]
		}
		rest = append(rest, total)
		c.Samples += m["wait_samples"]
	}
	if len(whole) == 0 {
		return c, false
	}
	c.N, c.Whole = len(whole), newPart("", whole)
	for i, n := range names {
		if n.part == PartReplication && stats.Mean(values[i]) == 0 {
			continue
		}
		c.Parts = append(c.Parts, newPart(n.part, values[i]))
	}
	c.Parts = append(c.Parts, newPart(PartClient, rest))
	return c, true
}

// allLatency is the mean of all transactions, those of readers beside included.
func allLatency(m map[string]float64) (ms float64, ok bool) {
	ms, ok = m["latency_mean_ms"]
	if r, beside := m["read_latency_mean_ms"]; ok && beside && m["tps"]+m["read_tps"] > 0 {
		ms = (ms*m["tps"] + r*m["read_tps"]) / (m["tps"] + m["read_tps"])
	}
	return ms, ok
}

// storageClause says what a study of storage found on a disk; "" for another
// experiment, or where it gave no figure.
func storageClause(g *Group) string {
	runs := func(n int) string {
		if n < 2 {
			return ""
		}
		return fmt.Sprintf(" (medians of %d runs)", n)
	}
	switch g.Experiment {
	case "storage-bound":
		tps, ok := g.Spread("tps")
		ms, ok2 := g.Spread("latency_mean_ms")
		if !ok || !ok2 {
			return ""
		}
		text := Count(tps.Median) + " random updates a second, " + Figure(ms.Median) + " ms each"
		if n, ok := Number(g.Params["clients"]); ok {
			text += ", at " + plural(int(n), "client", "clients")
		}
		if n, ok := Number(g.Params["readers"]); ok && n > 0 {
			text += " with " + plural(int(n), "reader", "readers") + " beside"
		}
		return text + runs(tps.N)
	case "vacuum":
		if s, ok := g.Spread("vacuum_s"); ok {
			return "VACUUM takes " + Figure(s.Median) + " s" + runs(s.N)
		}
	case "logical-backlog":
		s, ok := g.Spread("drain_s")
		mb, ok2 := g.Spread("backlog_mb")
		if ok && ok2 {
			return "a subscriber drains " + Figure(mb.Median) + " MB in " + Figure(s.Median) + " s" + runs(s.N)
		}
	}
	return ""
}
