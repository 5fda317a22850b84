package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/lab"
	"github.com/holdfast-db/holdfast/internal/result"
)

func newLabCompareCmd(env Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "compare DIR DIR",
		Short: "Compare two runs: another machine, another day",
		Long: "Sets the groups that two runs share beside each other: the second over the first, with its\n" +
			"95 % interval. A difference within the interval or the runs' own noise is printed as none.",
		Example: "  holdfast lab compare holdfast-runs/monday holdfast-runs/tuesday",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return errors.New("give two run folders, as in: holdfast lab compare holdfast-runs/monday holdfast-runs/tuesday")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			var runs [2]*result.Run
			for i, dir := range args {
				run, err := result.Read(dir)
				if err != nil {
					return err
				}
				runs[i] = run
			}
			c := lab.Compare(runs[0], runs[1])
			if asJSON {
				return infraError(json.NewEncoder(env.Stdout).Encode(c))
			}
			if len(c.Ratios) == 0 {
				return fmt.Errorf("%s and %s have no group in common that can be compared", args[0], args[1])
			}
			return infraError(printCompared(env, c))
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printCompared(env Env, c lab.Compared) error {
	w := tabwriter.NewWriter(env.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "group\tmetric\tfirst\tsecond\tratio\tinterval\treading")
	for _, r := range c.Ratios {
		interval := "–"
		if r.Hi > 0 {
			interval = fmt.Sprintf("%.2f–%.2f", r.Lo, r.Hi)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.2f\t%s\t%s\n", r.Group, r.Metric, result.Figure(r.A), result.Figure(r.B), r.Ratio, interval, r.Reading)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, s := range []struct {
		title string
		items []string
	}{
		{"What else differs between the runs:", c.Differs},
		{"Only in the first:", c.OnlyA}, {"Only in the second:", c.OnlyB},
	} {
		if len(s.items) > 0 {
			fmt.Fprintf(env.Stdout, "\n%s\n  %s\n", s.title, strings.Join(s.items, "\n  "))
		}
	}
	return nil
}
