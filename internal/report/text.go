package report

import (
	"fmt"
	"image/color"
	"io"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"

	"github.com/holdfast-db/holdfast/internal/result"
)

// TextOptions say what the terminal can do.
type TextOptions struct {
	Width int  // columns; 0 means 100, and no more than 100 are used
	Color bool // colours and bold; false where the output is no terminal
}

const (
	maxTextWidth = 100
	minTextWidth = 40
)

// Text writes the run for a terminal: the same verdicts and figures as HTML,
// within 100 columns, without the charts.
func Text(w io.Writer, run *result.Run, opt TextOptions) error {
	t := newText(opt)
	t.page(newPage(run))
	return t.flush(w)
}

func newText(opt TextOptions) *text {
	width := opt.Width
	if width <= 0 || width > maxTextWidth {
		width = maxTextWidth
	}
	return &text{width: max(width, minTextWidth), color: opt.Color}
}

// text is a report under construction.
type text struct {
	b     strings.Builder
	width int
	color bool
}

func (t *text) page(p *page) {
	title := "holdfast · " + p.Study
	t.line(t.bold(plain(title)))
	facts := []string{p.Started}
	if p.Took != "" {
		facts = append(facts, "took "+p.Took)
	}
	t.wrapped("", "", strings.Join(append(facts, p.Cells, "seed "+p.Seed), " · "))
	if p.Command != "" {
		t.wrapped("$ ", "  ", p.Command)
	}
	if p.Interrupted {
		t.wrapped("! ", "  ", "This run did not finish: it was interrupted or is still running. What follows holds for the cells that are in.")
	}
	switch p.Kind {
	case "simulated":
		t.wrapped("~ ", "  ", "Every figure of this run is simulated: Postgres is real, its disks and its hosts are not.")
	case "mixed":
		t.wrapped("~ ", "  ", "Some figures of this run are simulated, others real; rows of simulated ones end in ~.")
	}
	if p.Selftest != "" {
		t.wrapped("! ", "  ", p.Selftest)
	}
	t.verdicts(p)
	t.overview(p.Overview, severalClients(p.Commits))
	t.commits(p)
	t.parts(p.Parts)
	t.storage(p.Storage)
	t.disks(p.DiskCharts)
	t.costs(p)
	t.faults(p)
	t.comparisons(p)
	t.ladders(p)
	t.roundTrips(p)
	t.others(p)
	t.attention(p)
	t.published(p)
	t.environment(p)
	t.list("What is simulated", p.SimulatedHow)
	t.list("What this does not prove", p.NotProven)
	t.tally(p)
}

func (t *text) verdicts(p *page) {
	t.heading("Verdicts")
	if p.Empty {
		t.wrapped("", "", "No cell has finished, so there is nothing to judge.")
	}
	for _, v := range p.Verdicts {
		// The badge stands alone in its column, so that verdicts line up.
		lines := wrap(v.Title+tilde(v.Mark)+": "+lowerFirst(v.Sentence), t.width-12)
		for i, l := range lines {
			if i == 0 {
				t.line(t.paint(v.badge, pad(v.Symbol+" "+v.Word, 11)) + " " + l)
			} else {
				t.line(strings.Repeat(" ", 12) + l)
			}
		}
	}
	if p.ByOperator {
		t.line("")
		t.wrapped("", "", "“Wrote again” counts from the beginning of the cut. Where a setup has no failover of its own, a script stood in for the operator and began at once: these times hold no time for a person to notice.")
	}
}

// tally ends the report: on a terminal the last line is the one in sight. Of a
// self-test it is whether the lab can be trusted.
func (t *text) tally(p *page) {
	if p.SelftestEnd != "" {
		t.line("")
		for _, l := range wrap(p.SelftestEnd, t.width) {
			t.line(t.bold(l))
		}
		return
	}
	if len(p.Tally) == 0 {
		return
	}
	t.line("")
	line, used := t.bold("Setups:"), len("Setups:")
	for i, n := range p.Tally {
		word := n.Symbol + " " + n.Word
		count := fmt.Sprintf(" %d ", n.N)
		end := ","
		if i == len(p.Tally)-1 {
			end = ""
		}
		if w := lipgloss.Width(count + word + end); used+w > t.width {
			t.line(line)
			line, used = "", w
		} else {
			used += w
		}
		line += count + t.paint(n.badge, word) + end
	}
	t.line(line)
}

