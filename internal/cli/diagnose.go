package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/diagnose"
	"github.com/holdfast-db/holdfast/internal/diagnose/show"
)

// diagnoseFlags are what the command line asks for.
type diagnoseFlags struct {
	length, interval time.Duration
	asJSON, watch    bool
	html             string
}

func newDiagnoseCmd(env Env) *cobra.Command {
	var f diagnoseFlags
	cmd := &cobra.Command{
		Use:   "diagnose [DSN]",
		Short: "Where a Postgres transaction's time goes, and whether storage is to blame",
		Long: `Samples a running PostgreSQL (13 to 18) over one read-only connection, takes its mean
transaction apart (page reads, commit flush, locks, processors, client, …), and says in two
sentences what the bottleneck is and what it is not. Nothing is changed or restarted.

DSN is what psql takes: a URL, keywords and values, the name of a database, or nothing for the
environment's (PGHOST, PGSERVICE, ~/.pgpass, …). A role with pg_monitor sees everything; with
less, it says what is missing. On the server's own machine it looks at processors and devices too.
See docs/diagnose.md.`,
		Example: `  holdfast diagnose
  holdfast diagnose "host=db1 user=monitor dbname=app" --for 60s --html db1.html
  holdfast diagnose service=production --json > db1.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("give one DSN, in quotes if it has blanks, as in: holdfast diagnose %q", "host=db1 user=monitor")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return withCode(exitUsage, err)
			}
			dsn := ""
			if len(args) == 1 {
				dsn = args[0]
			}
			return runDiagnose(cmd.Context(), env, dsn, f)
		},
	}
	cmd.Flags().DurationVar(&f.length, "for", 30*time.Second, "how long to look")
	cmd.Flags().DurationVar(&f.interval, "interval", 50*time.Millisecond, "from sample to sample; widened where it would cost over 1 % of a core")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&f.html, "html", "", "write one HTML file, too")
	cmd.Flags().BoolVar(&f.watch, "watch", false, "again and again, until interrupted; with --json one line each")
	return cmd
}

func (f diagnoseFlags) check() error {
	switch {
	case f.length < time.Second || f.length > time.Hour:
		return fmt.Errorf("--for %v: give a time from 1s to 1h", f.length)
	case f.interval < time.Millisecond || f.interval > f.length/10:
		return fmt.Errorf("--interval %v: give a time from 1ms to a tenth of --for", f.interval)
	}
	if f.html == "" {
		return nil
	}
	// Said before the server is looked at for half a minute, not after.
	if st, err := os.Stat(filepath.Dir(f.html)); err != nil || !st.IsDir() {
		return fmt.Errorf("--html %s: there is no directory %s", f.html, filepath.Dir(f.html))
	}
	if st, err := os.Stat(f.html); err == nil && st.IsDir() {
		return fmt.Errorf("--html %s: it is a directory, give a file", f.html)
	}
	return nil
}

func runDiagnose(ctx context.Context, env Env, dsn string, f diagnoseFlags) error {
	for {
		err := diagnoseOnce(ctx, env, dsn, f)
		if f.watch && ctx.Err() != nil {
			err = nil // that is how a watch ends
		}
		if err != nil || !f.watch || ctx.Err() != nil {
			return err
		}
	}
}

func diagnoseOnce(ctx context.Context, env Env, dsn string, f diagnoseFlags) error {
	p := newDiagnoseProgress(env.Stderr, f)
	d, err := diagnose.Run(ctx, diagnose.Options{DSN: dsn, For: f.length, Interval: f.interval, Seed: uint64(time.Now().UnixNano()), Getenv: env.Getenv, Progress: p.step})
	p.end()
	if err != nil {
		return diagnoseError(err)
	}
	if err := printDiagnosis(env, d, f); err != nil {
		return infraError(err)
	}
	if i := d.Interrupted; i != nil && !i.Alive && !f.watch {
		return infraError(fmt.Errorf("after %.1f s: %s; the diagnosis is of what was seen until then", i.AtS, i.Text))
	}
	return ctx.Err()
}

// diagnoseError gives an error its exit code: what is wrong with the command
// line is usage, the rest the server's or the network's failure.
func diagnoseError(err error) error {
	if errors.Is(err, diagnose.ErrDSN) {
		return withCode(exitUsage, err)
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	return infraError(err)
}

func printDiagnosis(env Env, d diagnose.Diagnosis, f diagnoseFlags) error {
	if f.html != "" {
		if err := writeHTML(f.html, d); err != nil {
			return err
		}
	}
	if f.asJSON {
		enc := json.NewEncoder(env.Stdout)
		if !f.watch {
			enc.SetIndent("", "  ")
		}
		return enc.Encode(d)
	}
	if f.watch && isTerminal(env.Stdout) {
		fmt.Fprint(env.Stdout, "\x1b[H\x1b[2J")
	}
	if err := show.Text(env.Stdout, d); err != nil {
		return err
	}
	if f.html != "" {
		fmt.Fprintf(env.Stdout, "\nwritten: %s\n", f.html)
	}
	return nil
}

// writeHTML replaces the file as a whole: a browser that looks never sees half of it.
func writeHTML(path string, d diagnose.Diagnosis) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".holdfast-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	err = errors.Join(show.HTML(tmp, d), tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// diagnoseProgress is one line that is written over on a terminal, and one
// every ten seconds elsewhere.
type diagnoseProgress struct {
	w        io.Writer
	silent   bool
	terminal bool
	last     time.Duration
	shown    bool
}

func newDiagnoseProgress(w io.Writer, f diagnoseFlags) *diagnoseProgress {
	terminal := isTerminal(w)
	return &diagnoseProgress{w: w, terminal: terminal, silent: f.length <= 2*time.Second || f.watch || f.asJSON && !terminal}
}

func (p *diagnoseProgress) step(done, total time.Duration, samples int) {
	every := 10 * time.Second
	if p.terminal {
		every = 500 * time.Millisecond
	}
	if p.silent || done-p.last < every {
		return
	}
	p.last, p.shown = done, p.terminal
	line := fmt.Sprintf("looking: %.0f of %.0f s, %d samples", done.Seconds(), total.Seconds(), samples)
	if p.terminal {
		fmt.Fprintf(p.w, "\r\x1b[K%s", line)
		return
	}
	fmt.Fprintln(p.w, line)
}

func (p *diagnoseProgress) end() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
