package config

import (
	"regexp"
	"strings"
	"testing"
)

const goodNode = `cluster: orders
node: b
state: /var/lib/holdfast/orders
run: /run/holdfast/orders
identity: /etc/holdfast/orders
members:
  - name: a
    address: 10.0.0.1:7400
    postgres: 10.0.0.1:5432
    zone: fra
  - name: b
    address: 10.0.0.2:7400
    postgres: 10.0.0.2:5432
  - name: w
    address: 10.0.0.3:7400
    witness: true
postgres:
  data: /var/lib/postgresql/orders
  settings:
    shared_buffers: 2GB
  hba:
    - hostssl all all 10.0.0.0/8 scram-sha-256
`

func TestNode(t *testing.T) {
	n, err := ParseNode("node.yaml", []byte(goodNode))
	if err != nil {
		t.Fatal(err)
	}
	if n.Profile != ProfileDefault || n.Mode != ModePreferred || n.K != 1 || n.HTTP.Listen != DefaultHTTP || n.Timing.Degrade != "10s" {
		t.Errorf("defaults: %+v", n)
	}
	if m, ok := n.Self(); !ok || m.Postgres != "10.0.0.2:5432" {
		t.Errorf("self: %+v", m)
	}
}

// TestNodeErrors: each error names the file, the line, and what would be right.
func TestNodeErrors(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"unknown key", "node: b", "nod: b", `unknown field "nod"`},
		{"no cluster", "cluster: orders", "cluster: Orders!", "is no name for a cluster"},
		{"no member", "node: b", "node: x", `"x" is not among the members`},
		{"relative", "state: /var/lib/holdfast/orders", "state: state", "want an absolute path"},
		{"no port", "10.0.0.2:7400", "10.0.0.2", "want host:port"},
		{"name twice", "- name: w", "- name: a", "a is a's already"},
		{"address twice", "10.0.0.3:7400", "10.0.0.1:7400", "10.0.0.1:7400 is a's already"},
		{"witness with data", "witness: true", "witness: true\n    postgres: 10.0.0.3:5432", "a witness holds no data"},
		{"no data directory", "  data: /var/lib/postgresql/orders\n", "", "postgres.data"},
		{"data within state", "data: /var/lib/postgresql/orders", "data: /var/lib/holdfast/orders/pg", "must not contain one another"},
		{"k", "node: b", "node: b\nk: 2", "2 standbys cannot confirm a commit"},
		{"mode", "node: b", "node: b\nmode: favoured", "neither preferred nor required"},
		{"profile", "node: b", "node: b\nprofile: faster", "neither default nor fast"},
		{"hba", "hostssl all all 10.0.0.0/8 scram-sha-256", "trust", "one line of pg_hba.conf"},
		{"http", "postgres:\n  data", "http:\n  listen: 0.0.0.0:7480\npostgres:\n  data", "name a file with a token"},
		{"slot cap", "  data: /var/lib", "  slot_cap: lots\n  data: /var/lib", "is no size"},
		{"degrade", "postgres:\n  data", "timing:\n  degrade: soon\npostgres:\n  data", "is no duration"},
		{"cluster missing", "cluster: orders\n", "", "missing: the cluster's name"},
		{"members missing", goodNode[strings.Index(goodNode, "members:"):strings.Index(goodNode, "postgres:\n  data")], "", "missing: every node of the cluster"},
		{"port too high", "10.0.0.2:7400", "10.0.0.2:70000", "want host:port"},
		{"postgres missing", "    postgres: 10.0.0.1:5432\n", "", "want host:port"},
		{"http no port", "postgres:\n  data", "http:\n  listen: localhost\npostgres:\n  data", "want host:port"},
		{"remove too short", "postgres:\n  data", "timing:\n  remove: 1ms\npostgres:\n  data", "between 100ms and 1h"},
		{"setting no text", "shared_buffers: 2GB", "shared_buffers: [2]", "node.yaml"},
		{"identity missing", "identity: /etc/holdfast/orders\n", "", "want an absolute path"},
		{"type", "node: b", "node: b\nk: many", "node.yaml"},
		{"empty", goodNode, "", "cluster init"},
		{"alias", "node: b", "node: *b", "node.yaml"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(goodNode, c.old, c.new, 1)
			if text == goodNode {
				t.Fatal("the case changes nothing")
			}
			_, err := ParseNode("node.yaml", []byte(text))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "node.yaml") {
				t.Fatalf("got %v, want the file's name and %q", err, c.want)
			}
			// What is missing at the top has no place; its key is named.
			if unplaced := c.name == "empty" || c.name == "alias" || strings.HasSuffix(c.name, " missing") && c.name != "postgres missing"; !unplaced && !place.MatchString(err.Error()) {
				t.Errorf("no line and column: %v", err)
			}
		})
	}
}

var place = regexp.MustCompile(`node\.yaml: \[[0-9]+:[0-9]+\]`)

func FuzzParseNode(f *testing.F) {
	f.Add([]byte(goodNode))
	f.Add([]byte("members: [*a]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := ParseNode("f", b)
		if err != nil {
			return
		}
		if _, ok := n.Self(); !ok {
			t.Error("accepted without this node among the members")
		}
	})
}
