package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/stats"
)

// Assess judges evidence. It is a pure function: the same evidence gives the
// same diagnosis.
func Assess(e Evidence) Diagnosis {
	a := &assessor{e: &e, d: Diagnosis{Schema: Schema, Started: e.Started.UTC().Format(time.RFC3339), Server: e.Server, Missing: e.Missing, Interrupted: e.Lost}}
	a.window()
	a.tally()
	a.rates()
	a.storage()
	a.host()
	a.breakdown()
	a.crossCheck()
	a.waits()
	a.d.Statements = statements(a.e)
	a.series()
	a.cost()
	a.hazards()
	a.traps()
	a.symptoms()
	a.verdict()
	a.whatIf()
	return a.d
}

// assessor carries what the steps of an assessment hand to each other.
type assessor struct {
	e *Evidence
	d Diagnosis

	span     float64 // seconds from the first to the last reading of the counters
	tps      float64 // of clients, without our own; 0 when unknown
	seen     map[string]*look
	active   look // in a statement
	inTx     look // idle in transaction, for less than ten seconds
	open     look // idle in transaction, for however long
	working  look // in a statement, in a transaction, or idle for less than ten seconds
	sessions look
	brief    look           // idle for less than ten ms
	all      map[string]int // sessions of whatever kind by lower-case type and event, summed over samples
	events   map[[2]string]int
	vacuums  int // autovacuum workers, summed
	check    []bool
	hazard   []hazard
}

// look is a kind of session: how often it was seen, and in each sample.
type look struct {
	n    int
	each []int
}

func (l *look) add(sample, n int) {
	l.n += n
	l.each[sample] += n
}

// mean is the average number of such sessions.
func (l *look) mean() float64 {
	if len(l.each) == 0 {
		return 0
	}
	return float64(l.n) / float64(len(l.each))
}

// window finds the stretch in which counters and samples both are known.
func (a *assessor) window() {
	if n := len(a.e.Samples); n > 0 {
		a.d.Seconds = round(a.e.Samples[n-1].At.Seconds(), 2)
	}
	t := a.e.Ticks
	if len(t) >= 2 {
		a.span = (t[len(t)-1].At - t[0].At).Seconds()
	}
	for i := 1; i < len(t); i++ {
		if t[i].Xacts < t[i-1].Xacts || t[i].Reads < t[i-1].Reads || t[i].Hits < t[i-1].Hits {
			a.span = 0 // statistics were reset: sums from before and after do not go together
			a.d.Missing = append(a.d.Missing, "rates: the server's statistics were reset meanwhile")
		}
	}
	if a.span <= 0 {
		return
	}
	first, last := t[0], t[len(t)-1]
	a.tps = max(last.Xacts-first.Xacts-float64(last.OwnXacts-first.OwnXacts), 0) / a.span
	a.d.Rates.TPS = ptr(round(a.tps, 3))
}

// tally counts sessions.
func (a *assessor) tally() {
	n := len(a.e.Samples)
	newLook := func() look { return look{each: make([]int, n)} }
	a.active, a.inTx, a.open, a.working, a.sessions, a.brief = newLook(), newLook(), newLook(), newLook(), newLook(), newLook()
	a.seen, a.all, a.events, a.check = map[string]*look{}, map[string]int{}, map[[2]string]int{}, make([]bool, n)
	for _, name := range PartNames() {
		l := newLook()
		a.seen[name] = &l
	}
	for i, s := range a.e.Samples {
		for _, g := range s.Groups {
			a.count(i, g)
		}
	}
}

func (a *assessor) count(i int, g Group) {
	a.all[strings.ToLower(g.Type+":"+g.Event)] += g.N
	switch g.Backend {
	case checkpointer:
		// It waits in CheckpointerMain unless a checkpoint is under way.
		if g.Type != "Activity" {
			a.check[i] = true
		}
		return
	case autovacuum:
		a.vacuums += g.N
		return
	case clientBackend:
	default:
		return
	}
	a.sessions.add(i, g.N)
	switch {
	case inStatement(g.State):
		a.active.add(i, g.N)
		a.working.add(i, g.N)
		a.seen[partOf(g.Type, g.Event)].add(i, g.N)
		a.events[[2]string{g.Type, g.Event}] += g.N
	case inTransaction(g.State):
		a.open.add(i, g.N)
		if g.Idle != IdleLong { // one that was forgotten is no part of the others' transactions
			a.inTx.add(i, g.N)
		}
	case g.State == "idle" && g.Idle != IdleLong:
		a.working.add(i, g.N)
		if g.Idle == IdleBrief {
			a.brief.add(i, g.N)
		}
	}
}

