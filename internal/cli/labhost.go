package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/lab/place/local/guest"
)

// newLabHostCmd is what the lab runs within a host: its first process, and the
// copying of files as the host's unprivileged user.
func newLabHostCmd(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:    "lab-host",
		Short:  "First process of a local lab host (started by the lab)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return infraError(guest.Init()) },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use:  "put PERM PATH",
			Args: cobra.ExactArgs(2),
			RunE: func(_ *cobra.Command, args []string) error {
				perm, err := strconv.ParseUint(args[0], 8, 9)
				if err != nil {
					return fmt.Errorf("permissions %q: %w", args[0], err)
				}
				return infraError(guest.Put(env.Stdin, args[1], fs.FileMode(perm)))
			},
		},
		&cobra.Command{
			Use:  "get PATH",
			Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				err := guest.Get(env.Stdout, args[0])
				if errors.Is(err, fs.ErrNotExist) {
					return withCode(guest.ExitNotExist, err)
				}
				return infraError(err)
			},
		},
	)
	return cmd
}
