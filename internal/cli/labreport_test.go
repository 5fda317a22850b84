package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/result"
	"github.com/holdfast-db/holdfast/internal/result/resulttest"
)

func runReport(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Run(ctx, Env{Args: append([]string{"lab", "report"}, args...), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: os.Getenv, Version: "test"})
	return code, out.String(), errs.String()
}

// TestReportOfACell writes the page of one cell, found by number and by ID.
func TestReportOfACell(t *testing.T) {
	dir := t.TempDir()
	run := resulttest.Sample(1, 2)
	for i := range run.Cells {
		run.Cells[i].Planned = i + 1
	}
	if err := result.Write(dir, run); err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(dir, "cell.html")
	const id = "cell-pg-any1-local-nvme-power-off-r2"
	code, out, errs := runReport(t.Context(), dir, "--cell", id, "--html", page)
	if code != exitOK || !strings.Contains(out, id) || !strings.Contains(out, "Its course") || errs != "report: "+page+"\n" {
		t.Errorf("exit %d, %s\n%s", code, errs, out)
	}
	data, err := os.ReadFile(page)
	if err != nil || !bytes.Contains(data, []byte(`<header id="`+id+`">`)) || !bytes.HasSuffix(bytes.TrimSpace(data), []byte("</html>")) {
		t.Errorf("the page: %d bytes, %v", len(data), err)
	}
	if _, err := os.Stat(filepath.Join(dir, "report.html")); !os.IsNotExist(err) {
		t.Errorf("the report of the run was written too: %v", err)
	}
	if code, out, _ := runReport(t.Context(), dir, "--cell", "3", "--json"); code != exitOK || !strings.Contains(out, `"planned":3`) {
		t.Errorf("cell 3: exit %d, %s", code, out)
	}
	if code, _, errs := runReport(t.Context(), dir, "--cell", "9999"); code != exitUsage || !strings.Contains(errs, "no cell 9999") {
		t.Errorf("a cell that there is not: exit %d, %s", code, errs)
	}
	if code, _, errs := runReport(t.Context(), dir, "--html", filepath.Join(dir, "none", "x.html")); code != exitInfra || !strings.Contains(errs, "write the report") {
		t.Errorf("a page that cannot be written: exit %d, %s", code, errs)
	}
}

// TestReportFromAReadOnlyFolder prints all the same, and says that it wrote nothing.
func TestReportFromAReadOnlyFolder(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a read-only folder needs root")
	}
	dir := filepath.Join(t.TempDir(), "archived")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skipf("no tmpfs can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := result.Write(dir, resulttest.Sample(1, 1)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	code, out, errs := runReport(t.Context(), dir)
	if code != exitOK || !strings.Contains(out, "holdfast · power-off") || !strings.Contains(errs, "--html FILE writes the page elsewhere") {
		t.Errorf("exit %d, %s\n%.300s", code, errs, out)
	}
	page := filepath.Join(t.TempDir(), "r.html")
	if code, _, errs := runReport(t.Context(), dir, "--html", page); code != exitOK || errs != "report: "+page+"\n" {
		t.Errorf("exit %d, %s", code, errs)
	}
	if _, err := os.Stat(page); err != nil {
		t.Error(err)
	}
}
