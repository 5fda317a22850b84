package report

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/result"
)

// page is everything that either report shows, in the order in which it shows it.
type page struct {
	Study, Command, Seed    string
	Started, Took           string
	Interrupted             bool
	Cells                   string
	Kind                    string // "simulated", "real" or "mixed"
	Empty                   bool
	Selftest, SelftestEnd   string
	Tally                   []tally
	Verdicts                []verdict
	Attention               []attention
	Overview                overview
	Commits                 []commitRow // every number of clients, when there is more than one
	Faults                  []faultRow  // every fault group, when a setup has more than one
	Others                  []otherRow
	RoundTrips              []roundTripRow
	Ladders                 []ladder
	Comparisons             []comparisonRow
	MainComparisons         comparisonTable
	MoreComparisons         *comparisonTable // nil when the first table has them all
	Noise                   []string
	Published               []publishedRow
	Sources                 []source
	Dots                    []dotPlot
	Parts                   []partsChart
	PartsLegend             []legendEntry
	Storage                 *storageSection // nil where no study of storage ran
	DiskCharts              []diskChart
	Costs                   []costRow
	OpenLoops               []openRow
	CommitCells             []commitCell // every repetition, with its anchor
	PhaseLegend             []legendEntry
	CCDFs, FaultCCDFs       []ccdf
	Groups                  []faultGroup
	Legend                  []legendEntry // of the strips of ids
	Environment, Versions   []pair
	Skipped                 []result.Skipped
	ByOperator              bool
	SimulatedHow, NotProven []string
}

type pair struct{ Key, Value string }

// tally counts setups by verdict for the line above the verdicts.
type tally struct {
	badge
	N int
}

// verdict is one setup on one disk in one sentence.
type verdict struct {
	badge
	Title, Mark, Sentence string
}

// attention is a cell whose verdict a reader must know the reason of.
type attention struct {
	badge
	ID, Title, Why string
	More           int // cells with the same verdict for the same reason
}

// MoreText counts the other cells.
func (a attention) MoreText() string {
	switch a.More {
	case 0:
		return ""
	case 1:
		return "and 1 more like it"
	}
	return "and " + result.Count(float64(a.More)) + " more like it"
}

func newPage(run *result.Run) *page {
	groups := result.Groups(run)
	ids := newCellIDs(groups)
	p := &page{
		Study: run.Study, Command: run.Command, Seed: fmt.Sprint(run.Seed), Interrupted: run.Finished == "",
		Cells: cellsText(run), Empty: len(run.Cells) == 0, Skipped: run.Skipped,
		Kind: kindOf(run),
	}
	p.Started, p.Took = when(run)
	p.Selftest = selftestLine(run)
	p.SelftestEnd = selftestEnd(run)
	p.verdicts(run, groups)
	p.attention(groups, ids)
	p.Overview = newOverview(groups)
	p.Commits = commitRows(groups)
	p.Faults = faultRows(groups)
	p.Others = otherRows(groups, ids)
	p.RoundTrips = roundTripRows(groups, ids)
	p.Ladders = ladders(groups, ids)
	p.Comparisons = comparisonRows(run)
	p.Noise = noiseLines(run)
	p.Published, p.Sources = publishedFor(groups, p.Comparisons)
	main, more := splitComparisons(p.Comparisons)
	if p.MainComparisons = main; len(more.Rows) > 0 {
		p.MoreComparisons = &more
	}
	p.Dots = dotPlots(groups, run.Noise)
	if p.Parts = partsCharts(groups); len(p.Parts) > 0 {
		p.PartsLegend = partsLegend(p.Parts)
	}
	p.Storage = newStorageSection(run, groups)
	if p.Storage != nil && len(p.Storage.Ratios) > 0 && !slices.ContainsFunc(p.Sources, func(s source) bool { return s.Ref == "N" }) {
		p.Sources = append(p.Sources, sources()[2])
	}
	p.DiskCharts = diskCharts(groups)
	p.Costs, p.OpenLoops = costRows(groups), openRows(groups)
	p.CommitCells = commitCells(groups, ids)
	p.CCDFs, p.FaultCCDFs = ccdfs(groups), faultCCDFs(groups)
	p.Groups = faultGroups(run, groups, ids)
	p.PhaseLegend = phaseLegend(p.Groups)
	p.Legend = fateLegend()
	p.Environment = environment(run)
	p.Versions = versions(run)
	for i := range groups {
		p.ByOperator = p.ByOperator || result.ByOperator(groups[i].Cells)
	}
	p.SimulatedHow = simulatedHow(run, groups)
	p.NotProven = notProven(run, groups)
	return p
}

