// Package instance owns the Postgres of one node: it carries out the effects of
// the decision core that concern it, and tells what can be seen of it. It
// decides nothing. DESIGN.md beside this file says why each promise of an
// effect holds with the real server.
package instance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// Endpoint is where a node's Postgres listens.
type Endpoint struct {
	Host string
	Port int
}

// Credential is a client certificate that one node's Postgres alone admits for
// replication. RootPEM verifies that server.
type Credential struct{ CertPEM, KeyPEM, RootPEM []byte }

// Config is constant within a life of the agent.
type Config struct {
	Cluster string
	Self    cluster.NodeID
	BinDir  string // where PostgreSQL's programs are
	DataDir string
	// StateDir is the agent's durable state beside the data directory: its own
	// replication CA, the incarnation last made, the server's log, WAL kept aside.
	StateDir string
	// RunDir is on tmpfs and short, since sockets lie in it: what permits, and
	// what is gone after a reboot.
	RunDir  string
	Address string // Postgres listens here, and on a socket in RunDir
	Port    int
	// OSUser runs Postgres when the agent is root. Otherwise empty, or the agent's own user.
	OSUser   string
	Settings map[string]string // the user's own; see CheckSettings
	HBA      []string          // the user's pg_hba rules, in force while the door is open
	// Peer is where another node's Postgres listens.
	Peer func(cluster.NodeID) (Endpoint, bool) `json:"-"`
	// Credential asks a node's agent for what its Postgres admits us with.
	Credential func(ctx context.Context, of cluster.NodeID) (Credential, error) `json:"-"`
	Exe        string                                                           // this program, for restore_command
	SlotCap    int64                                                            // most WAL that a slot may hold back, bytes; 0: a default
	Log        *slog.Logger                                                     `json:"-"`
}

// Instance is the node's Postgres: its directory, its files of permission, and
// the server that may run on it. Methods may be called from any goroutine,
// Begin from one.
type Instance struct {
	cfg          Config
	log          *slog.Logger
	user         osUser
	major, minor int // of the server's programs
	ca           *authority
	ctx          context.Context // this life; ends with Close
	end          context.CancelCauseFunc
	work         *worker
	wg           sync.WaitGroup
	kick         chan struct{} // something changed: look at once
	disk         onDisk
	flush        diskProbe
	fence        fence // a recruit's cut
	held         holdings
	spare        spare
	order        order // of looks and outcomes
	whole        whole
	eagerTill    atomic.Int64 // Watch looks all the time until then; nanoseconds since 1970
	upstream     upstreamState

	slotMu sync.Mutex // one slot is made at a time
	procMu sync.Mutex // a start and a stop do not overlap
	srv    *server    // the last that was started or found

	mu          sync.Mutex
	incarnation cluster.Incarnation
	durSSN      cluster.SSN // of the durable configuration
	permit      permit
	door        door
	doorSeq     uint64 // raised by each closing
	ssnEnd      context.CancelCauseFunc
	slots       map[cluster.NodeID]cluster.Member // asked for last
	waits       *server                           // the server whose commits are known to wait
	ssnOffAt    time.Time                         // since when another SSN is shown than is permitted
	blocked     string                            // who holds up a stop
	cancelled   int
	seen        cluster.Postgres // last look, and at which server
	seenOf      *server
}

// errClosed ends what is under way when the agent stops.
var errClosed = errors.New("the agent stops")

// New looks at what is there. It changes nothing in the data directory and takes
// over a Postgres that an earlier life of the agent left running.
func New(cfg Config) (*Instance, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := checkNames(cfg.Cluster, cfg.Self); err != nil {
		return nil, err
	}
	for what, path := range map[string]string{"data_dir": cfg.DataDir, "state_dir": cfg.StateDir, "run_dir": cfg.RunDir, "bin_dir": cfg.BinDir} {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("%s is %q: give an absolute path", what, path)
		}
	}
	if n := len(socketPath(cfg.RunDir, cfg.Port)); n > 107 {
		return nil, fmt.Errorf("run_dir %s: a socket in it would have a path of %d bytes, of at most 107: name a shorter one", cfg.RunDir, n)
	}
	if real, err := filepath.EvalSymlinks(cfg.DataDir); err == nil {
		cfg.DataDir = real // as /proc names it
	}
	u, err := lookupUser(cfg.OSUser)
	if err != nil {
		return nil, err
	}
	i := &Instance{cfg: cfg, log: cfg.Log, user: u, durSSN: nobody, slots: map[cluster.NodeID]cluster.Member{}, kick: make(chan struct{}, 1)}
	i.disk.i = i
	i.ctx, i.end = context.WithCancelCause(context.Background())
	if err := i.open(); err != nil {
		i.end(err)
		return nil, err
	}
	i.work = newWorker(i.ctx, &i.wg)
	i.find()
	return i, nil
}

// open reads what earlier lives left in the agent's own directories.
func (i *Instance) open() error {
	var err error
	if i.major, i.minor, err = i.version(i.ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(i.cfg.StateDir, 0o700); err != nil {
		return err
	}
	if err := i.makeDir(i.cfg.RunDir, 0o755); err != nil {
		return err
	}
	if i.ca, err = loadAuthority(i.cfg.StateDir, "holdfast-"+i.cfg.Cluster+"-"+string(i.cfg.Self)+"-authority", time.Now()); err != nil {
		return err
	}
	if i.incarnation, err = readIncarnation(filepath.Join(i.cfg.StateDir, "incarnation")); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(i.cfg.RunDir, permitName))
	if err == nil {
		i.permit = parsePermit(string(text))
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	i.door = i.doorFound()
	return nil
}

// Incarnation is that of the directory which the agent last made; 0: none.
func (i *Instance) Incarnation() cluster.Incarnation {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.incarnation
}

// closeWithin is how long Close waits for what a hung disk holds up.
const closeWithin = 5 * time.Second

// Close ends the operations of this life. Postgres keeps running.
func (i *Instance) Close() error {
	i.end(errClosed)
	defer i.spare.drop()
	ended := make(chan struct{})
	go func() { i.wg.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-time.After(closeWithin):
		return errors.New("an operation on the data directory does not end: its disk hangs")
	}
}

// Attend has Watch look often for a while: something is about to happen.
func (i *Instance) Attend() { i.eager() }

// changed has Watch look at once.
func (i *Instance) changed() {
	select {
	case i.kick <- struct{}{}:
	default:
	}
}
