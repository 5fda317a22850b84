package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/quorum"
)

func newClusterCmd(env Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Make clusters, and change who is in them",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newClusterInitCmd(env), newClusterDemoCmd(env))
	return cmd
}

type clusterInit struct {
	nodes                     []string
	out, state, run, etc      string
	data, bin, user           string
	mode, profile             string
	k, port, agentPort, http_ int
	hba                       []string
}

// certificates are valid for ten years: a cluster that stops because nobody
// renewed one is worse than an old key that only this cluster's hosts hold.
const certificatesFor = 10 * 365 * 24 * time.Hour

func newClusterInitCmd(env Env) *cobra.Command {
	var o clusterInit
	cmd := &cobra.Command{
		Use:   "init NAME --node NAME=ADDRESS …",
		Short: "Write the configuration and keys of a new cluster",
		Long: "Makes a folder for each node with its configuration, its certificate and its key, and prints the steps\n" +
			"that bring the cluster up. Nothing is changed but the folder.\n\n" +
			"A node is NAME=ADDRESS, and may have more: ,zone=ZONE ,witness ,reader ,priority=N.",
		Example: "  holdfast cluster init orders --node a=10.0.0.1 --node b=10.0.0.2 --node c=10.0.0.3\n" +
			"  holdfast cluster init orders --node a=10.0.0.1,zone=fra --node b=10.0.0.2,zone=nbg --node w=10.0.0.3,witness",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return runClusterInit(env, o, args[0]) },
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.nodes, "node", nil, "a member: NAME=ADDRESS[,zone=ZONE][,witness][,reader][,priority=N]")
	f.StringVar(&o.out, "out", "", "folder to make (default ./NAME)")
	f.StringVar(&o.etc, "etc", "", "where a node's folder will lie on its host (default /etc/holdfast/NAME)")
	f.StringVar(&o.state, "state", "", "the agent's own directory on each host (default /var/lib/holdfast/NAME)")
	f.StringVar(&o.run, "run", "", "a directory in memory on each host (default /run/holdfast/NAME)")
	f.StringVar(&o.data, "data", "", "Postgres's data directory on each host (default /var/lib/postgresql/holdfast/NAME)")
	f.StringVar(&o.bin, "bin", "", "folder of the Postgres programs on each host (default: found)")
	f.StringVar(&o.user, "user", "postgres", "system user that Postgres runs as when the agent is root")
	f.StringVar(&o.mode, "mode", config.ModePreferred, "when no standby is left: preferred (go on alone after 10 s) or required (commits wait)")
	f.StringVar(&o.profile, "profile", config.ProfileDefault, "timers: default, or fast (half as long)")
	f.IntVar(&o.k, "k", 1, "how many standbys must have a commit on disk")
	f.IntVar(&o.port, "port", 5432, "Postgres's port")
	f.IntVar(&o.agentPort, "agent-port", 7400, "the agents' port")
	f.IntVar(&o.http_, "http-port", 7480, "port for load balancers and monitoring, on 127.0.0.1")
	f.StringArrayVar(&o.hba, "hba", []string{"host all all samenet scram-sha-256"}, "a line of pg_hba.conf for clients")
	_ = cmd.MarkFlagRequired("node")
	return cmd
}

func parseMember(s string, port, agentPort int) (config.Member, error) {
	parts := strings.Split(s, ",")
	name, address, ok := strings.Cut(parts[0], "=")
	if !ok || address == "" {
		return config.Member{}, fmt.Errorf("--node %s: want NAME=ADDRESS, such as a=10.0.0.1", s)
	}
	if err := config.CheckMemberName(name); err != nil {
		return config.Member{}, err
	}
	m := config.Member{Name: name}
	for _, p := range parts[1:] {
		k, v, _ := strings.Cut(p, "=")
		switch k {
		case "zone":
			m.Zone = v
		case "witness":
			m.Witness = true
		case "reader":
			m.Reader = true
		case "priority":
			n, err := strconv.Atoi(v)
			if err != nil {
				return m, fmt.Errorf("--node %s: priority=%s is no number", s, v)
			}
			m.Priority = n
		default:
			return m, fmt.Errorf("--node %s: %q is none of zone=, witness, reader, priority=", s, p)
		}
	}
	m.Address = net.JoinHostPort(address, strconv.Itoa(agentPort))
	if !m.Witness {
		m.Postgres = net.JoinHostPort(address, strconv.Itoa(port))
	}
	return m, nil
}

