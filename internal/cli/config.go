package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/node/instance"
)

func newConfigCmd(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Check and show a node's configuration",
		Example: "  holdfast config check node.yaml\n  holdfast config show",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigCheckCmd(env), newConfigShowCmd(env))
	return cmd
}

func newConfigCheckCmd(env Env) *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Say what is wrong in a configuration, on any machine",
		Long: "Reads the file only: keys, types, values, settings of Postgres and rules of pg_hba that would break the\n" +
			"promise. `holdfast node --check` looks at the host as well.",
		Example: "  holdfast config check /etc/holdfast/orders/node.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			b, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("read the configuration: %w", err)
			}
			c, err := config.ParseNode(args[0], b)
			if err == nil {
				err = checkRules(c)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(env.Stdout, "%s is good: node %s of cluster %s.\n", args[0], c.Node, c.Cluster)
			return err
		},
	}
}

func newConfigShowCmd(env Env) *cobra.Command {
	var f finder
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Print a node's configuration with its defaults filled in",
		Example: "  holdfast config show --config /etc/holdfast/orders/node.yaml",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if f.config == "" && env.Getenv("HOLDFAST_CONFIG") == "" {
				if found, _ := filepath.Glob("/etc/holdfast/*/node.yaml"); len(found) == 1 {
					f.config = found[0]
				}
			}
			c, err := loadNode(env, f.config)
			if err != nil {
				return err
			}
			b, err := yaml.Marshal(c)
			if err == nil && asJSON {
				if b, err = yaml.YAMLToJSON(b); err == nil {
					var v any
					if err = json.Unmarshal(b, &v); err == nil {
						enc := json.NewEncoder(env.Stdout)
						enc.SetIndent("", "  ")
						return enc.Encode(v)
					}
				}
			}
			if err != nil {
				return fmt.Errorf("write the configuration: %w", err)
			}
			_, err = env.Stdout.Write(b)
			return err
		},
	}
	cmd.Flags().StringVar(&f.config, "config", "", "a node's configuration (default: $HOLDFAST_CONFIG, then the only one in /etc/holdfast)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// checkRules refuses settings and rules that would break the promise.
func checkRules(c *config.Node) error {
	for _, p := range instance.CheckSettings(c.Postgres.Settings) {
		return c.At("postgres.settings."+p.Name, fmt.Errorf("%s: %s. %s", p.Name, p.Why, p.Fix))
	}
	for i, rule := range c.Postgres.HBA {
		for _, p := range instance.CheckHBA([]string{rule}) {
			return c.At(fmt.Sprintf("postgres.hba[%d]", i), fmt.Errorf("%s: %s", p.Why, p.Fix))
		}
	}
	return nil
}
