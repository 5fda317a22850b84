// Package cli is the command line: one file per command. Only this package
// reads flags, environment and config files.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// Env is what a command may know of the process it runs in.
type Env struct {
	Args    []string
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Getenv  func(string) string
	Version string
	Root    bool // effective uid 0
}

// Run runs one command line and returns its exit code. A cancelled ctx means
// that the user interrupted: commands clean up, then return.
func Run(ctx context.Context, env Env) int {
	root := newRoot(env)
	root.SetArgs(env.Args)
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	code := exitCode(err)
	if ctx.Err() != nil && code != exitBroken {
		code = exitInterrupted
	}
	if !errors.Is(err, errSilent) {
		fmt.Fprintf(env.Stderr, "holdfast: %v\n", err)
	}
	return code
}

// errSilent ends a command whose output has already said everything.
var errSilent = errors.New("already reported")

func newRoot(env Env) *cobra.Command {
	root := &cobra.Command{
		Use:           "holdfast",
		Short:         "Measure, run and prove Postgres on local disks",
		Long:          "holdfast measures what durability costs on your storage, runs Postgres on local disks so that a dead\nserver costs a second and no data, and proves what a setup loses when the plug is pulled.",
		Version:       env.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(
		newLabCmd(env),
		newVersionCmd(env),
		newSimdiskCmd(env),
		newLabHostCmd(env),
		newMeasureCmd(env), newLabRoundTripCmd(env),
		newDiagnoseCmd(env),
		newLabDriverCmd(env),
		newWALRestoreCmd(env),
		newNodeCmd(env), newClusterCmd(env), newStatusCmd(env),
		newDSNCmd(env), newConfigCmd(env),
	)
	root.AddCommand(orderCmds(env)...)
	return root
}

// isTerminal says whether w is a character device, for progress lines.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
