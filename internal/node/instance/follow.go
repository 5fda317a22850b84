package instance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

// upstreamState is whom the standby was last told to stream from.
type upstreamState struct {
	mu         sync.Mutex
	node       cluster.NodeID
	at         Endpoint
	needsClone bool   // it no longer has the WAL that we need
	seq        uint64 // raised by each Follow, and by what replaces the directory
}

func (i *Instance) upstreamPath() string { return filepath.Join(i.cfg.RunDir, "upstream") }

// setUpstream remembers it, for the next life of the agent too.
func (i *Instance) setUpstream(node cluster.NodeID, at Endpoint) error {
	u := &i.upstream
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.node != node {
		u.needsClone = false
	}
	u.node, u.at = node, at
	u.seq++
	return i.writeVolatile(i.upstreamPath(), fmt.Appendf(nil, "%s %d %s\n", node, at.Port, at.Host))
}

// knownUpstream is whom an address belongs to that a walreceiver streams from.
func (i *Instance) knownUpstream(host string, port int) cluster.NodeID {
	u := &i.upstream
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.node == "" {
		b, err := os.ReadFile(i.upstreamPath())
		if f := strings.Fields(string(b)); err == nil && len(f) == 3 {
			u.node, u.at.Host = cluster.NodeID(f[0]), f[2]
			u.at.Port, _ = strconv.Atoi(f[1])
		}
	}
	if u.node != "" && u.at.Port == port && (u.at.Host == host || host == "") {
		return u.node
	}
	return ""
}

// dismissUpstream ends what looks after the present stream.
func (i *Instance) dismissUpstream() {
	i.upstream.mu.Lock()
	defer i.upstream.mu.Unlock()
	i.upstream.seq++
}

// lacksWAL says whether the upstream was found to lack what we need.
func (i *Instance) lacksWAL() bool {
	i.upstream.mu.Lock()
	defer i.upstream.mu.Unlock()
	return i.upstream.needsClone
}

func (i *Instance) setLacksWAL(v bool) {
	i.upstream.mu.Lock()
	was := i.upstream.needsClone
	i.upstream.needsClone = v
	i.upstream.mu.Unlock()
	if was != v {
		i.changed()
	}
}

// follow makes this instance stream from one upstream. What it writes to permit
// that, it writes only while no recruit's cut has come since it was begun.
func (i *Instance) follow(x cluster.Follow) task {
	p := i.fence.pass(i.ctx)
	return task{id: x.ID, long: true, rest: func(ctx context.Context) cluster.Done {
		ctx, end := p.join(ctx)
		defer end()
		err := i.followUpstream(ctx, p, x)
		if err == nil {
			err = p.do(func() error { return i.setDoor(doorReaders, i.doorNow()) }) // whoever gets in can only read
		}
		return i.doneWithLook(ctx, err)
	}}
}

func (i *Instance) followUpstream(ctx context.Context, p pass, x cluster.Follow) error {
	at, ok := i.cfg.Peer(x.Upstream.Node)
	if !ok {
		return fmt.Errorf("follow %s: no address is known for its Postgres", x.Upstream.Node)
	}
	if err := i.isPrimary(); err != nil {
		return err
	}
	cred, err := i.cfg.Credential(ctx, x.Upstream.Node)
	if err != nil {
		return fmt.Errorf("ask %s to admit this node: %w", x.Upstream.Node, err)
	}
	if err := i.tidyRunning(); err != nil {
		return err
	}
	if err := i.signalStandby(); err != nil {
		return err
	}
	next := i.conninfo(at, MemberName(i.cfg.Cluster, x.Name), i.credentialPath)
	var was string
	err = p.do(func() error {
		if err := i.writeCredential(filepath.Join(i.cfg.RunDir, credentialDir), cred); err != nil {
			return err
		}
		if err := i.setUpstream(x.Upstream.Node, at); err != nil {
			return err
		}
		return i.editPermit(func(g *permit) {
			was = g.PrimaryConninfo
			g.PrimaryConninfo, g.PrimarySlot, g.RestoreCommand = next, SlotName(x.Name), i.restoreCommand()
		})
	})
	if err != nil {
		return err
	}
	i.tend(p, x, at, cred)
	if i.current() != nil {
		i.hup()
		if was != next {
			for _, r := range i.receivers() {
				_ = signal(r, syscall.SIGTERM) // whatever a reload that applied nothing left in force
			}
		}
		return nil
	}
	return i.startStandby(ctx)
}

// isPrimary refuses where a server runs out of recovery.
func (i *Instance) isPrimary() error {
	if i.current() == nil {
		return nil
	}
	ctl, err := wal.ReadControl(i.cfg.DataDir)
	if err != nil {
		return err
	}
	if ctl.State == wal.InProduction {
		return errors.New("it runs as a primary: stop it first")
	}
	return nil
}

// tidyRunning removes what a promotion that did not happen left behind, so that
// whoever starts this directory next can.
func (i *Instance) tidyRunning() error {
	i.held.mu.Lock()
	h := i.held.report.History
	i.held.mu.Unlock()
	if i.current() == nil || len(h) == 0 {
		return nil
	}
	return i.tidyHistories(h[len(h)-1].Timeline, true)
}

// startStandby starts Postgres as a standby. A server that is still recovering
// when ctx ends keeps running: it has no upstream that it was not given.
func (i *Instance) startStandby(ctx context.Context) error {
	if err := i.prepareStandby(ctx); err != nil {
		return err
	}
	if err := i.awaitOrphans(ctx); err != nil {
		return err
	}
	rep, err := i.holds(ctx, serverWAL{}, flushed)
	if err != nil {
		return err
	}
	if err := i.tidyHistories(rep.History[len(rep.History)-1].Timeline, false); err != nil {
		return err
	}
	s, err := i.launch(ctx)
	if err != nil {
		return err
	}
	i.changed()
	return i.awaitReady(ctx, s)
}

// writeCredential puts a client certificate into a directory on tmpfs, its key
// last: without it the rest admits to nothing.
func (i *Instance) writeCredential(dir string, c Credential) error {
	if err := i.makeDir(dir, 0o700); err != nil {
		return err
	}
	return errors.Join(i.writeVolatile(filepath.Join(dir, serverRoot), c.RootPEM),
		i.writeVolatile(filepath.Join(dir, clientCert), c.CertPEM),
		i.writeVolatile(filepath.Join(dir, clientKey), c.KeyPEM))
}

// conninfo is how to stream from a server as name, with the certificate in files.
func (i *Instance) conninfo(at Endpoint, name string, file func(string) string) string {
	return conninfo("host", at.Host, "port", strconv.Itoa(at.Port), "user", roleReplication, "dbname", "replication",
		"application_name", name, "sslmode", "verify-ca", "sslcert", file(clientCert), "sslkey", file(clientKey),
		"sslrootcert", file(serverRoot), "gssencmode", "disable", "connect_timeout", "2", "tcp_user_timeout", "3000",
		"keepalives_idle", "1", "keepalives_interval", "1", "keepalives_count", "3")
}

// conninfo joins keywords and values as libpq reads them.
func conninfo(kv ...string) string {
	var b strings.Builder
	for n := 0; n+1 < len(kv); n += 2 {
		if n > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%s='%s'", kv[n], strings.ReplaceAll(strings.ReplaceAll(kv[n+1], `\`, `\\`), "'", `\'`))
	}
	return b.String()
}
