package quorum

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// DefaultReserve is enough for a whole cycle from one snapshot to the next.
const DefaultReserve = 16 << 20

// Options of a node's voter. All but Dial, Flush and Log are required.
type Options struct {
	Dir string // its own, mode 0700, outside of Postgres's data directory
	ID  uint64 // drawn once for these files
	// Fresh removes what is in Dir and begins with nothing; otherwise the files of
	// this ID must be there and whole.
	Fresh bool
	// Founders begin a new cluster; with Fresh, and the same on every one of them.
	// A voter that joins has none: it is added by the leader.
	Founders []Voter
	Address  string // how the others reach Listener
	Listener net.Listener
	Dial     func(ctx context.Context, address string) (net.Conn, error)
	TLS      *tls.Config // for both ends; Identity.TLS makes one
	Timers   Timers
	Flush    time.Duration // what a flush takes in Dir; 0: it is measured
	Reserve  int64         // bytes kept for when the disk is full; 0: none
	Log      *slog.Logger
}

// Node is a voter: a Register over hashicorp/raft.
type Node struct {
	id       uint64
	raft     *raft.Raft
	fsm      *machine
	log      *store
	spare    *reserve
	wire     *wire
	timers   Timers
	reload   raft.ReloadableConfig
	slog     *slog.Logger
	greeting atomic.Bool   // connections for requests are being opened
	last     atomic.Uint64 // who led last, as far as this follower knows
	leads    chan bool
	notify   chan bool
	closing  context.Context
	end      context.CancelFunc
	work     sync.WaitGroup
	once     sync.Once
	closed   error
}

var _ Register = (*Node)(nil)

// Open starts the voter. It takes over the listener, also when it fails.
func Open(o Options) (*Node, error) {
	n, err := open(o)
	if err != nil {
		_ = o.Listener.Close()
		return nil, fmt.Errorf("start the voter in %s: %w", o.Dir, err)
	}
	return n, nil
}

func (o *Options) complete() error {
	switch {
	case o.ID == 0:
		return errors.New("a voter's id is not 0")
	case o.TLS == nil || o.TLS.ClientAuth != tls.RequireAndVerifyClientCert:
		return errors.New("the TLS configuration must ask peers for a certificate and verify it")
	case len(o.Founders) > 0 && !o.Fresh:
		return errors.New("only a fresh voter can found a cluster")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Dial == nil {
		var d net.Dialer
		o.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", address)
		}
	}
	return nil
}

// files makes Dir hold the files of this voter, but not yet its id.
func (o *Options) files() error {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("make its directory: %w", err)
	}
	if o.Fresh {
		return wipe(o.Dir)
	}
	h, err := Inspect(o.Dir)
	if err != nil {
		return err
	}
	if h.Voter != o.ID {
		return fmt.Errorf("the files there are not those of voter %d (found %d; 0 is none): it has to come back under a new id", o.ID, h.Voter)
	}
	return nil
}

func open(o Options) (_ *Node, err error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	if err := o.files(); err != nil {
		return nil, err
	}
	if o.Flush == 0 {
		if o.Flush, err = FlushTime(o.Dir); err != nil {
			return nil, err
		}
	}
	n := &Node{
		id: o.ID, fsm: newMachine(), slog: o.Log, timers: o.Timers.Widen(o.Flush),
		spare: &reserve{path: filepath.Join(o.Dir, ballastFile), bytes: o.Reserve},
		leads: make(chan bool, 1), notify: make(chan bool, 8),
	}
	if n.timers != o.Timers {
		o.Log.Warn("the disk flushes slowly: the register's timers are widened", "flush", o.Flush, "heartbeat", n.timers.Heartbeat)
	}
	if err := n.spare.fill(); err != nil {
		o.Log.Warn("no space is reserved for the register", "err", err)
	}
	n.closing, n.end = context.WithCancel(context.Background())
	if n.log, err = openStore(o.Dir, n.spare); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.end()
			_ = n.log.Close()
		}
	}()
	if err := n.startRaft(o); err != nil {
		return nil, err
	}
	n.wire.start(n.serve)
	n.work.Go(n.tellLeadership)
	n.work.Go(n.tend)
	return n, nil
}

