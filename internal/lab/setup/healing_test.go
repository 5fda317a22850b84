package setup

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

// addressed is a host of which only name, address and paths matter.
type addressed struct {
	place.Host
	name, addr string
}

func (a addressed) Name() string    { return a.name }
func (a addressed) Addr() string    { return a.addr }
func (a addressed) DataDir() string { return "/data" }
func (a addressed) RunDir() string  { return "/run/x" }

func three(p product) *healing {
	c := &healing{product: p, password: "secret"}
	for _, n := range []string{"1", "2", "3"} {
		h := addressed{name: "h" + n, addr: "10.0.0." + n}
		c.members = append(c.members, &member{host: h, pg: &postgres.Instance{Name: h.name, Addr: h.addr, Port: port, User: "holdfast", DataDir: "/data/pgdata", SockDir: "/run/x", BinDir: "/bin"}})
	}
	return c
}

// TestPatroniConfig: the timers are those of the kind, and a secret is in no argument.
func TestPatroniConfig(t *testing.T) {
	p := patroni(20, 1, 5)().(*patroniCluster)
	c := three(p)
	text, err := json.Marshal(p.config(c, c.members[1]))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"ttl":20`, `"loop_wait":1`, `"synchronous_mode":true`, `"name":"h2"`, `"10.0.0.1:2379","10.0.0.2:2379","10.0.0.3:2379"`, `"listen":"10.0.0.2:5432"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	for _, again := range []bool{false, true} {
		c.members[1].replaced = again
		for _, s := range p.services(c, c.members[1]) {
			args := strings.Join(s.cmd.Args, " ")
			if strings.Contains(args, "secret") {
				t.Errorf("%s is started with %s", s.name, args)
			}
			if s.name == "etcd" && strings.Contains(args, "--initial-cluster-state existing") != again {
				t.Errorf("replaced: %v, but etcd is started with %s", again, args)
			}
		}
	}
}

func TestEtcdMember(t *testing.T) {
	const list = `warn: noise
{"header":{"cluster_id":1},"members":[{"ID":10276657743932975437,"name":"h1","peerURLs":["http://10.0.0.1:2380"]},{"ID":255,"peerURLs":["http://10.0.0.2:2380"]}]}
`
	for _, c := range []struct{ peer, id, name string }{
		{"http://10.0.0.1:2380", "8e9e05c52164694d", "h1"}, {"http://10.0.0.2:2380", "ff", ""}, {"http://10.0.0.3:2380", "", ""},
	} {
		id, name, err := etcdMember(list, c.peer)
		if err != nil || id != c.id || name != c.name {
			t.Errorf("%s is %q, %q, %v, want %q, %q", c.peer, id, name, err, c.id, c.name)
		}
	}
	for _, bad := range []string{"", "no", "{"} {
		if _, _, err := etcdMember(bad, "x"); err == nil {
			t.Errorf("%q is a list of members", bad)
		}
	}
}

// TestLineWatch: lines that matter are seen however they come in, and all is passed on.
func TestLineWatch(t *testing.T) {
	var to bytes.Buffer
	w := watchLines(&to, missedByPatroni)
	begin := time.Now()
	for _, part := range []string{"INFO: no action\nINFO: promoted", " self to leader by acquiring session lock\nx"} {
		if !w.after(begin).IsZero() {
			t.Error("seen before the line ended")
		}
		if _, err := w.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	at := w.after(begin)
	if at.IsZero() || !w.after(at).IsZero() {
		t.Errorf("seen %v", w.seen)
	}
	if want := "INFO: no action\nINFO: promoted self to leader by acquiring session lock\nx"; to.String() != want {
		t.Errorf("passed on: %q", to.String())
	}
}

func missedByPatroni(line string) bool { return (&patroniCluster{}).noticed(line) }

// TestStandbys: the one that commits wait for is first, the primary is none.
func TestStandbys(t *testing.T) {
	c := three(nil)
	for _, x := range []struct {
		primary, sync int
		want          string
	}{{0, 2, "h3 h2"}, {1, 0, "h1 h3"}, {2, 2, "h1 h2"}} {
		c.primary, c.sync = x.primary, x.sync
		var names []string
		for _, h := range c.Standbys() {
			names = append(names, h.Name())
		}
		if got := strings.Join(names, " "); got != x.want {
			t.Errorf("%+v: %s", x, got)
		}
	}
}
