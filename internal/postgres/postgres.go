// Package postgres drives one Postgres instance through the programs that
// PostgreSQL ships. It decides nothing: whoever uses it says when to start,
// promote or rewind. Programs run where a Runner puts them, so that the lab
// (on its hosts) and a node (on its own machine) share one way to do it.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// MinMajor and MaxMajor bound the supported server versions.
const (
	MinMajor = 13
	MaxMajor = 18
)

// Command is one program to run as the server's unprivileged user.
type Command struct {
	Path   string
	Args   []string
	Env    []string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
}

// Process is a started program.
type Process interface {
	Signal(sig int) error
	Wait() error
	Done() <-chan struct{}
}

// Runner is where an instance's programs run.
type Runner interface {
	Run(ctx context.Context, c Command) ([]byte, error)
	Start(ctx context.Context, c Command) (Process, error)
	WriteFile(ctx context.Context, path string, data []byte, perm uint32) error
	ReadFile(ctx context.Context, path string) ([]byte, error)
	Dial(ctx context.Context, network, addr string) (net.Conn, error)
}

// ErrNoPostgres is returned when no supported server is installed.
var ErrNoPostgres = errors.New("no PostgreSQL server of version 13 to 18 found")

// FindBinDir looks for the server programs: dir if not empty, else the newest
// supported major of Debian's layout.
func FindBinDir(dir string) (string, error) {
	if dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "postgres")); err != nil {
			return "", fmt.Errorf("%w in %s: point HOLDFAST_PG_BINDIR at the folder that holds `postgres` and `initdb`", ErrNoPostgres, dir)
		}
		return dir, nil
	}
	dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return "", err
	}
	best, bestMajor := "", 0
	for _, d := range dirs {
		major, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(d))))
		if err == nil && major >= MinMajor && major <= MaxMajor && major > bestMajor {
			best, bestMajor = filepath.Dir(d), major
		}
	}
	if best == "" {
		return "", fmt.Errorf("%w: install one (on Debian: put `create_main_cluster = false` into /etc/postgresql-common/createcluster.conf, then `apt-get install postgresql`), or point HOLDFAST_PG_BINDIR at its programs", ErrNoPostgres)
	}
	return best, nil
}

// Instance is one data directory and the server that may run on it.
type Instance struct {
	Runner
	Name     string // application_name as a standby
	BinDir   string
	DataDir  string
	SockDir  string // unix sockets; short, since a socket's path is limited to 107 bytes
	Addr     string // listen address
	Port     int
	User     string // superuser
	Password string
	PassFile string // libpq password file, 0600, for programs and walreceivers
	Log      io.Writer
	// NoSync leaves out the flushes of initdb and pg_basebackup: only for a
	// caller who makes the disk durable as a whole before it matters.
	NoSync bool

	proc Process
}

// Settings are server settings, name to value, written in sorted order.
type Settings map[string]string

// Init makes a new, empty data directory with checksums, scram on every
// connection and the C locale.
func (i *Instance) Init(ctx context.Context, s Settings) error {
	if err := i.writePassFile(ctx); err != nil {
		return err
	}
	// initdb reads the superuser's password from a file; it lies beside the
	// sockets, in memory, and only as long as initdb runs.
	pw := filepath.Join(i.SockDir, "initdb-password")
	if err := i.WriteFile(ctx, pw, []byte(i.Password+"\n"), 0o600); err != nil {
		return err
	}
	_, err := i.Run(ctx, Command{
		Path: i.prog("initdb"),
		Args: append([]string{"-D", i.DataDir, "-U", i.User, "--pwfile=" + pw, "-A", "scram-sha-256", "-k", "-E", "UTF8", "--locale=C", "--no-instructions"}, i.noSync()...),
	})
	_, rmErr := i.Run(context.WithoutCancel(ctx), Command{Path: "/bin/rm", Args: []string{"-f", pw}})
	if err := errors.Join(err, rmErr); err != nil {
		return fmt.Errorf("initdb on %s: %w", i.Name, err)
	}
	if err := i.allowNetwork(ctx); err != nil {
		return err
	}
	return i.Configure(ctx, s)
}

// noSync is the flag of initdb and pg_basebackup.
func (i *Instance) noSync() []string {
	if i.NoSync {
		return []string{"--no-sync"}
	}
	return nil
}

// allowNetwork lets password holders in from everywhere the host can be reached.
func (i *Instance) allowNetwork(ctx context.Context) error {
	hba := "local all all scram-sha-256\n" +
		"local replication all scram-sha-256\n" +
		"host all all all scram-sha-256\n" +
		"host replication all all scram-sha-256\n"
	return i.WriteFile(ctx, filepath.Join(i.DataDir, "pg_hba.conf"), []byte(hba), 0o600)
}

func (i *Instance) writePassFile(ctx context.Context) error {
	return i.WriteFile(ctx, i.PassFile, []byte(i.PassLine()), 0o600)
}

// PassLine is what a libpq password file needs to log in at any server of this
// cluster: a secret.
func (i *Instance) PassLine() string {
	return fmt.Sprintf("*:*:*:%s:%s\n", i.User, i.Password)
}

const managedConf = "holdfast.conf"

