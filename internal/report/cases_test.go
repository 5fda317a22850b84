package report_test

import (
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/report"
	"github.com/holdfast-db/holdfast/internal/result"
	"github.com/holdfast-db/holdfast/internal/result/resulttest"
)

// TestCaseChaosMeshIssue458: a killed process is no power cut. How real a cut
// was is printed, and what a weak one does not prove.
func TestCaseChaosMeshIssue458(t *testing.T) {
	const weak = "Durability, where the evidence is only a killed process"
	for evidence, warned := range map[string]bool{result.EvidenceProcessKill: true, result.EvidenceSimulatedDisk: false} {
		run := resulttest.Sample(5, 2)
		for i := range run.Cells {
			if run.Cells[i].Evidence != "" {
				run.Cells[i].Evidence, run.Cells[i].Silent = evidence, !warned
			}
		}
		var text strings.Builder
		if err := report.Text(&text, run, report.TextOptions{Width: 10_000}); err != nil {
			t.Fatal(err)
		}
		for what, s := range map[string]string{"text": text.String(), "page": html(t, run)} {
			want := evidence + ", silent"
			if warned {
				want = evidence + ", not silent"
			}
			if !strings.Contains(s, want) || strings.Contains(s, weak) != warned {
				t.Errorf("the %s of a run with %s: says so: %v, warns: %v, want %v", what, evidence, strings.Contains(s, want), strings.Contains(s, weak), warned)
			}
		}
	}
}
