package cli

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab"
	"github.com/holdfast-db/holdfast/internal/lab/place/local"
	"github.com/holdfast-db/holdfast/internal/postgres"
	"github.com/holdfast-db/holdfast/internal/report"
	"github.com/holdfast-db/holdfast/internal/result"
)

func newLabCmd(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Pull the plug on a setup and say what was lost",
		Long: "The lab runs studies: it brings database setups up on hosts of its own, puts load on them,\n" +
			"measures, cuts their power, and says what was lost and for how long nothing was written.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLabRunCmd(env), newLabResumeCmd(env), newLabReportCmd(env), newLabRecheckCmd(env), newLabCompareCmd(env), newLabListCmd(env), newLabCleanCmd(env))
	return cmd
}

type labRunFlags struct {
	out     string
	seed    string
	repeat  int
	workDir string
	asJSON  bool
}

func newLabRunCmd(env Env) *cobra.Command {
	var f labRunFlags
	cmd := &cobra.Command{
		Use:   "run [STUDY]",
		Short: "Run a study: a built-in's name or a YAML file (default: quick)",
		Example: "  holdfast lab run                      # quick: under five minutes\n" +
			"  holdfast lab run power-off --out runs/power-off\n" +
			"  holdfast lab run mine.yaml --seed 7 --repeat 3",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeStudies,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := "quick"
			if len(args) == 1 {
				name = args[0]
			}
			return labRun(cmd, env, name, f)
		},
	}
	cmd.Flags().StringVar(&f.out, "out", "", "run `folder`; refused if it holds a run (default holdfast-runs/STUDY-TIME)")
	cmd.Flags().StringVar(&f.seed, "seed", "", "seed of the order, latencies and what a cut leaves (default: drawn)")
	cmd.Flags().IntVar(&f.repeat, "repeat", 0, "repetitions of every experiment, instead of the study's")
	cmd.Flags().StringVar(&f.workDir, "work-dir", "", "where the simulated disks lie (default "+local.DefaultWorkDir+")")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print run.json instead of the report")
	return cmd
}

func completeStudies(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return lab.Builtins(), cobra.ShellCompDirectiveDefault
}

// loadStudy finds a study by its built-in name or reads its file.
func loadStudy(name string) (*config.Study, error) {
	data, builtin := lab.Builtin(name)
	if !builtin {
		var err error
		if data, err = os.ReadFile(name); err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("study %q is neither a file nor one of %s", name, strings.Join(lab.Builtins(), ", "))
			}
			return nil, fmt.Errorf("read study: %w", err)
		}
	}
	s, err := config.ParseStudy(name, data)
	if err != nil {
		return nil, err
	}
	if err := lab.Check(s); err != nil {
		return nil, err
	}
	return s, nil
}

func labRun(cmd *cobra.Command, env Env, name string, f labRunFlags) error {
	study, err := loadStudy(name)
	if err != nil {
		return err
	}
	if f.repeat < 0 || f.repeat == 0 && cmd.Flags().Changed("repeat") {
		return fmt.Errorf("--repeat %d: at least 1", f.repeat)
	}
	for i := range study.Experiments {
		if f.repeat > 0 {
			study.Experiments[i].Repeat = f.repeat
		}
	}
	seed := rand.Uint64() >> 32
	if f.seed != "" {
		if seed, err = strconv.ParseUint(f.seed, 10, 64); err != nil {
			return fmt.Errorf("--seed %q: want a whole number from 0", f.seed)
		}
	}
	started := time.Now()
	if f.out == "" && !cmd.Flags().Changed("out") {
		f.out = filepath.Join("holdfast-runs", study.Name+"-"+started.UTC().Format("20060102-150405"))
	}
	if study.Cumulative {
		if err := lab.Vacant(f.out); errors.Is(err, lab.ErrHoldsRun) {
			return addToRun(cmd, env, study, f)
		}
	}
	runner, err := prepareRun(cmd, env, study, seed, f)
	if err != nil {
		return err
	}
	cells, about, err := lab.Estimate(study, seed)
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Stderr, "study %s: %d cells, about %s; seed %d; results in %s\n", study.Name, cells, about.Round(10*time.Second), seed, f.out)
	runner.Command = labCommand(name, seed, f)
	return runToEnd(cmd, env, study, runner, f)
}

func runToEnd(cmd *cobra.Command, env Env, study *config.Study, runner *lab.Runner, f labRunFlags) error {
	unlock, err := lab.Lock(runner.Out)
	if err != nil {
		return withCode(exitRefused, err)
	}
	defer unlock()
	if runner.Resume != nil { // it may have been finished while nobody held the lock
		if runner.Resume, _, err = lab.Interrupted(runner.Out); err != nil {
			return err
		}
	} else if err := lab.Vacant(runner.Out); err != nil {
		return withCode(exitRefused, err)
	}
	p := newProgress(env.Stderr)
	runner.Progress = p
	run, err := runner.Run(cmd.Context())
	p.done()
	return finishRun(cmd, env, study, runner.Out, run, err, f)
}

func newLabResumeCmd(env Env) *cobra.Command {
	var f labRunFlags
	cmd := &cobra.Command{
		Use:   "resume DIR",
		Short: "Go on with a run that was interrupted",
		Long: "Runs the cells that an interrupted run has not finished, in the order that its seed decided,\n" +
			"and adds them to it. What was finished stays as it is.",
		Example: "  holdfast lab resume holdfast-runs/power-off-20260101-120000",
		Args:    oneRunFolder,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.out = args[0]
			run, study, err := lab.Interrupted(f.out)
			if err != nil {
				return err
			}
			return goOn(cmd, env, run, study, f)
		},
	}
	cmd.Flags().StringVar(&f.workDir, "work-dir", "", "where the simulated disks lie (default "+local.DefaultWorkDir+")")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print run.json instead of the report")
	return cmd
}

