package result

import (
	"fmt"
	"strings"
)

// Summarise says in plain sentences what the run's cells show: for every setup
// on every disk one sentence over all of its experiments (Experiment is empty),
// followed by one for each of its groups. It changes nothing; callers store it
// in run.Summary. A sentence starts with the setup and its disk, so that it can
// stand alone.
func Summarise(run *Run) []Summary {
	var out []Summary
	groups := Groups(run)
	for len(groups) > 0 {
		n := 1
		for n < len(groups) && sameBase(&groups[0], &groups[n]) {
			n++
		}
		out = append(out, summariseSetup(groups[:n]))
		for i := range groups[:n] {
			out = append(out, summariseGroup(&groups[i]))
		}
		groups = groups[n:]
	}
	return out
}

// sameBase tells whether two groups are of one setup on one disk.
func sameBase(a, b *Group) bool {
	return a.Setup == b.Setup && DiskLabel(a.Params) == DiskLabel(b.Params) && a.Simulated == b.Simulated
}

// BaseParams are the params that say where a setup's data lay.
func BaseParams(params map[string]any) map[string]any {
	out := map[string]any{}
	for _, k := range []string{"disk", "volume", "crash"} {
		if v, ok := params[k]; ok {
			out[k] = v
		}
	}
	return out
}

// summariseSetup keeps to what one decides by: losses, the time until it writes
// again, and what a commit costs. Its verdict is that of its faults, if it had
// any: a measurement that must not be used is said, but breaks no promise.
func summariseSetup(groups []Group) Summary {
	s := Summary{Setup: groups[0].Setup, Params: BaseParams(groups[0].Params), Metrics: map[string]float64{}}
	var clauses, asides []string
	var commits, flushes, faults []*Group
	onFaults, onAll := Held, Held
	for i := range groups {
		g := &groups[i]
		s.Cells += len(g.Cells)
		addTotals(s.Metrics, g)
		onAll = Worse(onAll, g.Verdict())
		switch {
		case g.IsFault():
			onFaults = Worse(onFaults, g.Verdict())
			faults = append(faults, g)
		case g.Experiment == "commit":
			commits = append(commits, g)
		case g.Experiment == "flush":
			flushes = append(flushes, g)
		case g.Experiment == "round-trip":
			asides = append(asides, roundTripClause(g))
		default:
			asides = append(asides, otherClause(g))
		}
	}
	s.Verdict = onAll
	if len(faults) > 0 {
		s.Verdict = onFaults
	}
	clauses = append(faultClauses(faults), clauses...)
	if len(commits) > 0 {
		clauses = append(clauses, commitClause(commits, true))
	}
	if len(flushes) > 0 {
		clauses = append(clauses, flushClause(flushes, true))
	}
	if len(clauses) == 0 {
		clauses = asides
	}
	s.Sentence = sentence(groups[0].Setup, groups[0].Params, clauses)
	return s
}

func summariseGroup(g *Group) Summary {
	s := Summary{Setup: g.Setup, Experiment: g.Experiment, Params: g.Params, Cells: len(g.Cells), Verdict: g.Verdict(),
		Metrics: map[string]float64{}}
	addTotals(s.Metrics, g)
	for _, name := range metricNames(g) {
		if !totalled(name) {
			spread, _ := g.Spread(name)
			s.Metrics[name] = spread.Median
		}
	}
	var clause string
	switch {
	case g.IsFault():
		clause = faultClause(g, false)
	case g.Experiment == "commit":
		clause = commitClause([]*Group{g}, false)
	case g.Experiment == "flush":
		clause = flushClause([]*Group{g}, false)
	case g.Experiment == "round-trip":
		clause = roundTripClause(g)
	default:
		clause = otherClause(g)
	}
	s.Sentence = sentence(g.Setup, g.Params, []string{clause})
	return s
}

func sentence(setup string, params map[string]any, clauses []string) string {
	var kept []string
	for _, c := range clauses {
		if c != "" {
			kept = append(kept, c)
		}
	}
	return On(setup, params) + ": " + strings.Join(kept, "; ") + "."
}

// totalled tells the metrics that add up over cells from those that do not.
func totalled(name string) bool {
	switch name {
	case "acked", "refused", "unknown", "lost", "recovered", "ghost", "phantom", "duplicated", "failed":
		return true
	}
	return false
}

