package config

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Node is the configuration of one node of a cluster: what `holdfast node --config` reads.
// Everything under Cluster, Members, Mode and K is the same on every node.
type Node struct {
	Cluster  string   `yaml:"cluster"`  // the cluster's name, [a-z][a-z0-9-]*, at most 20 bytes
	Node     string   `yaml:"node"`     // which of Members this is
	State    string   `yaml:"state"`    // the agent's own directory, outside of Postgres's data directory
	Run      string   `yaml:"run"`      // a directory in memory (tmpfs): permits, sockets
	Identity string   `yaml:"identity"` // holds ca.crt, node.crt, node.key (0600)
	Profile  string   `yaml:"profile"`  // default, or fast: timers half as long
	Mode     string   `yaml:"mode"`     // preferred (default) or required; read when the cluster is founded
	K        int      `yaml:"k"`        // how many standbys confirm a commit; read when the cluster is founded; default 1
	Members  []Member `yaml:"members"`

	Postgres Postgres `yaml:"postgres"`
	HTTP     HTTP     `yaml:"http"`
	Timing   Timing   `yaml:"timing"`

	source *source
}

// Member is one node as the others know it.
type Member struct {
	Name     string `yaml:"name"`     // [a-z][a-z0-9-]*, at most 15 bytes
	Address  string `yaml:"address"`  // host:port of the agent
	Postgres string `yaml:"postgres"` // host:port of its Postgres; none for a witness
	Zone     string `yaml:"zone"`     // where it stands; shown
	Witness  bool   `yaml:"witness"`  // votes, holds no data
	Reader   bool   `yaml:"reader"`   // holds data, never enters S and is never promoted by itself
	Priority int    `yaml:"priority"` // breaks ties between candidates
}

// Postgres is the local instance.
type Postgres struct {
	Bin      string            `yaml:"bin"`      // folder of the server programs; default: the newest supported major
	Data     string            `yaml:"data"`     // the data directory
	User     string            `yaml:"user"`     // the system user that Postgres runs as when the agent is root; default postgres
	Settings map[string]string `yaml:"settings"` // server settings of the user's own
	HBA      []string          `yaml:"hba"`      // lines of pg_hba.conf, in force while the door is open
	SlotCap  string            `yaml:"slot_cap"` // how much WAL a slot may hold back; default 10GB
}

// HTTP is where load balancers and monitoring ask.
type HTTP struct {
	Listen string `yaml:"listen"` // host:port; default 127.0.0.1:7480; "off": nowhere
	Token  string `yaml:"token"`  // a file with the token that /metrics and /status need where Listen is no loopback address
}

// Timing overrides what the profile says, as Go durations (10s, 500ms).
type Timing struct {
	Degrade string `yaml:"degrade"` // preferred: how long commits wait before the primary goes on alone; default 10s
	Remove  string `yaml:"remove"`  // a silent standby leaves S after this; default 2s
}

// Profiles, modes and defaults of a node.
const (
	ProfileDefault = "default"
	ProfileFast    = "fast"
	ModePreferred  = "preferred"
	ModeRequired   = "required"

	DefaultHTTP = "127.0.0.1:7480"
	httpOff     = "off"
)

// ParseNode reads one node's configuration. file appears in errors only.
func ParseNode(file string, data []byte) (*Node, error) {
	var n Node
	src, err := strict(file, data, &n, "the file is empty; `holdfast cluster init` writes one for each node")
	if err != nil {
		return nil, err
	}
	n.source = src
	setDefault(&n.Profile, ProfileDefault)
	setDefault(&n.Mode, ModePreferred)
	setDefault(&n.K, 1)
	setDefault(&n.Postgres.User, "postgres")
	setDefault(&n.Postgres.SlotCap, "10GB")
	setDefault(&n.HTTP.Listen, DefaultHTTP)
	setDefault(&n.Timing.Degrade, "10s")
	setDefault(&n.Timing.Remove, "2s")
	if err := n.validate(); err != nil {
		return nil, src.place(err)
	}
	return &n, nil
}

// At says where in the file an error about the value at path lies.
func (n *Node) At(path string, err error) error {
	if err == nil || n.source == nil {
		return err
	}
	return n.source.place(at(path, err))
}

