package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWALRestore: exit code 1, and nothing else but 0, since Postgres ends over
// higher ones; silent about files that are just not there.
func TestWALRestore(t *testing.T) {
	run, state := t.TempDir(), t.TempDir()
	target := filepath.Join(run, "target")
	restore := func(name string) (code int, said string) {
		var out, errs bytes.Buffer
		code = Run(t.Context(), Env{Args: []string{"wal-restore", "--run-dir", run, "--state-dir", state, name, target},
			Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }})
		return code, errs.String()
	}
	if code, said := restore("000000010000000000000001"); code != 1 || !strings.Contains(said, "not known yet") {
		t.Fatalf("without the register's history: %d, %q", code, said)
	}
	if err := os.WriteFile(filepath.Join(run, "forks"), []byte("1 0/0\n4 0/2800000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(state, "aside", "1")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"000000010000000000000001", "000000010000000000000002"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 16<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if code, said := restore("000000010000000000000005"); code != 1 || said != "" {
		t.Fatalf("what is not there: %d, %q", code, said)
	}
	if code, said := restore("000000010000000000000002"); code != 1 || !strings.Contains(said, "leaves timeline 1") {
		t.Fatalf("beyond the fork: %d, %q", code, said)
	}
	if _, err := os.Stat(target); err == nil {
		t.Fatal("it was restored")
	}
	if code, said := restore("000000010000000000000001"); code != 0 || said != "" {
		t.Fatalf("%d, %q", code, said)
	}
	if st, err := os.Stat(target); err != nil || st.Size() != 16<<20 {
		t.Fatalf("%v: %v", st, err)
	}
}
