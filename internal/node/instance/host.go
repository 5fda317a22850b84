package instance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Refusal is something that keeps a node from working on this host. Key is where
// the node's configuration says it.
type Refusal struct {
	Key string
	Err error
}

// CheckHost looks for what would keep cfg from working here, and touches nothing:
// the server's version, settings, rules, the port, the data directory and its
// disk. Each error names what is wrong and what to do.
func CheckHost(ctx context.Context, cfg Config) []Refusal {
	var out []Refusal
	refuse := func(key string, err error) {
		if err != nil {
			out = append(out, Refusal{key, err})
		}
	}
	u, err := lookupUser(cfg.OSUser)
	refuse("postgres.user", err)
	for _, p := range CheckSettings(cfg.Settings) {
		refuse("postgres.settings."+p.Name, fmt.Errorf("%s. %s", p.Why, p.Fix))
	}
	for n, rule := range cfg.HBA {
		for _, p := range CheckHBA([]string{rule}) {
			refuse("postgres.hba["+strconv.Itoa(n)+"]", fmt.Errorf("%s. %s", p.Why, p.Fix))
		}
	}
	if real, err := filepath.EvalSymlinks(cfg.DataDir); err == nil {
		cfg.DataDir = real
	}
	i := &Instance{cfg: cfg, user: u}
	major, minor, err := i.version(ctx)
	if err != nil {
		refuse("postgres.bin", err)
		return out
	}
	refuse("postgres.bin", CheckVersion(major, minor))
	refuse("postgres.data", checkMajor(cfg.DataDir, cfg.BinDir, major))
	if !exists(filepath.Join(cfg.DataDir, "PG_VERSION")) {
		refuse("postgres.data", checkRoom(cfg.DataDir))
	}
	refuse("postgres.data", i.checkPath())
	for name, err := range i.tryOut(ctx) {
		refuse("postgres.settings."+name, err)
	}
	if !slices.ContainsFunc(processesOn(cfg.DataDir), process.serves) { // else it is ours, or is told as foreign
		refuse("members", checkPort(ctx, cfg.Address, cfg.Port))
	}
	return out
}

// checkPath refuses a data directory that Postgres's user could not use.
func (i *Instance) checkPath() error {
	if !i.user.switches {
		return nil
	}
	if info, err := os.Stat(i.cfg.DataDir); err == nil && owner(info) != i.user.uid && exists(filepath.Join(i.cfg.DataDir, "PG_VERSION")) {
		return notOwned(i.cfg.DataDir, info, i.user)
	}
	for dir := filepath.Dir(i.cfg.DataDir); dir != "/"; dir = filepath.Dir(dir) {
		var st syscall.Stat_t
		if err := syscall.Stat(dir, &st); err != nil {
			continue // it will be made
		}
		may := st.Mode & 0o001
		switch {
		case st.Uid == i.user.uid:
			may = st.Mode & 0o100
		case st.Gid == i.user.gid || slices.Contains(i.user.groups, st.Gid):
			may = st.Mode & 0o010
		}
		if may == 0 {
			return fmt.Errorf("%s cannot pass through %s to its data directory: chmod a+x %s, or name a directory elsewhere", i.user.name, dir, dir)
		}
	}
	return nil
}

func notOwned(dir string, info os.FileInfo, u osUser) error {
	return fmt.Errorf("%s belongs to user %d, Postgres is to run as %s: name its owner (postgres.user), or change it (chown -R %s %s)", dir, owner(info), u.name, u.name, dir)
}

// tryOut has the server's own program read the user's settings, and returns what
// it says of each that it does not take.
func (i *Instance) tryOut(ctx context.Context) map[string]error {
	if len(i.cfg.Settings) == 0 {
		return nil
	}
	dir, err := os.MkdirTemp("", "holdfast-settings-")
	if err != nil {
		return nil // it is tried at the start
	}
	defer os.RemoveAll(dir) //nolint:errcheck // an empty file
	if os.Chmod(dir, 0o755) != nil || os.WriteFile(filepath.Join(dir, "postgresql.conf"), nil, 0o644) != nil {
		return nil
	}
	out := map[string]error{}
	for name, value := range i.cfg.Settings {
		if _, err := i.output(i.command(ctx, "postgres", "-D", dir, "-c", name+"="+value, "-C", "port")); err != nil && strings.Contains(err.Error(), "FATAL") {
			_, why, _ := strings.Cut(err.Error(), "FATAL:")
			out[name] = fmt.Errorf("PostgreSQL does not take it: %s", strings.TrimSpace(why))
		}
	}
	return out
}

// checkMajor refuses a directory that the programs cannot run on.
func checkMajor(dir, bin string, major int) error {
	version, err := os.ReadFile(filepath.Join(dir, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if v := strings.TrimSpace(string(version)); v != strconv.Itoa(major) {
		return fmt.Errorf("%s is of PostgreSQL %s, the programs in %s are of %d: name the folder of those of %s (postgres.bin)", dir, v, bin, major, v)
	}
	return nil
}

// checkPort refuses an address or a port that Postgres could not use.
func checkPort(ctx context.Context, address string, port int) error {
	addr := net.JoinHostPort(address, strconv.Itoa(port))
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s is in use by another program: stop that (ss -ltnp shows it; the distribution's own Postgres with systemctl disable --now postgresql), or give this node's Postgres another port", addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s is no address of this host: give this node's Postgres one that it has (ip addr)", address)
	case err != nil:
		return fmt.Errorf("listen on %s: %w", addr, err)
	}
	return l.Close()
}
