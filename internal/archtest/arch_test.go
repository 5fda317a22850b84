// Package archtest holds the rules of who may import whom.
package archtest

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/holdfast-db/holdfast/"

type pkg struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all []pkg
	dec := json.NewDecoder(out)
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return all
}

// within says whether path is package dir or below it ("internal/lab").
func within(path, dir string) bool {
	path = strings.TrimPrefix(path, module)
	return path == dir || strings.HasPrefix(path, dir+"/")
}

func standard(path string) bool { return !strings.Contains(strings.SplitN(path, "/", 2)[0], ".") }

// onlyStandard import the standard library and what is named beside them.
var onlyStandard = map[string][]string{
	"internal/cluster": nil,
	"internal/disk":    nil, // the pure model; its subpackages are adapters
	"internal/history": nil,
	"internal/result":  {"internal/stats"},
	"internal/stats":   nil,
	"internal/check":   {"internal/history"},
}

// forbidden names what a subtree must never import.
var forbidden = map[string][]string{
	"internal/lab":           {"internal/cluster", "internal/node", "internal/archive", "internal/cli"},
	"internal/report":        {"internal/lab", "internal/check", "internal/history", "internal/cli"},
	"internal/disk":          {"internal/lab", "internal/cli"},
	"internal/config":        {"internal/lab", "internal/cli"},
	"internal/node/instance": {"internal/quorum", "internal/lab", "internal/cli"},
	"internal/quorum":        {"internal/cluster", "internal/node", "internal/lab", "internal/cli"},
	"internal/diagnose":      {"internal/lab", "internal/cli", "internal/cluster", "internal/node", "internal/archive"},
}

func TestImports(t *testing.T) {
	all := packages(t)
	if len(all) < 10 {
		t.Fatalf("go list found %d packages only", len(all))
	}
	for _, p := range all {
		if allowed, ok := onlyStandard[strings.TrimPrefix(p.ImportPath, module)]; ok {
			for _, i := range p.Imports {
				if !standard(i) && !slices.Contains(allowed, strings.TrimPrefix(i, module)) {
					t.Errorf("%s imports %s: it may import the standard library%s only", p.ImportPath, i, strings.Join(append([]string{""}, allowed...), " and "))
				}
			}
		}
		for dir, never := range forbidden {
			if !within(p.ImportPath, dir) {
				continue
			}
			for _, i := range p.Imports {
				for _, n := range never {
					if within(i, n) {
						t.Errorf("%s imports %s: nothing in %s may", p.ImportPath, i, dir)
					}
				}
			}
		}
	}
}

// ambient is what only the command line may look at: everything else gets its
// settings handed in.
var ambient = map[string][]string{
	"os": {"Getenv", "LookupEnv", "Environ", "Args", "Stdin", "Stdout", "Stderr"},
}

// mayLook may look at the process's own surroundings, and why.
var mayLook = map[string]string{
	"cmd/holdfast":                   "hands them to the command line",
	"internal/cli":                   "is the command line",
	"internal/testbin":               "serves tests only",
	"internal/e2e/register/member":   "is the program that the register's drills run",
	"docs/examples/queue":            "is a program of its own, to be read",
	"docs/examples/commit":           "is a program of its own, to be read",
	"internal/lab/place/placetest":   "serves tests only",
	"internal/disk/fuse":             "hands its environment on to fusermount3",
	"internal/pgbench/pgtest":        "serves tests only",
	"internal/lab/place/local/guest": "is the first process of a host, and what it has it gives to the host's programs",
}

// TestAmbient: no package but the command line reads the environment, the
// arguments or the standard streams.
func TestAmbient(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{$d := .Dir}}{{range .GoFiles}}{{$.ImportPath}} {{$d}}/{{.}}\n{{end}}", module+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		path, file, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || mayLook[strings.TrimPrefix(path, module)] != "" {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && slices.Contains(ambient[x.Name], sel.Sel.Name) {
				t.Errorf("%s uses %s.%s: have it handed in", file, x.Name, sel.Sel.Name)
			}
			return true
		})
	}
}
