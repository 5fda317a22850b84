// Package setup holds the database topologies that the lab can put under test.
// The lab knows them by these interfaces alone.
package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
	// PostgresKill is the death of the primary's server process, its host alive.
	PostgresKill Fault = "postgres-kill"
	// StandbyPostgres is the death of standbys' server processes, their hosts alive.
	StandbyPostgres Fault = "standby-postgres"
	// DoubleFailure is the loss of the primary's host and of another one's.
	DoubleFailure Fault = "double-failure"
	// DiskFull and DiskHang are what their names say, of the primary's disk.
	DiskFull Fault = "disk-full"
	DiskHang Fault = "disk-hang"
	// Switchover hands the primary's role over on request.
	Switchover Fault = "switchover"
	// CancelStorm cancels the waits of commits for their standbys.
	CancelStorm Fault = "cancel-storm"
	// Nemesis is faults of all kinds, drawn at random.
	Nemesis Fault = "nemesis"
	// Freeze stops every program of the primary's host for a while; FreezeTakeover
	// is the same, and a standby is promoted meanwhile.
	Freeze         Fault = "freeze"
	FreezeTakeover Fault = "freeze-takeover"
	// StandbyPartition cuts a standby's host off for a while.
	StandbyPartition Fault = "standby-partition"
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
	case HostPower, HostLost, DoubleFailure, CancelStorm, FreezeTakeover, PartitionTakeover, Nemesis:
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
// primary. Where the setup heals itself, these power hosts on and wait until it has.
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

// Healing is an Operated setup that fails over by itself: on each of its hosts
// an agent runs Postgres.
type Healing interface {
	Operated
	// Settle waits until some member takes writes and says what came about since
	// then; Promoted is set where that is another one than before.
	Settle(ctx context.Context, since time.Time) (Recovery, error)
	// PowerOn gives a host its power back with what runs on it, and waits for nothing.
	PowerOn(ctx context.Context, h place.Host) error
	// SignalAgent sends a signal to the agent on h alone.
	SignalAgent(h place.Host, sig int) error
}

// Switcher is a setup that hands over the primary's role on request.
type Switcher interface {
	Switchover(ctx context.Context) (Recovery, error)
}

// Servers gives the Postgres on a host of the setup, nil for any other host.
type Servers interface {
	Postgres(h place.Host) *postgres.Instance
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
	Detected time.Time // when a member was first seen to miss its primary, zero where nobody says so
	Promoted time.Time // when a new primary was no standby any more, zero if none was promoted
	Done     time.Time
}

// ErrNoStart marks a setup that did not come back within its deadline: nothing
// of it survived, and it is judged on that.
var ErrNoStart = errors.New("the setup did not come back")

// ErrNotWhole marks a setup that takes writes and did not get all of its members
// back within its deadline.
var ErrNotWhole = errors.New("the setup is not at full strength again")

// Kind is one member of the list.
type Kind struct {
	Name  string
	About string
	Hosts int
	Liar  bool // it promises what it cannot keep: it is there to be caught
	Lying bool // its disk acknowledges flushes and keeps nothing
	// Heals is how long it takes at most to fail over by itself, as its makers
	// say or as was seen; 0 for a setup that needs an operator. For estimates.
	Heals time.Duration
	Needs []string // programs beside PostgreSQL's
	// Publishes is set for a Publishing setup.
	Publishes bool
	New       func() System
}

// ErrMissing is wrapped by what Missing returns.
var ErrMissing = errors.New("a program is not installed")

// Missing names a program beside PostgreSQL's that the setup needs and this
// machine lacks.
func (k Kind) Missing() error {
	for _, p := range k.Needs {
		if _, err := os.Stat(p); err != nil {
			return fmt.Errorf("setup %s: %w: %s; `make deps-test` installs it (Debian's packages patroni, etcd-server, etcd-client)", k.Name, ErrMissing, p)
		}
	}
	return nil
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
		{Name: "holdfast", About: "three hosts, our own cluster, default timers, any one of two standbys", Hosts: 3, Heals: 5 * time.Second, New: newHealing(holdfast("default"))},
		{Name: "holdfast-fast", About: "the same with the profile fast: timers half as long", Hosts: 3, Heals: 5 * time.Second, New: newHealing(holdfast("fast"))},
		{Name: "patroni", About: "three hosts, Patroni and etcd, synchronous mode, default timers (ttl 30, loop 10)", Hosts: 3, Heals: 45 * time.Second, Needs: patroniNeeds, New: newHealing(patroni(30, 10, 10))},
		{Name: "patroni-fast", About: "the same with the shortest timers it documents (ttl 20, loop 1)", Hosts: 3, Heals: 30 * time.Second, Needs: patroniNeeds, New: newHealing(patroni(20, 1, 5))},
		{Name: "pg-logical", About: "two hosts, each with a Postgres; the second can subscribe to the first. For measurements", Hosts: 2, Publishes: true, New: newLogical},
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
