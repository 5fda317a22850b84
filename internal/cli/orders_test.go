package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOrdersHelp: each order says what it does, with an example, and completes the
// names of nodes.
func TestOrdersHelp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.yaml")
	text := "cluster: orders\nnode: b\nstate: /nonexistent/state\nrun: /nonexistent/run\nidentity: /nonexistent/etc\npostgres:\n  data: /nonexistent/pg\nmembers:\n" +
		"  - {name: a, address: \"10.0.0.1:7400\", postgres: \"10.0.0.1:5432\"}\n  - {name: b, address: \"10.0.0.2:7400\", postgres: \"10.0.0.2:5432\"}\n" +
		"  - {name: w, address: \"10.0.0.3:7400\", witness: true}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (int, string) {
		var out bytes.Buffer
		code := Run(t.Context(), Env{Args: args, Stdout: &out, Stderr: &out, Getenv: func(k string) string { return map[string]string{"HOLDFAST_CONFIG": file}[k] }, Version: "test"})
		return code, out.String()
	}
	for name, node := range map[string]bool{"pause": false, "resume": false, "restart": false, "fence": true, "unfence": true, "reinit": true, "switchover": true, "failover": true} {
		code, help := run(name, "--help")
		if code != 0 || !strings.Contains(help, "Examples:\n  holdfast "+name) || strings.Index(help, "Usage:") < 40 {
			t.Errorf("%s --help: %d\n%s", name, code, help)
		}
		if !node {
			continue
		}
		if _, offered := run("__complete", name, ""); !strings.HasPrefix(offered, "a\nb\n:4") {
			t.Errorf("%s is completed with %q", name, offered)
		}
	}
}