// rates fills the means over the window.
func (a *assessor) rates() {
	r := &a.d.Rates
	if len(a.e.Samples) > 0 && !a.e.Partial {
		r.Sessions, r.Active = ptr(round(a.sessions.mean(), 2)), ptr(round(a.active.mean(), 3))
		r.IdleInTransaction, r.Working = ptr(round(a.open.mean(), 3)), ptr(round(a.working.mean()+a.inTx.mean(), 2))
	}
	r.RoundTripMs = roundPtr(a.e.PingMs, 4)
	if a.span > 0 {
		first, last := a.e.Ticks[0], a.e.Ticks[len(a.e.Ticks)-1]
		reads, hits := last.Reads-first.Reads, last.Hits-first.Hits
		if reads >= 0 && reads+hits > 0 {
			r.HitRatio = ptr(round(hits/(reads+hits), 4))
		}
		if reads >= 0 {
			r.ReadsPerS = ptr(round(reads/a.span, 2))
		}
		if first.LSN != nil && last.LSN != nil && *last.LSN >= *first.LSN {
			r.WALBytesPerS = ptr(round((*last.LSN-*first.LSN)/a.span, 0))
		}
	}
	a.perTransaction()
	a.perSecond()
}

// perTransaction divides by the transactions that ended, where some did.
func (a *assessor) perTransaction() {
	r := &a.d.Rates
	if !a.busy() {
		return
	}
	if r.ReadsPerS != nil {
		r.ReadsPerTx = ptr(round(*r.ReadsPerS/a.tps, 3))
	}
	if r.WALBytesPerS != nil {
		r.WALBytesPerTx = ptr(round(*r.WALBytesPerS/a.tps, 0))
	}
	span := a.fullSpan()
	if v, ok := a.e.delta("pg_stat_wal", nil, "wal_fpi"); ok && span > 0 {
		r.FullPageImagesPerTx = ptr(round(v/span/a.tps, 4))
	}
	if v, ok := a.statementCalls(); ok && span > 0 {
		r.StatementsPerTx = ptr(round(v/span/a.tps, 2))
	}
}

// fullSpan is the time between the full readings, which took place a little
// before and after the samples.
func (a *assessor) fullSpan() float64 {
	if a.e.Begin == nil || a.e.End == nil {
		return 0
	}
	return (a.e.End.At - a.e.Begin.At).Seconds()
}

// busy says whether transactions ended often enough to speak of a mean one.
func (a *assessor) busy() bool { return a.tps*a.span >= 20 && a.tps >= 0.5 }

// statementCalls is nil where statements are not counted, or many were
// evicted between the readings.
func (a *assessor) statementCalls() (float64, bool) {
	return a.e.delta("pg_stat_statements", nil, "calls")
}

func (a *assessor) perSecond() {
	r, span := &a.d.Rates, a.fullSpan()
	if timed, ok := a.e.checkpoints(false); ok {
		if forced, ok := a.e.checkpoints(true); ok {
			r.Checkpoints, r.CheckpointsForced = ptr(timed+forced), ptr(forced)
		}
	}
	if span <= 0 {
		return
	}
	if v, ok := a.e.delta("pg_stat_database", nil, "temp_bytes"); ok {
		r.TempBytesPerS = ptr(round(v/span, 0))
	}
	if v, ok := a.e.delta("pg_stat_database", nil, "deadlocks"); ok {
		r.Deadlocks = ptr(v)
	}
	if v, ok := a.e.delta("pg_stat_database", nil, "xact_rollback"); ok {
		r.CommitsRefused = ptr(round(v/span, 3))
	}
}

// checkpoints that began: in pg_stat_bgwriter until 16, in pg_stat_checkpointer since.
func (e *Evidence) checkpoints(requested bool) (float64, bool) {
	old, now := "checkpoints_timed", "num_timed"
	if requested {
		old, now = "checkpoints_req", "num_requested"
	}
	if v, ok := e.delta("pg_stat_checkpointer", nil, now); ok {
		return v, true
	}
	return e.delta("pg_stat_bgwriter", nil, old)
}

// breakdown takes the mean transaction apart: ms(part) = 1000 × mean sessions
// in it ÷ transactions a second.
func (a *assessor) breakdown() {
	if len(a.e.Samples) < fewestSamples || a.e.Partial && a.hidden() {
		return
	}
	client := a.clientLook()
	trip := 0.0
	if a.busy() && !a.closedLoop() {
		trip = deref(a.e.PingMs) * a.tps / 1000 // sessions' worth of one round trip a transaction
	}
	whole := a.active.mean() - a.seen[Client].mean() + client.mean() + trip
	if whole <= 0 {
		return
	}
	for _, name := range PartNames() {
		l := *a.seen[name]
		if name == Client {
			l = client
		}
		mean := l.mean()
		if name == Client {
			mean += trip
		}
		p := Part{Name: name, Sessions: round(mean, 4), Samples: l.n, Share: round(mean/whole, 4)}
		if a.busy() {
			p.Ms = ptr(round(1000*mean/a.tps, 4))
			if lo, hi, ok := a.interval(l); ok {
				extra := mean - l.mean()
				p.Lo, p.Hi = ptr(round(1000*max(lo+extra, 0)/a.tps, 4)), ptr(round(1000*(hi+extra)/a.tps, 4))
			}
		}
		a.d.Breakdown = append(a.d.Breakdown, p)
	}
	if a.busy() {
		a.d.Ms = ptr(round(1000*whole/a.tps, 4))
		a.d.ServerMs = ptr(round(1000*(a.active.mean()-a.seen[Client].mean())/a.tps, 4))
	}
}

