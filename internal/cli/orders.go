package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node"
)

func orderCmds(env Env) []*cobra.Command {
	simple := func(use, short, long string, kind cluster.CommandKind, done string) *cobra.Command {
		var f finder
		example := "  holdfast " + strings.ReplaceAll(use, "NODE", "b")
		needsNode := strings.Contains(use, "NODE")
		args := cobra.NoArgs
		if needsNode {
			args = cobra.ExactArgs(1)
		}
		cmd := &cobra.Command{Use: use, Short: short, Long: long, Example: example, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
			c := cluster.Command{Kind: kind}
			if needsNode {
				c.Node = cluster.NodeID(args[0])
			}
			if _, err := order(cmd.Context(), env, &f, c); err != nil {
				return err
			}
			_, err := fmt.Fprintln(env.Stdout, done)
			return err
		}}
		f.flags(cmd)
		if needsNode {
			cmd.ValidArgsFunction = completeNodes(env, &f)
		}
		return cmd
	}
	return []*cobra.Command{
		newSwitchoverCmd(env), newFailoverCmd(env),
		simple("restart", "Restart the primary's Postgres, announced: no failover", "The agent announces it, so the others wait instead of electing somebody. For settings that need a restart;\n"+
			"those with reload take effect when the agent starts.", cluster.Restart, "The primary's Postgres was restarted."),
		simple("pause", "No election and no degrading until resume", "For work on hosts or network that would look like failures. Everything that runs goes on, and commits still\n"+
			"wait for standbys; but a primary that dies stays dead, and commits that nobody confirms wait, until `holdfast resume`.", cluster.Pause, "Paused: the cluster changes nothing of its own accord until `holdfast resume`."),
		simple("resume", "End a pause", "Elections and degrading are possible again, at once.", cluster.Resume, "Resumed."),
		simple("fence NODE", "Keep a node's Postgres down", "Its agent stops Postgres and keeps it down, through restarts of the agent and the host, until `holdfast unfence`.\n"+
			"No election follows: with the primary fenced, writes wait until it is unfenced, so hand over first (holdfast switchover).\n"+
			"A fenced standby confirms nothing any more, and leaves S after timing.remove.", cluster.Fence, "Fenced."),
		simple("unfence NODE", "End a fence", "Its agent starts Postgres again as whatever it is by then: it follows the primary, rewound if need be.", cluster.Unfence, "No longer fenced."),
		simple("reinit NODE", "Have a standby's data directory made anew", "For a standby whose data you do not trust. It leaves S first, so nothing is thrown away that a commit may rest on;\n"+
			"then its directory is copied from the primary under a new incarnation, and it comes back into S by itself.", cluster.Reinit, "It leaves S first, then its directory is copied anew; see `holdfast status`."),
	}
}

