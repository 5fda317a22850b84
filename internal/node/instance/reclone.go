package instance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

// reclone makes a new directory from a base backup. The old one stays where it is
// until the new one is complete beside it, as long as there is space for both.
func (i *Instance) reclone(x cluster.Reclone) task {
	return task{id: x.ID, long: true, rest: func(ctx context.Context) cluster.Done {
		return i.doneWithLook(ctx, i.cloneFrom(ctx, x.Upstream.Node))
	}}
}

// newDir is where a backup is made; it lies beside the directory, so that a
// rename is all that is needed in the end.
func (i *Instance) newDir() string { return i.cfg.DataDir + ".new" }

func (i *Instance) oldDir() string { return i.cfg.DataDir + ".old" }

func (i *Instance) cloneFrom(ctx context.Context, upstream cluster.NodeID) (err error) {
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
	// What a killed attempt left is in the way, and good for nothing.
	for _, dir := range []string{i.newDir(), i.oldDir()} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := i.keepOldWAL(ctx, upstream); err != nil {
		return err
	}
	if err := i.makeSpace(ctx, at, cred); err != nil {
		return err
	}
	n, err := drawIncarnation()
	if err != nil {
		return err
	}
	was := i.Incarnation()
	slot := SlotName(cluster.Member{Node: i.cfg.Self, Incarnation: n})
	// From here on the upstream keeps what the new directory will need.
	if err := i.makeSlot(ctx, at, cred, slot); err != nil {
		return fmt.Errorf("make a slot at %s: %w", upstream, err)
	}
	defer func() {
		last := slot // of an attempt that failed
		if err == nil {
			last = SlotName(cluster.Member{Node: i.cfg.Self, Incarnation: was})
		}
		if err != nil || was != 0 {
			if dropErr := i.dropSlot(i.ctx, at, cred, last); dropErr != nil {
				i.log.Info("a slot that nobody needs stays at the upstream", "slot", last, "error", dropErr)
			}
		}
	}()
	if err := i.backup(ctx, at, cred); err != nil {
		_ = os.RemoveAll(i.newDir())
		return err
	}
	return i.takeNew(ctx, n)
}

// keepOldWAL keeps the newest WAL of the directory that goes.
func (i *Instance) keepOldWAL(ctx context.Context, upstream cluster.NodeID) error {
	if !exists(filepath.Join(i.cfg.DataDir, "pg_wal")) || i.halfRewound() {
		return nil // what a rewind left is the source's, and the rest was kept before it
	}
	rep, err := i.holds(ctx, serverWAL{}, flushed)
	if err != nil {
		i.log.Warn("the WAL of the directory that is replaced cannot be read, and is not kept aside", "error", err)
		return nil
	}
	from := cluster.LSN(0)
	if rep.End > asideEach/2 {
		from = rep.End - asideEach/2
	}
	return i.setAside(ctx, asideNote{Why: "reclone", Member: i.Incarnation(), Upstream: upstream}, rep, from)
}

// makeSpace removes the old directory now if the new one does not fit beside it.
// That it may go was decided before this was asked for.
func (i *Instance) makeSpace(ctx context.Context, at Endpoint, cred Credential) error {
	need := treeSize(i.cfg.DataDir)
	if c, err := i.dial(ctx, at, cred, false); err == nil {
		var size int64
		// Only this one database may be connected to; its directory holds all of them.
		err = c.QueryRow(ctx, "SELECT sum(pg_database_size(oid))::bigint FROM pg_database").Scan(&size)
		closeConn(c)
		if err == nil {
			need = max(size, 0)
		}
	}
	need += 256 << 20 // WAL that is streamed meanwhile
	parent := filepath.Dir(i.cfg.DataDir)
	free, err := room(parent)
	if err != nil {
		return err
	}
	if free > need {
		return nil
	}
	old := treeSize(i.cfg.DataDir)
	if free+old <= need {
		return fmt.Errorf("%s has %d MB free and the old directory %d MB, a clone needs %d MB: make space there", parent, free>>20, old>>20, need>>20)
	}
	i.log.Warn("there is no space for a clone beside the old directory: the old one is removed first", "free MB", free>>20, "needed MB", need>>20)
	return i.removeData()
}

// removeData removes the data directory; renamed first, so that half of it is
// never taken for a directory.
func (i *Instance) removeData() error {
	if err := os.Rename(i.cfg.DataDir, i.oldDir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return mounted(err)
	}
	if err := syncDir(filepath.Dir(i.cfg.DataDir)); err != nil {
		return err
	}
	i.forgetHoldings()
	return os.RemoveAll(i.oldDir())
}

// mounted explains why a data directory cannot be renamed.
func mounted(err error) error {
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EXDEV) {
		return fmt.Errorf("%w: the data directory is a mount point; have it in a directory below that (postgres.data), so that a clone can take its place", err)
	}
	return err
}

// backup makes a base backup in newDir, complete and on disk.
func (i *Instance) backup(ctx context.Context, at Endpoint, cred Credential) error {
	if err := i.makeDir(i.newDir(), 0o700); err != nil {
		return err
	}
	dir, err := i.borrow(cred, "clone")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := i.command(ctx, "pg_basebackup", "-D", i.newDir(), "-c", "fast", "-X", "stream", "--no-password",
		"-d", i.toolConninfo(at, dir, roleReplication, "replication", "clone"))
	cmd.Dir = dir
	_, err = i.output(cmd)
	return err
}

// takeNew puts the new directory in the old one's place. Its incarnation counts
// only once the agent's state names it too.
func (i *Instance) takeNew(ctx context.Context, n cluster.Incarnation) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	text := []byte(strconv.FormatUint(uint64(n), 10) + "\n")
	for name, b := range map[string][]byte{"standby.signal": nil, incarnationName: text} {
		if err := i.writeDurable(filepath.Join(i.newDir(), name), b); err != nil {
			return err
		}
	}
	err := unix.Renameat2(unix.AT_FDCWD, i.newDir(), unix.AT_FDCWD, i.cfg.DataDir, unix.RENAME_EXCHANGE)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(i.newDir(), i.cfg.DataDir)
	} else if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // not every file system can exchange
		if err = os.Rename(i.cfg.DataDir, i.oldDir()); err == nil {
			err = os.Rename(i.newDir(), i.cfg.DataDir)
		}
	}
	if err != nil {
		return mounted(err)
	}
	if err := syncDir(filepath.Dir(i.cfg.DataDir)); err != nil {
		return err
	}
	i.forgetHoldings()
	i.setLacksWAL(false)
	if err := i.writeConfig(nobody); err != nil {
		return err
	}
	if err := i.saveIncarnation(i.cfg.DataDir, n); err != nil {
		return err
	}
	if err := remove(i.rewindMark()); err != nil {
		return err
	}
	for _, dir := range []string{i.newDir(), i.oldDir()} {
		if err := os.RemoveAll(dir); err != nil {
			i.log.Warn("the former directory could not be removed", "error", err)
		}
	}
	return nil
}

// directoryIncarnation is what a data directory says of itself; 0: nothing.
func directoryIncarnation(dir string) cluster.Incarnation {
	n, err := readIncarnation(filepath.Join(dir, incarnationName))
	if err != nil {
		return 0
	}
	return n
}

// timelines is a history in words.
func timelines(h []cluster.Branch) string {
	var b strings.Builder
	for n, x := range h {
		if n > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d from %s", x.Timeline, wal.Text(x.Fork))
	}
	return b.String()
}
