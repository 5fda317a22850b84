// Package diagnose says where a transaction's time goes on a running Postgres
// (13 to 18), and whether its storage is to blame. Run collects evidence over
// one read-only connection; Assess, a pure function, judges it.
package diagnose

// Schema is the version of a Diagnosis as JSON.
const Schema = 1

// Diagnosis is what was found. Whatever is not known is absent, never 0; times
// of a transaction are in ms.
type Diagnosis struct {
	Schema    int     `json:"schema"`
	Started   string  `json:"started"`   // RFC 3339
	Seconds   float64 `json:"seconds"`   // that the evidence spans
	Simulated bool    `json:"simulated"` // its disk is one of holdfast's
	Server    Server  `json:"server"`
	Sampling  Cost    `json:"sampling"`
	Breakdown []Part  `json:"breakdown"` // in the order of PartNames; absent when nothing can be said

	// Of one transaction: Ms is Breakdown's sum, ServerMs what of it the server
	// itself was busy with or waited in (without the client's part).
	// CounterMs is the same from the server's own clock (active_time, 14 and later).
	Ms        *float64 `json:"ms,omitempty"`
	ServerMs  *float64 `json:"server_ms,omitempty"`
	CounterMs *float64 `json:"counter_ms,omitempty"`

	Rates      Rates       `json:"rates"`
	Storage    Storage     `json:"storage"`
	Waits      []Wait      `json:"waits,omitempty"`      // the most frequent first
	Statements []Statement `json:"statements,omitempty"` // the most time in I/O first
	Host       *Host       `json:"host,omitempty"`       // absent when the server is not on this machine
	Series     []Second    `json:"series,omitempty"`     // one element a second

	Symptoms    []Symptom    `json:"symptoms"` // the five of SymptomNames, in that order
	Verdict     Verdict      `json:"verdict"`
	WhatIf      []Prediction `json:"what_if,omitempty"`
	Traps       []Trap       `json:"traps,omitempty"`
	Missing     []string     `json:"missing,omitempty"`     // what could not be looked at, and what would help
	Interrupted *Interrupted `json:"interrupted,omitempty"` // why the evidence ends before its time
}

// Server is what was looked at.
type Server struct {
	Address  string `json:"address"` // host:port or a socket's directory; never a password
	Database string `json:"database"`
	User     string `json:"user"`
	Version  string `json:"version"`
	Major    int    `json:"major"`
	Role     string `json:"role"`             // "primary" or "standby"
	Pooler   bool   `json:"pooler,omitempty"` // a connection pooler stands in between
	OnHost   bool   `json:"on_host"`          // its processes are visible on this machine
}

// Cost is how the server was sampled and what that cost it.
type Cost struct {
	Samples    int     `json:"samples"`
	IntervalMs float64 `json:"interval_ms"` // mean pause from sample to sample
	AskedMs    float64 `json:"asked_ms"`    // the interval that was asked for
	Sessions   float64 `json:"sessions"`    // client sessions seen, on average
	QueryMs    float64 `json:"query_ms"`    // one sample, seen from here, at the median
	// Percent of one core, and where the figure comes from: processor time where
	// the server is on this machine, else what the quicker samples took.
	CorePercent float64 `json:"core_percent"`
	Source      string  `json:"source"`
}

// The parts of a transaction.
const (
	PageReads   = "page_reads"   // waiting for pages to be read
	CommitFlush = "commit_flush" // waiting for one's WAL to be durable, or for one's turn in a group
	OtherWAL    = "other_wal"    // inserting into WAL buffers, making segments
	DataWrites  = "data_writes"  // writing and extending data files, temporary files, waiting for a checkpoint
	Replication = "replication"  // waiting for synchronous standbys
	RowLocks    = "row_locks"    // heavyweight locks: rows, tables, advisory
	OtherLocks  = "other_locks"  // lightweight locks, buffer pins
	CPU         = "cpu"          // on a processor or waiting for one
	Client      = "client"       // the client's turn inside a transaction, and one round trip
	Unexplained = "unexplained"
)

// PartNames are the parts in the order of a Breakdown.
func PartNames() []string {
	return []string{PageReads, CommitFlush, OtherWAL, DataWrites, Replication, RowLocks, OtherLocks, CPU, Client, Unexplained}
}

// Part is one part of the mean transaction.
type Part struct {
	Name     string   `json:"name"`
	Ms       *float64 `json:"ms,omitempty"` // absent where no transaction ended
	Lo       *float64 `json:"lo,omitempty"` // 95 % interval from the seconds' means, absent below 5 s
	Hi       *float64 `json:"hi,omitempty"`
	Share    float64  `json:"share"`    // of the whole, 0 to 1
	Sessions float64  `json:"sessions"` // in it at any time, on average
	Samples  int      `json:"samples"`  // sessions seen in it
	Counter  *Counter `json:"counter,omitempty"`
}

