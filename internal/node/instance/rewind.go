package instance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

// ownFiles of a data directory are this node's: pg_rewind would overwrite them
// with the source's.
var ownFiles = []string{"postgresql.conf", "postgresql.auto.conf", durableName, "pg_hba.conf", "pg_ident.conf", incarnationName}

// rebuildWithin bounds the stop before a directory is rebuilt.
const rebuildWithin = 3 * time.Second

func (i *Instance) rewindMark() string { return filepath.Join(i.cfg.StateDir, "rewinding") }

// halfRewound says that the directory is good for nothing: a rewind began and
// did not end.
func (i *Instance) halfRewound() bool { return exists(i.rewindMark()) }

// rewind makes the directory one that can follow x.Upstream.
func (i *Instance) rewind(x cluster.Rewind) task {
	return task{id: x.ID, long: true, rest: func(ctx context.Context) cluster.Done {
		return i.doneWithLook(ctx, i.rewindTo(ctx, x.Upstream.Node))
	}}
}

func (i *Instance) rewindTo(ctx context.Context, upstream cluster.NodeID) error {
	if i.halfRewound() {
		return errors.New("an earlier rewind did not end: the directory has to be cloned")
	}
	at, cred, err := i.admitted(ctx, upstream)
	if err != nil {
		return err
	}
	i.dismissUpstream()
	if err := i.endServer(ctx, rebuildWithin); err != nil {
		return err
	}
	if err := i.awaitOrphans(ctx); err != nil {
		return err
	}
	rep, err := i.holds(ctx, serverWAL{}, confirmed)
	if err != nil {
		return err
	}
	theirs, err := i.sourceHistory(ctx, at, cred)
	if err != nil {
		return fmt.Errorf("prepare %s for a rewind: %w", upstream, err)
	}
	pos, common, diverged := cluster.Locate(theirs, rep.History, rep.End)
	if common == 0 {
		return errors.New("it has no history in common with the primary")
	}
	if diverged {
		note := asideNote{Why: "rewind", Member: i.Incarnation(), Upstream: upstream}
		if err := i.setAside(ctx, note, rep, pos.LSN); err != nil {
			return err
		}
	}
	if err := i.rewindFiles(ctx, at, cred, rep); err != nil {
		return err
	}
	after, err := i.holds(ctx, serverWAL{}, confirmed)
	if err != nil {
		return err
	}
	if _, _, still := cluster.Locate(theirs, after.History, after.End); still {
		return fmt.Errorf("pg_rewind left timelines %s; the primary has %s", timelines(after.History), timelines(theirs))
	}
	return nil
}

// admitted asks for an upstream's address and for what it admits us with.
func (i *Instance) admitted(ctx context.Context, node cluster.NodeID) (Endpoint, Credential, error) {
	at, ok := i.cfg.Peer(node)
	if !ok {
		return at, Credential{}, fmt.Errorf("no address is known for the Postgres of %s", node)
	}
	cred, err := i.cfg.Credential(ctx, node)
	if err != nil {
		return at, cred, fmt.Errorf("ask %s to admit this node: %w", node, err)
	}
	return at, cred, nil
}

// sourceHistory has the source make a checkpoint, so that its pg_control shows
// its timeline (which is where pg_rewind looks), and returns its history.
func (i *Instance) sourceHistory(ctx context.Context, at Endpoint, cred Credential) ([]cluster.Branch, error) {
	c, err := i.dial(ctx, at, cred, false)
	if err != nil {
		return nil, err
	}
	defer closeConn(c)
	var standby bool
	if err := c.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&standby); err != nil {
		return nil, err
	}
	if standby {
		return nil, errors.New("it is no primary")
	}
	if _, err := c.Exec(ctx, "CHECKPOINT"); err != nil && code(err) != "42501" { // before version 15 that is a superuser's
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	var tl int64
	var seg string
	if err := c.QueryRow(ctx, "SELECT timeline_id, pg_walfile_name(pg_current_wal_lsn()) FROM pg_control_checkpoint()").Scan(&tl, &seg); err != nil {
		return nil, err
	}
	t := cluster.Timeline(tl)
	if now, err := strconv.ParseUint(seg[:min(8, len(seg))], 16, 32); err != nil || cluster.Timeline(now) != t {
		return nil, fmt.Errorf("its control file says timeline %d, it writes %s: no checkpoint yet", t, seg)
	}
	if t == 1 {
		return []cluster.Branch{{Timeline: 1}}, nil
	}
	b, err := source{c}.read(ctx, wal.HistoryName(t), 0, 1<<20)
	if err != nil {
		return nil, err
	}
	h, _, err := wal.ParseHistory(t, b)
	return h, err
}

// rewindFiles runs pg_rewind and gives the directory back what is this node's. A
// mark says meanwhile that the directory is good for nothing.
func (i *Instance) rewindFiles(ctx context.Context, at Endpoint, cred Credential, rep wal.Report) error {
	kept := map[string][]byte{}
	for _, name := range ownFiles {
		b, err := os.ReadFile(filepath.Join(i.cfg.DataDir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		kept[name] = b
	}
	if _, ok := kept[incarnationName]; !ok {
		return errors.New("the directory has no incarnation: it has to be cloned")
	}
	if err := writePrivate(i.rewindMark(), []byte("a rewind did not end: clone this directory\n")); err != nil {
		return err
	}
	if err := syncDir(i.cfg.StateDir); err != nil {
		return err
	}
	i.forgetHoldings()
	if rep.State != wal.ShutDown && rep.State != wal.ShutDownInRecovery {
		// pg_rewind first has a single process recover the directory, which cannot be a standby.
		if err := remove(filepath.Join(i.cfg.DataDir, "standby.signal")); err != nil {
			return err
		}
	}
	dir, err := i.borrow(cred, "rewind")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := i.command(ctx, "pg_rewind", "-D", i.cfg.DataDir, "--source-server="+i.toolConninfo(at, dir, roleRewind, "postgres", "rewind"))
	cmd.Dir = dir
	if _, err := i.output(cmd); err != nil {
		return err
	}
	for name, b := range kept {
		if err := i.writeDurable(filepath.Join(i.cfg.DataDir, name), b); err != nil {
			return err
		}
	}
	if err := i.signalStandby(); err != nil {
		return err
	}
	return remove(i.rewindMark())
}

// borrow puts a certificate where one run of a program finds it, never where a
// walreceiver looks.
func (i *Instance) borrow(cred Credential, purpose string) (dir string, err error) {
	dir = filepath.Join(i.cfg.RunDir, purpose)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, i.writeCredential(dir, cred)
}

// toolConninfo is how one of PostgreSQL's programs connects, with a certificate
// in dir, under a name that is no member's.
func (i *Instance) toolConninfo(at Endpoint, dir, role, db, purpose string) string {
	return conninfo("host", at.Host, "port", strconv.Itoa(at.Port), "user", role, "dbname", db,
		"application_name", StrangerName(purpose, i.cfg.Self), "sslmode", "verify-ca",
		"sslcert", filepath.Join(dir, clientCert), "sslkey", filepath.Join(dir, clientKey), "sslrootcert", filepath.Join(dir, serverRoot),
		"gssencmode", "disable", "connect_timeout", "3", "tcp_user_timeout", "10000",
		"keepalives_idle", "2", "keepalives_interval", "2", "keepalives_count", "4")
}
