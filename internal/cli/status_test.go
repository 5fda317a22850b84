package cli

import (
	"encoding/json"
	"flag"
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
