package setup

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-db/holdfast/internal/lab/place"
)

// Debian's programs; patroni is a Python script.
const (
	patroniProgram = "/usr/bin/patroni"
	etcdProgram    = "/usr/bin/etcd"
	etcdctlProgram = "/usr/bin/etcdctl"

	patroniPort  = 8008
	etcdPort     = 2379
	etcdPeerPort = 2380
)

var patroniNeeds = []string{patroniProgram, etcdProgram, etcdctlProgram}

// patroniCluster is Patroni with etcd on the same three hosts, synchronous mode:
// a commit waits until the one standby that may take over has flushed it.
type patroniCluster struct {
	ttl, loop, retry int // seconds
}

func patroni(ttl, loop, retry int) func() product {
	return func() product { return &patroniCluster{ttl: ttl, loop: loop, retry: retry} }
}

func (p *patroniCluster) health(m *member) string {
	return net.JoinHostPort(m.host.Addr(), strconv.Itoa(patroniPort))
}

// counted: Patroni 3.0 picks one.
func (p *patroniCluster) counted(int) int { return 1 }

func (p *patroniCluster) sockets(m *member) string { return m.host.RunDir() }

// admit has nothing to do: Patroni was told the superuser's password.
func (p *patroniCluster) admit(_ context.Context, c *healing) (Login, error) {
	return Login{User: c.members[0].pg.User, Password: c.password, Database: "postgres"}, nil
}

// missed is what Patroni logs when it finds the leader's key gone and asks the
// others how much they hold, or takes the key.
var missed = regexp.MustCompile(`Got response from |promoted self to leader|acquiring session lock|not the healthiest node`)

func (p *patroniCluster) noticed(line string) bool { return missed.MatchString(line) }

func (p *patroniCluster) furnish(ctx context.Context, c *healing, m *member) error {
	conf, err := json.MarshalIndent(p.config(c, m), "", "  ") // which is YAML
	if err != nil {
		return err
	}
	return m.host.Put(ctx, p.file(m), conf, 0o600)
}

func (p *patroniCluster) file(m *member) string {
	return filepath.Join(m.host.DataDir(), "patroni.yml")
}

type object = map[string]any

func (p *patroniCluster) config(c *healing, m *member) object {
	at := func(port int) string { return net.JoinHostPort(m.host.Addr(), strconv.Itoa(port)) }
	login := func(user, suffix string) object { return object{"username": user, "password": c.password + suffix} }
	return object{
		"scope": "lab", "name": m.pg.Name,
		"restapi": object{"listen": at(patroniPort), "connect_address": at(patroniPort)},
		"etcd3":   object{"hosts": c.addresses(etcdPort, "")},
		"bootstrap": object{
			"dcs": object{
				"ttl": p.ttl, "loop_wait": p.loop, "retry_timeout": p.retry, "maximum_lag_on_failover": 1 << 20,
				"synchronous_mode": true,
				"postgresql": object{
					"use_pg_rewind": true, "use_slots": true,
					"remove_data_directory_on_rewind_failure":     true,
					"remove_data_directory_on_diverged_timelines": true,
					"parameters": rivalSettings(),
				},
			},
			"initdb": []any{object{"encoding": "UTF8"}, object{"locale": "C"}, "data-checksums"},
		},
		"postgresql": object{
			"listen": at(m.pg.Port), "connect_address": at(m.pg.Port),
			"data_dir": m.pg.DataDir, "bin_dir": m.pg.BinDir, "pgpass": filepath.Join(m.host.RunDir(), "patroni-pgpass"),
			"authentication": object{
				"superuser":   object{"username": m.pg.User, "password": c.password},
				"replication": login("replicator", "r"),
				"rewind":      login("rewinder", "w"),
			},
			"parameters":             object{"unix_socket_directories": m.pg.SockDir, "unix_socket_permissions": "0700"},
			"pg_hba":                 []string{"local all all scram-sha-256", "host all all all scram-sha-256", "host replication all all scram-sha-256"},
			"create_replica_methods": []string{"basebackup"},
			"basebackup":             []any{object{"checkpoint": "fast"}},
		},
	}
}

// rivalSettings are those of the plain setups, so that what differs is who runs
// the servers and not how they are set.
func rivalSettings() object {
	return object{
		"max_connections": 100, "shared_buffers": "128MB", "max_wal_senders": 10, "wal_keep_size": "256MB",
		"lc_messages": "C", "log_line_prefix": "%m [%p] ", "wal_retrieve_retry_interval": "100ms",
		"max_standby_streaming_delay": "200ms", "synchronous_commit": "on", "tcp_keepalives_idle": 5,
		"log_autovacuum_min_duration": -1, "password_encryption": "scram-sha-256",
	}
}

// addresses are those of all members' services on a port.
func (c *healing) addresses(port int, scheme string) []string {
	var as []string
	for _, m := range c.members {
		as = append(as, scheme+net.JoinHostPort(m.host.Addr(), strconv.Itoa(port)))
	}
	return as
}

func (p *patroniCluster) services(c *healing, m *member) []service {
	return []service{
		{"etcd", place.Cmd{Path: etcdProgram, Args: p.etcdArgs(c, m), Env: []string{"GOMAXPROCS=1"}}},
		{"patroni", place.Cmd{Path: patroniProgram, Args: []string{p.file(m)}, Env: []string{"LC_ALL=C", "PYTHONUNBUFFERED=1"}}},
	}
}

