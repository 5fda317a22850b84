package cluster_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/cluster/sim"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts say now into testdata/*.txt; review it as a diff")

// play runs a script: commands, each followed by ---- and what it should say.
func play(t *testing.T, text string) string {
	t.Helper()
	s := sim.NewScript()
	var out strings.Builder
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if line == "" || strings.HasPrefix(line, "#") {
			out.WriteString(line + "\n")
			continue
		}
		out.WriteString(line + "\n")
		if i+1 < len(lines) && lines[i+1] != "----" {
			// Commands without a separator are carried out and say nothing.
			if _, err := s.Do(line); err != nil {
				t.Fatal(err)
			}
			continue
		}
		said, err := s.Do(line)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("----\n" + said)
		for i++; i+1 < len(lines) && lines[i+1] != ""; i++ {
		}
	}
	return strings.TrimRight(out.String(), "\n") + "\n"
}

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(want))
			if *rewrite {
				if err := os.WriteFile(f, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("%s says something else now; run go test ./internal/cluster -run Scripts -rewrite and review the diff\n%s", f, firstDifference(string(want), got))
			}
		})
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return "was: " + w[i] + "\nnow: " + g[i]
		}
	}
	return "one is longer than the other"
}

// TestEveryRowHasAScript holds the tables of docs/SAFETY.md against testdata: a
// row of theirs without a script, or a script that no row names, is a failure.
func TestEveryRowHasAScript(t *testing.T) {
	doc, err := os.ReadFile("../../docs/SAFETY.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	rows := map[string]int{}
	section := ""
	script := regexp.MustCompile("`([a-z0-9-]+)\\.txt`")
	for line := range strings.Lines(string(doc)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "## ") {
			section = line[3:]
		}
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|--") || !strings.HasPrefix(section, "Table: ") || strings.HasPrefix(line, "| case") {
			continue
		}
		rows[section]++
		m := script.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("no script in the row %q", line)
			continue
		}
		named[m[1]] = true
		if _, err := os.Stat(filepath.Join("testdata", m[1]+".txt")); err != nil {
			t.Errorf("the script of %q: %v", line, err)
		}
	}
	for section, n := range map[string]int{"Table: changes of S and k": 6, "Table: cases that must come out right": 21, "Table: what went wrong for others": 23} {
		if rows[section] < n {
			t.Errorf("%q has %d rows, at least %d are expected", section, rows[section], n)
		}
	}
	files, _ := filepath.Glob("testdata/*.txt")
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".txt"); !named[name] {
			t.Errorf("no row of docs/SAFETY.md names %s", f)
		}
	}
}
