package report_test

import (
	"bytes"
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

func TestSampleSize(t *testing.T) {
	t.Log(len(html(t, resulttest.Sample(1, 20))))
}

func TestPrintText(t *testing.T) {
	var b bytes.Buffer
	if err := report.Text(&b, resulttest.Sample(1, 20), report.TextOptions{Color: false}); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + b.String())
}