func (p *patroniCluster) etcdArgs(c *healing, m *member) []string {
	url := func(port int) string { return "http://" + net.JoinHostPort(m.host.Addr(), strconv.Itoa(port)) }
	var all []string
	for i, a := range c.addresses(etcdPeerPort, "http://") {
		all = append(all, c.members[i].pg.Name+"="+a)
	}
	state := "new"
	if m.replaced {
		state = "existing"
	}
	return []string{
		"--name", m.pg.Name, "--data-dir", filepath.Join(m.host.DataDir(), "etcd"), "--log-level", "warn", "--logger", "zap",
		"--listen-peer-urls", url(etcdPeerPort), "--initial-advertise-peer-urls", url(etcdPeerPort),
		"--listen-client-urls", url(etcdPort), "--advertise-client-urls", url(etcdPort),
		"--initial-cluster", strings.Join(all, ","), "--initial-cluster-token", "lab", "--initial-cluster-state", state,
	}
}

// replace takes the etcd member out that has lost its disk and lets it in again
// as a new one, as etcd's documents ask of an operator.
func (p *patroniCluster) replace(ctx context.Context, c *healing, m *member) (operator bool, err error) {
	peer := "http://" + net.JoinHostPort(m.host.Addr(), strconv.Itoa(etcdPeerPort))
	var at *member
	var others []string
	for _, o := range c.members {
		if pc, ok := o.host.(place.PowerCycler); o != m && (!ok || pc.Powered()) {
			at, others = o, append(others, net.JoinHostPort(o.host.Addr(), strconv.Itoa(etcdPort)))
		}
	}
	if at == nil {
		return true, fmt.Errorf("no other host has power")
	}
	ctl := func(args ...string) (string, error) {
		var out, said bytes.Buffer
		_, err := at.host.Run(ctx, place.Cmd{
			Path: etcdctlProgram, Env: []string{"ETCDCTL_API=3"}, Stdout: &out, Stderr: &said,
			Args: append([]string{"--endpoints", strings.Join(others, ","), "--command-timeout=5s"}, args...),
		})
		if err != nil {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
		}
		return out.String(), err
	}
	// The lost one may have led: until the others have elected, nothing works.
	ctx, cancel := context.WithTimeoutCause(ctx, startDeadline, fmt.Errorf("not within %s", startDeadline))
	defer cancel()
	err = until(ctx, "etcd has let "+m.pg.Name+" in again", func() (bool, error) {
		list, err := ctl("member", "list", "-w", "json")
		if err != nil {
			return false, err
		}
		id, known, err := etcdMember(list, peer)
		switch {
		case err != nil:
			return false, err
		case known == "" && id != "":
			return true, nil // it was added, and has not started yet
		case id != "":
			_, err = ctl("member", "remove", id)
		default:
			_, err = ctl("member", "add", m.pg.Name, "--peer-urls="+peer)
		}
		return false, err
	})
	m.replaced = true
	return true, err
}

// etcdMember finds the member with a peer URL in what `etcdctl member list` says
// as JSON: its id in hexadecimal, "" for none, and its name, "" until it has
// started.
func etcdMember(list, peer string) (id, name string, err error) {
	i := strings.Index(list, "{")
	if i < 0 {
		return "", "", fmt.Errorf("etcdctl lists no members: %q", list)
	}
	var l struct {
		Members []struct {
			ID   uint64   `json:"ID"`
			Name string   `json:"name"`
			URLs []string `json:"peerURLs"`
		} `json:"members"`
	}
	if err := json.NewDecoder(strings.NewReader(list[i:])).Decode(&l); err != nil {
		return "", "", fmt.Errorf("read etcdctl's list of members: %w", err)
	}
	for _, m := range l.Members {
		if slices.Contains(m.URLs, peer) {
			return strconv.FormatUint(m.ID, 16), m.Name, nil
		}
	}
	return "", "", nil
}

// halt: an agent that is stopped stops its server. The primary's comes last, or
// another one would take over.
func (p *patroniCluster) halt(ctx context.Context, c *healing, prim *member, others []*member) error {
	stop := func(m *member) error { return m.agent().stop(ctx, agentGrace) }
	if err := c.each(others, stop); err != nil {
		return err
	}
	return stop(prim)
}

func (p *patroniCluster) switchover(ctx context.Context, _ *healing, from, to *member) error {
	body, err := json.Marshal(map[string]string{"leader": from.pg.Name, "candidate": to.pg.Name})
	if err != nil {
		return err
	}
	return request(ctx, from.host, http.MethodPost, p.health(from), "/switchover", string(body))
}

func (p *patroniCluster) versions(ctx context.Context, c *healing) (map[string]string, error) {
	v := map[string]string{}
	for name, cmd := range map[string]place.Cmd{
		"patroni": {Path: patroniProgram, Args: []string{"--version"}},
		"etcd":    {Path: etcdProgram, Args: []string{"--version"}},
	} {
		out, err := c.members[0].host.Run(ctx, cmd)
		if err != nil {
			return nil, fmt.Errorf("version of %s: %w", name, err)
		}
		first, _, _ := strings.Cut(string(out), "\n")
		fields := strings.Fields(first)
		if len(fields) == 0 {
			return nil, fmt.Errorf("version of %s: it said nothing", name)
		}
		v[name] = fields[len(fields)-1]
	}
	return v, nil
}
