package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// piece is a part of a long run: the schedules of consecutive seeds.
type piece struct {
	Revision          string // of the core, as -revision says
	Seed              uint64
	Schedules, Failed int
	Seconds           float64
	Cover             Coverage
}

func (p piece) end() uint64 { return p.Seed + uint64(p.Schedules) }

// sum adds up pieces of one revision. A seed that was run twice counts for
// nothing new, so it is refused.
func sum(pieces []piece) (piece, error) {
	total := piece{Cover: NewCoverage()}
	for i, p := range pieces {
		for _, o := range pieces[:i] {
			if p.Seed < o.end() && o.Seed < p.end() {
				return piece{}, fmt.Errorf("seeds %d to %d and %d to %d overlap", o.Seed, o.end()-1, p.Seed, p.end()-1)
			}
			if p.Revision != o.Revision {
				return piece{}, fmt.Errorf("pieces are of revisions %q and %q: they prove nothing together", o.Revision, p.Revision)
			}
		}
		total.Revision = p.Revision
		total.Schedules += p.Schedules
		total.Failed += p.Failed
		total.Seconds += p.Seconds
		total.Cover.Add(p.Cover)
	}
	return total, nil
}

func (p piece) String() string {
	return fmt.Sprintf("%d schedules, %d failed, %.0f a second; %d steps, %d writes acknowledged", p.Schedules, p.Failed,
		float64(p.Schedules)/p.Seconds, p.Cover.Steps, p.Cover.Acked)
}

// readTally reads the pieces in a file, one a line; none if there is no file.
func readTally(path string) ([]piece, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []piece
	for line := range strings.Lines(string(b)) {
		var p piece
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// addTally adds a piece to the file, and returns the sum.
func addTally(path string, p piece) (piece, error) {
	pieces, err := readTally(path)
	if err != nil {
		return piece{}, err
	}
	total, err := sum(append(pieces, p))
	if err != nil {
		return piece{}, err
	}
	line, err := json.Marshal(p)
	if err != nil {
		return piece{}, err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return piece{}, err
	}
	_, err = f.Write(append(line, '\n'))
	return total, errors.Join(err, f.Close())
}

func TestTally(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tally")
	cover := NewCoverage()
	cover.Steps, cover.Marks, cover.Effects["Send"] = 5, 1, 2
	first := piece{Revision: "x", Seed: 1, Schedules: 10, Seconds: 1, Cover: cover}
	if _, err := addTally(path, first); err != nil {
		t.Fatal(err)
	}
	cover.Marks = 2
	second := piece{Revision: "x", Seed: 11, Schedules: 5, Failed: 1, Seconds: 2, Cover: cover}
	total, err := addTally(path, second)
	if err != nil {
		t.Fatal(err)
	}
	if total.Schedules != 15 || total.Failed != 1 || total.Cover.Steps != 10 || total.Cover.Marks != 3 || total.Cover.Effects["Send"] != 4 {
		t.Errorf("the sum is %+v", total)
	}
	for name, p := range map[string]piece{
		"a seed again":       {Revision: "x", Seed: 15, Schedules: 3},
		"a seed within":      {Revision: "x", Seed: 3, Schedules: 1},
		"another revision":   {Revision: "y", Seed: 16, Schedules: 1},
		"all seeds and more": {Revision: "x", Seed: 0, Schedules: 100},
	} {
		if _, err := addTally(path, p); err == nil {
			t.Errorf("%s was added", name)
		}
	}
	if p, err := readTally(path); err != nil || len(p) != 2 {
		t.Errorf("%d pieces in the file (%v), want 2", len(p), err)
	}
}
