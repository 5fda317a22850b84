package instance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

// This file fetches WAL from another recruit. It is read as files, over a session
// that can do nothing but read: no walreceiver runs for it, nobody's upstream or
// credential is touched, and nothing is confirmed to anybody. It does not matter
// either how far the other's replay got.

const pageSize = 8192

// fetchWAL appends WAL up to x.Until.
func (i *Instance) fetchWAL(x cluster.FetchWAL) task {
	p := i.fence.pass(i.ctx)
	return task{id: x.ID, long: true, rest: func(ctx context.Context) cluster.Done {
		ctx, end := p.join(ctx)
		defer end()
		return i.doneWithLook(ctx, i.fetch(ctx, x))
	}}
}

func (i *Instance) fetch(ctx context.Context, x cluster.FetchWAL) error {
	if err := i.isPrimary(); err != nil {
		return err
	}
	mine, err := i.ownWAL(ctx)
	if err != nil {
		return err
	}
	switch {
	case mine.Replayable < mine.End:
		return fmt.Errorf("our own WAL is damaged at %s", wal.Text(mine.Replayable))
	case mine.End >= x.Until:
		return nil
	}
	at, ok := i.cfg.Peer(x.From)
	if !ok {
		return fmt.Errorf("fetch WAL from %s: no address is known for its Postgres", x.From)
	}
	cred, err := i.cfg.Credential(ctx, x.From)
	if err != nil {
		return fmt.Errorf("ask %s to admit this node: %w", x.From, err)
	}
	c, err := i.dial(ctx, at, cred, false)
	if err != nil {
		return err
	}
	defer closeConn(c)
	src := source{c}
	theirs, err := src.histories(ctx)
	if err != nil {
		return fmt.Errorf("look at the WAL of %s: %w", x.From, err)
	}
	tried := errors.New("it shares no history with us")
	for _, h := range theirs {
		if !continues(mine.History, mine.End, h) {
			continue
		}
		if err = i.fetchAlong(ctx, src, mine, h, x.Until); err != nil {
			tried = err
			continue
		}
		i.forgetHoldings()
		i.hup() // a standby without upstream looks at once, not in its own time
		now, err := i.ownWAL(ctx)
		if err != nil {
			return err
		}
		if now.End < x.Until {
			return fmt.Errorf("what %s holds ends at %s, short of %s", x.From, wal.Text(now.End), wal.Text(x.Until))
		}
		return nil
	}
	return fmt.Errorf("fetch WAL from %s: %w", x.From, tried)
}

// ownWAL reads our own, whether Postgres runs or not.
func (i *Instance) ownWAL(ctx context.Context) (wal.Report, error) {
	s := serverWAL{running: i.current() != nil}
	if s.running {
		if c, err := i.connect(ctx); err == nil {
			s, _, err = i.askStandby(ctx, c)
			closeConn(c)
			if err != nil {
				return wal.Report{}, err
			}
		}
	}
	return i.holds(ctx, s, confirmed)
}

// continues says whether WAL on history theirs may come after what ends at end on
// history mine.
func continues(mine []cluster.Branch, end cluster.LSN, theirs []cluster.Branch) bool {
	if len(theirs) < len(mine) || !slices.Equal(mine, theirs[:len(mine)]) {
		return false
	}
	return len(theirs) == len(mine) || end <= theirs[len(mine)].Fork
}

// source is another node's data directory, read through its server.
type source struct{ c *pgx.Conn }

func (s source) read(ctx context.Context, name string, off, n int64) ([]byte, error) {
	var b []byte
	err := s.c.QueryRow(ctx, "SELECT pg_read_binary_file($1, $2, $3, true)", "pg_wal/"+name, off, n).Scan(&b)
	return b, err
}

