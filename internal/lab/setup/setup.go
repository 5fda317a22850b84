// Package setup holds the database topologies that the lab can put under test.
// The lab knows them by these interfaces alone.
package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

// Fault is what is done to a setup.
type Fault string

const (
	// HostPower is the loss of the primary's host, which comes back with its disk.
	HostPower Fault = "host-power"
	// HostLost is the loss of the primary's host with all that was on its disk.
	HostLost Fault = "host-lost"
	// StandbyPower is the loss of standbys' hosts, which come back with their disks.
	StandbyPower Fault = "standby-power"
	// AllPower is the loss of every host at once; all come back with their disks.
	AllPower Fault = "all-power"
	// Restart is a clean restart of the primary.
	Restart Fault = "restart"
	// Freeze stops every program of the primary's host for a while; FreezeTakeover
	// is the same, and a standby is promoted meanwhile.
	Freeze         Fault = "freeze"
	FreezeTakeover Fault = "freeze-takeover"
	// Partition cuts the primary's host off for a while; PartitionTakeover is the
	// same, and a standby is promoted meanwhile.
	Partition         Fault = "partition"
	PartitionTakeover Fault = "partition-takeover"
)

// Kind is the fault without what is done about it, as run.json names it.
func (f Fault) Kind() string { return strings.TrimSuffix(string(f), takeover) }

// TakesOverLiving says whether a standby is promoted while the former primary is
// alive.
func (f Fault) TakesOverLiving() bool { return strings.HasSuffix(string(f), takeover) }

const takeover = "-takeover"

// takenOver says whether another server than the former primary, or none, goes
// on after the fault: what only the former primary held is then gone.
func (f Fault) takenOver() bool {
	switch f {
	case HostPower, HostLost, FreezeTakeover, PartitionTakeover:
		return true
	}
	return false
}

// Bound is what a setup may lose.
type Bound struct {
	Lose string // result.LoseNothing, LoseMillis or LoseUnbounded
	Ms   float64
}

// Env is what a setup is deployed with.
type Env struct {
	Hosts  []place.Host
	BinDir string                        // of the PostgreSQL programs
	Log    func(host string) io.Writer   // a host's server log
	Trace  func(format string, a ...any) // what the setup does, for the lab's log
}

// Target is an address that a client may try.
type Target struct {
	Host string
	Port int
}

// Login is how clients log in.
type Login struct {
	User     string
	Password string
	Database string
}

// System is one deployed setup. It is used from one goroutine.
type System interface {
	// Deploy makes the setup on fresh hosts and leaves it running.
	Deploy(ctx context.Context, env Env) error
	// Start brings a stopped setup back to what Deploy left; Stop shuts it down cleanly.
	Start(ctx context.Context) error
	Stop(ctx context.Context) error
	// Promise is what the setup says that it may lose under a fault.
	Promise(f Fault) Bound
	// Versions names the programs and what they are.
	Versions(ctx context.Context) (map[string]string, error)
}

// Cluster is a System with a primary that can fail.
type Cluster interface {
	Targets() []Target
	Primary() place.Host
	Standbys() []place.Host
	// Recover brings the setup back to taking writes after the primary's host
	// lost power. ErrNoStart: it ran, and the setup did not come back.
	Recover(ctx context.Context) (Recovery, error)
	// Rejoin brings the former primary back into the setup.
	Rejoin(ctx context.Context) (Recovery, error)
}

// Operated is a Cluster to which the lab can do more than cut the power of its
// primary. Where the setup heals itself, these wait until it has.
type Operated interface {
	Cluster
	// TakeOver is Recover while the former primary may be alive: frozen, or cut off.
	TakeOver(ctx context.Context) (Recovery, error)
	// Return brings the member on h back, whose host lost its power and kept its
	// disk or lost it too, while the primary runs.
	Return(ctx context.Context, h place.Host) (Recovery, error)
	// RecoverAll brings the setup back after every host lost its power; they get
	// it back in the order given.
	RecoverAll(ctx context.Context, order []place.Host) (Recovery, error)
	// Restart restarts the primary cleanly; stopped is when it had ended.
	Restart(ctx context.Context) (stopped time.Time, rec Recovery, err error)
	// SurvivorsOn is Ledger.Survivors on the member on h, after that has replayed
	// what the primary had flushed when it was called.
	SurvivorsOn(ctx context.Context, h place.Host, table string, sink func(by Scan, id uint64)) error
}