var (
	clusterName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,19}$`)
	memberName  = regexp.MustCompile(`^[a-z][a-z0-9-]{0,14}$`)
)

// CheckClusterName and CheckMemberName are what `cluster init` asks first.
func CheckClusterName(s string) error {
	if !clusterName.MatchString(s) {
		return fmt.Errorf("%q is no name for a cluster: a letter, then letters, digits or -, all lower case, at most 20", s)
	}
	return nil
}

// CheckMemberName says whether a node may be called so.
func CheckMemberName(s string) error {
	if !memberName.MatchString(s) {
		return fmt.Errorf("%q is no name for a node: a letter, then letters, digits or -, all lower case, at most 15", s)
	}
	return nil
}

func (n *Node) validate() error {
	if n.Cluster == "" {
		return at("cluster", errors.New("missing: the cluster's name"))
	}
	if err := CheckClusterName(n.Cluster); err != nil {
		return at("cluster", err)
	}
	for _, d := range []struct{ key, value, what string }{
		{"state", n.State, "the agent's own directory, such as /var/lib/holdfast"},
		{"run", n.Run, "a directory in memory, such as /run/holdfast"},
		{"identity", n.Identity, "the directory with ca.crt, node.crt and node.key"},
	} {
		if !filepath.IsAbs(d.value) {
			return at(d.key, fmt.Errorf("want an absolute path: %s", d.what))
		}
	}
	if n.Profile != ProfileDefault && n.Profile != ProfileFast {
		return at("profile", fmt.Errorf("%q is neither default nor fast", n.Profile))
	}
	if n.Mode != ModePreferred && n.Mode != ModeRequired {
		return at("mode", fmt.Errorf("%q is neither preferred nor required", n.Mode))
	}
	if err := n.validateMembers(); err != nil {
		return err
	}
	if err := n.validatePostgres(); err != nil {
		return err
	}
	if n.HTTP.Listen != httpOff {
		if err := hostPort(n.HTTP.Listen); err != nil {
			return at("http.listen", err)
		}
		if host, _, _ := net.SplitHostPort(n.HTTP.Listen); n.HTTP.Token == "" && !isLoopback(host) {
			return at("http.listen", errors.New("others can reach this address: name a file with a token in http.token, or listen on 127.0.0.1"))
		}
	}
	for _, d := range []struct{ key, value string }{{"timing.degrade", n.Timing.Degrade}, {"timing.remove", n.Timing.Remove}} {
		if v, err := time.ParseDuration(d.value); err != nil || v < 100*time.Millisecond || v > time.Hour {
			return at(d.key, fmt.Errorf("%q is no duration between 100ms and 1h, such as 10s", d.value))
		}
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (n *Node) validateMembers() error {
	if len(n.Members) == 0 {
		return at("members", errors.New("missing: every node of the cluster, this one too"))
	}
	seen := map[string]string{}
	data := 0
	for i, m := range n.Members {
		path := fmt.Sprintf("members[%d]", i)
		if err := CheckMemberName(m.Name); err != nil {
			return at(path+".name", err)
		}
		if err := hostPort(m.Address); err != nil {
			return at(path+".address", err)
		}
		for _, v := range []struct{ key, value string }{{"name", m.Name}, {"address", m.Address}, {"postgres", m.Postgres}} {
			if v.value == "" {
				continue
			}
			if other := seen[v.value]; other != "" {
				return at(path+"."+v.key, fmt.Errorf("%s is %s's already", v.value, other))
			}
			seen[v.value] = m.Name
		}
		switch {
		case m.Witness && (m.Postgres != "" || m.Reader):
			return at(path+".witness", errors.New("a witness holds no data: it has no Postgres and reads nothing"))
		case !m.Witness:
			if err := hostPort(m.Postgres); err != nil {
				return at(path+".postgres", err)
			}
			if !m.Reader {
				data++
			}
		}
	}
	self, ok := n.Self()
	if !ok {
		return at("node", fmt.Errorf("%q is not among the members", n.Node))
	}
	if !self.Witness && n.Postgres.Data == "" {
		return at("postgres.data", errors.New("missing: where Postgres's data directory is, or is to be"))
	}
	if n.K < 1 || n.K >= data && data > 1 {
		return at("k", fmt.Errorf("%d standbys cannot confirm a commit: %d of the members hold data and may confirm, the primary among them", n.K, data))
	}
	return nil
}

func (n *Node) validatePostgres() error {
	if d := n.Postgres.Data; d != "" {
		if !filepath.IsAbs(d) {
			return at("postgres.data", errors.New("want an absolute path"))
		}
		for _, o := range []string{n.State, n.Run} {
			if inside(o, d) || inside(d, o) {
				return at("postgres.data", fmt.Errorf("%s and %s must not contain one another: what the agent keeps must outlive the data directory", d, o))
			}
		}
	}
	if _, err := ParseBytes(n.Postgres.SlotCap); err != nil {
		return at("postgres.slot_cap", err)
	}
	for i, l := range n.Postgres.HBA {
		if strings.ContainsAny(l, "\n\r") || len(strings.Fields(l)) < 4 {
			return at(fmt.Sprintf("postgres.hba[%d]", i), errors.New("want one line of pg_hba.conf, such as: hostssl all all 10.0.0.0/8 scram-sha-256"))
		}
	}
	return nil
}

func inside(p, dir string) bool {
	rel, err := filepath.Rel(dir, p)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

func hostPort(s string) error {
	host, port, err := net.SplitHostPort(s)
	p, perr := strconv.Atoi(port)
	if err != nil || host == "" || perr != nil || p < 1 || p > 65535 {
		return fmt.Errorf("%q is no address: want host:port", s)
	}
	return nil
}

// Self is this node's own entry.
func (n *Node) Self() (Member, bool) { return n.Member(n.Node) }

// Member is the entry of the node of that name.
func (n *Node) Member(name string) (Member, bool) {
	for _, m := range n.Members {
		if m.Name == name {
			return m, true
		}
	}
	return Member{}, false
}

var units = []struct {
	suffix string
	bytes  int64
}{{"kB", 1 << 10}, {"MB", 1 << 20}, {"GB", 1 << 30}, {"TB", 1 << 40}}

// ParseBytes reads a size as Postgres writes it: 512MB, 10GB.
func ParseBytes(s string) (int64, error) {
	for _, u := range units {
		if d, ok := strings.CutSuffix(s, u.suffix); ok {
			v, err := strconv.ParseInt(strings.TrimSpace(d), 10, 64)
			if err == nil && v > 0 && v < 1<<50/u.bytes {
				return v * u.bytes, nil
			}
		}
	}
	return 0, fmt.Errorf("%q is no size: want a number and kB, MB, GB or TB", s)
}

// HTTPOff says whether nothing is to be listened on for load balancers.
func (n *Node) HTTPOff() bool { return n.HTTP.Listen == httpOff }
