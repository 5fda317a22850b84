package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/measure"
)

func newMeasureCmd(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "measure",
		Short: "Measure what storage costs",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newMeasureDiskCmd(env))
	return cmd
}

func newMeasureDiskCmd(env Env) *cobra.Command {
	var (
		asJSON  bool
		perStep time.Duration
		only    string
	)
	cmd := &cobra.Command{
		Use:   "disk PATH",
		Short: "Measure what a flush costs in a directory: the flush ladder",
		Long: `Writes blocks of 8 KiB into a directory of its own under PATH and makes each durable
before the next: four patterns (` + strings.Join(measure.Patterns(), ", ") + `) by three calls
(` + strings.Join(measure.Calls(), ", ") + `), through the page cache and past it (O_DIRECT). The whole
ladder takes about 30 s and 64 MiB, and removes what it wrote. A step that the file
system refuses is skipped with the reason. See docs/measure.md for the JSON.`,
		Example: `  holdfast measure disk /var/lib/postgresql
  holdfast measure disk . --only zero-filled/fdatasync --for 10s
  holdfast measure disk /mnt/volume --json > volume.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("give one directory on the disk to be measured, as in: holdfast measure disk /var/lib/postgresql")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			steps, err := measure.Select(only)
			if err != nil {
				return withCode(exitUsage, fmt.Errorf("--only: %w", err))
			}
			if perStep < 10*time.Millisecond || perStep > time.Hour {
				return withCode(exitUsage, fmt.Errorf("--for %v: give a time per step from 10ms to 1h", perStep))
			}
			p := newStepProgress(env.Stderr, perStep)
			p.silent = asJSON && !p.terminal // a program that takes both streams as one still finds JSON
			rep, err := measure.Disk(cmd.Context(), args[0], time.Now(), measure.Options{For: perStep, Steps: steps, Progress: p.step})
			p.end()
			if err != nil {
				return measureError(err)
			}
			if asJSON {
				enc := json.NewEncoder(env.Stdout)
				enc.SetIndent("", "  ")
				return infraError(enc.Encode(rep))
			}
			return infraError(printLadder(env.Stdout, rep))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().DurationVar(&perStep, "for", time.Second, "measured time per step; from 1s on, changes and drifts inside a step are looked for")
	cmd.Flags().StringVar(&only, "only", "", "PATTERN[/CALL[/buffered|direct]], several with commas; * matches any")
	return cmd
}

// measureError gives an error of the ladder its exit code: what the user can
// put right by another PATH is usage, the rest the machine's failure.
func measureError(err error) error {
	if errors.Is(err, measure.ErrPath) {
		return withCode(exitUsage, err)
	}
	return infraError(err)
}

// stepProgress is one line that is written over on a terminal, and one line
// now and then elsewhere.
type stepProgress struct {
	w        io.Writer
	perStep  time.Duration
	terminal bool
	silent   bool
	shown    bool
	plain    time.Time
}

func newStepProgress(w io.Writer, perStep time.Duration) *stepProgress {
	return &stepProgress{w: w, perStep: perStep, terminal: isTerminal(w)}
}

func (p *stepProgress) step(done, total int, s measure.Step) {
	if p.silent || time.Duration(total)*p.perStep <= 2*time.Second {
		return
	}
	left := (time.Duration(total-done) * p.perStep).Round(time.Second)
	line := fmt.Sprintf("measuring %d of %d: %s (about %v left)", done+1, total, s, left)
	switch {
	case p.terminal:
		fmt.Fprintf(p.w, "\r\x1b[K%s", line)
		p.shown = true
	case p.plain.IsZero() || time.Since(p.plain) >= 10*time.Second:
		fmt.Fprintln(p.w, line)
		p.plain = time.Now()
	}
}

func (p *stepProgress) end() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// factOrder is the order in which facts are read.
var factOrder = [...]struct{ key, label string }{
	{"filesystem", "file system"}, {"mount_point", "mounted at"}, {"mount_options", "mount options"}, {"device", "device"},
	{"model", "model"}, {"write_cache", "write cache"}, {"fua", "FUA"}, {"rotational", "rotational"}, {"kernel", "kernel"}, {"cpu", "CPU"},
}

func printLadder(w io.Writer, r *measure.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Flush ladder of %s: write %d KiB and make it durable, %v per step\n\n", r.Path, r.Block/1024,
		time.Duration(r.ForS*float64(time.Second)))
	for _, f := range factOrder {
		fmt.Fprintf(&b, "  %-14s %s\n", f.label, r.Facts[f.key])
	}
	fmt.Fprintf(&b, "\n%-12s %-10s %-9s %9s %9s %9s %9s %8s\n", "pattern", "call", "cache", "p50 ms", "p99 ms", "mean ms", "max ms", "flushes")
	for _, s := range r.Steps {
		printStep(&b, s)
	}
	printComparison(&b, r)
	fmt.Fprintf(&b, "\nHonesty: %s. %s\n", r.Verdict.Word, r.Verdict.Text)
	_, err := io.WriteString(w, b.String())
	return err
}

func printStep(b *strings.Builder, s measure.StepResult) {
	how := "buffered"
	if s.Direct {
		how = "direct"
	}
	name := fmt.Sprintf("%-12s %-10s %-9s", s.Pattern, s.Call, how)
	row := func(l measure.Latency, n int64) string {
		return fmt.Sprintf(" %9.3f %9.3f %9.3f %9.3f %8d", l.P50Ms, l.P99Ms, l.MeanMs, l.MaxMs, n)
	}
	switch {
	case s.Skipped != "":
		fmt.Fprintf(b, "%s skipped: %s\n", name, s.Skipped)
	case s.Latency != nil:
		fmt.Fprintf(b, "%s%s\n", name, row(*s.Latency, s.Count))
	}
	for i, g := range s.Regimes {
		if i > 0 {
			name = fmt.Sprintf("%-33s", "")
		}
		fmt.Fprintf(b, "%s%s  from %.1f to %.1f s\n", name, row(g.Latency, g.Count), g.FromS, g.ToS)
	}
	for _, note := range []string{s.NotSteady, s.Suspicious} {
		if note != "" {
			fmt.Fprintf(b, "%12s ^ %s\n", "", note)
		}
	}
}

func printComparison(b *strings.Builder, r *measure.Report) {
	if r.Headline == nil {
		return
	}
	fmt.Fprintf(b, "\nA WAL flush here (zero-filled, fdatasync, buffered; p50): %.3f ms\n", *r.Headline)
	for _, c := range r.Compare {
		fmt.Fprintf(b, "  %-13s %5s ms   here %.2f times that   (%s)\n", c.Name, strconv.FormatFloat(c.FlushMs, 'f', -1, 64), c.Times, c.Source)
	}
	fmt.Fprintf(b, "\nPublished, on other machines and by other tools:\n")
	for _, p := range measure.PublishedFlushes() {
		fmt.Fprintf(b, "  %-38s %-13s %s\n", p.What, p.Figure, p.Source)
	}
}
