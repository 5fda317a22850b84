package postgres

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// LSN is a position in the WAL, in bytes.
type LSN uint64

// ParseLSN reads the X/X form.
func ParseLSN(s string) (LSN, error) {
	hi, lo, ok := strings.Cut(s, "/")
	if !ok {
		return 0, fmt.Errorf("LSN %q: want the form X/X", s)
	}
	h, err1 := strconv.ParseUint(hi, 16, 32)
	l, err2 := strconv.ParseUint(lo, 16, 32)
	if err := errors.Join(err1, err2); err != nil {
		return 0, fmt.Errorf("LSN %q: %w", s, err)
	}
	return LSN(h<<32 | l), nil
}

func (l LSN) String() string { return fmt.Sprintf("%X/%X", uint64(l)>>32, uint32(l)) }

// BaseBackup makes this instance's data directory a standby of from. The
// directory must not exist or be empty.
func (i *Instance) BaseBackup(ctx context.Context, from *Instance, s Settings) error {
	if err := i.writePassFile(ctx); err != nil {
		return err
	}
	_, err := i.Run(ctx, Command{
		Path: i.prog("pg_basebackup"),
		Args: append([]string{"-D", i.DataDir, "-X", "stream", "-c", "fast", "--no-password", "-d", i.conninfo(from, "pg_basebackup")}, i.noSync()...),
		Env:  []string{"LC_ALL=C"},
	})
	if err != nil {
		return fmt.Errorf("pg_basebackup from %s to %s: %w", from.Name, i.Name, err)
	}
	return i.Follow(ctx, from, s)
}

// conninfo says how this instance logs in at from; the password stays in the
// password file.
func (i *Instance) conninfo(from *Instance, app string) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname=postgres passfile=%s application_name=%s connect_timeout=2", from.Addr, from.Port, from.User, i.PassFile, app)
}

// Follow makes the stopped or running instance a standby of from: settings and
// standby.signal are written; a running one is reloaded.
func (i *Instance) Follow(ctx context.Context, from *Instance, s Settings) error {
	with := Settings{}
	for k, v := range s {
		with[k] = v
	}
	with["primary_conninfo"] = i.conninfo(from, i.Name)
	with["primary_slot_name"] = ""
	if err := i.Configure(ctx, with); err != nil {
		return err
	}
	if err := i.WriteFile(ctx, filepath.Join(i.DataDir, "standby.signal"), nil, 0o600); err != nil {
		return err
	}
	if i.Running() {
		return i.Reload()
	}
	return nil
}

// Promote ends recovery and waits until the server takes writes.
func (i *Instance) Promote(ctx context.Context) error {
	if err := i.Exec(ctx, "SELECT pg_promote(false)"); err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	return i.poll(ctx, "promoted", "SELECT NOT pg_is_in_recovery()")
}

// ReceivedLSN is the end of what a standby holds: received, or replayed from
// elsewhere if that is further.
func (i *Instance) ReceivedLSN(ctx context.Context) (LSN, error) {
	s, err := i.QueryText(ctx, "SELECT GREATEST(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())::text")
	if err != nil {
		return 0, err
	}
	if s == "" {
		return 0, nil
	}
	return ParseLSN(s)
}

// InRecovery says whether the server is a standby.
func (i *Instance) InRecovery(ctx context.Context) (bool, error) {
	s, err := i.QueryText(ctx, "SELECT pg_is_in_recovery()::text")
	return s == "true", err
}

// WaitStandbys waits until each named standby streams and has flushed what the
// primary had flushed when the wait began. (The insert position may stand
// behind a page header that nothing follows yet: nobody can have flushed that.)
func (i *Instance) WaitStandbys(ctx context.Context, names ...string) error {
	end, err := i.QueryText(ctx, "SELECT pg_current_wal_flush_lsn()::text")
	if err != nil {
		return err
	}
	for _, n := range names {
		q := fmt.Sprintf("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE application_name = '%s' AND state = 'streaming' AND flush_lsn >= '%s')", n, end)
		if err := i.poll(ctx, "caught up with by "+n, q); err != nil {
			return err
		}
	}
	return nil
}

// WaitReplayed waits until every standby that streams has replayed what the
// primary had flushed when the wait began.
func (i *Instance) WaitReplayed(ctx context.Context) error {
	end, err := i.QueryText(ctx, "SELECT pg_current_wal_flush_lsn()::text")
	if err != nil {
		return err
	}
	return i.poll(ctx, "replayed by its standbys", fmt.Sprintf("SELECT coalesce((SELECT bool_and(replay_lsn >= '%s') FROM pg_stat_replication), true)", end))
}

// poll asks until the answer is true.
func (i *Instance) poll(ctx context.Context, what, sql string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		v, err := i.QueryText(ctx, "SELECT ("+strings.TrimPrefix(sql, "SELECT ")+")::text")
		if err == nil && v == "true" {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not %s: %w (last: %v)", i.Name, what, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

// Rewind makes the stopped instance's data directory fit from's history, so
// that it can follow it. The directory must have been shut down cleanly or
// pg_rewind itself finishes its crash recovery first.
func (i *Instance) Rewind(ctx context.Context, from *Instance) error {
	if err := i.writePassFile(ctx); err != nil {
		return err
	}
	// The new primary's control file must show its timeline: checkpoint first.
	if err := from.Exec(ctx, "CHECKPOINT"); err != nil {
		return err
	}
	out, err := i.Run(ctx, Command{
		Path: i.prog("pg_rewind"),
		Args: []string{"-D", i.DataDir, "--source-server=" + i.conninfo(from, "pg_rewind")},
		Env:  []string{"LC_ALL=C"},
	})
	if err != nil {
		return fmt.Errorf("pg_rewind of %s from %s: %w", i.Name, from.Name, err)
	}
	if i.Log != nil {
		_, _ = i.Log.Write(out)
	}
	return nil
}

// Version is the server's version as its program prints it, such as "15.18".
func (i *Instance) Version(ctx context.Context) (string, error) {
	out, err := i.Run(ctx, Command{Path: i.prog("postgres"), Args: []string{"--version"}})
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(string(out)), "postgres (PostgreSQL)")), nil
}

// WaitSync waits until the primary counts each named standby with the given
// sync_state ("quorum", "sync").
func (i *Instance) WaitSync(ctx context.Context, state string, names ...string) error {
	for _, n := range names {
		q := fmt.Sprintf("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE application_name = '%s' AND sync_state = '%s')", n, state)
		if err := i.poll(ctx, state+" with "+n, q); err != nil {
			return err
		}
	}
	return nil
}
