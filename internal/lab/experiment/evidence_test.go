package experiment

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-db/holdfast/internal/check"
	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/result"
)

// TestSurvivorsKept: what is kept is what was found, duplicates included.
func TestSurvivorsKept(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "histories"), 0o755); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		ids := rapid.SliceOfN(rapid.Uint64Range(0, 40), 0, 60).Draw(rt, "ids")
		var s Survivors
		s.Add(check.FirstScan, slices.Clone(ids))
		if err := s.write(dir, HistoryFile("x")); err != nil {
			rt.Fatal(err)
		}
		got, err := readSurvivors(dir, HistoryFile("x"))
		if err != nil {
			rt.Fatal(err)
		}
		slices.Sort(ids)
		if have := slices.Collect(got.Sets[0].all()); !slices.Equal(have, ids) {
			rt.Fatalf("kept %v of %v", have, ids)
		}
	})
}

func FuzzSurvivors(f *testing.F) {
	pack := func(v any) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_ = json.NewEncoder(z).Encode(v)
		_ = z.Close()
		return b.Bytes()
	}
	f.Add(pack(Survivors{Schema: 1, Sets: []Set{{Source: check.FirstScan, Runs: [][2]uint64{{1, 9}}}}}))
	f.Add(pack(map[string]any{"schema": 1, "sets": []any{map[string]any{"source": -1, "runs": [][2]uint64{{9, 1}}}}}))
	f.Add([]byte("no gzip"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decodeSurvivors(bytes.NewReader(data))
		if err != nil {
			return
		}
		for _, set := range s.Sets {
			n := 0
			for range set.all() {
				if n++; n > 1000 {
					break
				}
			}
		}
	})
}

// TestJudge: from files to a verdict, and the same again.
func TestJudge(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "histories"), 0o755); err != nil {
		t.Fatal(err)
	}
	name := HistoryFile("0001")
	w, err := history.Create(filepath.Join(dir, name), time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Duration(0)
	for id := uint64(1); id <= 10; id++ {
		at += time.Millisecond
		for _, e := range []history.Event{{Kind: history.KindIntent, At: at, ID: id}, {Kind: history.KindOutcome, At: at, ID: id, Outcome: history.Acked, Latency: time.Millisecond}} {
			if err := w.Append(&e); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Append(&history.Event{Kind: history.KindMark, At: at, Text: history.MarkCut}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	nothing := &result.Promise{Lose: result.LoseNothing}
	var s Survivors
	s.Add(check.FirstScan, []uint64{1, 2, 3, 4, 5, 6, 7, 8})
	s.Add(check.FirstIndex, []uint64{1, 2, 3, 4, 5, 6, 7, 8})
	if err := s.write(dir, name); err != nil {
		t.Fatal(err)
	}
	j, err := Judge(dir, name, nothing)
	if err != nil {
		t.Fatal(err)
	}
	if j.Verdict != result.Broken || j.Findings.Lost.Count != 2 {
		t.Errorf("two of ten writes are gone: %s, %d lost: %s", j.Verdict, j.Findings.Lost.Count, j.Why)
	}
	if j, err = Judge(dir, name, &result.Promise{Lose: result.LoseUnbounded}); err != nil || j.Verdict != result.Held {
		t.Errorf("no bound was promised: %v, %v", j, err)
	}
	hist, err := latencies(filepath.Join(dir, name))
	if err != nil || hist == "" {
		t.Errorf("latencies: %q, %v", hist, err)
	}
	if _, err := Judge(dir, name, nil); err == nil || !strings.Contains(err.Error(), "promise") {
		t.Errorf("without a promise: %v", err)
	}
}
