package resulttest

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/holdfast-db/holdfast/internal/result"
)

// powerOff draws one power cut of the model's primary: 10 s of load at about
// 200 writes a second, the cut at 0, recovery, and 10 s more.
func powerOff(rng *rand.Rand, m model, lagMs, rep int) result.Cell {
	first := m.firstAckMs * (0.85 + 0.4*rng.Float64())
	c := result.Cell{
		Setup: m.setup, Experiment: "power-off", Repetition: rep, Fault: "host-power", Promise: &m.promise,
		Evidence: result.EvidenceSimulatedDisk, Silent: true, Simulated: true, Verdict: result.Held, Recovery: m.recovery,
		Params:   map[string]any{"disk": m.disk, "lag_ms": lagMs, "writers": 4, "rate": 200, "seconds": 10},
		Versions: map[string]string{"postgres": "15.12"},
		History:  fmt.Sprintf("histories/%s-%s-%d-%03d.hist", m.setup, m.disk, lagMs, rep),
	}
	c.Histogram, _ = drawHistogram(rng, m.commitMs[1], 800)
	d := drawSeconds(rng, &c, first, lagMs > 0 && !m.losesLag)
	lost := 0
	switch {
	case lagMs > 0 && m.losesLag:
		lost = int(float64(lagMs)/1000*200*(0.95+0.1*rng.Float64())) + rng.IntN(6)
	case m.liar && rep%4 != 3:
		lost = 1 + rng.IntN(400)
	}
	lost = min(lost, d.before)
	unknown := d.unknown
	recovered := rng.IntN(unknown + 1)
	c.Metrics = map[string]float64{
		"acked": float64(d.acked), "refused": float64(d.refused), "unknown": float64(unknown), "lost": float64(lost),
		"recovered": float64(recovered), "ghost": 0, "phantom": 0, "duplicated": 0,
		"longest_gap_ms": round(first + float64(lagMs)*float64Of(!m.losesLag && lagMs > 0)), "baseline_gap_ms": round(18 + 6*rng.Float64()),
		"first_ack_ms": round(first), "sustained_ms": round(first + 120), "promoted_ms": round(first * 0.7), "rejoined_ms": round(first + 4200),
	}
	if m.setup == "pg-any1" {
		c.Metrics["detected_ms"] = round(first * 0.2)
	}
	c.IDs = drawIDs(d, lost, recovered)
	if lost > 0 {
		c.Metrics["lost_ms"] = round(float64(lost) / 200 * 1000)
		if m.promise.Lose == result.LoseNothing {
			c.Verdict = result.Broken
			c.Why = fmt.Sprintf("%d acknowledged writes are missing on the survivor; the promise is to lose nothing", lost)
		}
	}
	c.Events = []result.Event{
		{AtMs: 0, UntilMs: 2.1, What: "power cut: network, processes, unflushed data"},
		{AtMs: round(first * 0.2), UntilMs: round(first * 0.7), What: "recovery: " + m.recovery},
		{AtMs: round(first), What: "first acknowledged write"},
		{AtMs: round(first + 4200), What: "old node rejoined"},
	}
	if lagMs > 0 {
		c.Events = append([]result.Event{{AtMs: float64(-lagMs), UntilMs: 0, What: "standbys cut off"}}, c.Events...)
	}
	return c
}

// drawn is what the load of one fault came to.
type drawn struct{ before, acked, refused, unknown int }

func drawSeconds(rng *rand.Rand, c *result.Cell, firstMs float64, stalls bool) drawn {
	var d drawn
	for s := -10; s < 12; s++ {
		// The share of this second in which writes come back.
		share := 1.0
		if s >= 0 {
			share = math.Min(1, math.Max(0, float64(s+1)-firstMs/1000))
		}
		if stalls && s < 0 {
			share = math.Min(1, math.Max(0, -1.5-float64(s)))
		}
		sec := result.Second{T: float64(s), Acked: int(share * (196 + 8*rng.Float64()))}
		if s == 0 {
			sec.Unknown = 4
		}
		if s >= 0 && share < 1 {
			sec.Refused = rng.IntN(6)
		}
		d.acked += sec.Acked
		d.refused += sec.Refused
		d.unknown += sec.Unknown
		if s < 0 {
			d.before += sec.Acked
		}
		c.Series = append(c.Series, sec)
	}
	return d
}

func drawIDs(d drawn, lost, recovered int) []result.IDRange {
	var ids []result.IDRange
	next := uint64(1)
	add := func(n int, outcome string, survived bool) {
		if n > 0 {
			ids = append(ids, result.IDRange{From: next, To: next + uint64(n) - 1, Outcome: outcome, Survived: survived})
			next += uint64(n)
		}
	}
	add(d.before-lost, result.OutcomeAcked, true)
	add(lost, result.OutcomeAcked, false)
	add(recovered, result.OutcomeUnknown, true)
	add(d.unknown-recovered, result.OutcomeUnknown, false)
	add(d.refused, result.OutcomeRefused, false)
	add(d.acked-d.before, result.OutcomeAcked, true)
	return ids
}
