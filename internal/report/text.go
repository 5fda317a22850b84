package report

import (
	"bufio"
	"fmt"
	"image/color"
	"io"
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
	width := opt.Width
	if width <= 0 || width > maxTextWidth {
		width = maxTextWidth
	}
	t := &text{width: max(width, minTextWidth), color: opt.Color}
	t.page(newPage(run))
	out := bufio.NewWriter(w)
	if _, err := out.WriteString(strings.TrimLeft(t.b.String(), "\n")); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
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
	t.wrapped("", "", strings.Join(append(facts, p.Cells+" cells", "seed "+p.Seed), " · "))
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
	t.overview(p.Overview)
	t.commits(p)
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
}

func (t *text) verdicts(p *page) {
	t.heading("Verdicts")
	if p.Empty {
		t.line("No cell has finished, so there is nothing to judge.")
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

// tilde marks simulated rows.
func tilde(mark string) string {
	if mark == "simulated" {
		return " ~"
	}
	return ""
}

func (t *text) overview(o overview) {
	if len(o.Rows) == 0 {
		return
	}
	t.heading("Comparison (~ simulated)")
	if o.HasCommit {
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
		t.table(o.Fault+" (all of a setup; promise: what it may lose)",
			[]string{"setup", "disk", "judged", "acked", "lost", "lost ms", "first ack ms", "promise", "verdict"}, rows, 2, 7, 8)
	}
}

// commits lists all numbers of clients, when there is more than the overview shows.
func (t *text) commits(p *page) {
	clients := map[float64]bool{}
	rows := [][]string{}
	for _, r := range p.Commits {
		clients[r.clients] = true
		rows = append(rows, []string{r.Setup, r.Disk + tilde(r.Mark), r.Clients, both(r.Mean), r.P50.Main, r.P99.Main, r.TPS.Main, r.Runs})
	}
	if len(clients) > 1 {
		t.table("Commit, by clients", []string{"setup", "disk", "clients", "mean ms", "p50 ms", "p99 ms", "tps", "runs"}, rows, 2)
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
			name = r.Conditions
		}
		rows = append(rows, []string{r.Setup + tilde(r.Mark), r.Disk, name, r.Cuts, r.Lost, r.Unknown + " (" + r.Recovered + ")", r.Refused,
			r.Ghost + "/" + r.Phantom + "/" + r.Twice, r.Gap.Main})
	}
	t.table("Faults, by group (ghosts, phantoms, written twice: g/p/t)",
		[]string{"setup", "disk", "fault", "judged", "lost", "unknown (there)", "refused", "g/p/t", "gap ms"}, rows, 3)
}

func (t *text) comparisons(p *page) {
	if len(p.Comparisons) == 0 {
		return
	}
	t.heading("Ratios (A / B, 95 % interval over repetitions)")
	rows := [][]string{}
	for _, c := range p.Comparisons {
		rows = append(rows, []string{c.A + "\n" + c.B, c.Metric, c.Ratio, c.Interval, c.Reading, published(c)})
	}
	t.table("", []string{"A, and B below it", "metric", "A / B", "interval", "reading", "published*"}, rows, 2, 4, 5)
	if len(p.Sources) > 0 {
		t.line("* measured elsewhere by others; see below")
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
		t.heading("Flush ladder, " + l.Title + tilde(l.Mark) + ": p50 (p99) in ms")
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
		t.table("", append([]string{"pattern", "I/O"}, l.Calls...), rows, 2)
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
		for i, l := range wrap(a.Title+": "+a.Why, t.width-12) {
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
	isLeft := func(col int) bool {
		for _, c := range also {
			if c == col {
				return true
			}
		}
		return col < left
	}
	for i := range rows {
		for j := range rows[i] {
			rows[i][j] = plainLines(rows[i][j])
		}
	}
	tb := table.New().Headers(headers...).Rows(rows...).
		Border(lipgloss.NormalBorder()).BorderTop(false).BorderBottom(false).BorderLeft(false).BorderRight(false).BorderColumn(false).
		StyleFunc(func(row, col int) lipgloss.Style {
			s := lipgloss.NewStyle().PaddingRight(2)
			if col == len(headers)-1 {
				s = s.PaddingRight(0)
			}
			if !isLeft(col) {
				s = s.Align(lipgloss.Right)
			}
			if row == table.HeaderRow && t.color {
				s = s.Bold(true)
			}
			return s
		})
	out := tb.String()
	if lipgloss.Width(out) > t.width {
		out = tb.Width(t.width).String()
	}
	for _, l := range strings.Split(out, "\n") {
		if !t.color {
			l = strings.TrimRight(l, " ")
		}
		t.line(l)
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
	for _, l := range wrap(s, t.width-len([]rune(first))) {
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
	c := map[string]color.Color{"held": lipgloss.Cyan, "broken": lipgloss.Red, "unknown": lipgloss.Yellow, "invalid": lipgloss.Yellow}[b.Class]
	if c == nil {
		return s
	}
	return lipgloss.NewStyle().Bold(true).Foreground(c).Render(s)
}