// Counter is the same from the server's counters.
type Counter struct {
	Ms     float64 `json:"ms"`     // a transaction
	Seen   float64 `json:"seen"`   // what of the sampled part it is comparable with, ms a transaction
	Source string  `json:"source"` // the view and column
	Agrees bool    `json:"agrees"`
	Note   string  `json:"note,omitempty"`
}

// Rates are means over the window.
type Rates struct {
	TPS                 *float64 `json:"tps,omitempty"`
	Sessions            *float64 `json:"sessions,omitempty"`         // of clients
	Active              *float64 `json:"active,omitempty"`           // of these in a statement
	IdleInTransaction   *float64 `json:"idle_in_tx,omitempty"`       //
	Working             *float64 `json:"working,omitempty"`          // that ran something within ten seconds
	HitRatio            *float64 `json:"hit_ratio,omitempty"`        // 0 to 1; in PostgreSQL's own buffers
	ReadsPerS           *float64 `json:"page_reads_per_s,omitempty"` // beyond them
	ReadsPerTx          *float64 `json:"page_reads_per_tx,omitempty"`
	WALBytesPerTx       *float64 `json:"wal_bytes_per_tx,omitempty"`
	WALBytesPerS        *float64 `json:"wal_bytes_per_s,omitempty"`
	FullPageImagesPerTx *float64 `json:"full_page_images_per_tx,omitempty"`
	StatementsPerTx     *float64 `json:"statements_per_tx,omitempty"`
	RoundTripMs         *float64 `json:"round_trip_ms,omitempty"` // of a SELECT 1 from here
	Checkpoints         *float64 `json:"checkpoints,omitempty"`
	CheckpointsForced   *float64 `json:"checkpoints_requested,omitempty"`
	TempBytesPerS       *float64 `json:"temp_bytes_per_s,omitempty"`
	Deadlocks           *float64 `json:"deadlocks,omitempty"`
	CommitsRefused      *float64 `json:"rollbacks_per_s,omitempty"`
}

// Storage is what storage did for the server, as the server saw it.
type Storage struct {
	FlushMs     *float64 `json:"flush_ms,omitempty"` // one WAL flush
	FlushSource string   `json:"flush_source,omitempty"`
	FlushesPerS *float64 `json:"flushes_per_s,omitempty"`
	ReadMs      *float64 `json:"read_ms,omitempty"` // one page
	ReadSource  string   `json:"read_source,omitempty"`
	ReadP95Ms   *float64 `json:"read_p95_ms,omitempty"` // of the seconds' means
	// Limit says whether reads are bounded by what one takes ("latency") or by
	// how many there may be ("rate"); absent when it cannot be told.
	Limit      string   `json:"limit,omitempty"`
	LimitWhy   string   `json:"limit_why,omitempty"`
	Elasticity *float64 `json:"elasticity,omitempty"` // d ln(rate) / d ln(waiting): 1 latency, 0 rate
	RegimeAtS  *float64 `json:"regime_change_s,omitempty"`
	RegimeText string   `json:"regime_change,omitempty"`
}

// Wait is a wait event of client sessions.
type Wait struct {
	Event    string   `json:"event"` // "IO:DataFileRead"; "CPU" for none
	Part     string   `json:"part"`
	Sessions float64  `json:"sessions"`
	Share    float64  `json:"share"` // of the active ones
	Ms       *float64 `json:"ms,omitempty"`
}

// Statement is of pg_stat_statements.
type Statement struct {
	Query  string  `json:"query"`
	Calls  float64 `json:"calls"`
	MeanMs float64 `json:"mean_ms"`
	IOMs   float64 `json:"io_ms"` // a call
	Reads  float64 `json:"reads"` // pages a call
}

// Host is the machine that the server is on, when that is this one.
type Host struct {
	Cores        int      `json:"cores"`
	CPUSeconds   *float64 `json:"cpu_seconds,omitempty"`          // all of the machine, in the window
	ServerCPU    *float64 `json:"server_cpu_seconds,omitempty"`   // of the server's processes
	ServerCPUMs  *float64 `json:"server_cpu_ms_per_tx,omitempty"` //
	BusyPercent  *float64 `json:"busy_percent,omitempty"`
	StealPercent *float64 `json:"steal_percent,omitempty"`
	IOWait       *float64 `json:"iowait_percent,omitempty"`
	PSICPU       *float64 `json:"psi_cpu_percent,omitempty"` // share of the window in which somebody waited
	PSIIO        *float64 `json:"psi_io_percent,omitempty"`
	PSIMemory    *float64 `json:"psi_memory_percent,omitempty"`
	Throttled    *float64 `json:"cgroup_throttled_percent,omitempty"`
	CPULimit     *float64 `json:"cgroup_cpu_limit,omitempty"` // cores
	MemoryLimit  *float64 `json:"cgroup_memory_bytes,omitempty"`
	Clock        string   `json:"clock_source,omitempty"`
	Data         *Device  `json:"data,omitempty"`
	WAL          *Device  `json:"wal,omitempty"`
	SameDevice   *bool    `json:"same_device,omitempty"`
}

