package instance

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

const standbySQL = `SELECT (coalesce(pg_last_wal_replay_lsn(), '0/0') - '0/0')::bigint, (coalesce(pg_last_wal_receive_lsn(), '0/0') - '0/0')::bigint,
	pg_is_in_recovery(), r.pid IS NOT NULL, coalesce(r.status = 'streaming', false), coalesce(r.sender_host, ''), coalesce(r.sender_port, 0)
	FROM (SELECT) x LEFT JOIN pg_stat_wal_receiver r ON true`

// askStandby asks a running server where its WAL stands, and whom it streams from.
func (i *Instance) askStandby(ctx context.Context, c *pgx.Conn) (s serverWAL, upstream cluster.NodeID, err error) {
	var replayed, received int64
	var streams bool
	var host string
	var port int
	s.running = true
	err = c.QueryRow(ctx, standbySQL).Scan(&replayed, &received, &s.recovering, &s.live, &streams, &host, &port)
	s.replayed, s.received = cluster.LSN(replayed), cluster.LSN(received)
	if streams {
		upstream = i.knownUpstream(host, port)
	}
	return s, upstream, err
}

// lookStandby fills in what a running standby holds, on a session there.
func (i *Instance) lookStandby(ctx context.Context, c *pgx.Conn, v *cluster.Postgres) error {
	s, upstream, err := i.askStandby(ctx, c)
	if err != nil {
		return err
	}
	v.Upstream = upstream
	v.NeedsClone = i.lacksWAL() || i.halfRewound()
	rep, err := i.holdsWithin(ctx, s)
	if err != nil {
		return err
	}
	describe(v, rep)
	v.Replayed = min(s.replayed, v.End)
	return nil
}

// lookStopped fills in what a directory holds on which nothing runs.
func (i *Instance) lookStopped(ctx context.Context, v cluster.Postgres) cluster.Postgres {
	if !v.Exists {
		v.NeedsClone = true
		return v
	}
	v = i.disk.stopped(v)
	v.NeedsClone = i.lacksWAL() || i.halfRewound()
	rep, err := i.holdsWithin(ctx, serverWAL{})
	if err != nil {
		i.log.Debug("read the WAL of a stopped directory", "error", err)
		return i.lastKnown(v)
	}
	describe(&v, rep)
	v.Replayed = rep.Replayable
	if v.Primary {
		return v
	}
	v.Replayed = min(rep.Redo, rep.Replayable)
	return v
}

// describe puts into a look what was read of the WAL.
func describe(v *cluster.Postgres, rep wal.Report) {
	v.History, v.End, v.Replayable, v.ControlTimeline = rep.History, rep.End, rep.Replayable, rep.Timeline
}

// holdsWithin is holds for a look: where the disk does not answer at once, what
// was read last holds.
func (i *Instance) holdsWithin(ctx context.Context, s serverWAL) (wal.Report, error) {
	h := &i.held
	h.lookMu.Lock()
	if h.busy == nil {
		h.busy = make(chan struct{})
		go func() {
			rep, err := i.holds(i.ctx, s, lookMode(s))
			h.lookMu.Lock()
			defer h.lookMu.Unlock()
			h.looked, h.lookErr = rep, err
			close(h.busy)
			h.busy = nil
		}()
	}
	busy := h.busy
	h.lookMu.Unlock()
	t := time.NewTimer(diskPatience)
	defer t.Stop()
	select {
	case <-busy:
	case <-t.C:
	case <-ctx.Done():
		return wal.Report{}, context.Cause(ctx)
	}
	h.lookMu.Lock()
	defer h.lookMu.Unlock()
	return h.looked, h.lookErr
}

// lookMode: what a receiver writes at this moment is counted as far as it says
// that it has flushed it; anything else is flushed here before it is told.
func lookMode(s serverWAL) mode {
	if s.live {
		return asItIs
	}
	return flushed
}