// completeNodes offers the members that the agent here knows, or the
// configuration does.
func completeNodes(env Env, f *finder) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		var s node.Status
		if err := f.call(cmd.Context(), env, http.MethodGet, "/status", nil, &s); err == nil {
			for _, m := range s.Members {
				if m.Postgres != "" {
					names = append(names, m.Node+"\t"+m.Role+", "+m.State)
				}
			}
		} else if c, err := loadNode(env, f.config); err == nil {
			for _, m := range c.Members {
				if !m.Witness {
					names = append(names, m.Name)
				}
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func newSwitchoverCmd(env Env) *cobra.Command {
	var f finder
	cmd := &cobra.Command{
		Use: "switchover [NODE]", Short: "Hand over to another primary, losing nothing",
		Long:    "Closes the door, stops the primary cleanly, and has NODE (or the best standby) elected. A failure before\nthe election reopens the old primary.",
		Example: "  holdfast switchover\n  holdfast switchover b", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			var before node.Status
			if err := f.call(ctx, env, http.MethodGet, "/status", nil, &before); err != nil {
				return err
			}
			c := cluster.Command{Kind: cluster.Switchover}
			if len(args) > 0 {
				c.Node = cluster.NodeID(args[0])
			}
			if _, err := order(ctx, env, &f, c); err != nil {
				return err
			}
			return awaitSwitch(ctx, env, &f, before)
		},
	}
	cmd.ValidArgsFunction = completeNodes(env, &f)
	f.flags(cmd)
	return cmd
}

// switchWithin is how long a switchover may take to show.
const switchWithin = 30 * time.Second

func awaitSwitch(ctx context.Context, env Env, f *finder, before node.Status) error {
	ctx, cancel := context.WithTimeout(ctx, switchWithin)
	defer cancel()
	for {
		var s node.Status
		err := f.call(ctx, env, http.MethodGet, "/status", nil, &s)
		switch {
		case err == nil && s.Open && s.Primary != before.Primary:
			_, err := fmt.Fprintf(env.Stdout, "%s leads now (epoch %d); it was %s.\n", s.Primary, s.Epoch, before.Primary)
			return err
		case err == nil && s.Open && s.Epoch > before.Epoch:
			return withCode(exitRefused, fmt.Errorf("the switchover did not come about: %s leads again (epoch %d); nothing is lost", s.Primary, s.Epoch))
		}
		select {
		case <-ctx.Done():
			return infraError(errors.New("it is not over yet: see `holdfast status`"))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func newFailoverCmd(env Env) *cobra.Command {
	var f finder
	var allow, yes bool
	cmd := &cobra.Command{
		Use: "failover --allow-data-loss [NODE]", Short: "Promote although acknowledged writes may be lost",
		Long: "A failover that loses nothing happens by itself; `holdfast switchover` is the planned one. This is for the\n" +
			"rest: too few members are left to be sure. It first says what it may cost, and asks.",
		Example: "  holdfast failover --allow-data-loss", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !allow {
				return errors.New("a failover that loses nothing happens by itself. If acknowledged writes may be given up, say --allow-data-loss; it asks before it acts")
			}
			c := cluster.Command{Kind: cluster.FailoverAllowDataLoss}
			if len(args) > 0 {
				c.Node = cluster.NodeID(args[0])
			}
			r, err := order(cmd.Context(), env, &f, c)
			if err != nil {
				return err
			}
			fmt.Fprintln(env.Stdout, r.Text)
			if !yes {
				fmt.Fprint(env.Stdout, "Type yes to go on: ")
				line, _ := bufio.NewReader(env.Stdin).ReadString('\n')
				if strings.TrimSpace(line) != "yes" {
					return withCode(exitRefused, errors.New("nothing was done"))
				}
			}
			c.Confirm = r.Announcement
			var before node.Status
			if err := f.call(cmd.Context(), env, http.MethodGet, "/status", nil, &before); err != nil {
				return err
			}
			return forceFailover(cmd.Context(), env, &f, c, before)
		},
	}
	cmd.ValidArgsFunction = completeNodes(env, &f)
	f.flags(cmd)
	cmd.Flags().BoolVar(&allow, "allow-data-loss", false, "acknowledged writes may be lost")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func forceFailover(ctx context.Context, env Env, f *finder, c cluster.Command, before node.Status) error {
	ctx, cancel := context.WithTimeout(ctx, switchWithin)
	defer cancel()
	refused := make(chan error, 1)
	go func() { // it is answered only if it is refused; success shows in the status
		if _, err := order(ctx, env, f, c); err != nil && ctx.Err() == nil {
			refused <- err
		}
	}()
	for {
		var s node.Status
		if err := f.call(ctx, env, http.MethodGet, "/status", nil, &s); err == nil && s.Open && s.Epoch >= before.Epoch && s.Primary != before.Primary {
			_, err := fmt.Fprintf(env.Stdout, "%s leads now (epoch %d).\n", s.Primary, s.Epoch)
			return err
		}
		select {
		case err := <-refused:
			return err
		case <-ctx.Done():
			return infraError(errors.New("it is not over yet: see `holdfast status`"))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