// Device is where data or WAL lie.
type Device struct {
	Path       string   `json:"path"`
	Device     string   `json:"device"`
	FileSystem string   `json:"filesystem"`
	Options    string   `json:"mount_options"`
	ReadMs     *float64 `json:"read_ms,omitempty"`
	WriteMs    *float64 `json:"write_ms,omitempty"`
	FlushMs    *float64 `json:"flush_ms,omitempty"`
	Util       *float64 `json:"utilisation,omitempty"` // 0 to 1
	Queue      *float64 `json:"queue,omitempty"`       // requests under way, on average
	IOPS       *float64 `json:"iops,omitempty"`
	MBps       *float64 `json:"mb_per_s,omitempty"`
	Plateau    string   `json:"plateau,omitempty"`
}

// Second is one second of the series.
type Second struct {
	T      float64  `json:"t_s"`
	TPS    *float64 `json:"tps,omitempty"`
	Active *float64 `json:"active,omitempty"`
	Reads  *float64 `json:"page_reads_per_s,omitempty"`
	ReadMs *float64 `json:"read_ms,omitempty"`
	// Checkpoint is set where one was under way.
	Checkpoint bool `json:"checkpoint,omitempty"`
}

// Answers of a symptom.
const (
	Yes      = "yes"
	No       = "no"
	CantTell = "can't tell"
)

// The five symptoms.
const (
	SlowIngestion  = "slow ingestion"
	ReadLatency    = "unpredictable read latency"
	VacuumBehind   = "vacuum falling behind"
	CheckpointJolt = "disruptive checkpoints"
	LogicalLag     = "logical replication lag"
)

// SymptomNames are the symptoms in the order of a Diagnosis.
func SymptomNames() []string {
	return []string{SlowIngestion, ReadLatency, VacuumBehind, CheckpointJolt, LogicalLag}
}

// Symptom is one of the five with its evidence.
type Symptom struct {
	Name     string `json:"name"`
	Answer   string `json:"answer"` // Yes, No, CantTell
	Evidence string `json:"evidence"`
}

// Causes that a verdict names.
const (
	CauseFlush       = "slow flush"
	CauseReads       = "slow reads"
	CauseIOPS        = "iops cap"
	CauseCheckpoints = "checkpoints"
	CauseWrites      = "data writes"
	CauseReplication = "synchronous replication"
	CauseRowLocks    = "row locks"
	CauseOtherLocks  = "lightweight locks"
	CauseCPU         = "cpu saturation"
	CauseCPUWork     = "cpu work" // the statements' own work; processors are left
	CauseClient      = "client"
	CauseVacuum      = "vacuum held back"
	CauseSlot        = "slot holding wal"
	CauseNone        = "none" // nothing stands out
	CauseIdle        = "idle" // no load
	CauseUnknown     = "unknown"
)

// Verdict names the one cause, in two sentences, and what is not to blame.
type Verdict struct {
	Cause     string   `json:"cause"`
	Storage   string   `json:"storage_to_blame"` // Yes, No, CantTell
	Sentences []string `json:"sentences"`        // two
	Advice    string   `json:"advice"`           // what to do next
	NotCause  []string `json:"not_the_cause,omitempty"`
}

// Prediction is what a transaction would take with other storage.
type Prediction struct {
	Disk        string   `json:"disk"`
	FlushMs     *float64 `json:"flush_ms,omitempty"` // assumed of that storage
	ReadMs      *float64 `json:"read_ms,omitempty"`
	FromFlushMs *float64 `json:"from_flush_ms,omitempty"` // seen on this one
	FromReadMs  *float64 `json:"from_read_ms,omitempty"`
	FromMs      float64  `json:"from_ms"`
	Ms          float64  `json:"ms"` // a transaction would take, the client's part included
	Times       float64  `json:"times"`
	BoundBy     string   `json:"bound_by,omitempty"` // "cpu" when processors would be the next limit
	MoreIOPS    *float64 `json:"more_iops,omitempty"`
	Sentence    string   `json:"sentence"`
}

// Levels of a trap.
const (
	Danger  = "danger"  // data can be lost, or the server will stop
	Warning = "warning" // performance, or a measurement that means less than it seems
	Notice  = "notice"
)

// Trap is something about the server that one should know.
type Trap struct {
	Name  string `json:"name"`
	Level string `json:"level"`
	Text  string `json:"text"`
}

// Interrupted says what happened to the server while it was sampled.
type Interrupted struct {
	What  string  `json:"what"` // "died", "restarted", "failed over", "hangs", "refuses", "connection lost", "stopped"
	AtS   float64 `json:"at_s"`
	Text  string  `json:"text"`
	Alive bool    `json:"alive"` // it answered again before the end
}