// tilde marks simulated rows.
func tilde(mark string) string {
	if mark == "simulated" {
		return " ~"
	}
	return ""
}

func (t *text) overview(o overview, severalClients bool) {
	if len(o.Rows) == 0 {
		return
	}
	t.heading("Comparison (~ simulated)")
	if o.HasCommit && !severalClients {
		rows := [][]string{}
		for _, r := range o.Rows {
			if r.CommitRuns > 0 {
				rows = append(rows, []string{r.Setup, r.Disk + tilde(r.Mark), both(r.Mean), r.P50.Main, r.P99.Main, r.TPS.Main, fmt.Sprint(r.CommitRuns)})
			}
		}
		t.table("Commit, "+o.Clients+" (medians of the runs; the mean with its range)",
			[]string{"setup", "disk", "mean ms", "p50 ms", "p99 ms", "tps", "runs"}, rows, 2)
	}
	if o.HasFault {
		rows := [][]string{}
		for _, r := range o.Rows {
			if r.Cuts != "–" {
				rows = append(rows, []string{r.Setup, r.Disk + tilde(r.Mark), r.Cuts, r.Acked, r.Lost, r.LostMs, r.FirstAck.Main, r.Promise, r.Symbol + " " + r.Word})
			}
		}
		t.table(o.Fault+" (all of a setup; again: to the first acknowledged write; promise: what it may lose)",
			[]string{"setup", "disk", "judged", "acked", "lost", "lost ms", "again ms", "promise", "verdict"}, rows, 2, 7, 8)
	}
}

func severalClients(rows []commitRow) bool {
	return len(rows) > 0 && rows[0].clients != rows[len(rows)-1].clients // they are sorted by it
}

// commits lists all numbers of clients, when there is more than the overview shows.
func (t *text) commits(p *page) {
	rows := [][]string{}
	for _, r := range p.Commits {
		rows = append(rows, []string{r.Setup, r.Disk + tilde(r.Mark), r.Clients, both(r.Mean), r.P50.Main, r.P99.Main, r.TPS.Main, r.Runs})
	}
	if severalClients(p.Commits) {
		t.table("Commit (medians of the runs; the mean with its range)", []string{"setup", "disk", "clients", "mean ms", "p50 ms", "p99 ms", "tps", "runs"}, rows, 2)
	}
}

func both(v cellValue) string {
	if v.Spread == "" {
		return v.Main
	}
	return v.Main + " (" + v.Spread + ")"
}

func (t *text) faults(p *page) {
	if len(p.Faults) == 0 {
		return
	}
	rows := [][]string{}
	for _, r := range p.Faults {
		name := r.Fault
		if r.Conditions != "" {
			name += ", " + r.Conditions
		}
		rows = append(rows, []string{r.Setup, r.Disk + tilde(r.Mark), name, r.Cuts, r.Lost, r.Unknown + " (" + r.Recovered + ")", r.Refused,
			r.Ghost + "/" + r.Phantom + "/" + r.Twice, r.Gap.Main})
	}
	t.table("Faults, by group (ghosts, phantoms, written twice: g/p/t)",
		[]string{"setup", "disk", "fault", "judged", "lost", "unkn. (there)", "refused", "g/p/t", "gap ms"}, rows, 3)
	t.courses(p)
	t.recoveries(p)
}

// recoveries says how setups came back and on what evidence, each way once.
func (t *text) recoveries(p *page) {
	setups := map[string][]string{}
	var ways []string
	for _, g := range p.Groups {
		way := strings.Join(g.Recovery, "; ")
		if g.Evidence != "" {
			way += " (evidence: " + g.Evidence + ")"
		}
		if way = strings.TrimSpace(way); way == "" {
			continue
		}
		if setups[way] == nil {
			ways = append(ways, way)
		}
		if !slices.Contains(setups[way], g.Base) {
			setups[way] = append(setups[way], g.Base)
		}
	}
	for _, way := range ways {
		t.wrapped("", "  ", strings.Join(setups[way], ", ")+": brought back by "+way)
	}
}

