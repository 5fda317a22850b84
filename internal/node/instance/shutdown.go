package instance

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

// shutdown makes a checkpoint, then stops fast within the bound. Once the stop
// has been asked for, Postgres takes no more sessions; if it is not down in time
// the answer is not OK, though it may still come to its end.
func (i *Instance) shutdown(x cluster.Shutdown) task {
	return task{id: x.ID, rest: func(ctx context.Context) cluster.Done {
		took := laps{last: time.Now()}
		end, err := i.shutDown(ctx, x.Within, &took)
		d := i.doneWithLook(ctx, err)
		took.lap("look")
		i.log.Info("stop", took.args()...)
		d.LSN = end
		return d
	}}
}

// Checkpoint has a server that runs make a checkpoint.
func (i *Instance) Checkpoint(ctx context.Context) error {
	if i.current() == nil {
		return errDown
	}
	return i.exec(ctx, "CHECKPOINT")
}

func (i *Instance) shutDown(ctx context.Context, bound time.Duration, took *laps) (cluster.LSN, error) {
	s := i.current()
	if s == nil {
		return 0, errDown
	}
	limit := time.Now().Add(bound)
	within, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	// The long part first, while sessions and standbys go on. A bound that this
	// uses up leaves Postgres running.
	err := i.quickly(within, func(c *pgx.Conn) error {
		_, err := c.Exec(within, "CHECKPOINT")
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("checkpoint before the stop: %w", err)
	}
	took.lap("checkpoint")
	if left := time.Until(limit); left < bound/4 {
		return 0, errors.New("the checkpoint took too long for a stop within the bound")
	}
	defer i.setBlocked("")
	if err := signal(s.process, syscall.SIGINT); err != nil {
		return 0, err
	}
	if !i.awaitEnd(within, s, time.Until(limit)) {
		return 0, fmt.Errorf("the server is not down within %v", bound)
	}
	took.lap("down")
	data, err := i.controlData(ctx)
	if err != nil {
		return 0, err
	}
	took.lap("control")
	if state := data["Database cluster state"]; !strings.HasPrefix(state, "shut down") {
		return 0, fmt.Errorf("it went down without its checkpoint (%q)", state)
	}
	end, err := i.shutdownEnd(ctx, data)
	took.lap("record")
	return end, err
}

// shutdownEnd is the end of the shutdown checkpoint's record: what a standby must
// hold to have everything.
func (i *Instance) shutdownEnd(ctx context.Context, control map[string]string) (cluster.LSN, error) {
	at, err := parseLSN(control["Latest checkpoint location"])
	if err != nil {
		return 0, fmt.Errorf("where the shutdown checkpoint is: %w", err)
	}
	tl, err := strconv.ParseUint(control["Latest checkpoint's TimeLineID"], 10, 32)
	if err != nil {
		return 0, err
	}
	out, err := i.output(i.command(ctx, "pg_waldump", "-p", filepath.Join(i.cfg.DataDir, "pg_wal"), "-t", strconv.FormatUint(tl, 10),
		"-s", control["Latest checkpoint location"], "-n", "1"))
	if err != nil {
		return 0, fmt.Errorf("read the shutdown checkpoint: %w", err)
	}
	size, err := recordSize(string(out))
	if err != nil {
		return 0, err
	}
	segment, err := strconv.ParseUint(control["Bytes per WAL segment"], 10, 32)
	if err != nil || segment == 0 {
		return 0, fmt.Errorf("segments of %q bytes", control["Bytes per WAL segment"])
	}
	return recordEnd(at, size, cluster.LSN(segment)), nil
}

// recordSize reads "len (rec/tot):  114/  114" out of a line of pg_waldump's.
func recordSize(line string) (int, error) {
	_, rest, ok := strings.Cut(line, "len (rec/tot):")
	if ok {
		if _, rest, ok = strings.Cut(rest, "/"); ok {
			num, _, _ := strings.Cut(rest, ",")
			n, err := strconv.Atoi(strings.TrimSpace(num))
			if err == nil && n > 0 && strings.Contains(line, "CHECKPOINT_SHUTDOWN") {
				return n, nil
			}
		}
	}
	return 0, fmt.Errorf("pg_waldump says %q: that is no shutdown checkpoint", strings.TrimSpace(line))
}

const (
	walBlock  = 8192
	shortHead = 24 // of a page
	longHead  = 40 // of a segment's first page
)

// recordEnd is where a record of size bytes at an LSN ends, in whole 8-byte
// steps, with the heads of the pages that it runs into.
func recordEnd(at cluster.LSN, size int, segment cluster.LSN) cluster.LSN {
	left := (size + 7) &^ 7
	for {
		room := walBlock - int(at%walBlock)
		if left <= room {
			return at + cluster.LSN(left)
		}
		left -= room
		at += cluster.LSN(room)
		if at%segment == 0 {
			at += longHead
		} else {
			at += shortHead
		}
	}
}

// parseLSN reads the X/X form.
func parseLSN(s string) (cluster.LSN, error) {
	l, err := postgres.ParseLSN(s)
	return cluster.LSN(l), err
}

// ensureSlot keeps a physical slot for a member, and drops those of directories
// that its node had before. What was asked for last counts for a node.
func (i *Instance) ensureSlot(x cluster.EnsureSlot) task {
	i.mu.Lock()
	i.slots[x.Member.Node] = x.Member
	i.mu.Unlock()
	return task{rest: func(ctx context.Context) cluster.Done {
		ctx, cancel := context.WithTimeout(ctx, sqlWithin)
		defer cancel()
		i.slotMu.Lock()
		defer i.slotMu.Unlock()
		i.mu.Lock()
		late := i.slots[x.Member.Node] != x.Member
		i.mu.Unlock()
		if late {
			return cluster.Done{}
		}
		err := i.session(ctx, func(c *pgx.Conn) error { return makeSlot(ctx, c, x.Member) })
		if err != nil {
			i.log.Error("keep a slot", "member", x.Member, "error", err)
		}
		i.changed()
		return cluster.Done{OK: err == nil}
	}}
}

// makeSlot makes a member's slot, anew if it was lost. It reserves WAL at once,
// so that nothing that the member still needs is removed before it connects.
func makeSlot(ctx context.Context, c *pgx.Conn, m cluster.Member) error {
	rows, err := c.Query(ctx, "SELECT slot_name, coalesce(wal_status, '') = 'lost', active FROM pg_replication_slots WHERE slot_type = 'physical'")
	if err != nil {
		return err
	}
	type slot struct {
		name         string
		lost, active bool
	}
	have, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (s slot, err error) {
		err = r.Scan(&s.name, &s.lost, &s.active)
		return s, err
	})
	if err != nil {
		return err
	}
	name, there := SlotName(m), false
	for _, s := range have {
		owner, ours := ParseSlot(s.name)
		switch {
		case !ours || owner.Node != m.Node:
			continue
		case s.name == name && !s.lost:
			there = true
		case !s.active: // lost, or of a directory that its node no longer has
			if _, err := c.Exec(ctx, "SELECT pg_drop_replication_slot($1)", s.name); err != nil {
				return fmt.Errorf("drop slot %s: %w", s.name, err)
			}
		}
	}
	if there {
		return nil
	}
	if _, err := c.Exec(ctx, "SELECT pg_create_physical_replication_slot($1, true)", name); err != nil {
		return fmt.Errorf("make slot %s: %w", name, err)
	}
	return nil
}
