package diagnose

import (
	"fmt"
	"strconv"

	"github.com/holdfast-db/holdfast/internal/stats"
)

// symptoms answers the five questions, each with its evidence.
func (a *assessor) symptoms() {
	add := func(name, answer, evidence string) {
		a.d.Symptoms = append(a.d.Symptoms, Symptom{Name: name, Answer: answer, Evidence: evidence})
	}
	answer, why := a.ingestion()
	add(SlowIngestion, answer, why)
	answer, why = a.readLatency()
	add(ReadLatency, answer, why)
	answer, why = a.vacuum()
	add(VacuumBehind, answer, why)
	answer, why = a.checkpoints()
	add(CheckpointJolt, answer, why)
	answer, why = a.logical()
	add(LogicalLag, answer, why)
}

func (a *assessor) ingestion() (answer, why string) {
	r, s := &a.d.Rates, &a.d.Storage
	switch {
	case a.e.Server.Role == "standby":
		return No, "this is a standby: nothing is written to it but by replication"
	case len(a.d.Breakdown) == 0 || !a.busy():
		return CantTell, "too few transactions ended to speak of a mean one"
	case r.WALBytesPerTx != nil && *r.WALBytesPerTx < 20 && a.share(CommitFlush) < 0.01:
		return CantTell, fmt.Sprintf("hardly anything was written (%s of WAL a transaction)", size(*r.WALBytesPerTx))
	}
	share := a.share(CommitFlush, OtherWAL, DataWrites, PageReads)
	text := fmt.Sprintf("%.0f %% of a writing transaction waits for storage", 100*share)
	if s.FlushMs != nil {
		text += fmt.Sprintf(", a flush takes %s ms", figure(*s.FlushMs))
	}
	if s.ReadMs != nil {
		text += fmt.Sprintf(", a page read %s ms", figure(*s.ReadMs))
	}
	slow := s.FlushMs != nil && *s.FlushMs >= slowFlushMs || s.ReadMs != nil && *s.ReadMs >= slowReadMs || s.FlushMs == nil && s.ReadMs == nil
	if share >= 0.5 && slow {
		return Yes, text
	}
	return No, text
}

func (a *assessor) readLatency() (answer, why string) {
	var each []float64
	for _, s := range a.seconds() {
		switch {
		case s.reads < 20:
		case s.readMs > 0:
			each = append(each, s.readMs)
		case s.waiting > 0:
			each = append(each, 1000*s.waiting/s.reads)
		}
	}
	if len(each) < 8 {
		return CantTell, "too few pages were read from storage to speak of their latency"
	}
	mid, high := stats.Median(each), stats.Quantile(each, 0.95)
	text := fmt.Sprintf("a page read took %s ms in the median second and %s in the slowest twentieth", figure(mid), figure(high))
	if a.d.Storage.RegimeText != "" {
		return Yes, text + "; " + a.d.Storage.RegimeText
	}
	if high >= 2 && high >= 3*mid {
		return Yes, text
	}
	return No, text
}

// vacuum looks at the tables of this database, and at what keeps vacuum from its work.
func (a *assessor) vacuum() (answer, why string) {
	for _, h := range a.hazard {
		if h.cause == CauseVacuum {
			return Yes, lowerFirst(h.text)
		}
	}
	last := a.e.End
	if last == nil {
		last = a.e.Begin
	}
	if last == nil || last.Views["tables"] == nil {
		return CantTell, "the tables' statistics could not be read"
	}
	if a.e.setting("autovacuum") == "off" {
		return Yes, "autovacuum is off"
	}
	factor, freeze := a.number("autovacuum_vacuum_scale_factor", 0.2), a.number("autovacuum_freeze_max_age", 2e8)
	base := a.number("autovacuum_vacuum_threshold", 50)
	for _, r := range last.Views["tables"] {
		dead, _ := r.Num("dead")
		live, _ := r.Num("live")
		age, _ := r.Num("xid_age")
		switch {
		case age > 1.2*freeze:
			return Yes, fmt.Sprintf("%s is %s transactions old, past autovacuum_freeze_max_age", r.Text("table"), count(age))
		case dead > 3*(base+factor*live) && dead > 10000:
			return Yes, fmt.Sprintf("%s has %s dead rows beside %s live ones, three times what calls autovacuum", r.Text("table"), count(dead), count(live))
		}
	}
	workers := float64(a.vacuums) / float64(max(len(a.e.Samples), 1))
	if limit := a.number("autovacuum_max_workers", 3); workers >= 0.95*limit {
		return Yes, fmt.Sprintf("all %.0f autovacuum workers were busy all the time", limit)
	}
	return No, fmt.Sprintf("no table of the database %s is past what calls autovacuum by three times (%.1f workers busy)", a.e.Server.Database, workers)
}

func (a *assessor) number(setting string, byDefault float64) float64 {
	if v, err := strconv.ParseFloat(a.e.setting(setting), 64); err == nil {
		return v
	}
	return byDefault
}

func (a *assessor) checkpoints() (answer, why string) {
	if a.e.Server.Role == "standby" {
		return CantTell, "a standby makes restartpoints only"
	}
	slower, with, without := a.checkpointSlowdown()
	ran := false
	for _, c := range a.check {
		ran = ran || c
	}
	all, forced := deref(a.d.Rates.Checkpoints), deref(a.d.Rates.CheckpointsForced)
	switch {
	case without > 0 && slower >= 0.3:
		return Yes, fmt.Sprintf("%.0f transactions a second while one was under way, %.0f otherwise", with, without)
	case forced >= 2:
		return Yes, fmt.Sprintf("%.0f were forced by the volume of WAL within %.0f s: max_wal_size is too small", forced, a.fullSpan())
	case without > 0:
		return No, fmt.Sprintf("%.0f transactions a second while one was under way, %.0f otherwise", with, without)
	case ran:
		return CantTell, fmt.Sprintf("one was under way (%.0f began), with too little time without one beside it to compare", all)
	}
	return CantTell, fmt.Sprintf("none ran in these %.0f s; look for longer than checkpoint_timeout (%s s)", a.d.Seconds, a.e.setting("checkpoint_timeout"))
}

func (a *assessor) logical() (answer, why string) {
	last := a.e.End
	if last == nil {
		last = a.e.Begin
	}
	if last == nil {
		return CantTell, "the slots could not be read"
	}
	before := map[string]float64{}
	if a.e.Begin != nil {
		for _, r := range a.e.Begin.Views["slots"] {
			before[r.Text("slot_name")], _ = r.Num("behind")
		}
	}
	n := 0
	worst, name := 0.0, ""
	for _, r := range last.Views["slots"] {
		behind, ok := r.Num("behind")
		if r.Text("slot_type") != "logical" || !ok {
			continue
		}
		n++
		grown := behind - before[r.Text("slot_name")]
		if behind >= 64<<20 || grown >= 4<<20 && grown > 0.3*deref(a.d.Rates.WALBytesPerS)*a.fullSpan() {
			return Yes, fmt.Sprintf("the slot %q is %s behind (%s at the beginning)", r.Text("slot_name"), size(behind), size(before[r.Text("slot_name")]))
		}
		if behind >= worst {
			worst, name = behind, r.Text("slot_name")
		}
	}
	if n == 0 {
		return No, "there is no logical replication from this server"
	}
	return No, fmt.Sprintf("the furthest of %d slots, %q, is %s behind", n, name, size(worst))
}
