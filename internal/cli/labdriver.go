package cli

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/lab/driver"
)

// newLabDriverCmd is the load client that the lab starts on a host. Its
// configuration holds secrets, so it is read from standard input alone.
func newLabDriverCmd(env Env) *cobra.Command {
	return &cobra.Command{
		Use:     "lab-driver",
		Short:   "Write rows and report each attempt to a collector (started by the lab)",
		Long:    "Reads its configuration as JSON from standard input, writes until the collector says stop,\nand reports every write and its outcome. docs/history.md describes the configuration.",
		Example: "  holdfast lab-driver < driver.json",
		Hidden:  true,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := driver.ReadConfig(env.Stdin)
			if err != nil {
				return withCode(exitUsage, err)
			}
			// It waits and hardly computes: with a second processor every answer wakes
			// another thread, which costs more than handling the answer does.
			runtime.GOMAXPROCS(1)
			return infraError(driver.Run(cmd.Context(), cfg))
		},
	}
}
