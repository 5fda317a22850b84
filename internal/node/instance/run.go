package instance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// osUser is whom Postgres and its programs run as.
type osUser struct {
	name     string
	uid, gid uint32
	groups   []uint32
	switches bool // the agent is root, and Postgres must not be
}

func lookupUser(name string) (osUser, error) {
	self := os.Geteuid()
	if name == "" {
		if self == 0 {
			return osUser{}, errors.New("the agent runs as root and Postgres must not: name the system user for it (postgres.user)")
		}
		u, err := user.LookupId(strconv.Itoa(self))
		if err != nil {
			return osUser{}, err
		}
		name = u.Username
	}
	u, err := user.Lookup(name)
	if err != nil {
		return osUser{}, fmt.Errorf("system user for Postgres: %w", err)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return osUser{}, err
	}
	if uid == 0 {
		return osUser{}, fmt.Errorf("system user for Postgres is %s, which is root: Postgres refuses that", name)
	}
	if self != 0 && int(uid) != self {
		return osUser{}, fmt.Errorf("the agent runs as user %d and cannot start Postgres as %s: start it as root or as %s", self, name, name)
	}
	out := osUser{name: name, uid: uint32(uid), gid: uint32(gid), switches: self == 0}
	ids, err := u.GroupIds()
	if err != nil {
		return out, nil //nolint:nilerr // only the main group then
	}
	for _, s := range ids {
		if g, err := strconv.ParseUint(s, 10, 32); err == nil {
			out.groups = append(out.groups, uint32(g))
		}
	}
	return out, nil
}

// credential is nil when the agent's own user will do.
func (u osUser) credential() *syscall.Credential {
	if !u.switches {
		return nil
	}
	return &syscall.Credential{Uid: u.uid, Gid: u.gid, Groups: u.groups}
}

// command is one of PostgreSQL's programs, to be run as its user. It dies with
// the agent: nothing that a life began outlives it, but Postgres itself.
func (i *Instance) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(i.cfg.BinDir, name), args...)
	c.Dir = "/"
	c.Env = environment(i.cfg.RunDir)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: i.user.credential(), Pdeathsig: syscall.SIGKILL}
	c.WaitDelay = 2 * time.Second
	return c
}

func environment(tmp string) []string {
	env := []string{"LC_ALL=C", "PATH=/usr/bin:/bin"}
	if tmp != "" {
		env = append(env, "TMPDIR="+tmp)
	}
	return env
}

// output runs a program and returns what it printed; a failure carries the end
// of what it complained about.
func (i *Instance) output(c *exec.Cmd) ([]byte, error) {
	var out, complaint bytes.Buffer
	c.Stdout, c.Stderr = &out, &complaint
	if err := c.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%s: %w: %s", filepath.Base(c.Path), err, lastLines(complaint.String(), 3))
	}
	return out.Bytes(), nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}

var versionForm = regexp.MustCompile(`\(PostgreSQL\) (\d+)\.(\d+)`)

// version is that of the server's program: 15, 18.
func (i *Instance) version(ctx context.Context) (major, minor int, err error) {
	out, err := i.output(i.command(ctx, "postgres", "--version"))
	if err != nil {
		return 0, 0, fmt.Errorf("ask %s for its version: %w", i.cfg.BinDir, err)
	}
	m := versionForm.FindSubmatch(out)
	if m == nil {
		return 0, 0, fmt.Errorf("the version of %s/postgres reads %q: use a released PostgreSQL 13 to 18", i.cfg.BinDir, strings.TrimSpace(string(out)))
	}
	major, _ = strconv.Atoi(string(m[1]))
	minor, _ = strconv.Atoi(string(m[2]))
	return major, minor, nil
}
