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
	if !slices.ContainsFunc(processesOn(cfg.DataDir), process.serves) { // else it is ours, or is told as foreign
		refuse("members", checkPort(ctx, cfg.Address, cfg.Port))
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
