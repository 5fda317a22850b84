// Package result is the schema of run.json: what a run measured and found,
// in the words that reports, comparisons and scripts read.
//
// Names carry their unit. What was not measured is absent, never zero: that is
// why metrics are a map and not a struct.
package result

// Schema is the version that this program writes.
const Schema = 1

// Verdicts. Unknown stands for a failure of the lab itself, never for a loss;
// Invalid for a measurement that must not be used (a throttled or aborted one).
const (
	Held    = "held"
	Broken  = "broken"
	Unknown = "unknown"
	Invalid = "invalid"
)

// What a setup may lose under a fault.
const (
	LoseNothing   = "nothing"
	LoseMillis    = "ms"
	LoseUnbounded = "unbounded"
)

// Kinds of evidence, weakest first.
const (
	EvidenceProcessKill   = "process-kill"
	EvidenceSimulatedDisk = "simulated-disk"
	EvidenceVM            = "vm"
	EvidencePower         = "power"
)

// Run is one run.json.
type Run struct {
	Schema      int               `json:"schema"`
	Study       string            `json:"study"`
	Seed        uint64            `json:"seed"`
	Started     string            `json:"started"`            // RFC 3339, UTC
	Finished    string            `json:"finished,omitempty"` // absent while running and after an interrupt
	Resumed     []string          `json:"resumed,omitempty"`  // when it went on after an interrupt
	Command     string            `json:"command"`
	StudySHA256 string            `json:"study_sha256,omitempty"` // of study.yaml beside it
	Simulated   bool              `json:"simulated"`
	Environment map[string]string `json:"environment"`
	Cells       []Cell            `json:"cells"`
	Noise       []Noise           `json:"noise,omitempty"`
	Comparisons []Comparison      `json:"comparisons,omitempty"`
	Summary     []Summary         `json:"summary,omitempty"`
	Skipped     []Skipped         `json:"skipped,omitempty"`
}

// Cell is one repetition of one setup × experiment × params.
type Cell struct {
	Setup      string             `json:"setup"`
	Experiment string             `json:"experiment"`
	Params     map[string]any     `json:"params"` // at least "disk"
	Repetition int                `json:"repetition"`
	Fault      string             `json:"fault,omitempty"`
	Promise    *Promise           `json:"promise,omitempty"`
	Evidence   string             `json:"evidence,omitempty"`
	Silent     bool               `json:"silent"`
	Simulated  bool               `json:"simulated"`
	Versions   map[string]string  `json:"versions,omitempty"`
	Metrics    map[string]float64 `json:"metrics"`
	Histogram  string             `json:"histogram,omitempty"` // base64 of a compressed HdrHistogram, microseconds
	Series     []Second           `json:"series,omitempty"`
	DiskSeries []DiskSecond       `json:"disk_series,omitempty"` // of the primary's disk, where it counts for itself
	IDs        []IDRange          `json:"ids,omitempty"`
	Events     []Event            `json:"events,omitempty"`
	Verdict    string             `json:"verdict"`
	Why        string             `json:"why,omitempty"`
	History    string             `json:"history,omitempty"` // path within the run folder
	StartedS   float64            `json:"started_s"`         // seconds after the run's start
	Recovery   string             `json:"recovery,omitempty"`
	Planned    int                `json:"planned,omitempty"`   // number in the study's plan, from 1; several cells may come of one
	Discarded  []Discarded        `json:"discarded,omitempty"` // attempts at this cell that came out invalid, before this one
}

// Discarded is an attempt at a cell that must not be used and was repeated.
type Discarded struct {
	StartedS float64  `json:"started_s"` // seconds after the run's start
	Why      string   `json:"why"`
	Series   []Second `json:"series,omitempty"`
}

// Promise is what the setup says that it may lose.
type Promise struct {
	Lose string  `json:"lose"`
	Ms   float64 `json:"ms,omitempty"`
}

// Second counts one second of the load by outcome. Time 0 is the beginning of
// the cut for a fault, else the start of the load.
type Second struct {
	T       float64 `json:"t_s"`
	Acked   int     `json:"acked"`
	Refused int     `json:"refused"`
	Unknown int     `json:"unknown"`
}

// DiskSecond is what the disk did, by its own counters, in about one second of
// the load; all are a second, time 0 as in Second.
type DiskSecond struct {
	T       float64 `json:"t_s"`
	Ops     float64 `json:"ops"`     // reads that no cache answered, writes that reached it, flushes
	Flushes float64 `json:"flushes"` // that programs asked for, however many it carried out together
	Bytes   float64 `json:"write_bytes"`
}

// IDRange is a run of consecutive ids (inclusive) with one outcome and one fate.
type IDRange struct {
	From     uint64 `json:"from"`
	To       uint64 `json:"to"`
	Outcome  string `json:"outcome"` // acked, refused, unknown, never-attempted
	Survived bool   `json:"survived"`
}

// Event marks a moment or a span; time 0 as in Second.
type Event struct {
	AtMs    float64 `json:"at_ms"`
	UntilMs float64 `json:"until_ms,omitempty"`
	What    string  `json:"what"`
}

// Noise is the spread of a metric among equal cells: a difference within the
// half-width (a fraction of the mean) is none.
type Noise struct {
	Experiment string  `json:"experiment"`
	Metric     string  `json:"metric"`
	HalfWidth  float64 `json:"half_width"`
	Pairs      int     `json:"pairs,omitempty"` // A/A pairs that it comes from; absent: from repeats of equal cells
	Disk       string  `json:"disk,omitempty"`  // of those pairs: disks differ in how steady they are
}

// Comparison is the ratio a/b of a metric with its 95 % interval.
type Comparison struct {
	A          string  `json:"a"`
	B          string  `json:"b"`
	Experiment string  `json:"experiment,omitempty"`
	Metric     string  `json:"metric"`
	Ratio      float64 `json:"ratio"`
	Lo         float64 `json:"lo"`
	Hi         float64 `json:"hi"`
	Noise      float64 `json:"noise,omitempty"` // half-width that the ratio was held against
	Note       string  `json:"note,omitempty"`  // e.g. the published figure beside it
}

// Summary says one thing about one group of cells, in one sentence.
type Summary struct {
	Setup      string             `json:"setup"`
	Experiment string             `json:"experiment,omitempty"`
	Params     map[string]any     `json:"params,omitempty"`
	Cells      int                `json:"cells"`
	Verdict    string             `json:"verdict"`
	Metrics    map[string]float64 `json:"metrics,omitempty"`
	Sentence   string             `json:"sentence"`
}

// Skipped is a cell that did not run, and why.
type Skipped struct {
	Cell    string `json:"cell"`
	Why     string `json:"why"`
	Planned int    `json:"planned,omitempty"`
}