// kindOf tells whether the run's numbers are simulated, real, or some of both.
func kindOf(run *result.Run) string {
	simulated := 0
	for i := range run.Cells {
		if run.Cells[i].Simulated {
			simulated++
		}
	}
	switch {
	case len(run.Cells) == 0:
		return mark(run.Simulated)
	case simulated == 0:
		return "real"
	case simulated == len(run.Cells):
		return "simulated"
	}
	return "mixed"
}

func when(run *result.Run) (started, took string) {
	t, err := time.Parse(time.RFC3339Nano, run.Started)
	if err != nil {
		return run.Started, ""
	}
	started = t.UTC().Format("2 January 2006, 15:04 UTC")
	if end, err := time.Parse(time.RFC3339Nano, run.Finished); err == nil && end.After(t) {
		took = result.Duration(float64(end.Sub(t).Milliseconds()))
	}
	return started, took
}

// cellsText counts the cells as the study's plan does, and the measurements that
// came of them where that is another number.
func cellsText(run *result.Run) string {
	planned, all := result.Planned(run), len(run.Cells)
	text := result.Count(float64(planned)) + " cells"
	if planned == 1 {
		text = "1 cell"
	}
	if all != planned {
		text += ", " + result.Count(float64(all)) + " measurements"
	}
	return text
}

func selftestLine(run *result.Run) string {
	if run.Study != result.StudySelftest {
		return ""
	}
	caught, missed := result.Selftest(run)
	text := fmt.Sprintf("Self-test: %d of %d liars caught.", len(caught), len(caught)+len(missed))
	if len(missed) == 0 {
		return text + " Each of them promises to lose nothing and cannot keep it, so “broken” is what the lab has to find here."
	}
	return text + " Missed: " + strings.Join(missed, ", ") + ". A lab that misses a liar cannot be trusted with an honest setup: no verdict counts until this is explained."
}

// selftestEnd is what a self-test comes to, "" for other studies.
func selftestEnd(run *result.Run) string {
	if run.Study != result.StudySelftest {
		return ""
	}
	caught, missed := result.Selftest(run)
	if len(missed) == 0 {
		return fmt.Sprintf("Self-test passed: all %d liars caught.", len(caught))
	}
	return fmt.Sprintf("Self-test FAILED: %d of %d liars caught.", len(caught), len(caught)+len(missed))
}

// verdicts fills the sentences that the run carries, or those that it would carry.
func (p *page) verdicts(run *result.Run, groups []result.Group) {
	summary := run.Summary
	if len(summary) == 0 {
		summary = result.Summarise(run)
	}
	whole := slices.DeleteFunc(slices.Clone(summary), func(s result.Summary) bool { return s.Experiment != "" })
	if len(whole) == 0 {
		whole = summary
	}
	counts := map[badge]int{}
	for _, s := range whole {
		title := result.On(s.Setup, s.Params)
		promised, kind := describeBase(groups, s)
		b := newBadge(s.Verdict, promised)
		if promised {
			b = lossyBadge(s.Verdict, s.Metrics["lost"])
		}
		counts[b]++
		p.Verdicts = append(p.Verdicts, verdict{badge: b, Title: title, Mark: kind,
			Sentence: glued(upperFirst(strings.TrimPrefix(s.Sentence, title+": ")))})
	}
	// What needs a decision comes first.
	order := func(b badge) int {
		return slices.Index(badgeOrder, b.Word)
	}
	slices.SortStableFunc(p.Verdicts, func(a, b verdict) int { return order(a.badge) - order(b.badge) })
	for b, n := range counts {
		p.Tally = append(p.Tally, tally{b, n})
	}
	slices.SortFunc(p.Tally, func(a, b tally) int { return order(a.badge) - order(b.badge) })
}

