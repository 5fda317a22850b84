package experiment

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/holdfast-db/holdfast/internal/check"
	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/result"
)

// Survivors are the ids that were found, by where they were read: runs of
// consecutive ids, sorted; an id that was found twice stands twice. They are
// kept beside the history, so that a cell can be judged again.
type Survivors struct {
	Schema   int    `json:"schema"`
	Sets     []Set  `json:"sets"`
	Why      string `json:"why,omitempty"` // why nothing could be read
	WindowMs int64  `json:"window_ms"`     // over which a rate counts as sustained
}

// Set is one reading.
type Set struct {
	Source check.Source `json:"source"`
	Name   string       `json:"name"`
	Runs   [][2]uint64  `json:"runs"`
}

const survivorsSchema = 1

// Add adds one reading; ids are sorted in place.
func (s *Survivors) Add(src check.Source, ids []uint64) {
	slices.Sort(ids)
	runs := [][2]uint64{}
	for _, id := range ids {
		if n := len(runs); n > 0 && runs[n-1][1]+1 == id {
			runs[n-1][1] = id
			continue
		}
		runs = append(runs, [2]uint64{id, id})
	}
	s.Sets = append(s.Sets, Set{Source: src, Name: src.String(), Runs: runs})
}

func (s Set) all() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for _, r := range s.Runs {
			for id := r[0]; ; id++ {
				if !yield(id) {
					return
				}
				if id >= r[1] {
					break
				}
			}
		}
	}
}

// HistoryFile and survivorsFile are a cell's evidence within the run folder.
func HistoryFile(key string) string { return filepath.Join("histories", key+".history") }

func survivorsFile(historyFile string) string { return historyFile + ".survivors.json.gz" }

func (s *Survivors) write(dir, historyFile string) (err error) {
	s.Schema = survivorsSchema
	f, err := os.Create(filepath.Join(dir, survivorsFile(historyFile)))
	if err != nil {
		return fmt.Errorf("keep the survivors: %w", err)
	}
	z := gzip.NewWriter(f)
	return errors.Join(json.NewEncoder(z).Encode(s), z.Close(), f.Sync(), f.Close())
}

// maxSurvivorsJSON bounds what a survivors file may unpack to.
const maxSurvivorsJSON = 1 << 30

func readSurvivors(dir, historyFile string) (*Survivors, error) {
	name := filepath.Join(dir, survivorsFile(historyFile))
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read the survivors: %w", err)
	}
	defer func() { _ = f.Close() }()
	s, err := decodeSurvivors(f)
	if err != nil {
		return nil, fmt.Errorf("read the survivors of %s: %w", historyFile, err)
	}
	return s, nil
}

func decodeSurvivors(r io.Reader) (*Survivors, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(z, maxSurvivorsJSON))
	if err != nil {
		return nil, err
	}
	var s Survivors
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, err
	}
	if s.Schema != survivorsSchema {
		return nil, fmt.Errorf("schema %d, this holdfast reads %d", s.Schema, survivorsSchema)
	}
	if s.WindowMs < 0 || s.WindowMs > math.MaxInt64/int64(time.Millisecond) {
		return nil, fmt.Errorf("window of %d ms", s.WindowMs)
	}
	for _, set := range s.Sets {
		if set.Source < check.FirstScan || set.Source > check.SecondIndex {
			return nil, fmt.Errorf("no source has the number %d", set.Source)
		}
		var n uint64
		for _, r := range set.Runs {
			if r[1] < r[0] {
				return nil, fmt.Errorf("%s: a run from %d to %d", set.Name, r[0], r[1])
			}
			if n += r[1] - r[0]; n > maxSurvivors {
				return nil, fmt.Errorf("%s: more than %d ids", set.Name, uint64(maxSurvivors))
			}
		}
	}
	return &s, nil
}

// maxSurvivors keeps a damaged file from keeping the checker busy for ever.
const maxSurvivors = 1 << 32

// Judgement is what a cell's evidence says.
type Judgement struct {
	Findings     *check.Findings
	Verdict, Why string
}

// Judge reads a cell's history and survivors and holds the promise against them.
// An error means that the evidence cannot be read whole.
func Judge(dir, historyFile string, promise *result.Promise) (*Judgement, error) {
	if promise == nil {
		return nil, errors.New("the cell has no promise to be held against")
	}
	s, err := readSurvivors(dir, historyFile)
	if err != nil {
		return nil, err
	}
	h, err := history.Open(filepath.Join(dir, historyFile))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", historyFile, err)
	}
	defer func() { _ = h.Close() }()
	ledger, err := check.Read(h)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", historyFile, err)
	}
	for _, set := range s.Sets {
		ledger.Survived(set.Source, set.all())
	}
	f := ledger.Findings(check.Options{Window: time.Duration(s.WindowMs) * time.Millisecond})
	j := &Judgement{Findings: f}
	j.Verdict, j.Why = f.Judge(check.Promise{Lose: promise.Lose, Ms: promise.Ms})
	if s.Why != "" {
		j.Why = s.Why + "; " + j.Why
	}
	return j, nil
}

// latencies is the distribution of acknowledged writes, from send to answer as
// the driver saw it, encoded as result.Cell holds it.
func latencies(name string) (string, error) {
	h, err := history.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = h.Close() }()
	hist := hdrhistogram.New(1, int64(time.Hour/time.Microsecond), 3)
	var e history.Event
	for {
		switch err := h.Next(&e); {
		case errors.Is(err, io.EOF):
			out, err := hist.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
			return string(out), err
		case err != nil:
			return "", err
		}
		if e.Kind == history.KindOutcome && e.Outcome == history.Acked {
			if err := hist.RecordValue(max(1, e.Latency.Microseconds())); err != nil {
				return "", err
			}
		}
	}
}