func (n *Node) startRaft(o Options) error {
	logger := hclog.New(&hclog.LoggerOptions{Name: "raft", Level: hclog.Info, Output: logWriter{o.Log}, DisableTime: true})
	snaps, err := raft.NewFileSnapshotStoreWithLogger(o.Dir, snapshotsKept, logger)
	if err != nil {
		return fmt.Errorf("open the snapshots: %w", err)
	}
	c := raft.DefaultConfig()
	c.LocalID = serverID(o.ID)
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = n.timers.Heartbeat, n.timers.Election, n.timers.Lease
	c.SnapshotThreshold, c.SnapshotInterval, c.TrailingLogs = 256, 5*time.Minute, 128
	c.NotifyCh = n.notify
	c.Logger = logger
	n.reload = raft.ReloadableConfig{
		TrailingLogs: c.TrailingLogs, SnapshotInterval: c.SnapshotInterval, SnapshotThreshold: c.SnapshotThreshold,
		HeartbeatTimeout: c.HeartbeatTimeout, ElectionTimeout: c.ElectionTimeout,
	}
	n.wire = newWire(o.Listener, o.TLS, o.Dial)
	net := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: advertised{n.wire, o.Address}, MaxPool: pooled, Timeout: max(2*n.timers.Election, time.Second), Logger: logger,
	})
	if err := n.found(o, c, snaps, net); err != nil {
		_ = net.Close()
		return err
	}
	votes := &voting{NetworkTransport: net, stagger: stagger(o.Flush)}
	n.raft, err = raft.NewRaft(c, n.fsm, n.log, n.log, snaps, votes)
	if err != nil {
		_ = net.Close()
		return err
	}
	n.raft.RegisterObserver(raft.NewObserver(nil, false, votes.observe))
	votes.node.Store(n)
	return nil
}

// found writes the first entry of a new cluster, and then the voter's id.
func (n *Node) found(o Options, c *raft.Config, snaps raft.SnapshotStore, t raft.Transport) error {
	if !o.Fresh {
		return nil
	}
	if len(o.Founders) > 0 {
		var all raft.Configuration
		for _, v := range o.Founders {
			all.Servers = append(all.Servers, raft.Server{ID: serverID(v.ID), Address: raft.ServerAddress(v.Address)})
		}
		if err := raft.BootstrapCluster(c, n.log, n.log, snaps, t, all); err != nil {
			return fmt.Errorf("found the cluster: %w", err)
		}
	}
	return n.spare.spend(func() error { return writeVoter(o.Dir, o.ID) })
}

// Close stops the voter and gives everything back but its files.
func (n *Node) Close() error {
	n.once.Do(func() {
		n.end()
		err := n.raft.Shutdown().Error() // closes the transport, and with it the wire
		err = errors.Join(err, n.wire.Close())
		n.work.Wait()
		n.closed = errors.Join(err, n.log.Close())
	})
	return n.closed
}

// Timers are those in force, widened for the disk.
func (n *Node) Timers() Timers { return n.timers }

// Status implements Register.
func (n *Node) Status() Status {
	v, index := n.fsm.now()
	_, leader := n.raft.LeaderWithID()
	return Status{
		Value: v, Term: n.raft.CurrentTerm(), Last: n.raft.LastIndex(), Applied: index,
		Leader: voterID(leader), Leads: n.raft.State() == raft.Leader, Reserved: n.spare.isWhole(),
	}
}

// Changed implements Register.
func (n *Node) Changed() <-chan struct{} { return n.fsm.changed }

// Leadership implements Register.
func (n *Node) Leadership() <-chan bool { return n.leads }

// tellLeadership takes every change from raft, which waits for that, and keeps
// the newest for whoever listens.
func (n *Node) tellLeadership() {
	for {
		select {
		case l := <-n.notify:
			select {
			case <-n.leads:
			default:
			}
			n.leads <- l
		case <-n.closing.Done():
			return
		}
	}
}

func serverID(id uint64) raft.ServerID { return raft.ServerID(strconv.FormatUint(id, 10)) }

func voterID(s raft.ServerID) uint64 {
	id, err := strconv.ParseUint(string(s), 10, 64)
	if err != nil {
		return 0 // nobody
	}
	return id
}

// advertised is the wire under the address that the others know.
type advertised struct {
	*wire
	address string
}

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// Addr implements net.Listener.
func (a advertised) Addr() net.Addr { return address(a.address) }

// logWriter turns raft's lines into records; its prefixes name the level.
type logWriter struct{ log *slog.Logger }

func (w logWriter) Write(b []byte) (int, error) {
	line := strings.TrimSpace(string(b))
	level := slog.LevelDebug
	switch {
	case strings.Contains(line, "failed to heartbeat to"), strings.Contains(line, "failed to appendEntries to"),
		strings.Contains(line, "failed to contact"): // four times a second while a peer is down
	case strings.Contains(line, "[ERROR]"), strings.Contains(line, "[WARN]"):
		level = slog.LevelInfo // raft warns of every peer that is down
	}
	w.log.Log(context.Background(), level, line)
	return len(b), nil
}