// Configure replaces the managed settings. They take effect at the next start
// or Reload. The file is flushed before it takes the old one's place, since
// a power cut may follow.
func (i *Instance) Configure(ctx context.Context, s Settings) error {
	names := make([]string, 0, len(s))
	for n := range s {
		names = append(names, n)
	}
	sort.Strings(names)
	var b strings.Builder
	b.WriteString("# Managed by holdfast: changes here are overwritten.\n")
	for _, n := range names {
		fmt.Fprintf(&b, "%s = '%s'\n", n, strings.ReplaceAll(s[n], "'", "''"))
	}
	if err := i.WriteFile(ctx, filepath.Join(i.DataDir, managedConf), []byte(b.String()), 0o600); err != nil {
		return err
	}
	main := filepath.Join(i.DataDir, "postgresql.conf")
	have, err := i.ReadFile(ctx, main)
	if err != nil {
		return err
	}
	include := "include_if_exists = '" + managedConf + "'\n"
	if strings.Contains(string(have), include) {
		return nil
	}
	return i.WriteFile(ctx, main, append(have, include...), 0o600)
}

// Start starts the server and returns when it accepts connections, also as a
// standby. It fails when the server ends first or ctx ends.
func (i *Instance) Start(ctx context.Context) error {
	if i.Running() {
		return nil
	}
	if err := i.writePassFile(ctx); err != nil {
		return err
	}
	p, err := i.Runner.Start(ctx, Command{
		Path:   i.prog("postgres"),
		Args:   []string{"-D", i.DataDir, "-c", "unix_socket_directories=" + i.SockDir, "-c", "listen_addresses=" + i.Addr, "-c", "port=" + strconv.Itoa(i.Port)},
		Stdout: i.Log, Stderr: i.Log,
	})
	if err != nil {
		return fmt.Errorf("start postgres on %s: %w", i.Name, err)
	}
	i.proc = p
	return i.WaitReady(ctx)
}

// WaitReady waits until the server accepts connections.
func (i *Instance) WaitReady(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		c, err := i.Connect(ctx)
		if err == nil {
			return c.Close(ctx)
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("postgres on %s does not accept connections: %w (last: %v)", i.Name, context.Cause(ctx), last)
		case <-i.proc.Done():
			return fmt.Errorf("postgres on %s ended while starting: %w; its log says why", i.Name, errOr(i.proc.Wait(), "exit 0"))
		case <-tick.C:
		}
	}
}

func errOr(err error, what string) error {
	if err != nil {
		return err
	}
	return errors.New(what)
}

// Running says whether the server started by this Instance still runs.
func (i *Instance) Running() bool {
	if i.proc == nil {
		return false
	}
	select {
	case <-i.proc.Done():
		return false
	default:
		return true
	}
}

// Stop stops the server: fast, and when grace is over, immediate.
func (i *Instance) Stop(ctx context.Context, grace time.Duration) error {
	if !i.Running() {
		return nil
	}
	const sigint, sigquit = 2, 3
	if err := i.proc.Signal(sigint); err != nil {
		return fmt.Errorf("stop postgres on %s: %w", i.Name, err)
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-i.proc.Done():
		return nil
	case <-ctx.Done():
	case <-t.C:
	}
	if err := i.proc.Signal(sigquit); err != nil {
		return fmt.Errorf("stop postgres on %s at once: %w", i.Name, err)
	}
	select {
	case <-i.proc.Done():
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("postgres on %s does not end within 10 s of SIGQUIT", i.Name)
	}
}

// Reload makes the server read its configuration again.
func (i *Instance) Reload() error {
	const sighup = 1
	return i.proc.Signal(sighup)
}

// Connect opens a superuser session over the unix socket.
func (i *Instance) Connect(ctx context.Context) (*pgx.Conn, error) {
	return i.connect(ctx, "unix", i.SockDir, nil)
}

// connect dials through the Runner, whose network the caller may not share.
func (i *Instance) connect(ctx context.Context, network, host string, params map[string]string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig("")
	if err != nil {
		return nil, err
	}
	cfg.Host, cfg.Port, cfg.User, cfg.Password, cfg.Database = host, uint16(i.Port), i.User, i.Password, "postgres"
	cfg.TLSConfig, cfg.Fallbacks = nil, nil
	cfg.ConnectTimeout = 5 * time.Second
	cfg.RuntimeParams = map[string]string{"application_name": "holdfast", "lc_messages": "C"}
	for k, v := range params {
		cfg.RuntimeParams[k] = v
	}
	cfg.LookupFunc = func(_ context.Context, h string) ([]string, error) { return []string{h}, nil }
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		addr := net.JoinHostPort(host, strconv.Itoa(i.Port))
		if network == "unix" {
			addr = filepath.Join(i.SockDir, ".s.PGSQL."+strconv.Itoa(i.Port))
		}
		return i.Dial(ctx, network, addr)
	}
	return pgx.ConnectConfig(ctx, cfg)
}

// Exec runs statements one by one in a session of its own, each in autocommit.
func (i *Instance) Exec(ctx context.Context, sql ...string) error {
	c, err := i.Connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	for _, q := range sql {
		if _, err := c.Exec(ctx, q); err != nil {
			return fmt.Errorf("%s on %s: %w", q, i.Name, err)
		}
	}
	return nil
}

// QueryText returns the first column of the first row as text; "" for NULL.
func (i *Instance) QueryText(ctx context.Context, sql string, args ...any) (string, error) {
	c, err := i.Connect(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	var v *string
	if err := c.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		return "", fmt.Errorf("%s on %s: %w", sql, i.Name, err)
	}
	if v == nil {
		return "", nil
	}
	return *v, nil
}

func (i *Instance) prog(name string) string { return filepath.Join(i.BinDir, name) }

// ClientEnv is the environment with which libpq programs on the host log in.
func (i *Instance) ClientEnv() []string {
	return []string{
		"PGHOST=" + i.SockDir, "PGPORT=" + strconv.Itoa(i.Port), "PGUSER=" + i.User,
		"PGDATABASE=postgres", "PGPASSFILE=" + i.PassFile, "LC_ALL=C",
	}
}