// addToRun makes an earlier run of a cumulative study longer. Its seed stays: it
// decides the order of the cells that are there.
func addToRun(cmd *cobra.Command, env Env, study *config.Study, f labRunFlags) error {
	if f.seed != "" {
		return withCode(exitRefused, fmt.Errorf("%s holds a run, to which this one would add: its seed cannot be changed; leave --seed out", f.out))
	}
	unlock, err := lab.Lock(f.out)
	if err != nil {
		return withCode(exitRefused, err)
	}
	run, study, err := lab.Extend(f.out, study, env.Version)
	unlock()
	if errors.Is(err, lab.ErrHoldsRun) || errors.Is(err, lab.ErrEdited) {
		return withCode(exitRefused, err)
	} else if err != nil {
		return err
	}
	return goOn(cmd, env, run, study, f)
}

// goOn runs what a run has not got yet.
func goOn(cmd *cobra.Command, env Env, run *result.Run, study *config.Study, f labRunFlags) error {
	runner, err := newRunner(cmd, env, study, run.Seed, f)
	if err != nil {
		return err
	}
	if err := lab.SameVersion(run, env.Version); err != nil {
		return err
	}
	runner.Resume = run
	fmt.Fprintf(env.Stderr, "study %s goes on after %d cells; results in %s\n", study.Name, result.Planned(run), f.out)
	return runToEnd(cmd, env, study, runner, f)
}

// labCommand is the command that repeats the run.
func labCommand(name string, seed uint64, f labRunFlags) string {
	c := fmt.Sprintf("holdfast lab run %s --seed %d", name, seed)
	if f.repeat > 0 {
		c += fmt.Sprintf(" --repeat %d", f.repeat)
	}
	return c
}

// prepareRun checks what can be checked before anything is made, and makes the
// run folder of a new run.
func prepareRun(cmd *cobra.Command, env Env, study *config.Study, seed uint64, f labRunFlags) (*lab.Runner, error) {
	if err := usableDir("--out", f.out); err != nil {
		return nil, err
	}
	if err := lab.Vacant(f.out); errors.Is(err, lab.ErrHoldsRun) {
		return nil, withCode(exitRefused, err)
	} else if err != nil {
		return nil, err
	}
	r, err := newRunner(cmd, env, study, seed, f)
	if err != nil {
		return nil, err
	}
	return r, infraError(lab.Create(f.out))
}

// newRunner checks the machine.
func newRunner(cmd *cobra.Command, env Env, study *config.Study, seed uint64, f labRunFlags) (*lab.Runner, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, infraError(fmt.Errorf("find this program: %w", err))
	}
	if cmd.Flags().Changed("work-dir") {
		if err := usableDir("--work-dir", f.workDir); err != nil {
			return nil, err
		}
		if f.workDir, err = filepath.Abs(f.workDir); err != nil {
			return nil, infraError(err)
		}
	}
	opt := local.Options{Binary: self, WorkDir: f.workDir, Space: lab.SpaceNeeded(study)}
	if err := local.Preflight(opt); err != nil {
		return nil, infraError(err)
	}
	binDir, err := postgres.FindBinDir(env.Getenv("HOLDFAST_PG_BINDIR"))
	if err != nil {
		return nil, infraError(err)
	}
	if err := lab.Installed(study); err != nil {
		return nil, infraError(err)
	}
	out, err := filepath.Abs(f.out)
	if err != nil {
		return nil, infraError(err)
	}
	facts := environment(cmd.Context(), env, binDir, opt)
	facts["selftest"] = selftestNote(env, study)
	return &lab.Runner{
		Study: study, Seed: seed, Out: out, Binary: self, BinDir: binDir, Environment: facts,
		Facts: local.Facts(), NewPlace: newLocalPlace(opt), Now: time.Now,
	}, nil
}

// finishRun writes the reports and turns verdicts into an exit code.
func finishRun(cmd *cobra.Command, env Env, study *config.Study, out string, run *result.Run, err error, f labRunFlags) error {
	if run != nil && len(run.Cells) > 0 {
		lab.Conclude(run)
		if werr := writeReport(out, run); werr != nil && err == nil {
			err = infraError(werr)
		}
	}
	if err != nil {
		if cmd.Context().Err() != nil {
			return withCode(exitInterrupted, fmt.Errorf("interrupted and cleaned up; what was finished is in %[1]s, and `holdfast lab resume %[1]s` goes on", f.out))
		}
		return infraError(err)
	}
	if f.asJSON {
		err = copyFile(env.Stdout, filepath.Join(out, "run.json"))
	} else {
		err = report.Text(env.Stdout, run, textOptions(env))
	}
	if err != nil {
		return infraError(err)
	}
	if study.Cumulative && !f.asJSON {
		fmt.Fprintln(env.Stdout, sumOf(run))
	}
	fmt.Fprintf(env.Stderr, "report: %s\n", filepath.Join(f.out, "report.html"))
	if study.Name == result.StudySelftest {
		return finishSelftest(env, run)
	}
	return verdictError(run)
}

func copyFile(w io.Writer, name string) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

func writeReport(dir string, run *result.Run) error {
	return writePage(filepath.Join(dir, "report.html"), func(w io.Writer) error { return report.HTML(w, run) })
}
