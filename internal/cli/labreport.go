package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/lab"
	"github.com/holdfast-db/holdfast/internal/report"
	"github.com/holdfast-db/holdfast/internal/result"
)

type labReportFlags struct {
	cell, html string
	asJSON     bool
}

func newLabReportCmd(env Env) *cobra.Command {
	var f labReportFlags
	cmd := &cobra.Command{
		Use:   "report DIR",
		Short: "Write DIR/report.html again and print the report",
		Long: "Makes the report again from DIR/run.json: as DIR/report.html, or as the file that --html names,\n" +
			"and as text. With --cell it is about one cell: its number in the study's plan, or the part after\n" +
			"the # of a link in the report.",
		Example: "  holdfast lab report holdfast-runs/demo\n" +
			"  holdfast lab report holdfast-runs/demo --cell 12\n" +
			"  holdfast lab report holdfast-runs/demo --cell cell-pg-any1-local-nvme-power-off-r1 --html cut.html",
		Args: oneRunFolder,
		RunE: func(_ *cobra.Command, args []string) error {
			run, err := result.Read(args[0])
			if err != nil {
				return err
			}
			if run.Finished == "" {
				lab.Conclude(run)
			}
			if f.cell != "" {
				return labReportCell(env, run, f)
			}
			return labReport(env, args[0], run, f)
		},
	}
	cmd.Flags().StringVar(&f.cell, "cell", "", "report one `cell` alone: its number in the plan, or its ID")
	cmd.Flags().StringVar(&f.html, "html", "", "write the page to this `file` instead of DIR/report.html")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print the run (or the cell) instead of the report")
	return cmd
}

// labReport prints the report also where its page cannot be written: a run that
// was archived, or that belongs to somebody else, can be read all the same.
func labReport(env Env, dir string, run *result.Run, f labReportFlags) error {
	name := f.html
	if name == "" {
		name = filepath.Join(dir, "report.html")
	}
	unwritten := writePage(name, func(w io.Writer) error { return report.HTML(w, run) })
	var err error
	if f.asJSON {
		err = json.NewEncoder(env.Stdout).Encode(run)
	} else {
		err = report.Text(env.Stdout, run, textOptions(env))
	}
	if err != nil {
		return infraError(err)
	}
	switch {
	case unwritten == nil:
		fmt.Fprintf(env.Stderr, "report: %s\n", name)
		return nil
	case f.html == "" && readOnly(unwritten):
		fmt.Fprintf(env.Stderr, "%s cannot be written, so report.html is as it was; --html FILE writes the page elsewhere\n", dir)
		return nil
	}
	return infraError(unwritten)
}

func readOnly(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)
}

// labReportCell prints one cell, and writes its page where one was asked for.
func labReportCell(env Env, run *result.Run, f labReportFlags) error {
	cell, _, err := report.FindCell(run, f.cell)
	if err != nil {
		return err
	}
	if f.html != "" {
		if err := writePage(f.html, func(w io.Writer) error { return report.HTMLCell(w, run, f.cell) }); err != nil {
			return infraError(err)
		}
	}
	if f.asJSON {
		err = json.NewEncoder(env.Stdout).Encode(cell)
	} else {
		err = report.TextCell(env.Stdout, run, f.cell, textOptions(env))
	}
	if err == nil && f.html != "" {
		fmt.Fprintf(env.Stderr, "report: %s\n", f.html)
	}
	return infraError(err)
}

// writePage replaces a page as a whole, so that no reader finds half of one.
func writePage(name string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".report-*")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	if err := write(f); err != nil {
		_ = f.Close()
		return fmt.Errorf("write the report: %w", err)
	}
	if err := errors.Join(f.Chmod(0o644), f.Close()); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return os.Rename(f.Name(), name)
}
