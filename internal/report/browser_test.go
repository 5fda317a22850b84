package report_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/report"
	"github.com/holdfast-db/holdfast/internal/result"
	"github.com/holdfast-db/holdfast/internal/result/resulttest"
)

// TestInBrowser opens the page from a file in both schemes and at two widths.
// With HOLDFAST_SCREENSHOTS=DIR it leaves pictures there.
func TestInBrowser(t *testing.T) {
	file := writePage(t, html(t, resulttest.Sample(20260314, 6))) // few enough cells for them all to be in sight
	b := startBrowser(t)
	for _, width := range []int{400, 1400} {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(fmt.Sprintf("%s at %d", scheme, width), func(t *testing.T) {
				b.t = t
				b.open(file, width, scheme)
				checkPage(t, b, file, width)
				if dir := os.Getenv("HOLDFAST_SCREENSHOTS"); dir != "" {
					b.screenshots(filepath.Join(dir, fmt.Sprintf("%s-%d", scheme, width)), width)
				}
			})
			b.t = t
		}
	}
}

// TestStatesInBrowser opens runs in other states, and one whose words are too
// long for any line, where the room is least.
func TestStatesInBrowser(t *testing.T) {
	runs := variants()
	long := resulttest.Sample(1, 1)
	word := strings.Repeat("unbreakable", 30)
	long.Study, long.Command, long.Environment[word] = word, word, word
	long.Comparisons[0].A, long.Skipped[0].Why = word, word
	for i := range long.Cells {
		c := &long.Cells[i]
		c.Setup += word
		c.Why, c.Recovery = word, word
		for j := range c.Events {
			c.Events[j].What = word
		}
	}
	runs["long"] = long
	b := startBrowser(t)
	for _, name := range []string{"empty", "interrupted", "failed", "mixed", "odd", "selftest", "long"} {
		t.Run(name, func(t *testing.T) {
			b.t = t
			file := writePage(t, html(t, runs[name]))
			b.open(file, 400, "light")
			checkPage(t, b, file, 400)
			if dir := os.Getenv("HOLDFAST_SCREENSHOTS"); dir != "" {
				b.screenshots(filepath.Join(dir, name), 400)
			}
		})
		b.t = t
	}
}

func checkPage(t *testing.T, b *browser, file string, width int) {
	t.Helper()
	var m struct {
		Page, View int
		Outside    []string
		Tiny       []string
	}
	// Whatever sticks out must be within something that scrolls or clips.
	b.eval(`(() => {
		const view = document.documentElement.clientWidth, outside = [], tiny = [];
		for (const e of document.querySelectorAll('main *')) {
			if (e.closest('.scroll') && !e.matches('.scroll') || e.closest('svg svg')) continue;
			if (!e.checkVisibility()) continue;
			const r = e.getBoundingClientRect();
			if (r.width && (r.right > view + 1 || r.left < -1)) outside.push(e.tagName + '.' + (e.getAttribute('class') || '') + ' ' + e.textContent.slice(0, 40) + ' ' + r.left + '-' + r.right);
			if (e.tagName !== 'svg' && e.children.length === 0 && e.textContent.trim() && parseFloat(getComputedStyle(e).fontSize) < 10.5) tiny.push(e.tagName + ' ' + e.textContent.slice(0, 40));
		}
		return {page: document.documentElement.scrollWidth, view, outside: outside.slice(0, 10), tiny: tiny.slice(0, 10)};
	})()`, &m)
	if m.Page > width || m.View != width {
		t.Errorf("the page is %d px wide in a view of %d, want %d", m.Page, m.View, width)
	}
	for _, o := range m.Outside {
		t.Errorf("sticks out at %d px: %s", width, o)
	}
	for _, o := range m.Tiny {
		t.Errorf("too small to read: %s", o)
	}
	for _, e := range b.events {
		switch e.Method {
		case "Network.requestWillBeSent":
			var p struct{ Request struct{ URL string } }
			unmarshal(t, e.Params, &p)
			if p.Request.URL != "file://"+file && !strings.HasPrefix(p.Request.URL, "data:") {
				t.Errorf("the page asked for %s", p.Request.URL)
			}
		case "Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled":
			t.Errorf("the browser complains: %s", e.Params)
		}
	}
}

