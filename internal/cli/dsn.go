package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/dsn"
	"github.com/holdfast-db/holdfast/internal/node"
)

func newDSNCmd(env Env) *cobra.Command {
	var f finder
	var form string
	var o dsn.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "dsn",
		Short: "Print connection strings that find the primary, for several drivers",
		Long: "Prints connection strings that name every member which holds data, so that a driver finds the primary\n" +
			"by itself, also after a failover. They are made from a node's configuration, or from the agent that\n" +
			"runs on this host; the agent knows who leads, and that one is then named first. No password stands in\n" +
			"them: drivers of the libpq family read ~/.pgpass or $PGPASSWORD.\n\n" +
			"docs/clients.md says what a commit without an answer means, and how to retry it.",
		Example: "  holdfast dsn\n  psql \"$(holdfast dsn --for libpq --user app --database shop)\"\n  holdfast dsn --config node.yaml --for jdbc --replica",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if form != "" && !slices.Contains(dsn.Forms(), dsn.Form(form)) {
				return fmt.Errorf("--for %s: there are libpq, pgx, jdbc, psycopg and django", form)
			}
			if modes := []string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}; !slices.Contains(modes, o.SSLMode) {
				return fmt.Errorf("--sslmode %s: there are %s", o.SSLMode, strings.Join(modes, ", "))
			}
			if o.Database == "" {
				o.Database = o.User
			}
			var err error
			if o.Hosts, err = dsnHosts(cmd, env, &f); err != nil {
				return err
			}
			return printDSN(env, form, o, asJSON)
		},
	}
	f.flags(cmd)
	fl := cmd.Flags()
	fl.StringVar(&form, "for", "", "one driver only, and nothing but its string: libpq, pgx, jdbc, psycopg, django")
	fl.StringVar(&o.User, "user", "app", "role to log in as")
	fl.StringVar(&o.Database, "database", "", "database (default: called like the user)")
	fl.StringVar(&o.SSLMode, "sslmode", "require", "as libpq has it; with verify-full, give certificates of your own")
	fl.BoolVar(&o.Replica, "replica", false, "for reading: a standby if one answers, else the primary")
	fl.BoolVar(&asJSON, "json", false, "print JSON")
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{"libpq", "pgx", "jdbc", "psycopg", "django"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// dsnHosts asks the agent who is there and who leads; without one, the
// configuration says who there is.
func dsnHosts(cmd *cobra.Command, env Env, f *finder) ([]dsn.Host, error) {
	var s node.Status
	err := f.call(cmd.Context(), env, http.MethodGet, "/status", nil, &s)
	var hosts []dsn.Host
	if err == nil {
		for _, m := range s.Members {
			if m.Postgres != "" {
				hosts = append(hosts, dsn.Host{Name: m.Node, Address: m.Postgres, Reader: m.Role == "reader", Primary: s.Known && m.Node == s.Primary})
			}
		}
		return hosts, nil
	}
	if f.config == "" && env.Getenv("HOLDFAST_CONFIG") == "" {
		return nil, err
	}
	c, err := loadNode(env, f.config)
	if err != nil {
		return nil, err
	}
	for _, m := range c.Members {
		if !m.Witness {
			hosts = append(hosts, dsn.Host{Name: m.Name, Address: m.Postgres, Reader: m.Reader})
		}
	}
	return hosts, nil
}

// dsnTitle heads each form where all are shown.
var dsnTitle = map[dsn.Form]string{
	dsn.Libpq:   "libpq (psql, C, Ruby, PHP)",
	dsn.PGX:     "pgx (Go)",
	dsn.JDBC:    "JDBC",
	dsn.Psycopg: "psycopg 3 and psycopg2 (Python)",
	dsn.Django:  "Django, in settings.py",
}

const dsnAdvice = `What to know (docs/clients.md has the reasons, and code that is tested):
- Hosts are asked one after the other. One that is dead costs libpq 2 s even with connect_timeout=1;
  tcp_user_timeout, as above, makes that about 1 s. A pool, or a load balancer that asks /primary, costs nothing.
- A commit that ends in a broken connection, or with the warning "canceling wait for synchronous
  replication", may or may not be kept. Retry it under a key of its own, in a way that writes: seeing the
  row is no proof.
- JDBC's socketTimeout has to be longer than your longest statement.
`

func printDSN(env Env, form string, o dsn.Options, asJSON bool) error {
	forms := dsn.Forms()
	if form != "" {
		forms = []dsn.Form{dsn.Form(form)}
	}
	all := map[dsn.Form]string{}
	for _, f := range forms {
		s, err := dsn.String(f, o)
		if err != nil {
			return err
		}
		all[f] = s
	}
	switch {
	case asJSON:
		enc := json.NewEncoder(env.Stdout)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(all)
	case form != "":
		_, err := fmt.Fprintln(env.Stdout, all[forms[0]])
		return err
	}
	var b strings.Builder
	for _, f := range forms {
		fmt.Fprintf(&b, "%s:\n\n  %s\n\n", dsnTitle[f], strings.ReplaceAll(all[f], "\n", "\n  "))
	}
	b.WriteString(dsnAdvice)
	_, err := fmt.Fprint(env.Stdout, b.String())
	return err
}