// Ledger is where the driver writes, and what is read back.
type Ledger interface {
	Login() Login
	// Prepare makes an empty ledger and waits until every member has it.
	Prepare(ctx context.Context, table string) error
	// Survivors hands every id found to sink, by sequential scan and by index,
	// both from one snapshot on the present primary.
	Survivors(ctx context.Context, table string, sink func(by Scan, id uint64)) error
}

// SQL is a System whose primary is a Postgres that pgbench can use.
type SQL interface {
	Instance() *postgres.Instance
}

// Scan says how survivors are read.
type Scan string

// The two ways to read survivors; they must agree.
const (
	BySequence Scan = "sequential scan"
	ByIndex    Scan = "index"
)

// Recovery says how a setup came back.
type Recovery struct {
	How      string    // one sentence for the report
	Operator bool      // by the lab's script, which stands for an operator and needs no time to notice
	Promoted time.Time // when a new primary took writes, zero if none was promoted
	Done     time.Time
}

// ErrNoStart marks a setup that did not come back within its deadline: nothing
// of it survived, and it is judged on that.
var ErrNoStart = errors.New("the setup did not come back")

// Kind is one member of the list.
type Kind struct {
	Name  string
	About string
	Hosts int
	Liar  bool // it promises what it cannot keep: it is there to be caught
	Lying bool // its disk acknowledges flushes and keeps nothing
	New   func() System
}

// All lists every setup in the order in which reports show them.
func All() []Kind {
	return []Kind{
		{Name: "pg-single", About: "one Postgres; after a cut its host is powered on again", Hosts: 1, New: newPlain(plain{})},
		{Name: "pg-async", About: "three hosts, asynchronous streaming replication", Hosts: 3, New: newPlain(plain{lose: loseUnbounded})},
		{Name: "pg-remote-write", About: "three hosts, a commit waits until one standby's kernel has it", Hosts: 3, New: newPlain(plain{commit: "remote_write", sync: "ANY 1"})},
		{Name: "pg-any1", About: "three hosts, a commit waits until one of two standbys has flushed it", Hosts: 3, New: newPlain(plain{commit: "on", sync: "ANY 1"})},
		{Name: "pg-remote-apply", About: "three hosts, a commit waits until one of two standbys has replayed it", Hosts: 3, New: newPlain(plain{commit: "remote_apply", sync: "ANY 1"})},
		{Name: "pg-sync", About: "two hosts, a commit waits until the one standby has flushed it", Hosts: 2, New: newPlain(plain{commit: "on", sync: "FIRST 1"})},
		{Name: "pg-fsync-off", About: "a liar: one Postgres with fsync=off that promises to lose nothing", Hosts: 1, Liar: true, New: newPlain(plain{extra: postgres.Settings{"fsync": "off", "full_page_writes": "off"}})},
		{Name: "pg-commit-off", About: "a liar: one Postgres with synchronous_commit=off that promises to lose nothing", Hosts: 1, Liar: true, New: newPlain(plain{commit: "off"})},
		{Name: "pg-lying-disk", About: "a liar: one Postgres on a disk that acknowledges flushes and keeps nothing", Hosts: 1, Liar: true, Lying: true, New: newPlain(plain{})},
	}
}

// Find returns the setup of that name.
func Find(name string) (Kind, error) {
	for _, k := range All() {
		if k.Name == name {
			return k, nil
		}
	}
	return Kind{}, fmt.Errorf("no setup is called %q; `holdfast lab list` names them", name)
}