func (t *text) comparisons(p *page) {
	if len(p.Comparisons) == 0 {
		return
	}
	t.heading("Ratios (A / B, 95 % interval over repetitions)")
	rows := [][]string{}
	for _, c := range p.MainComparisons.Rows {
		row := []string{c.A + "\n÷ " + c.B, c.Metric, c.Ratio, c.Interval, c.Reading}
		if p.MainComparisons.Published {
			row = append(row, published(c))
		}
		rows = append(rows, row)
	}
	headers := []string{"A ÷ B", "metric", "ratio", "interval", "reading"}
	if p.MainComparisons.Published {
		headers = append(headers, "published*")
	}
	t.table("", headers, rows, 2, 4, 5)
	if p.MoreComparisons != nil {
		t.wrapped("", "", fmt.Sprintf("%d further ratios are in report.html and run.json.", len(p.MoreComparisons.Rows)))
	}
	if p.MainComparisons.Published {
		t.wrapped("* ", "  ", "measured elsewhere by others; see below")
	}
	for _, n := range p.Noise {
		t.wrapped("", "", "Noise between equal cells: "+n+".")
	}
}

func published(c comparisonRow) string {
	out := c.Published
	if c.Ref != "" {
		out += " [" + c.Ref + "]"
	}
	return strings.TrimSpace(out)
}

func (t *text) ladders(p *page) {
	for _, l := range p.Ladders {
		title := "Flush ladder, " + l.Title + tilde(l.Mark)
		if l.Where != "" {
			title += " " + l.Where
		}
		t.heading(title + ": p50 (p99) in ms")
		rows := [][]string{}
		for _, r := range l.Rows {
			row := []string{r.Pattern, r.IO}
			for _, c := range r.Cells {
				switch {
				case c.P50 != "":
					row = append(row, c.P50+" ("+c.P99+")")
				case c.Bad.Word != "":
					row = append(row, c.Bad.Symbol+" "+c.Bad.Word)
				default:
					row = append(row, "–")
				}
			}
			rows = append(rows, row)
		}
		t.table("", slices.Concat([]string{"pattern", "I/O"}, l.Calls), rows, 2)
	}
}

func (t *text) roundTrips(p *page) {
	rows := [][]string{}
	for _, r := range p.RoundTrips {
		rows = append(rows, []string{r.Title + tilde(r.Mark), r.TCP.Main, r.Select1.Main})
	}
	if len(rows) > 0 {
		t.table("Round trip, p50", []string{"setup", "TCP ms", "SELECT 1 ms"}, rows, 1)
	}
}

func (t *text) others(p *page) {
	for _, o := range p.Others {
		if isStorage(o.Experiment) {
			continue // has tables of its own; run.json and the page have the rest
		}
		t.heading(o.Title + ", " + o.Experiment + tilde(o.Mark) + ": " + o.Symbol + " " + o.Word)
		for _, m := range o.Metrics {
			t.wrapped("  ", "    ", m.Key+": "+m.Value)
		}
	}
}

func (t *text) attention(p *page) {
	if len(p.Attention) == 0 {
		return
	}
	t.heading("Cells to look at, and why")
	for _, a := range p.Attention {
		words := a.Title + ": " + a.Why
		if more := a.MoreText(); more != "" {
			words += " (" + more + ")"
		}
		for i, l := range wrap(words, t.width-12) {
			if i == 0 {
				t.line(t.paint(a.badge, pad(a.Symbol+" "+a.Word, 11)) + " " + l)
			} else {
				t.line(strings.Repeat(" ", 12) + l)
			}
		}
	}
}

func (t *text) published(p *page) {
	if len(p.Sources) == 0 {
		return
	}
	t.heading("Published, measured elsewhere by others: other machines, real disks")
	for _, r := range p.Published {
		t.wrapped("  ", "    ", r.What+": "+r.Value+" ["+r.Ref+"]")
	}
	for _, s := range p.Sources {
		t.wrapped("["+s.Ref+"] ", "    ", s.Title+": "+s.Machine+".")
	}
}

func (t *text) environment(p *page) {
	if len(p.Environment)+len(p.Versions) > 0 {
		t.heading("Environment")
		for _, e := range p.Environment {
			t.wrapped("  ", "    ", e.Key+": "+e.Value)
		}
		for _, v := range p.Versions {
			t.wrapped("  ", "    ", v.Key+": "+v.Value)
		}
	}
	if len(p.Skipped) > 0 {
		t.heading("Skipped")
		for _, s := range p.Skipped {
			t.wrapped("  ", "    ", s.Cell+": "+s.Why)
		}
	}
}

func (t *text) list(title string, items []string) {
	if len(items) == 0 {
		return
	}
	t.heading(title)
	for _, i := range items {
		t.wrapped("- ", "  ", i)
	}
}