func addTotals(into map[string]float64, g *Group) {
	for _, name := range metricNames(g) {
		if totalled(name) {
			for _, v := range g.Values(name) {
				into[name] += v
			}
		}
	}
}

func metricNames(g *Group) []string {
	seen := map[string]bool{}
	for _, c := range g.Usable() {
		for name := range c.Metrics {
			seen[name] = true
		}
	}
	return sortedKeys(seen)
}

// severalFaults is the number of fault groups from which those that went well
// are no longer listed one by one.
const severalFaults = 5

// faultClauses say of every fault what it did; of many, what went wrong and how
// many did not.
func faultClauses(groups []*Group) []string {
	var clauses []string
	var well, kinds, acked = 0, map[string]bool{}, 0.0
	for _, g := range groups {
		if len(groups) >= severalFaults && unharmed(g) {
			s, _ := g.Spread("acked")
			one, _ := FaultNoun(g.Fault(), g.Experiment)
			well, acked = well+len(g.Usable()), acked+s.Sum
			kinds[one] = true
			continue
		}
		clauses = append(clauses, shortFault(g, len(clauses) == 0))
	}
	if well == 0 {
		return clauses
	}
	text := fmt.Sprintf("lost nothing in %s of %s (%s acknowledged writes), and wrote again each time", plural(well, "fault", "faults"),
		plural(len(kinds), "kind", "kinds"), Count(acked))
	return append([]string{text}, clauses...)
}

// unharmed: judged, nothing lost, nothing odd, and it wrote again every time.
func unharmed(g *Group) bool {
	lost, counted := g.Spread("lost")
	return counted && lost.Sum == 0 && g.Verdict() == Held && len(g.Values("first_ack_ms")) == len(g.Cells)
}

// shortFault says less about every fault group after the first.
func shortFault(g *Group, first bool) string {
	usable := g.Usable()
	lost, counted := g.Spread("lost")
	if first || !counted || lost.Sum > 0 || g.Verdict() != Held || len(g.Values("first_ack_ms")) < len(usable) {
		return faultClause(g, true)
	}
	acked, _ := g.Spread("acked")
	return fmt.Sprintf("lost nothing in %s either (%s acknowledged writes; the rate is below %s)", faultsText(g, len(usable)),
		Count(acked.Sum), PercentUp(UpperBound(0, len(usable))))
}

// faultsText counts faults and says under which conditions they struck.
func faultsText(g *Group, n int) string {
	one, many := FaultNoun(g.Fault(), g.Experiment)
	text := plural(n, one, many)
	if ms, ok := Number(g.Params["lag_ms"]); ok && ms > 0 {
		text += " with the standbys cut off " + Duration(ms) + " before"
	}
	how := faultConditions(g.Params)
	if g.Extra != "" {
		how = append(how, g.Extra)
	}
	if len(how) > 0 {
		text += " (" + strings.Join(how, ", ") + ")"
	}
	return text
}

// faultClause: what was lost in how many faults, how sure that is, and how long
// the setup took until it wrote again. A short one leaves the reasons out.
func faultClause(g *Group, short bool) string {
	one, many := FaultNoun(g.Fault(), g.Experiment)
	usable := g.Usable()
	why := because(g, Unknown, Invalid)
	if short {
		why = ""
	}
	if len(usable) == 0 {
		if len(g.Cells) == 1 {
			return "the only " + one + " could not be judged" + why
		}
		return fmt.Sprintf("none of %s could be judged%s", plural(len(g.Cells), one, many), why)
	}
	faults := faultsText(g, len(usable))
	lossy := 0
	for _, c := range usable {
		if c.Metrics["lost"] > 0 {
			lossy++
		}
	}
	acked, _ := g.Spread("acked")
	lost, counted := g.Spread("lost")
	var parts []string
	switch {
	case !counted:
		parts = append(parts, "no loss could be counted in "+faults)
	case lossy == 0:
		parts = append(parts, fmt.Sprintf("lost nothing in %s (%s acknowledged writes; with 0 of %d losing data, the true rate of lossy %s is below %s at 95 %%)",
			faults, Count(acked.Sum), len(usable), many, PercentUp(UpperBound(0, len(usable)))))
	default:
		parts = append(parts, lossClause(g, faults, lossy, acked.Sum, lost.Sum))
	}
	parts = append(parts, anomalies(g)...)
	parts = append(parts, againClause(g, short))
	if n := len(g.Cells) - len(usable); n > 0 {
		parts = append(parts, fmt.Sprintf("%s could not be judged%s", plural(n, "further "+one, "further "+many), why))
	}
	return strings.Join(parts, "; ")
}

