package lab

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-db/holdfast/internal/result"
)

const cumulative = `study: x
cumulative: true
setups: [{setup: patroni-fast}, {setup: pg-any1}]
experiments: [{experiment: power-off, repeat: 2}, {experiment: host-lost, repeat: 2}]
`

// TestExtend: what is added to a cumulative run comes after what is there, which
// keeps its numbers; another study, another version and an edited one are refused.
func TestExtend(t *testing.T) {
	dir := t.TempDir()
	s := parse(t, cumulative)
	hash, err := keepStudy(dir, s)
	if err != nil {
		t.Fatal(err)
	}
	run := &result.Run{
		Schema: result.Schema, Study: "x", Seed: 5, Started: "2026-01-01T00:00:00Z", Finished: "2026-01-01T01:00:00Z",
		StudySHA256: hash, Environment: map[string]string{"holdfast": "v1"}, Cells: []result.Cell{},
	}
	if err := result.Write(dir, run); err != nil {
		t.Fatal(err)
	}
	before, err := plan(s, run.Seed)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Extend(dir, parse(t, cumulative), "v2"); err == nil {
		t.Error("another version adds to the run")
	}
	other := parse(t, cumulative)
	other.Experiments[0].Rate = 7
	if _, _, err := Extend(dir, other, "v1"); !errors.Is(err, ErrHoldsRun) {
		t.Errorf("another study: %v", err)
	}
	for want := 4; want <= 6; want += 2 {
		again, longer, err := Extend(dir, parse(t, cumulative), "v1")
		if err != nil {
			t.Fatal(err)
		}
		if again.Finished != "" || longer.Experiments[0].Repeat != want || longer.Experiments[1].Repeat != want {
			t.Fatalf("%+v of %+v", longer, again)
		}
		after, err := plan(longer, again.Seed)
		if err != nil || len(after) != len(before)*want/2 {
			t.Fatalf("%d cells, %v", len(after), err)
		}
		for i, c := range before {
			if after[i].String() != c.String() {
				t.Errorf("cell %d was %s and is %s", i+1, c, after[i])
			}
		}
		if _, study, err := Interrupted(dir); err != nil || study.Experiments[0].Repeat != want {
			t.Fatalf("it cannot be resumed: %v", err)
		}
		again.Finished = "2026-01-01T02:00:00Z"
		if err := result.Write(dir, again); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, studyFile), []byte(cumulative), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Extend(dir, parse(t, cumulative), "v1"); !errors.Is(err, ErrEdited) {
		t.Errorf("an edited study: %v", err)
	}
}
