package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/disk"
	"github.com/holdfast-db/holdfast/internal/lab"
	"github.com/holdfast-db/holdfast/internal/lab/experiment"
	"github.com/holdfast-db/holdfast/internal/lab/place/local"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/report"
	"github.com/holdfast-db/holdfast/internal/result"
)

func oneRunFolder(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return errors.New("give one run folder, as in: holdfast lab report holdfast-runs/demo")
	}
	return nil
}

func newLabRecheckCmd(env Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "recheck DIR",
		Short: "Judge a run again from its histories and survivors",
		Long: "Reads each cell's history and the ids that survived, checks them again, and compares the\n" +
			"verdicts with those of run.json. Nothing is changed.",
		Example: "  holdfast lab recheck holdfast-runs/demo",
		Args:    oneRunFolder,
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := result.Read(args[0])
			if err != nil {
				return err
			}
			again, err := lab.Recheck(cmd.Context(), args[0], run)
			if err != nil {
				return infraError(err)
			}
			if asJSON {
				err = json.NewEncoder(env.Stdout).Encode(again)
			} else {
				err = printRecheck(env, again)
			}
			if err != nil {
				return infraError(err)
			}
			return recheckError(run, again)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printRecheck(env Env, again []lab.Rechecked) error {
	w := tabwriter.NewWriter(env.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "cell\thistory\tthen\tnow\tacked\tlost\t")
	for _, r := range again {
		note, acked, lost := "", "–", "–"
		switch {
		case r.Damaged != "":
			note = "DAMAGED: " + r.Damaged
		case r.Differs != "":
			note = "DIFFERS: " + r.Differs
		}
		if r.Metrics != nil {
			acked, lost = fmt.Sprintf("%.0f", r.Metrics["acked"]), fmt.Sprintf("%.0f", r.Metrics["lost"])
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Cell, cmp.Or(r.History, "–"), cmp.Or(r.Then, "–"), cmp.Or(r.Now, "–"), acked, lost, note)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(env.Stdout, "%d cells checked again\n", histories(again))
	return err
}

// recheckError is the exit of a recheck: evidence that cannot be read, or that
// says something else than before, leaves the verdict unknown.
func recheckError(run *result.Run, again []lab.Rechecked) error {
	var bad []string
	for _, r := range again {
		if said := cmp.Or(r.Damaged, r.Differs); said != "" {
			bad = append(bad, cmp.Or(r.History, r.Cell)+": "+said)
		}
	}
	switch {
	case len(bad) == 1:
		return infraError(errors.New(bad[0]))
	case len(bad) > 1:
		return infraError(fmt.Errorf("%s (and %d more)", bad[0], len(bad)-1))
	case histories(again) == 0:
		return infraError(errors.New("no cell of this run has a history to check again"))
	}
	return verdictError(run)
}

// histories counts what was judged from a history.
func histories(again []lab.Rechecked) int {
	n := 0
	for _, r := range again {
		if r.History != "" {
			n++
		}
	}
	return n
}

func newLabListCmd(env Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list [DIR]",
		Short:   "List studies, setups, experiments, disks, and the runs in DIR (holdfast-runs)",
		Example: "  holdfast lab list\n  holdfast lab list /srv/runs --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := "holdfast-runs"
			if len(args) == 1 {
				dir = args[0]
				if s, err := os.Stat(dir); err != nil {
					return fmt.Errorf("list runs: %w", err)
				} else if !s.IsDir() {
					return fmt.Errorf("list runs: %s is no directory", dir)
				}
			}
			l := labList(dir)
			if asJSON {
				return infraError(json.NewEncoder(env.Stdout).Encode(l))
			}
			w := tabwriter.NewWriter(env.Stdout, 0, 0, 2, ' ', 0)
			for _, s := range []struct {
				title string
				items []listed
			}{{"Studies", l.Studies}, {"Setups", l.Setups}, {"Experiments", l.Experiments}, {"Disks", l.Disks}, {"Runs in " + dir, l.Runs}} {
				if len(s.items) == 0 {
					continue
				}
				fmt.Fprintf(w, "%s\n", s.title)
				for _, i := range s.items {
					fmt.Fprintf(w, "  %s\t%s\n", i.Name, i.About)
				}
			}
			if len(l.Runs) == 0 {
				fmt.Fprintf(w, "No runs in %s (a folder of run folders; give another one as the argument)\n", dir)
			}
			return infraError(w.Flush())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

type listed struct {
	Name  string `json:"name"`
	About string `json:"about"`
}

type labLists struct {
	Studies     []listed `json:"studies"`
	Setups      []listed `json:"setups"`
	Experiments []listed `json:"experiments"`
	Disks       []listed `json:"disks"`
	Runs        []listed `json:"runs,omitempty"`
}

func labList(dir string) labLists {
	var l labLists
	for _, n := range lab.Builtins() {
		if s, err := loadStudy(n); err == nil {
			l.Studies = append(l.Studies, listed{n, s.About})
		}
	}
	for _, k := range setup.All() {
		l.Setups = append(l.Setups, listed{k.Name, k.About})
	}
	for _, e := range experiment.All() {
		l.Experiments = append(l.Experiments, listed{e.Name(), e.About()})
	}
	for _, d := range disk.NamedDisks() {
		l.Disks = append(l.Disks, listed{d.Name, d.About})
	}
	runs, _ := filepath.Glob(filepath.Join(dir, "*", "run.json"))
	if _, err := os.Stat(filepath.Join(dir, "run.json")); err == nil { // a run itself
		runs = append(runs, filepath.Join(dir, "run.json"))
	}
	for _, r := range runs {
		dir := filepath.Dir(r)
		run, err := result.Read(dir)
		if err != nil {
			l.Runs = append(l.Runs, listed{dir, "unreadable: " + err.Error()})
			continue
		}
		l.Runs = append(l.Runs, listed{dir, fmt.Sprintf("%s, %s, %d cells, %s", run.Study, run.Started, result.Planned(run), state(run))})
	}
	return l
}

func state(run *result.Run) string {
	if run.Finished == "" {
		return "not finished, so far " + result.Worst(run)
	}
	return result.Worst(run)
}

func newLabCleanCmd(env Env) *cobra.Command {
	var workDir string
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Remove what killed runs left behind: mounts, processes, disks",
		Long: "Removes what labs that are no longer running left behind. A lab that still runs is not\n" +
			"touched, and neither are run folders.",
		Example: "  holdfast lab clean",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !env.Root {
				return infraError(errors.New("cleaning needs root, as the lab itself does: run it with sudo"))
			}
			if cmd.Flags().Changed("work-dir") {
				if err := usableDir("--work-dir", workDir); err != nil {
					return err
				}
				var err error
				if workDir, err = filepath.Abs(workDir); err != nil {
					return infraError(err)
				}
			}
			removed, err := local.Clean(cmd.Context(), local.Options{WorkDir: workDir})
			for _, r := range removed {
				fmt.Fprintln(env.Stdout, r)
			}
			if err != nil {
				return infraError(err)
			}
			if len(removed) == 0 {
				fmt.Fprintln(env.Stdout, "nothing to clean")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&workDir, "work-dir", "", "where the simulated disks lie (default "+local.DefaultWorkDir+")")
	return cmd
}

// verdictError turns a run's verdict into an exit code.
func verdictError(run *result.Run) error {
	switch result.Exit(run) {
	case result.Held:
		return nil
	case result.Broken:
		return withCode(exitBroken, errors.New("a promise was broken"))
	default:
		return infraError(errors.New("at least one cell has no verdict: " + firstUnknown(run)))
	}
}

func firstUnknown(run *result.Run) string {
	for _, c := range run.Cells {
		if c.Verdict == result.Unknown || c.Verdict == result.Invalid {
			return fmt.Sprintf("%s, %s: %s", result.On(c.Setup, c.Params), c.Experiment, c.Why)
		}
	}
	if len(run.Skipped) > 0 {
		return strings.TrimSpace(run.Skipped[0].Cell + " was skipped: " + run.Skipped[0].Why)
	}
	return "there is none"
}

func textOptions(env Env) report.TextOptions {
	return report.TextOptions{Width: 100, Color: isTerminal(env.Stdout) && env.Getenv("NO_COLOR") == "" && env.Getenv("TERM") != "dumb"}
}

// stateDir is where a user's programs keep what outlives a run.
func stateDir(env Env) string {
	if d := env.Getenv("XDG_STATE_HOME"); d != "" {
		return filepath.Join(d, "holdfast")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", "holdfast")
	}
	return ""
}