func runClusterInit(env Env, o clusterInit, name string) error {
	if err := config.CheckClusterName(name); err != nil {
		return err
	}
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&o.out, name)
	def(&o.etc, "/etc/holdfast/"+name)
	def(&o.state, "/var/lib/holdfast/"+name)
	def(&o.run, "/run/holdfast/"+name)
	def(&o.data, "/var/lib/postgresql/holdfast/"+name)
	var members []config.Member
	for _, s := range o.nodes {
		m, err := parseMember(s, o.port, o.agentPort)
		if err != nil {
			return err
		}
		members = append(members, m)
	}
	if _, err := os.Stat(o.out); err == nil {
		return withCode(exitRefused, fmt.Errorf("%s is there already: keys are never overwritten; name another folder with --out", o.out))
	}
	files := map[string][]byte{}
	for _, m := range members {
		b := nodeYAML(o, name, m, members)
		if _, err := config.ParseNode(m.Name+"/node.yaml", b); err != nil {
			return fmt.Errorf("that would not be a good configuration: %w", err)
		}
		files[m.Name] = b
	}
	if len(members) < 3 {
		fmt.Fprintf(env.Stderr, "With %d members no host may fail: three are the least that go on without one (a witness counts).\n", len(members))
	}
	if err := writeCluster(o.out, name, members, files); err != nil {
		return err
	}
	return printSteps(env, o, members)
}

func writeCluster(out, name string, members []config.Member, files map[string][]byte) (err error) {
	if err := os.MkdirAll(filepath.Dir(filepath.Clean(out)), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(out, 0o700); err != nil {
		return fmt.Errorf("make the folder: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(out))
		}
	}()
	now := time.Now()
	ca, err := quorum.NewAuthority(name, now, certificatesFor)
	if err != nil {
		return err
	}
	if err := ca.Save(out); err != nil {
		return err
	}
	for _, m := range members {
		dir := filepath.Join(out, m.Name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		id, err := ca.Issue(m.Name, now, certificatesFor)
		if err != nil {
			return err
		}
		if err := id.Save(dir); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "node.yaml"), files[m.Name], 0o600); err != nil {
			return err
		}
	}
	return nil
}

func nodeYAML(o clusterInit, name string, self config.Member, members []config.Member) []byte {
	var b strings.Builder
	p := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	p("# Node %s of the cluster %s. docs/node.md explains every key.", self.Name, name)
	p("cluster: %s\nnode: %s", name, self.Name)
	p("state: %s\nrun: %s\nidentity: %s", o.state, o.run, o.etc)
	p("profile: %s\nmode: %s\nk: %d", o.profile, o.mode, o.k)
	p("\n# The same on every node.\nmembers:")
	for _, m := range members {
		p("  - name: %s\n    address: %s", m.Name, m.Address)
		if m.Postgres != "" {
			p("    postgres: %s", m.Postgres)
		}
		if m.Zone != "" {
			p("    zone: %s", m.Zone)
		}
		if m.Witness {
			p("    witness: true")
		}
		if m.Reader {
			p("    reader: true")
		}
		if m.Priority != 0 {
			p("    priority: %d", m.Priority)
		}
	}
	if !self.Witness {
		p("\npostgres:\n  data: %s\n  user: %s", o.data, o.user)
		if o.bin != "" {
			p("  bin: %s", o.bin)
		}
		p("  # settings:\n  #   shared_buffers: 2GB\n  hba: # who may connect while the door is open")
		for _, l := range o.hba {
			p("    - %q", l)
		}
	}
	p("\nhttp:\n  listen: 127.0.0.1:%d", o.http_)
	return []byte(b.String())
}

func printSteps(env Env, o clusterInit, members []config.Member) error {
	w := env.Stdout
	fmt.Fprintf(w, "Made %s: a folder for each node, and the authority's key %s.\n", o.out, filepath.Join(o.out, quorum.CAKeyFile))
	fmt.Fprintf(w, "Keep that key somewhere safe: whoever has it can join the cluster.\n\nOn each host, as root (a host needs this program and PostgreSQL):\n\n")
	for i, m := range members {
		host, _, _ := net.SplitHostPort(m.Address)
		fmt.Fprintf(w, "  # %s (%s)\n", m.Name, host)
		fmt.Fprintf(w, "  ssh root@%s mkdir -p %s && scp -r %s/%s/. root@%s:%s/    # from here\n", host, o.etc, o.out, m.Name, host, o.etc)
		fmt.Fprintf(w, "  holdfast node --config %s/node.yaml --check    # there\n", o.etc)
		if o.etc == "/etc/holdfast/"+filepath.Base(o.etc) {
			fmt.Fprintf(w, "  systemctl enable --now holdfast-node@%s        # there; without systemd: holdfast node --config %s/node.yaml\n", filepath.Base(o.etc), o.etc)
		} else {
			fmt.Fprintf(w, "  holdfast node --config %s/node.yaml            # there\n", o.etc)
		}
		if i < len(members)-1 {
			fmt.Fprintln(w)
		}
	}
	_, err := fmt.Fprintf(w, "\nThe first node makes the data directory, the others copy it. Then, on any of them:\n\n  holdfast status --config %s/node.yaml\n", o.etc)
	return err
}
