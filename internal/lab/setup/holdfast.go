package setup

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/holdfast-db/holdfast/internal/lab/place"
)

// holdfastCluster is our own: one node on each host, run as any other program.
// All that the lab knows of it is its command line and its HTTP port.
type holdfastCluster struct {
	profile string

	mu    sync.Mutex
	files map[string][]byte // of each node, by name: an archive of its folder
}

func holdfast(profile string) func() product {
	return func() product { return &holdfastCluster{profile: profile} }
}

// holdfastHealth is `cluster init`'s default for load balancers on the same host.
const holdfastHealth = "127.0.0.1:7480"

func (p *holdfastCluster) health(*member) string { return holdfastHealth }

func (p *holdfastCluster) counted(standbys int) int { return standbys }

func (p *holdfastCluster) sockets(m *member) string { return p.run(m) }
func (p *holdfastCluster) run(m *member) string     { return path.Join(m.host.RunDir(), "hf") }
func (p *holdfastCluster) etc(m *member) string     { return path.Join(m.host.DataDir(), "etc") }
func (p *holdfastCluster) conf(m *member) string    { return path.Join(p.etc(m), "node.yaml") }

// missedByHoldfast is what an agent logs when an election has begun: whoever is
// recruited promises first.
var missedByHoldfast = regexp.MustCompile(`promise on disk: follow nobody below`)

func (p *holdfastCluster) noticed(line string) bool { return missedByHoldfast.MatchString(line) }

// furnish brings a node its folder, as `cluster init` tells a person to.
func (p *holdfastCluster) furnish(ctx context.Context, c *healing, m *member) error {
	files, err := p.init(ctx, c)
	if err != nil {
		return err
	}
	const unpack = `mkdir -p -m 700 "$1" && tar -x -C "$1" && find "$1" -type f -exec sync {} +`
	_, err = m.host.Run(ctx, place.Cmd{Path: "/bin/sh", Args: []string{"-c", unpack, "unpack", p.etc(m)}, Stdin: bytes.NewReader(files[m.pg.Name])})
	if err != nil {
		return fmt.Errorf("bring %s its configuration: %w", m.pg.Name, err)
	}
	return nil
}

// init runs `holdfast cluster init` once, on one of the hosts, and takes what it made.
func (p *holdfastCluster) init(ctx context.Context, c *healing) (map[string][]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.files != nil {
		return p.files, nil
	}
	at := c.members[0]
	out := path.Join(at.host.RunDir(), "init")
	args := []string{
		"cluster", "init", "lab", "--out", out, "--etc", p.etc(at), "--state", path.Join(at.host.DataDir(), "state"), "--run", p.run(at),
		"--data", at.pg.DataDir, "--bin", at.pg.BinDir, "--user", at.host.User(), "--profile", p.profile,
		"--hba", "host all all all scram-sha-256", "--hba", "local all all scram-sha-256",
	}
	for _, m := range c.members {
		args = append(args, "--node", m.pg.Name+"="+m.host.Addr())
	}
	if _, err := at.host.Run(ctx, place.Cmd{Path: "holdfast", Args: args}); err != nil {
		return nil, fmt.Errorf("holdfast cluster init: %w", err)
	}
	files := map[string][]byte{}
	for _, m := range c.members {
		var archive bytes.Buffer
		_, err := at.host.Run(ctx, place.Cmd{Path: "/bin/tar", Args: []string{"-c", "-C", path.Join(out, m.pg.Name), "."}, Stdout: &archive})
		if err != nil {
			return nil, fmt.Errorf("take the configuration of %s: %w", m.pg.Name, err)
		}
		files[m.pg.Name] = archive.Bytes()
	}
	p.files = files
	return files, nil
}

func (p *holdfastCluster) services(_ *healing, m *member) []service {
	return []service{{"holdfast", place.Cmd{Path: "holdfast", Args: []string{"node", "--config", p.conf(m)}}}}
}

// replace has nothing to do: a blank host is a new member by itself.
func (p *holdfastCluster) replace(context.Context, *healing, *member) (operator bool, err error) {
	return false, nil
}

// stopScript stops the server of a data directory fast, and at once after 20 s.
const stopScript = `read -r p < "$1/postmaster.pid" || exit 0
kill -INT "$p" || exit 0
n=0
while kill -0 "$p"; do
	n=$((n + 1))
	[ "$n" = 1000 ] && kill -QUIT "$p"
	[ "$n" = 1500 ] && exit 1
	sleep 0.02
done 2>/dev/null
exit 0`

// halt: an agent that ends leaves its server running, for the next agent. All
// agents go first, so that nobody wonders; the standbys then hold the primary's
// last checkpoint.
func (p *holdfastCluster) halt(ctx context.Context, c *healing, prim *member, others []*member) error {
	if err := c.each(c.members, func(m *member) error { return m.agent().stop(ctx, agentGrace) }); err != nil {
		return err
	}
	stop := func(m *member) error {
		_, err := m.host.Run(ctx, place.Cmd{Path: "/bin/sh", Args: []string{"-c", stopScript, "stop", m.pg.DataDir}})
		if err != nil {
			return fmt.Errorf("stop the server of %s: %w", m.pg.Name, err)
		}
		return nil
	}
	if err := stop(prim); err != nil {
		return err
	}
	return c.each(others, stop)
}

func (p *holdfastCluster) switchover(ctx context.Context, _ *healing, from, to *member) error {
	_, err := from.host.Run(ctx, place.Cmd{Path: "holdfast", Args: []string{"switchover", to.pg.Name, "--config", p.conf(from)}})
	return err
}

// admit makes a role for the lab's clients, as a person would who has just made
// a cluster.
func (p *holdfastCluster) admit(ctx context.Context, c *healing) (Login, error) {
	l := Login{User: "lab", Password: rand.Text(), Database: "postgres"}
	prim := c.members[c.primary]
	err := prim.pg.Exec(ctx, fmt.Sprintf("CREATE ROLE %s SUPERUSER LOGIN PASSWORD '%s'", l.User, l.Password))
	return l, err
}

func (p *holdfastCluster) versions(ctx context.Context, c *healing) (map[string]string, error) {
	out, err := c.members[0].host.Run(ctx, place.Cmd{Path: "holdfast", Args: []string{"version"}})
	if err != nil {
		return nil, fmt.Errorf("version of holdfast: %w", err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return map[string]string{"holdfast": strings.TrimSpace(strings.TrimPrefix(first, "holdfast "))}, nil
}
