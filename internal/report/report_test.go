package report_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/report"
	"github.com/holdfast-db/holdfast/internal/result"
	"github.com/holdfast-db/holdfast/internal/result/resulttest"
)

func html(t *testing.T, run *result.Run) string {
	t.Helper()
	var b bytes.Buffer
	if err := report.HTML(&b, run); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func text(t *testing.T, run *result.Run, opt report.TextOptions) string {
	t.Helper()
	var b bytes.Buffer
	if err := report.Text(&b, run, opt); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// visible is what a reader of the page sees as words, tags out, spaces folded.
func visible(page string) string {
	page = regexp.MustCompile(`(?s)<style>.*?</style>`).ReplaceAllString(page, "")
	page = regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " ")
	page = strings.NewReplacer("&#39;", "'", "&#34;", `"`, "&lt;", "<", "&gt;", ">", "&amp;", "&", "&#43;", "+").Replace(page)
	return strings.Join(strings.Fields(page), " ")
}

func TestPageHasWhatOneDecidesBy(t *testing.T) {
	run := resulttest.Sample(1, 20)
	run.Summary = result.Summarise(run)
	page := html(t, run)
	words := visible(page)
	for _, want := range []string{
		"holdfast run power-off", "14 March 2026, 09:26 UTC", "took 35 min 18 s", "seed 1", run.Command,
		"Every figure of this run is simulated",
		"✓ held", "✗ broken", "? unknown", "⊘ invalid", "• measured",
		"with 0 of 20 losing data, the true rate of lossy power cuts is below 14 % at 95 %",
		"a script stood in for the operator", "hold no time for a person to notice",
		"2.00 1.93–2.07 2.00 × the time 3.66 : 2.23 ms = 1.64 [P]",
		"no difference beyond the noise of ± 3.1 %", "! lossy pg-async on local-nvme simulated Lost", "! lossy it was kept, since it allows what was lost",
		"What a commit is made of", "replication: waiting for a standby after that", "The grey band is the noise between equal cells (± 3.1 %)",
		"cut 2.10 ms → noticed", "Its cap is 3,000 a second: the line.", "cap 3,000", "What a setup costs besides time",
		"Published figures, measured elsewhere by others", "“Postgres with CloudNativePG on Hetzner Cloud and Kubernetes” (2026)",
		"the collector's disk was full (write history: no space left on device)",
		"latency changed regime at 11 s",
		"p99.9 ms", "Acknowledged writes per second", "LOST (acknowledged, not there)",
		"standbys cut off 1.5 s before", "Brought back by: operator's script: promote the most advanced standby",
		"Evidence: simulated-disk, silent", "postgres 15.12 pg-single, pg-async, pg-remote-write, pg-any1, pg-fsync-off",
		"pg-any1 on local-nvme, power-off, repetition 21 the run's time was up",
		"What is simulated", "What this does not prove", "Zero of 20 lossy cuts bound the true rate to below 14 %",
		"zero-filled buffered",
	} {
		if !strings.Contains(words, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for _, s := range run.Summary {
		sentence := s.Sentence[strings.Index(s.Sentence, ": ")+3:]
		if s.Experiment == "" && !strings.Contains(words, sentence) {
			t.Errorf("a sentence is missing: %s", sentence)
		}
	}
}

// TestReportsPrintWhatTheRunCarries: the sentences of run.json, not others.
func TestReportsPrintWhatTheRunCarries(t *testing.T) {
	run := resulttest.Sample(1, 2)
	run.Summary = []result.Summary{{Setup: "pg-any1", Params: map[string]any{"disk": "local-nvme"}, Verdict: result.Held, Cells: 3,
		Sentence: "pg-any1 on local-nvme: says so itself."}}
	if page := visible(html(t, run)); !strings.Contains(page, "✓ held pg-any1 on local-nvme simulated Says so itself.") {
		t.Error("the page has a sentence of its own")
	}
	if out := text(t, run, report.TextOptions{}); !strings.Contains(out, "✓ held      pg-any1 on local-nvme ~: says so itself.") {
		t.Error("the text has a sentence of its own")
	}
}

// TestSelfContained: nothing that a browser would fetch or run.
func TestSelfContained(t *testing.T) {
	page := html(t, resulttest.Sample(1, 3))
	for _, bad := range []string{"<script", "http://", "https://", "url(", "@import", "javascript:", " onload", " onclick", "<iframe", "<img", "<object"} {
		if strings.Contains(strings.ToLower(page), bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
}

func TestIDsAreUniqueAndLinksLead(t *testing.T) {
	run := resulttest.Sample(1, 4)
	// Two groups that only differ in a param that no title names, and a repetition twice.
	for i := range run.Cells {
		if c := &run.Cells[i]; c.Setup == "pg-single" && c.Experiment == "power-off" && c.Repetition > 2 {
			c.Params["rate"] = 900
			c.Repetition = 3
		}
	}
	page := html(t, run)
	ids := map[string]bool{}
	for _, m := range regexp.MustCompile(`\bid="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if ids[m[1]] {
			t.Errorf("id %s is there twice", m[1])
		}
		ids[m[1]] = true
	}
	links := regexp.MustCompile(`href="#([^"]*)"`).FindAllStringSubmatch(page, -1)
	if len(links) < 30 {
		t.Errorf("only %d links", len(links))
	}
	for _, m := range links {
		if !ids[m[1]] {
			t.Errorf("the link to %s leads nowhere", m[1])
		}
	}
	for _, id := range []string{"cell-pg-any1-local-nvme-power-off-lag1500-r2", "cell-pg-single-local-nvme-power-off-rate-900-r3", "cell-pg-single-local-nvme-power-off-rate-900-r3-2"} {
		if !ids[id] {
			t.Errorf("no id %s", id)
		}
	}
}

// TestTagsBalance reads the page as XML would be: every tag that opens closes.
func TestTagsBalance(t *testing.T) {
	void := []string{"meta", "link", "br", "!DOCTYPE"}
	for name, run := range variants() {
		var open []string
		for _, m := range regexp.MustCompile(`<(/?)([!A-Za-z][A-Za-z0-9]*)[^>]*?(/?)>`).FindAllStringSubmatch(html(t, run), -1) {
			switch {
			case m[3] == "/" || slices.Contains(void, m[2]):
			case m[1] == "":
				open = append(open, m[2])
			case len(open) == 0 || open[len(open)-1] != m[2]:
				t.Fatalf("%s: </%s> closes %v", name, m[2], open)
			default:
				open = open[:len(open)-1]
			}
		}
		if len(open) > 0 {
			t.Errorf("%s: left open: %v", name, open)
		}
	}
}

// variants are runs in states that real ones get into.
func variants() map[string]*result.Run {
	empty := &result.Run{Schema: 1, Study: "quick", Started: "2026-03-14T09:26:53Z", Simulated: true}
	interrupted := resulttest.Sample(2, 2)
	interrupted.Finished, interrupted.Summary, interrupted.Comparisons = "", nil, nil
	interrupted.Cells = interrupted.Cells[:7]
	failed := &result.Run{Schema: 1, Study: "power-off", Finished: "2026-03-14T09:26:53Z", Cells: []result.Cell{
		{Setup: "pg-any1", Experiment: "power-off", Params: map[string]any{"disk": "local-nvme"}, Repetition: 1, Verdict: result.Unknown, Simulated: true, Why: "the lab failed: no space"},
		{Setup: "pg-any1", Experiment: "flush", Params: map[string]any{"disk": "local-nvme"}, Repetition: 1, Verdict: result.Unknown, Simulated: true},
		{Setup: "", Experiment: "storage-bound", Repetition: 1, Verdict: result.Held, Metrics: map[string]float64{"page_read_ms": 0.3, "explained_pct": 96}},
	}}
	mixed := resulttest.Sample(3, 2)
	for i := range mixed.Cells {
		if mixed.Cells[i].Setup == "pg-async" {
			mixed.Cells[i].Simulated = false
		}
	}
	damaged := resulttest.Sample(4, 1)
	for i := range damaged.Cells {
		damaged.Cells[i].Histogram = "HISTFAAAAAB42g=="
	}
	odd := resulttest.Sample(5, 1)
	odd.Seed = math.MaxUint64
	for i := range odd.Cells {
		c := &odd.Cells[i]
		c.Series = []result.Second{{T: 5, Acked: 1}, {T: -3.5}, {T: 5.2, Acked: 7}, {T: 90000, Acked: 3}, {T: 1e300, Acked: 3}, {T: -1e17, Acked: math.MaxInt}}
		if c.Experiment == "commit" {
			c.Metrics["latency_mean_ms"] = math.MaxFloat64 / float64(1+i%7)
		}
		c.IDs = []result.IDRange{{From: math.MaxUint64 - 1, To: math.MaxUint64, Outcome: result.OutcomeAcked}, {From: 0, To: 3, Outcome: result.OutcomeNeverAttempted, Survived: true}}
		c.Events = []result.Event{{AtMs: -9e9, What: "long ago"}, {AtMs: 1, UntilMs: 2, What: ""}}
	}
	return map[string]*result.Run{"empty": empty, "interrupted": interrupted, "failed": failed, "mixed": mixed,
		"damaged": damaged, "odd": odd, "sample": resulttest.Sample(1, 3), "selftest": selftest()}
}

func selftest() *result.Run {
	run := &result.Run{Schema: 1, Study: result.StudySelftest, Simulated: true}
	for _, liar := range result.Liars() {
		run.Cells = append(run.Cells, result.Cell{Setup: liar, Experiment: "power-off", Fault: "host-power", Simulated: true, Verdict: result.Broken, Repetition: 1,
			Params: map[string]any{"disk": "local-nvme"}, Promise: &result.Promise{Lose: result.LoseNothing}, Metrics: map[string]float64{"acked": 900, "lost": 12}})
	}
	return run
}

func TestRunsInEveryState(t *testing.T) {
	for name, want := range map[string]string{
		"empty":       "No cell has finished, so there is nothing to judge.",
		"interrupted": "did not finish",
		"failed":      "the lab failed: no space",
		"mixed":       "Some figures of this run are simulated, others",
		"selftest":    "Self-test: 3 of 3 liars caught.",
		"damaged":     "pg-any1",
		"odd":         "18446744073709551615",
	} {
		run := variants()[name]
		if got := visible(html(t, run)); !strings.Contains(got, want) {
			t.Errorf("%s: the page does not say %q", name, want)
		}
		if got := strings.Join(strings.Fields(text(t, run, report.TextOptions{})), " "); !strings.Contains(got, want) {
			t.Errorf("%s: the text does not say %q", name, want)
		}
	}
	lastLine := func(run *result.Run) string {
		lines := strings.Split(strings.TrimSpace(text(t, run, report.TextOptions{})), "\n")
		return lines[len(lines)-1]
	}
	if got := lastLine(selftest()); got != "Self-test passed: all 3 liars caught." {
		t.Errorf("a self-test ends with %q", got)
	}
	missed := selftest()
	missed.Cells[1].Verdict = result.Held
	if got := visible(html(t, missed)); !strings.Contains(got, "2 of 3 liars caught. Missed: pg-commit-off.") {
		t.Error("a missed liar is not said to be missed")
	}
	if got := lastLine(missed); got != "Self-test FAILED: 2 of 3 liars caught." {
		t.Errorf("a self-test that failed ends with %q", got)
	}
}

// TestSimulatedAndRealAreMarked: every row of every table with figures says which it is.
func TestSimulatedAndRealAreMarked(t *testing.T) {
	run := variants()["mixed"]
	for _, row := range regexp.MustCompile(`(?s)<tr><th>.*?</tr>`).FindAllString(html(t, run), -1) {
		words := visible(row)
		if !strings.HasPrefix(words, "pg-") {
			continue // flush patterns and event names stand under a marked title
		}
		real, simulated := strings.Contains(words, "real"), strings.Contains(words, "simulated")
		if real == simulated && !strings.Contains(words, "against") {
			t.Errorf("not marked: %s", words)
		}
		if real != strings.HasPrefix(words, "pg-async") && !strings.Contains(words, "against") {
			t.Errorf("marked wrongly: %s", words)
		}
	}
	out := text(t, run, report.TextOptions{})
	marked := 0
	for _, line := range strings.Split(out, "\n") {
		if regexp.MustCompile(`^pg-\S+ .*\d`).MatchString(line) && !strings.Contains(line, " on ") {
			marked++
			if strings.Contains(line, "~") == strings.HasPrefix(line, "pg-async") {
				t.Errorf("marked wrongly: %s", line)
			}
		}
	}
	if marked < 10 {
		t.Errorf("only %d rows were looked at", marked)
	}
}

const hostile = `</style></svg><script>alert(1)</script>"'&<img src=x onerror=alert(2)>` + "\x1b[31m\x07\u202e{{.}}"

// TestHostileWords puts markup and terminal codes wherever a run has words.
func TestHostileWords(t *testing.T) {
	run := resulttest.Sample(1, 2)
	run.Study, run.Command, run.Started = hostile, hostile, hostile
	run.Environment = map[string]string{hostile: hostile}
	run.Skipped = []result.Skipped{{Cell: hostile, Why: hostile}}
	run.Comparisons[0].A, run.Comparisons[0].Note, run.Comparisons[0].Metric = hostile, hostile, hostile
	run.Noise[0].Experiment = hostile
	for i := range run.Cells {
		c := &run.Cells[i]
		c.Setup += hostile
		c.Params["disk"], c.Params["mode"], c.Params[hostile] = hostile, hostile, hostile
		c.Why, c.Recovery, c.History, c.Evidence = hostile, hostile, hostile, hostile
		c.Versions = map[string]string{hostile: hostile}
		if c.Experiment == "flush" {
			c.Params["pattern"], c.Params["call"] = hostile, hostile
		}
		if c.Experiment == "round-trip" {
			c.Experiment = hostile
			c.Metrics = map[string]float64{hostile: 1}
		}
		for j := range c.Events {
			c.Events[j].What = hostile
		}
	}
	page := html(t, run)
	for _, bad := range []string{"<script", "<img", "</style></svg>", "onerror=alert(2)>"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	if strings.Count(page, "</style>") != 1 {
		t.Error("a style ends early")
	}
	out := text(t, run, report.TextOptions{})
	if strings.ContainsAny(out, "\x1b\x07\u202e") {
		t.Error("the text holds codes that a terminal would act on")
	}
	if !strings.Contains(out, "alert(1)") {
		t.Error("the text leaves words out")
	}
}

func TestSizeOfALargeRun(t *testing.T) {
	run := resulttest.Sample(1, 60)
	if n := len(run.Cells); n < 480 || n > 560 {
		t.Fatalf("%d cells, the test wants about 500", n)
	}
	size := len(html(t, run))
	t.Logf("%d cells, %d bytes", len(run.Cells), size)
	if size > 2_000_000 {
		t.Errorf("a run of %d cells takes %d bytes, the limit is 2 MB", len(run.Cells), size)
	}
}

// TestSizeOfManyFaults: 500 fault cells with histograms, half a minute of
// series, hundreds of ranges of ids and a dozen events each.
func TestSizeOfManyFaults(t *testing.T) {
	drawn := resulttest.Sample(7, 110)
	run := *drawn
	run.Cells = nil
	for _, c := range drawn.Cells {
		if c.Experiment != "power-off" || len(run.Cells) == 500 {
			continue
		}
		for s := 12; s < 40; s++ {
			c.Series = append(c.Series, result.Second{T: float64(s), Acked: 150 + (s*7919+c.Repetition*31)%60})
		}
		for id := uint64(1e6); id < 1e6+400; id += 2 {
			c.IDs = append(c.IDs, result.IDRange{From: id, To: id, Outcome: result.OutcomeAcked, Survived: true}, result.IDRange{From: id + 1, To: id + 1, Outcome: result.OutcomeUnknown})
		}
		for n := 2; n < 5; n++ {
			for _, e := range c.Events[:3] {
				e.What += fmt.Sprintf(" (fault %d)", n)
				e.AtMs += float64(n * 9000)
				e.UntilMs += float64(n * 9000)
				c.Events = append(c.Events, e)
			}
		}
		run.Cells = append(run.Cells, c)
	}
	if len(run.Cells) != 500 {
		t.Fatalf("%d cells, the test wants 500", len(run.Cells))
	}
	size := len(html(t, &run))
	t.Logf("500 fault cells, %d bytes", size)
	if size > 2_000_000 {
		t.Errorf("500 fault cells take %d bytes, the limit is 2 MB", size)
	}
}

// TestSizeOfLongSeries: hours of seconds and thousands of id ranges per cell
// must not grow the page without bound.
func TestSizeOfLongSeries(t *testing.T) {
	run := resulttest.Sample(1, 20)
	for i := range run.Cells {
		c := &run.Cells[i]
		if c.Experiment != "power-off" || len(c.Series) == 0 {
			continue
		}
		c.Series, c.IDs = nil, nil
		for s := range 7200 {
			c.Series = append(c.Series, result.Second{T: float64(s - 60), Acked: (s * 7919) % 200})
		}
		for id := uint64(1); id < 20_000; id += 2 {
			c.IDs = append(c.IDs, result.IDRange{From: id, To: id, Outcome: result.OutcomeAcked, Survived: true}, result.IDRange{From: id + 1, To: id + 1, Outcome: result.OutcomeUnknown})
		}
	}
	if size := len(html(t, run)); size > 2_000_000 {
		t.Errorf("%d bytes", size)
	}
}

func TestTextFitsItsWidth(t *testing.T) {
	for name, run := range variants() {
		for _, width := range []int{100, 72, 40} {
			out := text(t, run, report.TextOptions{Width: width})
			for _, line := range strings.Split(out, "\n") {
				if n := len([]rune(line)); n > width {
					t.Errorf("%s at %d: %d columns: %s", name, width, n, line)
				}
				if strings.HasSuffix(line, " ") {
					t.Errorf("%s at %d: blanks at the end of %q", name, width, line)
				}
			}
			if strings.Contains(out, "\x1b") {
				t.Errorf("%s: colour where there must be none", name)
			}
			if width == 40 && name == "sample" && !regexp.MustCompile(`acked: \d+,\d{3}`).MatchString(out) {
				t.Error("a narrow terminal loses figures")
			}
		}
	}
	run := variants()["sample"]
	coloured := text(t, run, report.TextOptions{Color: true})
	if !strings.Contains(coloured, "\x1b[") {
		t.Error("no colour where it was asked for")
	}
	plain := regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllString(coloured, "")
	if plain != text(t, run, report.TextOptions{}) {
		t.Error("colour changes the words")
	}
	if got := text(t, run, report.TextOptions{Width: 500}); got != text(t, run, report.TextOptions{}) {
		t.Error("a wide terminal gets other lines than one of 100 columns")
	}
	if want := "pg-single on local-nvme, pg-single on cloud-volume, pg-fsync-off on local-nvme: brought back by operator's script"; !strings.Contains(strings.Join(strings.Fields(plain), " "), want) {
		t.Errorf("the text does not say %q", want)
	}
	lines := strings.Split(strings.TrimRight(text(t, run, report.TextOptions{}), "\n"), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, "1 ✗ broken, 1 ? unknown, 1 ! lossy, 3 ✓ held") {
		t.Errorf("the last line is %q", last)
	}
}

// TestPublishedRun reads the report of every published schema.
func TestPublishedRuns(t *testing.T) {
	files, err := filepath.Glob("../result/testdata/run-schema*.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		run, err := result.Read(f)
		if err != nil {
			t.Fatal(err)
		}
		if out := text(t, run, report.TextOptions{}); !strings.Contains(out, "✗ broken    pg-fsync-off on local-nvme ~: lost") {
			t.Errorf("%s: no verdict in the text", f)
		}
		if !strings.Contains(html(t, run), `id="cell-pg-any1-local-nvme-power-off-r1"`) {
			t.Errorf("%s: no cell in the page", f)
		}
	}
}

// TestFileAndMemoryGiveOnePage: params change their Go type on the way.
func TestFileAndMemoryGiveOnePage(t *testing.T) {
	run := resulttest.Sample(9, 3)
	data, err := result.Encode(run)
	if err != nil {
		t.Fatal(err)
	}
	back, err := result.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	if html(t, run) != html(t, back) {
		t.Error("a run that was read from a file gives another page")
	}
}

func TestWriteErrorsAreTold(t *testing.T) {
	run := resulttest.Sample(1, 1)
	if err := report.HTML(failing{}, run); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("HTML: %v", err)
	}
	if err := report.Text(failing{}, run, report.TextOptions{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Text: %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestManyRatios: the ones to decide by stay in sight.
func TestManyRatios(t *testing.T) {
	run := resulttest.Sample(1, 1)
	run.Comparisons = nil
	for i := range 8 {
		for _, metric := range []string{"latency_mean_ms", "tps"} {
			run.Comparisons = append(run.Comparisons, result.Comparison{A: fmt.Sprintf("a%d", i), B: "b", Metric: metric, Ratio: 1.5, Lo: 1.4, Hi: 1.6})
		}
	}
	run.Comparisons[1].Note = "no difference; published 3.2 × (elsewhere)"
	words := visible(html(t, run))
	for _, want := range []string{"7 further ratios", "a7 against b mean latency", "a0 against b throughput 1.50 1.40–1.60 no difference beyond the noise 3.2 × (elsewhere)"} {
		if !strings.Contains(words, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if out := text(t, run, report.TextOptions{}); !strings.Contains(out, "7 further ratios are in report.html") {
		t.Error("the text does not say what it leaves out")
	}
}

// TestContrast checks the palette of both schemes against WCAG 2: 4.5 for text, 3 for lines.
func TestContrast(t *testing.T) {
	css, err := os.ReadFile("style.css")
	if err != nil {
		t.Fatal(err)
	}
	schemes := regexp.MustCompile(`(?s):root\{(.*?)\}`).FindAllStringSubmatch(string(css), 2)
	if len(schemes) != 2 {
		t.Fatal("no two schemes in the style")
	}
	for i, name := range []string{"light", "dark"} {
		colours := map[string]string{}
		for _, m := range regexp.MustCompile(`--([a-z0-9-]+):#([0-9a-f]+)`).FindAllStringSubmatch(schemes[i][1], -1) {
			colours[m[1]] = m[2]
		}
		check := func(fg, bg string, want float64) {
			if got := contrast(t, colours[fg], colours[bg]); got < want {
				t.Errorf("%s: %s on %s has contrast %.2f, want %.1f", name, fg, bg, got, want)
			}
		}
		for _, fg := range []string{"ink", "soft", "accent", "broken"} {
			check(fg, "bg", 4.5)
			check(fg, "tint", 4.5)
		}
		for _, v := range []string{"held", "broken", "unknown", "invalid", "lossy"} {
			check(v, v+"-bg", 4.5)
		}
		for _, bg := range []string{"p0", "p1", "p2", "p3"} {
			check("ink", bg, 4.5)
		}
		for _, fg := range []string{"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "lost", "gone", "maybe"} {
			check(fg, "bg", 3)
		}
	}
}

func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	la, lb := luminance(t, a), luminance(t, b)
	return (max(la, lb) + 0.05) / (min(la, lb) + 0.05)
}

func luminance(t *testing.T, hex string) float64 {
	t.Helper()
	if len(hex) == 3 {
		hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
	}
	if len(hex) != 6 {
		t.Fatalf("%q is no colour", hex)
	}
	var sum float64
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= 0.03928 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

// FuzzReport: whatever reads as a run can be shown.
func FuzzReport(f *testing.F) {
	for _, run := range variants() {
		if data, err := result.Encode(run); err == nil && len(data) < 100_000 {
			f.Add(data)
		}
	}
	small, err := json.Marshal(selftest())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(small)
	f.Fuzz(func(t *testing.T, data []byte) {
		run, err := result.Decode(data)
		if err != nil {
			t.Skip()
		}
		if err := report.HTML(io.Discard, run); err != nil {
			t.Fatal(err)
		}
		if err := report.Text(io.Discard, run, report.TextOptions{Width: 60}); err != nil {
			t.Fatal(err)
		}
	})
}
