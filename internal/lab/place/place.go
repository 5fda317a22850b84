// Package place says where hosts come from. A Place hands out Hosts; what a
// Host can do beyond running programs is asked for by type assertion
// (PowerCycler, Partitioner, Freezer, Attacher, Wiper).
package place

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// VolumeKind says how a host's data relates to the host.
type VolumeKind string

const (
	// HostBound data is on a disk of the host and survives a loss of power.
	HostBound VolumeKind = "host-bound"
	// Instance data is on a disk of the host and is wiped with its power, as
	// an instance store's is.
	Instance VolumeKind = "instance"
	// Network data is on a volume that outlives its host and can be attached to
	// another one.
	Network VolumeKind = "network"
)

// HostSpec asks for one host.
type HostSpec struct {
	Name    string     // unique within the place, [a-z][a-z0-9-]*, at most 15 bytes
	Disk    string     // a named disk (see internal/disk), "" for a host without one
	Volume  VolumeKind // HostBound if empty
	Crash   string     // the disk's crash policy, see disk.Policies; "" is lose-all
	Profile string     // the disk's profile, see disk.Profiles; "" is ext4
	Seed    uint64     // seeds latencies and the crash policy
}

// Facts describe the place for the report.
type Facts struct {
	Name      string // "local"
	Simulated bool   // disks, power cuts or network are simulated
	Evidence  string // how real a power cut is, see result.Evidence*
	Notes     []string
}

// Place hands out hosts and takes them back.
type Place interface {
	// Acquire brings hosts up, powered on, each able to reach all others.
	// On error nothing that it made is left.
	Acquire(ctx context.Context, specs []HostSpec) ([]Host, error)
	Facts() Facts
	// Release ends every host and removes everything that the place made.
	// It is safe to call twice and after a failed Acquire.
	Release(ctx context.Context) error
}

// Cmd is a program to be run on a host.
type Cmd struct {
	Path   string   // looked up on the host if it has no slash; "holdfast" is this very program
	Args   []string // without the program's own name
	Env    []string // added to a minimal environment
	Dir    string   // DataDir if empty
	Root   bool     // as root within the host; otherwise as the unprivileged user
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
}

// Process is a program running on a host.
type Process interface {
	// Pid in the caller's PID namespace.
	Pid() int
	// Signal sends sig to the program alone.
	Signal(sig int) error
	// Wait returns nil, an *ExitError, or an error that wraps ErrNoPower.
	// It may be called from several goroutines.
	Wait() error
	// Done is closed when the program has ended.
	Done() <-chan struct{}
}

// Host runs programs, has an address, and (where it is a PowerCycler) loses power.
type Host interface {
	Name() string
	Addr() string    // an IP address, the same before and after a power cycle
	DataDir() string // on the host's disk, owned by the unprivileged user; "" while it has none
	RunDir() string  // in the host's memory (gone with its power), owned by the unprivileged user
	User() string    // the unprivileged user's name as programs on the host see it

	// Run runs cmd to its end and returns its combined output if Stdout is nil.
	Run(ctx context.Context, cmd Cmd) ([]byte, error)
	// Start starts cmd; cancelling ctx does not end it, power off does.
	Start(ctx context.Context, cmd Cmd) (Process, error)
	// Put writes data to a file as the unprivileged user, makes directories
	// above it that are missing, and returns when all is on the disk. Get reads
	// one; its error wraps fs.ErrNotExist if there is none. Paths are absolute.
	Put(ctx context.Context, path string, data []byte, perm uint32) error
	Get(ctx context.Context, path string) ([]byte, error)
	// Dial connects from the host (tcp to any host's address, or unix to a
	// socket on this host). What the lab dialled or listens on is closed when
	// the host loses power.
	Dial(ctx context.Context, network, addr string) (net.Conn, error)
	// Listen listens on the host's address or on a unix socket of the host.
	Listen(ctx context.Context, network, addr string) (net.Listener, error)
}

// PowerCycler can cut the power and bring it back.
type PowerCycler interface {
	// Off cuts the power silently: the network first, then the processes, then
	// what was not flushed is gone. began is when the network was cut,
	// confirmed when nothing of the host can act any more. An Instance disk is
	// empty by then.
	Off(ctx context.Context) (began, confirmed time.Time, err error)
	// On powers the host on with what its disk kept. No program is started.
	On(ctx context.Context) error
	Powered() bool
}

// Partitioner cuts single directions of traffic silently (no RST, no ICMP), for
// connections that are there as for new ones. A cut is the network's, not the
// host's: it lasts until Heal, over power cycles of either end, and may be
// asked for while either end is off.
type Partitioner interface {
	// Cut drops what this host sends to peer. Both ways is Cut on both.
	Cut(ctx context.Context, peer Host) error
	// Heal undoes Cut.
	Heal(ctx context.Context, peer Host) error
}

// Freezer stops and continues all programs of a host; its network stays up, and
// what is asked of it meanwhile waits. A power cycle thaws it.
type Freezer interface {
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error
}

// Attacher takes over another host's Network volume.
type Attacher interface {
	// Attach takes the volume of from, which is off, and gives it to this host,
	// which is off and has no disk. It returns when the volume is there, which
	// takes the place's time, and the host has it when it is powered on. What
	// from had not flushed when it lost its power is gone.
	Attach(ctx context.Context, from Host) error
}

// Wiper empties a host's disk; the host must be off.
type Wiper interface {
	Wipe(ctx context.Context) error
}

// DiskStatser returns the disk's own counters, the ground truth.
type DiskStatser interface {
	DiskStats(ctx context.Context) (map[string]float64, error)
}

// DiskController changes the host's simulated disk while it runs.
type DiskController interface {
	// SetDisk sets keys of `holdfast simdisk set`, such as crash=lying.
	SetDisk(ctx context.Context, values map[string]string) error
	// SyncDisk makes everything written so far durable; sync(2) never reaches
	// the simulated disk.
	SyncDisk(ctx context.Context) error
}

// MemoryLimiter bounds the memory of a host.
type MemoryLimiter interface {
	// LimitMemory bounds the memory of all programs of the host together, what is
	// cached of their files included. It holds over power cycles; 0 lifts it.
	LimitMemory(ctx context.Context, bytes int64) error
}

// ErrNoPower is wrapped by errors of what needs a host that has power, and by
// Process.Wait after the host lost it.
var ErrNoPower = errors.New("the host has no power")

// ExitError says that a program ran and did not end with 0.
type ExitError struct {
	Path   string
	Code   int // -1 when it was killed by a signal
	Signal int // 0 when it exited by itself
}

func (e *ExitError) Error() string {
	if e.Signal != 0 {
		return fmt.Sprintf("%s was killed by signal %d (%s)", e.Path, e.Signal, syscall.Signal(e.Signal))
	}
	return fmt.Sprintf("%s ended with exit code %d", e.Path, e.Code)
}
