package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/node/instance"
)

// newWALRestoreCmd is what a standby's restore_command runs. Its exit code 1 tells
// Postgres that the file is not to be had; more than 125 would end the server.
func newWALRestoreCmd(env Env) *cobra.Command {
	var runDir, stateDir string
	cmd := &cobra.Command{
		Use:    "wal-restore FILE TARGET",
		Short:  "Give Postgres a WAL file that was kept aside, if the cluster's history has it",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			err := instance.Restore(runDir, stateDir, args[0], args[1])
			if err == nil {
				return nil
			}
			if err != instance.ErrNotRestored { //nolint:errorlint // the bare one: Postgres asks all the time
				fmt.Fprintf(env.Stderr, "holdfast: restore %s: %v\n", args[0], err)
			}
			return errSilent
		},
	}
	cmd.Flags().StringVar(&runDir, "run-dir", "", "the agent's directory on tmpfs")
	cmd.Flags().StringVar(&stateDir, "state-dir", "", "the agent's durable state")
	for _, name := range []string{"run-dir", "state-dir"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is defined above
		}
	}
	return cmd
}
