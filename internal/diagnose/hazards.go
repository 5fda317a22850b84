package diagnose

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// hazard is something that does not slow transactions down yet, and will.
type hazard struct {
	cause, level string
	name         string
	text         string // one sentence
	advice       string
	grows        bool
	severe       bool
}

// oldTransaction is the age in transactions from which the oldest visible
// snapshot holds more back than a busy server does by itself.
const oldTransaction = 500

func (a *assessor) hazards() {
	a.slots()
	a.holders()
}

// slots finds those that hold WAL back with nobody reading it, or that fall behind.
func (a *assessor) slots() {
	if a.e.Begin == nil {
		return
	}
	last := a.e.End
	if last == nil {
		last = a.e.Begin
	}
	before := map[string]Row{}
	for _, r := range a.e.Begin.Views["slots"] {
		before[r.Text("slot_name")] = r
	}
	limit := a.megabytes("max_wal_size", 1024)
	for _, r := range last.Views["slots"] {
		held, ok := r.Num("retained")
		if !ok {
			continue
		}
		was, _ := before[r.Text("slot_name")].Num("retained")
		grown := held - was
		active, _ := r.Num("active")
		grows := grown >= 1<<20 && grown >= 0.3*deref(a.d.Rates.WALBytesPerS)*a.fullSpan()
		who := "nobody reads it"
		if active == 1 {
			who = "its reader does not keep up"
		}
		if active == 1 && !grows || active == 0 && !grows && held < 1<<24 {
			continue
		}
		h := hazard{cause: CauseSlot, level: Warning, name: "slot holding WAL", grows: grows, severe: held > limit || active == 0}
		h.text = fmt.Sprintf("The replication slot %q holds %s of WAL back and %s", r.Text("slot_name"), size(held), who)
		if grows && a.fullSpan() > 0 {
			h.text += fmt.Sprintf("; it grows by %s a second", size(grown/a.fullSpan()))
		}
		if active == 0 {
			h.level = Danger
		}
		h.advice = fmt.Sprintf("Bring its reader back, or SELECT pg_drop_replication_slot('%s'); max_slot_wal_keep_size bounds what a slot may hold.", r.Text("slot_name"))
		a.hazard = append(a.hazard, h)
	}
}

// megabytes is a setting in MB as bytes, or a default in MB.
func (a *assessor) megabytes(name string, byDefault float64) float64 {
	if v, err := strconv.ParseFloat(a.e.setting(name), 64); err == nil {
		byDefault = v
	}
	return byDefault * (1 << 20)
}

// holders finds what keeps vacuum from removing dead rows: it can remove what
// died before the oldest snapshot only.
func (a *assessor) holders() {
	if a.e.Begin == nil || a.e.End == nil {
		return
	}
	window := a.fullSpan()
	dead, grown := a.deadRows()
	worst := hazard{}
	oldest := 0.0
	offer := func(age float64, severe bool, text, advice string) {
		if age < oldTransaction || age <= oldest {
			return
		}
		oldest = age
		worst = hazard{cause: CauseVacuum, level: Warning, name: "vacuum held back", text: text, advice: advice, grows: grown > 0, severe: severe}
	}
	for _, r := range a.e.End.Views["holders"] {
		inTx, _ := r.Num("in_tx_s")
		inState, _ := r.Num("in_state_s")
		x, _ := r.Num("xmin_age")
		y, _ := r.Num("xid_age")
		idle := inTransaction(r.Text("state"))
		if r.Text("backend") != clientBackend || inTx < max(window, 5) || !idle && inTx < 60 {
			continue
		}
		who := fmt.Sprintf("pid %.0f, user %s", mustNum(r, "pid"), r.Text("user"))
		if app := r.Text("app"); app != "" {
			who += ", " + app
		}
		what := fmt.Sprintf("A session idle in transaction for %s (%s)", seconds(inState), who)
		advice := fmt.Sprintf("End it (SELECT pg_terminate_backend(%.0f)), find why the program leaves its transaction open, and set idle_in_transaction_session_timeout.", mustNum(r, "pid"))
		if !idle {
			what = fmt.Sprintf("A statement that has run for %s (%s)", seconds(inTx), who)
			advice = "Let long statements run on a standby, or bound them by statement_timeout."
		}
		offer(max(x, y), idle || inTx > 600, what+" holds vacuum back: no row that died since can be removed"+deadText(dead, grown), advice)
	}
	for _, r := range a.e.End.Views["pg_prepared_xacts"] {
		offer(10*oldTransaction, true, fmt.Sprintf("The prepared transaction %q, open since %s, holds vacuum back", r.Text("gid"), r.Text("prepared")),
			"COMMIT PREPARED or ROLLBACK PREPARED it.")
	}
	for _, r := range a.e.End.Views["slots"] {
		age, ok := r.Num("xmin_age")
		if active, _ := r.Num("active"); ok && active == 0 {
			offer(age/20, true, fmt.Sprintf("The replication slot %q, which nobody reads, holds vacuum back by %.0f transactions", r.Text("slot_name"), age), "Drop the slot, or bring its reader back.")
		}
	}
	if worst.cause != "" && (dead >= 500 || grown > 0 || worst.severe && oldest > 1e6) {
		a.hazard = append(a.hazard, worst)
	}
}

func deadText(dead, grown float64) string {
	switch {
	case dead > 0 && grown > 0:
		return fmt.Sprintf(" (%s dead rows in this database, %s more than at the beginning)", count(dead), count(grown))
	case dead > 0:
		return fmt.Sprintf(" (%s dead rows in this database)", count(dead))
	}
	return ""
}

// deadRows of the database's worst tables, and by how much they grew.
func (a *assessor) deadRows() (dead, grown float64) {
	dead, _ = a.e.End.Sum("tables", nil, "dead")
	before, ok := a.e.Begin.Sum("tables", nil, "dead")
	if !ok {
		return dead, 0
	}
	return dead, math.Max(dead-before, 0)
}

func mustNum(r Row, name string) float64 {
	v, _ := r.Num(name)
	return v
}

// size is a number of bytes in words.
func size(v float64) string {
	for _, u := range []struct {
		name string
		of   float64
	}{{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}} {
		if v >= u.of {
			return fmt.Sprintf("%.3g %s", v/u.of, u.name)
		}
	}
	return fmt.Sprintf("%.0f B", v)
}

func seconds(v float64) string {
	switch {
	case v >= 7200:
		return fmt.Sprintf("%.1f hours", v/3600)
	case v >= 120:
		return fmt.Sprintf("%.0f minutes", v/60)
	}
	return fmt.Sprintf("%.0f s", v)
}

// count has thousands set apart.
func count(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	var b strings.Builder
	for i, r := range s {
		if i > 0 && (len(s)-i)%3 == 0 && r != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(r)
	}
	return b.String()
}
