package lab

import (
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
)

func builtin(t *testing.T, name string) *config.Study {
	t.Helper()
	data, ok := Builtin(name)
	if !ok {
		t.Fatalf("no built-in study %s", name)
	}
	s, err := config.ParseStudy(name, data)
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestBuiltins: scripts know them by name, and each ends within 45 minutes.
func TestBuiltins(t *testing.T) {
	for _, name := range []string{"quick", "selftest", "power-off", "replication-modes", "faults"} {
		s := builtin(t, name)
		if s.Name != name || s.About == "" {
			t.Errorf("%s: calls itself %q, about %q", name, s.Name, s.About)
		}
		cells, d, err := Estimate(s, 1)
		if err != nil || cells == 0 || d > 45*time.Minute {
			t.Errorf("%s: %d cells, %s, %v", name, cells, d, err)
		}
	}
	if _, d, _ := Estimate(builtin(t, "quick"), 1); d > 5*time.Minute {
		t.Errorf("quick takes %s", d)
	}
}

// TestPlan: every group runs once in each block, in an order that the seed
// decides and nothing else.
func TestPlan(t *testing.T) {
	s := builtin(t, "replication-modes")
	a, err := plan(s, 1)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := plan(s, 1)
	c, _ := plan(s, 2)
	same := true
	for i := range a {
		if a[i].String() != b[i].String() {
			t.Fatalf("cell %d differs with the same seed: %s, %s", i, a[i], b[i])
		}
		same = same && a[i].String() == c[i].String()
	}
	if same {
		t.Error("the order does not depend on the seed")
	}
	seen := map[string]bool{}
	block := 0
	for _, p := range a {
		if seen[p.String()] {
			t.Errorf("%s runs twice", p)
		}
		seen[p.String()] = true
		if p.repetition < block {
			t.Errorf("%s comes after block %d", p, block)
		}
		block = p.repetition
	}
	// 6 setups × 2 numbers of clients × 5, and the disk and the network once.
	if want := 6*2*5 + 2 + 1; len(a) != want {
		t.Errorf("%d cells, want %d", len(a), want)
	}
}

// TestPlanLag: nobody lags behind a single host.
func TestPlanLag(t *testing.T) {
	s, err := config.ParseStudy("x", []byte("study: x\nsetups: [{setup: pg-single}]\nexperiments: [{experiment: power-off, lag_ms: [1500]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plan(s, 1); err == nil {
		t.Error("a study with nothing to run is accepted")
	}
}