// clientLook adds to the waits for a client in a statement those between the
// statements of a transaction and, where clients do not think, those between
// two transactions.
func (a *assessor) clientLook() look {
	l := look{n: a.seen[Client].n + a.inTx.n, each: slices.Clone(a.seen[Client].each)}
	for i, n := range a.inTx.each {
		l.each[i] += n
	}
	if a.closedLoop() {
		for i, n := range a.brief.each {
			l.each[i] += n
			l.n += n
		}
	}
	return l
}

// closedLoop says whether clients send their next transaction at once: nearly
// all sessions at work that are idle have been so for less than ten ms. What
// passes between two transactions is round trip then, else it is the client's
// business, and one round trip stands for it.
func (a *assessor) closedLoop() bool {
	idle := a.working.n - a.active.n
	return a.brief.n > 0 && float64(a.brief.n) >= 0.8*float64(idle)
}

// hidden says whether sessions were there whose state this role may not see.
func (a *assessor) hidden() bool {
	for _, s := range a.e.Samples {
		for _, g := range s.Groups {
			if g.Backend == "" && g.State == "" {
				return true
			}
		}
	}
	return false
}

// interval is the bootstrap interval of the mean over the means of seconds:
// samples within a second are not independent of each other.
func (a *assessor) interval(l look) (lo, hi float64, ok bool) {
	seconds := a.bySecond(func(i int) float64 { return float64(l.each[i]) })
	if len(seconds) < 5 {
		return 0, 0, false
	}
	iv := stats.MeanInterval(seconds, 0.95, 1)
	return iv.Lo, iv.Hi, true
}

// bySecond are the means of a value of samples over whole seconds.
func (a *assessor) bySecond(value func(i int) float64) []float64 {
	var out []float64
	for from := 0; from < len(a.e.Samples); {
		second := int(a.e.Samples[from].At.Seconds())
		sum, n := 0.0, 0
		for from < len(a.e.Samples) && int(a.e.Samples[from].At.Seconds()) == second {
			sum, n, from = sum+value(from), n+1, from+1
		}
		out = append(out, sum/float64(n))
	}
	return out
}

// waits lists the wait events of clients in a statement.
func (a *assessor) waits() {
	if len(a.e.Samples) == 0 || a.active.n == 0 {
		return
	}
	for k, n := range a.events {
		w := Wait{Event: eventName(k[0], k[1]), Part: partOf(k[0], k[1]),
			Sessions: round(float64(n)/float64(len(a.e.Samples)), 4), Share: round(float64(n)/float64(a.active.n), 4)}
		if a.busy() {
			w.Ms = ptr(round(1000*w.Sessions/a.tps, 4))
		}
		a.d.Waits = append(a.d.Waits, w)
	}
	slices.SortFunc(a.d.Waits, func(x, y Wait) int {
		if x.Sessions != y.Sessions {
			return int(sign(y.Sessions - x.Sessions))
		}
		return strings.Compare(x.Event, y.Event)
	})
	const most = 15
	a.d.Waits = a.d.Waits[:min(most, len(a.d.Waits))]
}

// cost says how it was sampled.
func (a *assessor) cost() {
	c := &a.d.Sampling
	c.Samples, c.AskedMs, c.Sessions = len(a.e.Samples), ms(a.e.Asked), round(a.sessions.mean(), 1)
	if c.Samples < 2 {
		return
	}
	span := a.e.Samples[c.Samples-1].At - a.e.Samples[0].At
	c.IntervalMs = round(ms(span)/float64(c.Samples-1), 2)
	took := make([]float64, 0, c.Samples)
	for _, s := range a.e.Samples {
		took = append(took, ms(s.Took))
	}
	c.QueryMs = round(stats.Median(took), 3)
	spent := time.Duration(c.Samples) * quick(a.e.Samples, a.e.PingMs)
	c.Source = "estimated from the quicker samples"
	if a.e.OwnCPU > 0 {
		spent, c.Source = a.e.OwnCPU, "processor time of its session and of this program"
	}
	c.CorePercent = round(100*spent.Seconds()/max(span.Seconds(), 0.001), 2)
}

func (a *assessor) part(name string) *Part {
	for i := range a.d.Breakdown {
		if a.d.Breakdown[i].Name == name {
			return &a.d.Breakdown[i]
		}
	}
	return nil
}

func ptr(v float64) *float64 { return &v }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func roundPtr(p *float64, digits int) *float64 {
	if p == nil {
		return nil
	}
	return ptr(round(*p, digits))
}

func sign(v float64) float64 {
	switch {
	case v < 0:
		return -1
	case v > 0:
		return 1
	}
	return 0
}

// figure has two decimals below ten and three digits above.
func figure(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 0.005 && v > -0.005:
		return "< 0.01"
	case v < 10 && v > -10:
		return fmt.Sprintf("%.2f", v)
	case v < 100 && v > -100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
