package instance

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// lookStandby fills in what a running standby holds, on a session there.
func (i *Instance) lookStandby(ctx context.Context, c *pgx.Conn, v *cluster.Postgres) error {
	var received, replayed int64
	err := c.QueryRow(ctx, `SELECT coalesce(pg_last_wal_receive_lsn() - '0/0', 0)::bigint, coalesce(pg_last_wal_replay_lsn() - '0/0', 0)::bigint`).
		Scan(&received, &replayed)
	v.End, v.Replayed = cluster.LSN(max(received, replayed)), cluster.LSN(replayed)
	v.Replayable = v.End
	return err
}

// lookStopped fills in what a directory holds on which nothing runs.
func (i *Instance) lookStopped(_ context.Context, v cluster.Postgres) cluster.Postgres {
	if !v.Exists {
		v.NeedsClone = true
		return v
	}
	return i.disk.stopped(v)
}
