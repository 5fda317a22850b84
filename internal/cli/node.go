package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/node"
	"github.com/holdfast-db/holdfast/internal/postgres"
	"github.com/holdfast-db/holdfast/internal/quorum"
)

func newNodeCmd(env Env) *cobra.Command {
	var file string
	var check, debug bool
	cmd := &cobra.Command{
		Use:   "node --config FILE",
		Short: "Run this host's node of a cluster",
		Long: "Runs the agent of this host in the foreground: it owns the Postgres of postgres.data, takes part in\n" +
			"the register, and carries out failovers. When it ends, Postgres goes on running; the next agent takes\n" +
			"it over. `holdfast cluster init` writes the configuration.",
		Example: "  holdfast node --config /etc/holdfast/orders/node.yaml --check\n  holdfast node --config /etc/holdfast/orders/node.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadNode(env, file)
			if err != nil {
				return err
			}
			if check {
				return checkNode(cmd.Context(), env, c)
			}
			return runNode(cmd.Context(), env, c, debug)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "this node's configuration (default: $HOLDFAST_CONFIG)")
	cmd.Flags().BoolVar(&check, "check", false, "say whether the configuration would do, and touch nothing")
	cmd.Flags().BoolVar(&debug, "debug", false, "log more")
	return cmd
}

func loadNode(env Env, file string) (*config.Node, error) {
	if file == "" {
		file = env.Getenv("HOLDFAST_CONFIG")
	}
	if file == "" {
		return nil, errors.New("which configuration? Say --config FILE, or set HOLDFAST_CONFIG")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return config.ParseNode(file, b)
}

// nodeOptions checks what the configuration alone cannot say.
func nodeOptions(ctx context.Context, env Env, c *config.Node) (node.Options, error) {
	o := node.Options{Config: c, Version: env.Version}
	id, err := quorum.LoadIdentity(c.Identity)
	if err != nil {
		return o, c.At("identity", err)
	}
	conf, err := id.TLS()
	if err != nil {
		return o, c.At("identity", err)
	}
	if err := checkCertificate(conf, c.Node, time.Now()); err != nil {
		return o, c.At("identity", err)
	}
	if o.Exe, err = os.Executable(); err != nil {
		return o, fmt.Errorf("find this program: %w", err)
	}
	self, _ := c.Self()
	if self.Witness {
		return o, nil
	}
	if o.BinDir, err = postgres.FindBinDir(c.Postgres.Bin); err != nil {
		return o, c.At("postgres.bin", err)
	}
	if err := checkRules(c); err != nil {
		return o, err
	}
	if env.Root {
		if _, err := user.Lookup(c.Postgres.User); err != nil {
			return o, c.At("postgres.user", fmt.Errorf("no such user on this system: Postgres never runs as root; make it with `adduser --system --group %s`, or name another", c.Postgres.User))
		}
		o.OSUser = c.Postgres.User
	}
	if refused := node.CheckHost(ctx, o); len(refused) > 0 {
		return o, withCode(exitRefused, c.At(refused[0].Key, refused[0].Err))
	}
	return o, nil
}

// checkCertificate refuses what the other agents would refuse.
func checkCertificate(conf *tls.Config, node string, now time.Time) error {
	leaf := conf.Certificates[0].Leaf
	if n := leaf.Subject.CommonName; n != node {
		return fmt.Errorf("the certificate is of node %q, the configuration of %q: copy that node's own folder", n, node)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: conf.RootCAs, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return fmt.Errorf("the certificate is not valid for this cluster: %w; node.crt and ca.crt come from one run of `holdfast cluster init`", err)
	}
	return nil
}

func checkNode(ctx context.Context, env Env, c *config.Node) error {
	o, err := nodeOptions(ctx, env, c)
	if err != nil {
		return err
	}
	if problems := append(checkPorts(ctx, c), node.CheckDirectory(ctx, o)); errors.Join(problems...) != nil {
		return withCode(exitRefused, errors.Join(problems...))
	}
	if !inMemory(c.Run) {
		fmt.Fprintf(env.Stderr, "note: %s is not in memory (tmpfs): what it permits would outlive a reboot; name a directory below /run\n", c.Run)
	}
	self, _ := c.Self()
	what := "data at " + c.Postgres.Data
	if self.Witness {
		what = "a witness"
	}
	_, err = fmt.Fprintf(env.Stdout, "All is good: node %s of cluster %s, %s, with %d other members.\n", c.Node, c.Cluster, what, len(c.Members)-1)
	return err
}

// checkPorts finds what is in the way of the agent's own addresses, unless it is
// the agent itself.
func checkPorts(ctx context.Context, c *config.Node) (problems []error) {
	d := net.Dialer{Timeout: time.Second}
	if conn, err := d.DialContext(ctx, "unix", node.AdminSocket(c.Run)); err == nil {
		_ = conn.Close()
		return nil
	}
	self, _ := c.Self()
	addresses := map[string]string{"members": self.Address}
	if !c.HTTPOff() {
		addresses["http.listen"] = c.HTTP.Listen
	}
	for key, a := range addresses {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", a)
		switch {
		case err == nil:
			_ = l.Close()
			continue
		case errors.Is(err, syscall.EADDRINUSE):
			err = fmt.Errorf("%s is in use by another program: stop that (ss -ltnp shows it), or give this node another port (address in members; http.listen)", a)
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			err = fmt.Errorf("%s is no address of this host (ip addr shows them): is this another node's folder?", a)
		}
		problems = append(problems, c.At(key, err))
	}
	return problems
}

// inMemory says whether a directory is, or would be, on a file system in memory.
func inMemory(path string) bool {
	var sf unix.Statfs_t
	for unix.Statfs(path, &sf) != nil {
		if path == filepath.Dir(path) {
			return false
		}
		path = filepath.Dir(path)
	}
	const ramfs = 0x858458f6
	return sf.Type == unix.TMPFS_MAGIC || sf.Type == ramfs
}

func runNode(ctx context.Context, env Env, c *config.Node, debug bool) error {
	o, err := nodeOptions(ctx, env, c)
	if err != nil {
		return err
	}
	if problems := checkPorts(ctx, c); len(problems) > 0 { // before anything is made
		return withCode(exitRefused, errors.Join(problems...))
	}
	level := slog.LevelInfo
	if debug {
		level = slog.LevelDebug
	}
	o.Log = slog.New(slog.NewTextHandler(env.Stderr, &slog.HandlerOptions{Level: level}))
	notify, err := newNotifier(ctx, env.Getenv)
	if err != nil {
		return err
	}
	o.Notify = notify
	err = node.Run(ctx, o)
	if errors.Is(err, node.ErrRefused) {
		return withCode(exitRefused, err)
	}
	if ctx.Err() != nil && err == nil {
		return nil
	}
	return infraError(err)
}