// describeBase finds whether the summary's groups promised anything, and
// whether their disks are simulated.
func describeBase(groups []result.Group, s result.Summary) (promised bool, kind string) {
	seen := map[bool]bool{}
	for i := range groups {
		g := &groups[i]
		if g.Setup != s.Setup || result.DiskLabel(g.Params) != result.DiskLabel(s.Params) ||
			s.Experiment != "" && s.Experiment != g.Experiment {
			continue
		}
		promised = promised || g.Promise() != nil
		seen[g.Simulated] = true
	}
	switch {
	case len(seen) == 2:
		return promised, "simulated and real"
	case seen[true]:
		return promised, "simulated"
	case seen[false]:
		return promised, "real"
	}
	return promised, ""
}

// attention lists the cells that did not hold with their reasons, and those that
// held with a reservation; cells of one verdict and one reason are one entry.
func (p *page) attention(groups []result.Group, ids cellIDs) {
	for _, v := range []string{result.Broken, result.Unknown, result.Invalid, result.Held} {
		entries := map[string]*attention{}
		var order []*attention
		for i := range groups {
			g := &groups[i]
			if v == result.Held && g.IsFault() {
				continue // its reason is that nothing is wrong
			}
			for _, c := range g.Cells {
				if c.Verdict != v || v == result.Held && c.Why == "" {
					continue
				}
				reason := alike(c.Why)
				if g.IsFault() && v == result.Broken {
					reason = groupID(g) // losses differ in their counts only
				}
				if e := entries[reason]; e != nil {
					e.More++
					continue
				}
				e := &attention{badge: newBadge(v, g.IsFault()), Title: fmt.Sprintf("%s, repetition %d", groupTitle(g), c.Repetition), Why: cmp.Or(c.Why, "no reason was recorded")}
				if g.Experiment != "flush" || g.Params["pattern"] != nil { // a ladder that failed as a whole is not drawn
					e.ID = ids[c]
				}
				entries[reason] = e
				order = append(order, e)
			}
		}
		for _, e := range order {
			p.Attention = append(p.Attention, *e)
		}
	}
}

// alike takes the figures out of a reason, so that those of one kind are one.
func alike(why string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r == '.' || r == ',' {
			return -1
		}
		return r
	}, why)
}

// groupTitle names a group in full.
func groupTitle(g *result.Group) string {
	parts := []string{result.On(g.Setup, g.Params), g.Experiment}
	if cond := g.Conditions(); cond != "" {
		parts = append(parts, cond)
	}
	return strings.Join(parts, ", ")
}

func upperFirst(s string) string {
	for i, r := range s {
		if i == 0 {
			return strings.ToUpper(string(r)) + s[len(string(r)):]
		}
	}
	return s
}

// cellIDs are the anchors of cells, stable for a cell across reports of the same study.
type cellIDs map[*result.Cell]string

func newCellIDs(groups []result.Group) cellIDs {
	ids := cellIDs{}
	used := map[string]int{}
	for i := range groups {
		base := groupID(&groups[i])
		used[base]++
		for _, c := range groups[i].Cells {
			id := fmt.Sprintf("%s-r%d", base, c.Repetition)
			used[id]++
			if n := used[id]; n > 1 {
				id = fmt.Sprintf("%s-%d", id, n)
			}
			ids[c] = id
		}
	}
	return ids
}

func groupID(g *result.Group) string {
	parts := []string{g.Setup, result.DiskLabel(g.Params), g.Experiment}
	for _, k := range []string{"clients", "mode", "pattern", "call", "direct", "lag_ms", "interval_ms"} {
		if v := result.ParamText(g.Params[k]); v != "" && v != "0" && v != "false" {
			parts = append(parts, strings.TrimSuffix(k, "_ms")+v)
		}
	}
	if parts = append(parts, g.Extra); !g.Simulated {
		parts = append(parts, "real")
	}
	return slug(strings.Join(parts, " "))
}

// slug keeps letters and digits, so that an id needs no escaping anywhere.
func slug(s string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(s) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	return "cell-" + strings.Trim(b.String(), "-")
}

// svg marks markup of ours as safe; whatever comes from a run went through esc.
func svg(s string) template.HTML { return template.HTML(s) }

func esc(s string) string { return template.HTMLEscapeString(s) }
