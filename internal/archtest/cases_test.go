package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCasesPage: docs/cases.md lists the tests that are named after a report,
// each with the package that it is in, and no other.
func TestCasesPage(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(filepath.Join(root, "docs/cases.md"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{} // test, package
	for _, m := range regexp.MustCompile("\\| `(Test\\w+)` \\| `([\\w/]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		if listed[m[1]] != "" {
			t.Errorf("%s is listed twice", m[1])
		}
		listed[m[1]] = m[2]
	}
	if n := strings.Count(string(page), "| `TestCase"); n != len(listed) || n == 0 {
		t.Errorf("%d tests are on the page, and %d rows are read", n, len(listed))
	}
	for name, pkg := range caseTests(t, root) {
		if listed[name] != pkg {
			t.Errorf("%s is in %s; docs/cases.md has it in %q", name, pkg, listed[name])
		}
		delete(listed, name)
	}
	for name, pkg := range listed {
		t.Errorf("docs/cases.md lists %s in %s, which is not there", name, pkg)
	}
}

// caseTests are the tests named TestCase… with their packages.
func caseTests(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "TestCase") && f.Name.Name != "TestCasesPage" {
				found[f.Name.Name] = filepath.ToSlash(dir)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
