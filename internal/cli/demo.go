package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/node"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

// demo is three nodes on this machine, for trying out.
type demo struct {
	env     Env
	dir     string // all but what lies in memory
	run     string // in memory
	made    []string
	port    int // Postgres's of the first node
	keep    bool
	profile string
	user    string // runs Postgres when we are root
	say     *progress
	nodes   []*demoNode
	program string
}

const (
	demoName     = "demo"
	demoRole     = "app"
	demoAgents   = 10 // the agents' ports lie so far above Postgres's
	demoBalancer = 20 // and those for load balancers
	demoMark     = "holdfast-demo"
)

func newClusterDemoCmd(env Env) *cobra.Command {
	d := demo{env: env}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Three nodes on this machine, for trying out",
		Long: "Makes a cluster of three nodes on this machine's loopback address, each with a Postgres and a data\n" +
			"directory of its own, and runs it in the foreground. Ctrl-C stops it and removes everything that was\n" +
			"made. On one disk it shows how a cluster behaves, not how safe it is: the nodes share their fate.\n\n" +
			"It needs PostgreSQL 13 to 18, and no root; as root, Postgres runs as --user.",
		Example: "  holdfast cluster demo\n  holdfast cluster demo --dir /var/tmp/demo --keep    # `--dir /var/tmp/demo` again goes on with it",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return d.main(cmd.Context()) },
	}
	f := cmd.Flags()
	f.StringVar(&d.dir, "dir", "", "where to put it (default: a new folder in the folder for temporary files)")
	f.BoolVar(&d.keep, "keep", false, "stop at Ctrl-C, but remove nothing")
	f.IntVar(&d.port, "port", 15432, "Postgres's port of the first node; the ports above it are used too, up to 22 more")
	f.StringVar(&d.profile, "profile", config.ProfileDefault, "timers: default, or fast (half as long)")
	f.StringVar(&d.user, "user", "postgres", "system user that Postgres runs as when this is started as root")
	_ = cmd.RegisterFlagCompletionFunc("profile", cobra.FixedCompletions([]string{config.ProfileDefault, config.ProfileFast}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (d *demo) main(ctx context.Context) (err error) {
	if err := d.check(); err != nil {
		return err
	}
	d.say = newProgress(d.env.Stderr)
	defer d.say.done()
	defer func() { err = errors.Join(err, d.end(err)) }()
	if err := d.prepare(); err != nil {
		return err
	}
	for _, n := range d.nodes {
		if err := n.start(); err != nil {
			return infraError(err)
		}
	}
	if err := d.awaitWhole(ctx); err != nil {
		return err
	}
	if err := d.role(ctx); err != nil {
		return infraError(err)
	}
	if err := d.explain(ctx); err != nil {
		return err
	}
	d.watch(ctx)
	return nil
}

// check refuses before anything is made.
func (d *demo) check() error {
	if _, err := postgres.FindBinDir(""); err != nil {
		return infraError(err)
	}
	if d.profile != config.ProfileDefault && d.profile != config.ProfileFast {
		return fmt.Errorf("--profile %s: there are default and fast", d.profile)
	}
	if d.port < 1024 || d.port > 65535-demoBalancer-3 {
		return fmt.Errorf("--port %d: give one from 1024 to %d", d.port, 65535-demoBalancer-3)
	}
	if d.env.Root {
		if u, err := user.Lookup(d.user); err != nil || u.Uid == "0" {
			return fmt.Errorf("--user %s: no such unprivileged user on this system, and Postgres never runs as root: name another", d.user)
		}
	}
	for i := range 3 {
		for _, p := range []int{d.port + i, d.port + demoAgents + i, d.port + demoBalancer + i} {
			l, err := net.Listen("tcp", demoAddress(p)) //nolint:noctx // at once
			if err != nil {
				return withCode(exitRefused, fmt.Errorf("port %d of 127.0.0.1 is in use (%w): name another beginning with --port", p, err))
			}
			_ = l.Close()
		}
	}
	if d.dir == "" {
		return nil
	}
	if err := usableDir("--dir", d.dir); err != nil {
		return err
	}
	if name, err := firstEntry(d.dir); err == nil && name != "" {
		if _, err := os.Stat(filepath.Join(d.dir, demoMark)); err != nil {
			return withCode(exitRefused, fmt.Errorf("--dir %s is not empty, and holds no demo: name a new folder", d.dir))
		}
	}
	return nil
}

func demoAddress(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// prepare makes the folders and the configuration, or finds those of before.
func (d *demo) prepare() error {
	var err error
	if d.program, err = os.Executable(); err != nil {
		return infraError(fmt.Errorf("find this program: %w", err))
	}
	if d.dir == "" {
		if d.dir, err = os.MkdirTemp("", "holdfast-demo-"); err != nil {
			return infraError(fmt.Errorf("make a folder: %w", err))
		}
		d.made = append(d.made, d.dir)
	} else if d.dir, err = filepath.Abs(d.dir); err != nil {
		return infraError(err)
	}
	mark := filepath.Join(d.dir, demoMark)
	again := false
	if b, err := os.ReadFile(mark); err == nil {
		again, d.run = true, strings.TrimSpace(string(b))
	} else if err := d.makeDirs(mark); err != nil {
		return infraError(err)
	}
	if err := os.MkdirAll(d.run, 0o755); err != nil { //nolint:gosec // Postgres's user has to pass
		return infraError(err)
	}
	d.made = append(d.made, d.run)
	for _, name := range []string{"a", "b", "c"} {
		d.nodes = append(d.nodes, &demoNode{d: d, name: name, dir: filepath.Join(d.dir, name)})
	}
	if again {
		return nil
	}
	return infraError(d.configure())
}

func (d *demo) makeDirs(mark string) error {
	if _, err := os.Stat(d.dir); err != nil {
		d.made = append(d.made, d.dir)
	}
	if err := os.MkdirAll(d.dir, 0o755); err != nil { //nolint:gosec // Postgres's user has to pass
		return err
	}
	if err := os.Chmod(d.dir, 0o755); err != nil { //nolint:gosec // as above
		return err
	}
	var err error
	if d.run, err = os.MkdirTemp(d.memory(), "holdfast-demo-"); err != nil {
		return fmt.Errorf("make a folder in memory: %w", err)
	}
	if err := os.Chmod(d.run, 0o755); err != nil { //nolint:gosec // Postgres's user has to pass
		return err
	}
	return os.WriteFile(mark, []byte(d.run+"\n"), 0o600)
}

// memory is where files are gone after a reboot.
func (d *demo) memory() string {
	if d.env.Root {
		return "/run"
	}
	if dir := d.env.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			return dir
		}
	}
	return "/dev/shm"
}

// configure writes what `cluster init` would, with ports instead of hosts.
func (d *demo) configure() error {
	var members []config.Member
	for i, n := range d.nodes {
		members = append(members, config.Member{Name: n.name, Address: demoAddress(d.port + demoAgents + i), Postgres: demoAddress(d.port + i), Zone: "here-" + n.name})
	}
	files := map[string][]byte{}
	for i, n := range d.nodes {
		o := clusterInit{etc: filepath.Join(d.dir, "etc", n.name), state: filepath.Join(n.dir, "state"), run: filepath.Join(d.run, n.name), data: filepath.Join(n.dir, "pg"),
			user: d.user, mode: config.ModePreferred, profile: d.profile, k: 1, http_: d.port + demoBalancer + i, hba: []string{"host all all 127.0.0.1/32 scram-sha-256"}}
		files[n.name] = nodeYAML(o, demoName, members[i], members)
		if _, err := config.ParseNode(n.name+"/node.yaml", files[n.name]); err != nil {
			return err
		}
		if err := os.MkdirAll(n.dir, 0o755); err != nil { //nolint:gosec // Postgres's user has to pass
			return err
		}
	}
	return writeCluster(filepath.Join(d.dir, "etc"), demoName, members, files)
}

// finder asks node n's agent.
func (n *demoNode) finder() *finder { return &finder{config: n.config()} }

func (d *demo) status(ctx context.Context) (s node.Status, err error) {
	err = errors.New("no agent runs")
	for _, n := range d.nodes {
		each, cancel := context.WithTimeout(ctx, 3*time.Second)
		err = n.finder().call(each, d.env, http.MethodGet, "/status", nil, &s)
		cancel()
		if err == nil && s.Known {
			return s, nil
		}
	}
	return s, err
}

// demoWithin is how long three nodes may take to be a cluster.
const demoWithin = 3 * time.Minute

func (d *demo) awaitWhole(ctx context.Context) error {
	began := time.Now()
	d.say.Step("Making three nodes in " + d.dir + " …")
	last := ""
	for {
		s, err := d.status(ctx)
		if err == nil && s.Open && len(s.S) == 2 {
			d.say.Step(fmt.Sprintf("The cluster is whole after %.0f s.\n", time.Since(began).Seconds()))
			return nil
		}
		text := "the agents find one another"
		switch {
		case err != nil:
		case !s.Known:
			text = "the first node makes its data directory"
		case !s.Open:
			text = "the first node's Postgres starts"
		case s.Open:
			text = fmt.Sprintf("%s takes writes; %d of 2 standbys may confirm commits, the rest copy it", s.Primary, len(s.S))
		}
		d.say.Live(fmt.Sprintf("%3.0f s: %s", time.Since(began).Seconds(), text))
		if text != last && !d.say.terminal {
			d.say.Step(fmt.Sprintf("%3.0f s: %s", time.Since(began).Seconds(), text))
		}
		last = text
		for _, n := range d.nodes {
			if err := n.early(); err != nil {
				return err
			}
		}
		if time.Since(began) > demoWithin {
			return infraError(fmt.Errorf("no whole cluster after %s (%s): the logs in %s say why; give --keep to have them afterwards", demoWithin, text, d.dir))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// role makes a role and a database for clients, once.
func (d *demo) role(ctx context.Context) error {
	file := filepath.Join(d.dir, "pgpass")
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	var b [12]byte
	if _, err := rand.Read(b[:]); err != nil {
		return err
	}
	secret := hex.EncodeToString(b[:])
	s, err := d.status(ctx)
	if err != nil {
		return err
	}
	for i, n := range d.nodes {
		if n.name != s.Primary {
			continue
		}
		each, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		c, err := pgx.Connect(each, fmt.Sprintf("host=%s port=%d user=holdfast dbname=postgres sslmode=disable", filepath.Join(d.run, n.name), d.port+i))
		if err != nil {
			return err
		}
		defer c.Close(each) //nolint:errcheck // done with it
		for _, q := range []string{"CREATE ROLE " + demoRole + " LOGIN PASSWORD '" + secret + "'", "CREATE DATABASE " + demoRole + " OWNER " + demoRole} {
			if _, err := c.Exec(each, q); err != nil {
				return fmt.Errorf("make a role for clients: %w", err)
			}
		}
	}
	return os.WriteFile(file, []byte("*:*:*:"+demoRole+":"+secret+"\n"), 0o600)
}

func (d *demo) explain(ctx context.Context) error {
	s, err := d.status(ctx)
	if err != nil {
		return infraError(err)
	}
	alias := ""
	if !inPath(d.env, d.program) {
		alias = "  alias holdfast=" + d.program + "\n"
	}
	at := filepath.Join(d.dir, s.Primary)
	_, err = fmt.Fprintf(d.env.Stdout, `%[1]s
In another terminal:

%[4]s  export HOLDFAST_CONFIG=%[2]s PGPASSFILE=%[3]s
  holdfast status --watch
  psql "$(holdfast dsn --for libpq)" -c 'CREATE TABLE t (id int); INSERT INTO t VALUES (1)'

and then, beside it (%[6]s leads now):

  holdfast switchover                  # hand over, losing nothing
  kill -9 $(head -1 %[5]s/pg/postmaster.pid)
                                       # the primary's Postgres dies: started again in place, or another one leads
  kill -9 $(cat %[5]s/agent.pid)
                                       # its agent dies: Postgres goes on, and the agent is started again as systemd would
  kill -STOP $(cat %[5]s/agent.pid)
                                       # its agent freezes: another one leads; kill -CONT thaws it
  holdfast fence b ; holdfast unfence b  # keep a node's Postgres down, and let it come back

Ctrl-C stops it%[7]s.
`, renderStatus(s, time.Now()), d.nodes[0].config(), filepath.Join(d.dir, "pgpass"), alias, at, s.Primary,
		map[bool]string{true: " and keeps " + d.dir, false: " and removes everything it made"}[d.keep])
	return err
}

// inPath says whether the shell finds this very program by its name.
func inPath(env Env, program string) bool {
	for _, dir := range filepath.SplitList(env.Getenv("PATH")) {
		a, err1 := os.Stat(filepath.Join(dir, "holdfast"))
		b, err2 := os.Stat(program)
		if err1 == nil {
			return err2 == nil && os.SameFile(a, b)
		}
	}
	return false
}

// watch tells what changes, until ctx ends.
func (d *demo) watch(ctx context.Context) {
	var last string
	for {
		if s, err := d.status(ctx); err == nil {
			if text := demoLine(s); text != last {
				if last != "" {
					d.say.Step(time.Now().Format("15:04:05 ") + text)
				}
				last = text
			}
			d.say.Live(time.Now().Format("15:04:05 ") + last)
		}
		for _, n := range d.nodes {
			n.revive()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// demoLine is a cluster in one line.
func demoLine(s node.Status) string {
	line := fmt.Sprintf("epoch %d: %s leads, ", s.Epoch, s.Primary)
	switch {
	case s.Electing:
		line = fmt.Sprintf("epoch %d: an election is under way", s.Epoch)
	case !s.Open:
		line += "and takes no writes yet"
	case s.Degraded != nil:
		line += "confirming commits alone"
	default:
		line += fmt.Sprintf("commits wait for %d of {%s}", s.K, strings.Join(s.S, ", "))
	}
	if len(s.Failovers) > 0 && s.Failovers[0].Epoch == s.Epoch && s.Open {
		if f := s.Failovers[0]; f.Opened != nil {
			line += fmt.Sprintf("; writes again %s after %s was last heard", msText(f.Opened), f.From)
		}
	}
	return line
}
