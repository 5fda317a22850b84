package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/node"
)

var rewrite = flag.Bool("rewrite", false, "write what status looks like now")

// TestRenderStatus shows what people see of each trouble that internal/node's
// tests make up, one file each. -rewrite writes them anew.
func TestRenderStatus(t *testing.T) {
	files, err := filepath.Glob("../node/testdata/status/*.json")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var s node.Status
		if err := json.Unmarshal(b, &s); err != nil {
			t.Fatal(err)
		}
		got := renderStatus(s, time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
		golden := filepath.Join("testdata", "status", strings.TrimSuffix(filepath.Base(file), ".json")+".txt")
		if *rewrite {
			if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil || got != string(want) {
			t.Errorf("%s: %v; it looks like\n%s", golden, err, got)
		}
	}
}

// TestWatchGoesOn: --watch outlives an agent that does not answer, and ends well
// when it is interrupted.
func TestWatchGoesOn(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "node.yaml")
	text := "cluster: orders\nnode: b\nstate: " + dir + "/state\nrun: " + dir + "\nidentity: " + dir + "/etc\npostgres:\n  data: " + dir + "-pg\nmembers:\n" +
		"  - {name: b, address: \"10.0.0.2:7400\", postgres: \"10.0.0.2:5432\"}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	complaints := make(chan string, 100)
	ended := make(chan int, 1)
	go func() {
		ended <- Run(ctx, Env{Args: []string{"status", "--watch", "--json", "--config", file}, Stdout: &out, Stderr: toChannel(complaints), Getenv: func(string) string { return "" }})
	}()
	if first := <-complaints; !strings.Contains(first, "no agent answers") {
		t.Errorf("the first look, which finds nobody, says %q", first)
	}
	l, err := net.Listen("unix", node.AdminSocket(dir))
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan bool, 10)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"cluster":"orders"}`))
		asked <- true
	}), ReadHeaderTimeout: time.Second}
	go func() { _ = s.Serve(l) }()
	defer s.Close() //nolint:errcheck // a test's
	for range 2 {
		select {
		case <-asked:
		case code := <-ended:
			t.Fatalf("it ended with %d", code)
		case <-time.After(30 * time.Second):
			t.Fatal("it does not ask again")
		}
	}
	cancel()
	if code := <-ended; code != 0 || !strings.Contains(out.String(), `"cluster":"orders"`) {
		t.Errorf("exit code %d, out %q", code, out.String())
	}
}

// toChannel passes on what is written.
type toChannel chan string

func (c toChannel) Write(b []byte) (int, error) {
	c <- string(b)
	return len(b), nil
}