// histories are those of which the other has WAL, the newest first.
func (s source) histories(ctx context.Context) ([][]cluster.Branch, error) {
	rows, err := s.c.Query(ctx, "SELECT pg_ls_dir('pg_wal', true, false)")
	if err != nil {
		return nil, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	begun := map[cluster.Timeline]bool{}
	for _, name := range names {
		var t uint32
		if _, err := fmt.Sscanf(name, "%08X", &t); err == nil && len(name) == 24 {
			begun[cluster.Timeline(t)] = true
		}
	}
	out := [][]cluster.Branch{}
	for t := range begun {
		h := []cluster.Branch{{Timeline: t}}
		if t != 1 {
			b, err := s.read(ctx, wal.HistoryName(t), 0, 1<<20)
			if err != nil {
				return nil, err
			}
			var reserved bool
			if h, reserved, err = wal.ParseHistory(t, b); err != nil || reserved {
				continue
			}
		}
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b []cluster.Branch) int { return int(b[len(b)-1].Timeline) - int(a[len(a)-1].Timeline) })
	return out, nil
}

// fetchAlong writes what lies between our end and until on history h.
func (i *Instance) fetchAlong(ctx context.Context, src source, mine wal.Report, h []cluster.Branch, until cluster.LSN) error {
	dir := filepath.Join(i.cfg.DataDir, "pg_wal")
	own := mine.History[len(mine.History)-1].Timeline
	for _, b := range h[len(mine.History):] {
		text, err := src.read(ctx, wal.HistoryName(b.Timeline), 0, 1<<20)
		if err != nil {
			return err
		}
		if err := i.writeDurable(filepath.Join(dir, wal.HistoryName(b.Timeline)), text); err != nil {
			return err
		}
	}
	size := mine.SegSize
	for n := uint64(mine.End) / size; n*size < uint64(until); n++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		first, t := n*size, h[len(h)-1].Timeline
		for k := len(h) - 1; k > 0 && uint64(h[k].Fork)/size > n; k-- {
			t = h[k-1].Timeline
		}
		from, to := first, min(first+size, uint64(until))
		if t == own && uint64(mine.End) > first {
			from = uint64(mine.End) &^ (pageSize - 1)
		}
		name := (wal.Segment{Timeline: t, Number: n}).Name(size)
		b, err := src.read(ctx, name, int64(from-first), int64(to-from))
		if err != nil {
			return err
		}
		if uint64(len(b)) != to-from {
			return fmt.Errorf("its %s has %d bytes from %d on, want %d", name, len(b), from-first, to-from)
		}
		if err := i.putWAL(dir, name, size, from-first, b, uint64(mine.End)-min(first, uint64(mine.End))); err != nil {
			return err
		}
	}
	return syncDir(dir)
}

// putWAL writes b at off into a segment. What lies below have is there already,
// and has to be the same: else the two hold different records at one position.
func (i *Instance) putWAL(dir, name string, size, off uint64, b []byte, have uint64) error {
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	fresh := errors.Is(err, fs.ErrNotExist)
	if fresh {
		path += ".fetched"
		f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	}
	if err != nil {
		return err
	}
	err = func() error {
		if !fresh && have > off {
			was := make([]byte, min(have-off, uint64(len(b))))
			if _, err := f.ReadAt(was, int64(off)); err != nil {
				return err
			}
			if !bytes.Equal(was, b[:len(was)]) {
				return fmt.Errorf("%s differs from ours before our end", name)
			}
		}
		if fresh {
			if u := i.user; u.switches {
				if err := f.Chown(int(u.uid), int(u.gid)); err != nil {
					return err
				}
			}
			if err := f.Truncate(int64(size)); err != nil {
				return err
			}
		}
		if rest := len(b) % pageSize; rest != 0 {
			b = append(b, make([]byte, pageSize-rest)...) // nothing old may seem to go on
		}
		if _, err := f.WriteAt(b, int64(off)); err != nil {
			return err
		}
		return f.Sync()
	}()
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write fetched WAL: %w", err)
	}
	if fresh {
		return os.Rename(path, filepath.Join(dir, name))
	}
	return nil
}
