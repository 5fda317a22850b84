package diagnose

import (
	"strconv"
	"time"
)

// Evidence is what a server was seen to do. Moments are durations since the
// first sample. It holds no password and no data of tables.
type Evidence struct {
	Started  time.Time
	Asked    time.Duration // the interval that was asked for
	Server   Server
	Samples  []Sample
	Ticks    []Tick
	Begin    *Snapshot // nil where the server was lost before
	End      *Snapshot // nil where the server was lost before its end
	Host     *HostEvidence
	Lost     *Interrupted
	Missing  []string
	ClockNs  *float64      // one clock_timestamp() on the server
	PingMs   *float64      // one SELECT 1
	Partial  bool          // other users' sessions are not visible to this one
	OwnCPU   time.Duration // of our backend and of this program, while sampling; 0 if unknown
	OwnQuery time.Duration // sum of what our queries took
	OwnXacts int           // transactions of ours between Begin and End
}

// Sample is one look at the sessions.
type Sample struct {
	At, Took time.Duration
	Groups   []Group
}

// Group counts sessions that do the same.
type Group struct {
	Backend string // "client backend", "checkpointer", …
	State   string // "active", "idle", …; "" where it is not to be seen
	Type    string // of the wait; "" for none
	Event   string
	Idle    Idle
	N       int
}

// Idle is for how long a session has been idle, or idle in transaction.
type Idle int

// The classes of Idle that matter.
const (
	IdleLong  Idle = iota // or not idle
	IdleSome              // less than ten seconds: it is at work, and its client thinks
	IdleBrief             // less than ten ms: its client is about to send the next statement
)

// Tick is a reading of the counters that is cheap enough for every second.
// They are sums over all databases since the server's start.
type Tick struct {
	At       time.Duration
	OwnXacts int // ours before it
	Xacts    float64
	Reads    float64 // pages
	Hits     float64
	ReadMs   float64  // of them, where track_io_timing is on
	LSN      *float64 // bytes; absent on a standby
	Device   *DeviceCounters
}

// Row is a row of a view with whatever columns this version has.
type Row map[string]any

// Snapshot is a reading of the statistics views: by the view's name, its rows.
// A view that this version has not, or that may not be read, is absent.
type Snapshot struct {
	At    time.Duration
	Views map[string][]Row
}

// Num reads a column by the first of its names that is there and not null;
// versions call it differently.
func (r Row) Num(names ...string) (float64, bool) {
	for _, n := range names {
		switch v := r[n].(type) {
		case float64:
			return v, true
		case bool:
			if v {
				return 1, true
			}
			return 0, true
		case string: // numeric settings are text
			if f, err := strconv.ParseFloat(v, 64); err == nil {
				return f, true
			}
		}
	}
	return 0, false
}

// Text reads a column; "" where it is missing or null.
func (r Row) Text(name string) string {
	s, _ := r[name].(string)
	return s
}

// Sum adds a column over the rows of a view that pass (all, for nil); false
// where no row has it.
func (s *Snapshot) Sum(view string, pass func(Row) bool, names ...string) (float64, bool) {
	if s == nil {
		return 0, false
	}
	total, found := 0.0, false
	for _, r := range s.Views[view] {
		if pass != nil && !pass(r) {
			continue
		}
		if v, ok := r.Num(names...); ok {
			total, found = total+v, true
		}
	}
	return total, found
}

// delta is how much a sum grew from Begin to End; false where it is not known
// at either, or fell, as it does when statistics are reset.
func (e *Evidence) delta(view string, pass func(Row) bool, names ...string) (float64, bool) {
	a, ok1 := e.Begin.Sum(view, pass, names...)
	b, ok2 := e.End.Sum(view, pass, names...)
	if !ok1 || !ok2 || b < a {
		return 0, false
	}
	return b - a, true
}

// setting is a setting's value in its base unit; "" where it is unknown.
func (e *Evidence) setting(name string) string {
	if e.Begin == nil {
		return ""
	}
	for _, r := range e.Begin.Views["settings"] {
		if r.Text("name") == name {
			return r.Text("setting")
		}
	}
	return ""
}

// HostEvidence is what the server's machine says, when that is this one.
type HostEvidence struct {
	Cores       int
	Clock       string
	Begin, End  HostCounters
	Data, WAL   DeviceFacts
	SameDevice  *bool
	CPULimit    *float64 // cores
	MemoryLimit *float64 // bytes
}

// HostCounters are sums since boot; absent where the machine does not tell.
type HostCounters struct {
	At                       time.Duration
	Busy, Steal, IOWait, All *float64 // processor seconds
	Server                   *float64 // processor seconds of the server's processes
	PSICPU, PSIIO, PSIMemory *float64 // seconds in which somebody waited
	Throttled                *float64 // seconds for which the server's cgroup was held
	Data, WAL                *DeviceCounters
}

// DeviceFacts say what a path lies on.
type DeviceFacts struct{ Path, Device, FileSystem, Options string }

// DeviceCounters are those of /sys/block/…/stat, since boot.
type DeviceCounters struct {
	At               time.Duration
	Reads, ReadMs    float64
	Writes, WriteMs  float64
	Flushes, FlushMs float64
	Bytes            float64
	BusyMs, QueueMs  float64 // QueueMs: requests under way, integrated
}