// TestDeepLinkOpensItsCell follows a link into a closed <details>.
func TestDeepLinkOpensItsCell(t *testing.T) {
	file := writePage(t, html(t, resulttest.Sample(20260314, 20)))
	b := startBrowser(t)
	b.open(file+"#cell-pg-any1-local-nvme-power-off-r17", 1400, "light")
	var visible bool
	b.eval(`document.getElementById('cell-pg-any1-local-nvme-power-off-r17').checkVisibility()`, &visible)
	if !visible {
		t.Error("a link to a cell does not show it")
	}
}

// TestCommitLinkOpensItsRow follows a link to one measurement in a closed list.
func TestCommitLinkOpensItsRow(t *testing.T) {
	file := writePage(t, html(t, resulttest.Sample(20260314, 2)))
	b := startBrowser(t)
	for _, id := range []string{"cell-pg-any1-local-nvme-commit-clients8-r3", "cell-disk-local-nvme-flush-patternappend-callfsync-r1", "cell-pg-any1-local-nvme-round-trip-r1"} {
		b.open(file+"#"+id, 400, "dark")
		var at struct{ There, Visible bool }
		b.eval(`(e => ({there: !!e, visible: !!e && e.checkVisibility()}))(document.getElementById('`+id+`'))`, &at)
		if !at.There || !at.Visible && !strings.Contains(id, "flush") { // an anchor in a table has no extent
			t.Errorf("a link to %s does not show it (there: %v)", id, at.There)
		}
	}
}

// TestCellInBrowser opens the pages of one fault and of one measurement.
func TestCellInBrowser(t *testing.T) {
	run := resulttest.Sample(20260314, 6)
	b := startBrowser(t)
	for _, id := range []string{"cell-pg-any1-local-nvme-power-off-lag1500-r2", "cell-pg-any1-local-nvme-commit-clients8-r3", "cell-disk-cloud-volume-flush-patternappend-callfsync-r1"} {
		var page bytes.Buffer
		if err := report.HTMLCell(&page, run, id); err != nil {
			t.Fatal(err)
		}
		file := writePage(t, page.String())
		for _, width := range []int{400, 1400} {
			for _, scheme := range []string{"light", "dark"} {
				t.Run(fmt.Sprintf("%s, %s at %d", id, scheme, width), func(t *testing.T) {
					b.t = t
					b.open(file, width, scheme)
					checkPage(t, b, file, width)
					if dir := os.Getenv("HOLDFAST_SCREENSHOTS"); dir != "" {
						b.screenshots(filepath.Join(dir, fmt.Sprintf("%s-%s-%d", id, scheme, width)), width)
					}
				})
				b.t = t
			}
		}
	}
}

// TestRealRunInBrowser opens the run that HOLDFAST_RUN names, to be looked at.
func TestRealRunInBrowser(t *testing.T) {
	dir := os.Getenv("HOLDFAST_RUN")
	if dir == "" {
		t.Skip("HOLDFAST_RUN names no run folder")
	}
	run, err := result.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	file := writePage(t, html(t, run))
	b := startBrowser(t)
	for _, width := range []int{400, 1400} {
		for _, scheme := range []string{"light", "dark"} {
			b.open(file, width, scheme)
			checkPage(t, b, file, width)
			if shots := os.Getenv("HOLDFAST_SCREENSHOTS"); shots != "" {
				b.screenshots(filepath.Join(shots, fmt.Sprintf("real-%s-%d", scheme, width)), width)
			}
		}
	}
}

// TestPrints makes a PDF of the page.
func TestPrints(t *testing.T) {
	file := writePage(t, html(t, resulttest.Sample(20260314, 20)))
	b := startBrowser(t)
	b.open(file, 1400, "dark")
	var out struct{ Data json.RawMessage }
	unmarshal(t, b.call("Page.printToPDF", map[string]any{"printBackground": false, "paperWidth": 8.27, "paperHeight": 11.69}), &out)
	if len(out.Data) < 20_000 {
		t.Errorf("the PDF has %d bytes", len(out.Data))
	}
	b.call("Emulation.setEmulatedMedia", map[string]any{"media": "print", "features": []map[string]string{{"name": "prefers-color-scheme", "value": "dark"}}})
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": 1032, "height": 700, "deviceScaleFactor": 1, "mobile": false}) // A4 across, less margins
	var wide struct {
		Page   int
		Colour string
	}
	b.eval(`({page: document.documentElement.scrollWidth, colour: getComputedStyle(document.body).backgroundColor})`, &wide)
	if wide.Page > 1032 {
		t.Errorf("on paper the page is %d px wide, A4 across holds 1032", wide.Page)
	}
	if wide.Colour != "rgb(255, 255, 255)" {
		t.Errorf("on paper the background is %s", wide.Colour)
	}
}