// table draws rows below a caption; the first left columns and those named in
// also are left-aligned, the others hold numbers and stand right.
func (t *text) table(caption string, headers []string, rows [][]string, left int, also ...int) {
	if len(rows) == 0 {
		return
	}
	t.line("")
	if caption != "" {
		t.wrapped("", "", caption)
	}
	isLeft := func(col int) bool { return col < left || slices.Contains(also, col) }
	for i := range rows {
		for j := range rows[i] {
			rows[i][j] = plainLines(rows[i][j])
		}
	}
	for i := range headers {
		headers[i] = plain(headers[i])
	}
	fitted := rows
	widths := map[int]int{} // of the columns that had to be narrowed
	out := t.render(headers, rows, isLeft)
	for lipgloss.Width(out) > t.width {
		col, width := widestLeft(fitted, isLeft)
		if col < 0 {
			break
		}
		excess := lipgloss.Width(out) - t.width
		widths[col] = max(narrowest, width-max(1, excess/2)) // by halves, so that no one column pays for all
		fitted = narrowed(rows, widths)
		out = t.render(headers, fitted, isLeft)
	}
	if lipgloss.Width(out) > t.width {
		t.records(headers, rows)
		return
	}
	for _, l := range strings.Split(out, "\n") {
		t.line(strings.TrimRight(l, " "))
	}
}

func (t *text) render(headers []string, rows [][]string, isLeft func(col int) bool) string {
	return table.New().Headers(headers...).Rows(rows...).
		Border(lipgloss.NormalBorder()).BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).BorderColumn(false).
		StyleFunc(func(row, col int) lipgloss.Style {
			s := lipgloss.NewStyle()
			if col < len(headers)-1 {
				s = s.PaddingRight(2)
			}
			if !isLeft(col) {
				s = s.Align(lipgloss.Right)
			}
			if row == table.HeaderRow && t.color {
				s = s.Bold(true)
			}
			return s
		}).String()
}

// narrowest is how far a column of words is broken up to make a table fit.
const narrowest = 9

// widestLeft is the widest column of words that can still be broken up and its
// width, -1 if none can. Figures are never broken.
func widestLeft(rows [][]string, isLeft func(col int) bool) (best, width int) {
	best, width = -1, narrowest
	for col := range rows[0] {
		if !isLeft(col) {
			continue
		}
		for _, r := range rows {
			if w := lipgloss.Width(r[col]); w > width {
				best, width = col, w
			}
		}
	}
	return best, width
}

// narrowed breaks the lines of some columns so that they fit their widths.
func narrowed(rows [][]string, widths map[int]int) [][]string {
	out := make([][]string, len(rows))
	for i, r := range rows {
		out[i] = slices.Clone(r)
		for col, width := range widths {
			var lines []string
			for _, l := range strings.Split(r[col], "\n") {
				lines = append(lines, wrapAt(l, width)...)
			}
			out[i][col] = strings.Join(lines, "\n")
		}
	}
	return out
}

// records writes the rows one below the other, for a terminal that is too narrow.
func (t *text) records(headers []string, rows [][]string) {
	for i, r := range rows {
		if i > 0 {
			t.line("")
		}
		for j, v := range r {
			if v != "" {
				t.wrapped("  ", "    ", headers[j]+": "+v)
			}
		}
	}
}

func (t *text) heading(s string) {
	t.line("")
	for _, l := range wrap(s, t.width) {
		t.line(t.bold(l))
	}
}

func (t *text) line(s string) {
	t.b.WriteString(s)
	t.b.WriteByte('\n')
}

// wrapped writes a paragraph with a prefix for its first and for its other lines.
func (t *text) wrapped(first, rest, s string) {
	prefix := first
	for _, l := range wrap(s, t.width-max(lipgloss.Width(first), lipgloss.Width(rest))) {
		t.line(prefix + l)
		prefix = rest
	}
}

func (t *text) bold(s string) string {
	if !t.color {
		return s
	}
	return lipgloss.NewStyle().Bold(true).Render(s)
}

// paint colours a verdict where that is allowed; its word and symbol say it anyway.
func (t *text) paint(b badge, s string) string {
	if !t.color {
		return s
	}
	c := map[string]color.Color{"held": lipgloss.Cyan, "broken": lipgloss.Red, "unknown": lipgloss.Yellow, "lossy": lipgloss.Magenta, "invalid": lipgloss.Yellow}[b.Class]
	if c == nil {
		return s
	}
	return lipgloss.NewStyle().Bold(true).Foreground(c).Render(s)
}
