package lab

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/experiment"
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
	for _, name := range []string{"quick", "selftest", "power-off", "replication-modes", "faults", "aa", "failover", "cluster-cost"} {
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
	// 6 setups and a twin × 2 numbers of clients × 5, and the disk and the network once.
	if want := 7*2*5 + 2 + 1; len(a) != want {
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

func parse(t *testing.T, text string) *config.Study {
	t.Helper()
	s, err := config.ParseStudy("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCheck: names, keys and pairs that cannot be are refused at their place.
func TestCheck(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"study: x\nsetups:\n  - setup: pg-none\nexperiments:\n  - experiment: commit\n", "f.yaml: [3:12] setups[0].setup: no setup is called"},
		{"study: x\nsetups:\n  - setup: pg-single\n    disk: floppy\nexperiments:\n  - experiment: commit\n", "f.yaml: [4:11] setups[0].disk: unknown disk"},
		{"study: x\nsetups:\n  - setup: pg-single\nexperiments:\n  - experiment: comit\n", "f.yaml: [5:17] experiments[0].experiment: no experiment is called"},
		{"study: x\nsetups:\n  - setup: pg-single\nexperiments:\n  - experiment: commit\n    lag_ms: [5]\n", "f.yaml: [6:13] experiments[0].lag_ms: the experiment commit does not use it"},
		{"study: x\nsetups:\n  - setup: pg-single\n    aa: true\nexperiments:\n  - experiment: restart\n", "f.yaml: [4:9] setups[0].aa: pairs are made of"},
	} {
		if err := Check(parse(t, c.text)); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("want %q, have: %v", c.want, err)
		}
	}
	_, err := plan(parse(t, "study: x\nsetups:\n  - setup: pg-single\n  - setup: pg-any1\nexperiments:\n  - experiment: power-off\n    setups: [pg-single]\n    lag_ms: [1500]\n"), 1)
	for _, want := range []string{"[6:5]", "pg-single has one host", "pg-any1 on local-nvme is not among its `setups`"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("an experiment that fits nothing: want %q, have: %v", want, err)
		}
	}
}

// TestKeys: every experiment there is takes the keys that its groups depend on.
func TestKeys(t *testing.T) {
	for _, e := range experiment.All() {
		keys := experiment.Keys(e.Name())
		sized := e.Name() == "vacuum" || e.Name() == "logical-backlog" // take as long as they take
		for _, k := range []string{"experiment", "setups", "disks", "repeat", "seconds"} {
			if sized && k == "seconds" {
				continue
			}
			if !slices.Contains(keys, k) {
				t.Errorf("%s does not take %s", e.Name(), k)
			}
		}
		if e.Name() == "power-off" && !slices.Contains(keys, "lag_ms") || slices.Contains(keys, "clients") != (e.Name() == "commit" || e.Name() == "storage-bound") ||
			slices.Contains(keys, "megabytes") != sized || slices.Contains(keys, "seconds") == sized {
			t.Errorf("%s takes %v", e.Name(), keys)
		}
	}
}

// TestPlanPairs: an A/A setup is measured twice in every block, on deployments
// of its own; what was slowed down on purpose is not.
func TestPlanPairs(t *testing.T) {
	cells, err := plan(builtin(t, "aa"), 1)
	if err != nil {
		t.Fatal(err)
	}
	per, twins := map[int]int{}, map[int]int{}
	deployments := map[config.Setup]bool{}
	for _, c := range cells {
		per[c.repetition]++
		deployments[c.setup] = true
		if c.setup.Twin {
			twins[c.repetition]++
		}
		if _, slowed := c.params["flush_times"]; slowed && c.setup.Twin {
			t.Errorf("%s has a twin", c)
		}
	}
	if len(deployments) != 4 || len(per) != 5 {
		t.Errorf("%d deployments and %d blocks", len(deployments), len(per))
	}
	for r := range per {
		if per[r] != 22 || twins[r] != 10 {
			t.Errorf("block %d has %d cells and %d twins, want 22 and 10", r, per[r], twins[r])
		}
	}
}