func lossClause(g *Group, faults string, lossy int, acked, lost float64) string {
	n := len(g.Usable())
	text := fmt.Sprintf("lost %s of %s acknowledged writes in %d of %s", Count(lost), Count(acked), lossy, faults)
	var detail []string
	if ms, ok := g.Spread("lost_ms"); ok {
		detail = append(detail, "at worst those of the last "+Duration(ms.Max))
	}
	if lossy < n {
		lo, hi := rateInterval(lossy, n)
		detail = append(detail, fmt.Sprintf("the true rate of lossy ones is between %s and %s at 95 %%", percentDown(lo), PercentUp(hi)))
	}
	if len(detail) > 0 {
		text += " (" + strings.Join(detail, "; ") + ")"
	}
	p := g.Promise()
	switch {
	case p == nil:
		return text
	case g.brokenCells() > 0:
		return text + ", which breaks its promise to lose " + p.words()
	case p.Lose == LoseUnbounded:
		return text + ", which it may: it promises no bound"
	default:
		return text + ", which its promise allows (" + p.words() + ")"
	}
}

func (g *Group) brokenCells() int {
	n := 0
	for _, c := range g.Cells {
		if c.Verdict == Broken {
			n++
		}
	}
	return n
}

func (p *Promise) words() string {
	switch p.Lose {
	case LoseNothing:
		return "nothing"
	case LoseMillis:
		return "at most " + Duration(p.Ms)
	default:
		return "without bound"
	}
}

// Words says the promise for a table: "nothing", "≤ 250 ms", "no bound", "" for none.
func (p *Promise) Words() string {
	switch {
	case p == nil:
		return ""
	case p.Lose == LoseNothing:
		return "nothing"
	case p.Lose == LoseMillis:
		return "≤ " + Duration(p.Ms)
	default:
		return "no bound"
	}
}

// anomalies are what no setup may show whatever it promises, and broken cells
// that the counts do not explain.
func anomalies(g *Group) []string {
	var parts []string
	explained := false
	for _, a := range []struct{ metric, one, many string }{
		{"ghost", "write that it had refused is there (a ghost)", "writes that it had refused are there (ghosts)"},
		{"phantom", "write that nobody attempted is there (a phantom)", "writes that nobody attempted are there (phantoms)"},
		{"duplicated", "write is there twice", "writes are there twice"},
	} {
		if s, ok := g.Spread(a.metric); ok && s.Sum > 0 {
			explained = true
			parts = append(parts, plural(int(s.Sum), a.one, a.many))
		}
	}
	if s, ok := g.Spread("lost"); ok && s.Sum > 0 {
		explained = true
	}
	if n := g.brokenCells(); n > 0 && !explained {
		parts = append(parts, fmt.Sprintf("broken in %d of %d%s", n, len(g.Usable()), because(g, Broken)))
	}
	return parts
}

// againClause: when the first write was acknowledged again, or that none was.
func againClause(g *Group, short bool) string {
	first, ok := g.Spread("first_ack_ms")
	missing := len(g.Usable()) - first.N
	if !ok {
		return "was not seen to write again"
	}
	text := "wrote again after " + Duration(first.Median)
	if first.N > 1 {
		text += " at the median"
		if lo, hi := Duration(first.Min), Duration(first.Max); lo != hi && !short {
			text += " (" + lo + " to " + hi + ")"
		}
	}
	if ByOperator(g.Cells) && !short {
		text += ", with a script in the operator's place"
	}
	if missing > 0 {
		text += fmt.Sprintf("; in %d of %d it was not seen to write again", missing, len(g.Usable()))
	}
	return text
}

// ByOperator tells whether any of the cells was brought back by a script that
// stands for an operator, which holds no time for noticing.
func ByOperator(cells []*Cell) bool {
	for _, c := range cells {
		if c.Recovery != "" && !strings.Contains(strings.ToLower(c.Recovery), "automatic") {
			return true
		}
	}
	return false
}

// because quotes the first reason among the cells with one of the verdicts.
func because(g *Group, verdicts ...string) string {
	for _, c := range g.Cells {
		for _, v := range verdicts {
			if c.Verdict == v && c.Why != "" {
				return " (" + shorten(c.Why, 120) + ")"
			}
		}
	}
	return ""
}

// shorten keeps one line of at most n runes.
func shorten(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
