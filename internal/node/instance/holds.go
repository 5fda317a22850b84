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
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

// serverWAL is what a running standby says of its WAL.
type serverWAL struct {
	running    bool
	recovering bool
	replayed   cluster.LSN // 0: it did not say
	received   cluster.LSN // flushed; 0: nothing since its start
	live       bool        // a walreceiver exists
}

// holdings remembers what was read of the WAL, so that looking at a directory
// where nothing changes costs nothing.
type holdings struct {
	mu     sync.Mutex
	stamp  string
	report wal.Report
	done   mode
	marked bool // the note of this boot was read
	boot   bootNote

	dumped dumped

	lookMu  sync.Mutex
	busy    chan struct{} // closed when the look that is under way has ended; nil: none is
	looked  wal.Report
	lookErr error
}

// dumped is what pg_waldump last read to its end.
type dumped struct {
	timeline cluster.Timeline
	from, to cluster.LSN
}

// mode says how sure holds has to be.
type mode uint8

const (
	asItIs    mode = iota
	flushed        // all that is reported is on disk
	confirmed      // and pg_waldump has read it too
)

// bootNote lies on tmpfs: it says that the WAL of a directory was looked at since
// the host's start, before its server ran, and where remains of what was never
// flushed end.
type bootNote struct {
	incarnation cluster.Incarnation
	debris      cluster.LSN
}

func (i *Instance) bootNotePath() string { return filepath.Join(i.cfg.RunDir, "wal-seen") }

// holds reads what the directory holds.
func (i *Instance) holds(ctx context.Context, s serverWAL, m mode) (wal.Report, error) {
	h := &i.held
	h.mu.Lock()
	defer h.mu.Unlock()
	note := i.readBootNote()
	inc := directoryIncarnation(i.cfg.DataDir)
	if stamp := i.walStamp(h.report, s); stamp != "" && stamp == h.stamp && h.done >= min(m, flushed) {
		if m <= h.done {
			return h.report, nil
		}
		err := i.waldump(ctx, &h.report)
		if err == nil {
			h.done = m
		}
		return h.report, err
	}
	o := wal.Options{From: s.replayed, Received: s.received, Live: s.live, Sync: m >= flushed, Debris: note.debris,
		Fresh: note.incarnation != inc || inc == 0}
	if o.Fresh {
		o.Debris = 0
	}
	rep, err := wal.Inspect(i.cfg.DataDir, o)
	if err != nil {
		return rep, err
	}
	if !s.running && o.Fresh && inc != 0 {
		if err := i.writeBootNote(bootNote{inc, rep.Debris}); err != nil {
			return rep, err
		}
	}
	if m >= confirmed {
		if err := i.waldump(ctx, &rep); err != nil {
			return rep, err
		}
	}
	h.report, h.stamp, h.done = rep, i.walStamp(rep, s), m
	return rep, nil
}

// forgetHoldings is called when the directory becomes another one.
func (i *Instance) forgetHoldings() {
	i.held.mu.Lock()
	defer i.held.mu.Unlock()
	i.held.stamp, i.held.dumped = "", dumped{}
}

// walStamp changes whenever what would be read may have; "" while a receiver
// writes, and where it cannot be told.
func (i *Instance) walStamp(r wal.Report, s serverWAL) string {
	if r.SegSize == 0 || len(r.History) == 0 || s.live {
		return ""
	}
	seg := wal.Segment{Timeline: r.History[len(r.History)-1].Timeline, Number: (uint64(r.Replayable) - 1) / r.SegSize}
	var b strings.Builder
	names := []string{"pg_wal", "pg_wal/" + seg.Name(r.SegSize)}
	if s.running {
		fmt.Fprintf(&b, "running, received %d;", s.received)
	} else { // where a start would begin to replay is told too
		names = append(names, "global/pg_control", "backup_label")
	}
	for _, name := range names {
		st, err := os.Stat(filepath.Join(i.cfg.DataDir, name))
		switch {
		case errors.Is(err, os.ErrNotExist):
			b.WriteString("-;")
		case err != nil:
			return ""
		default:
			fmt.Fprintf(&b, "%d.%d;", st.ModTime().UnixNano(), st.Size())
		}
	}
	return b.String()
}

func (i *Instance) readBootNote() bootNote {
	h := &i.held
	if h.marked {
		return h.boot
	}
	b, err := os.ReadFile(i.bootNotePath())
	if err == nil {
		if f := strings.Fields(string(b)); len(f) == 2 {
			inc, err1 := strconv.ParseUint(f[0], 10, 64)
			at, err2 := wal.ParseLSN(f[1])
			if errors.Join(err1, err2) == nil {
				h.boot = bootNote{cluster.Incarnation(inc), at}
			}
		}
	}
	h.marked = true
	return h.boot
}

func (i *Instance) writeBootNote(n bootNote) error {
	i.held.boot = n
	return i.writeVolatile(i.bootNotePath(), fmt.Appendf(nil, "%d %s\n", n.incarnation, wal.Text(n.debris)))
}

// waldump has PostgreSQL's own reader read the same records: what it cannot
// read, nobody may be said to be able to replay.
func (i *Instance) waldump(ctx context.Context, r *wal.Report) error {
	own := r.History[len(r.History)-1]
	from := max(r.Start, own.Fork)
	if from >= r.Replayable {
		return nil
	}
	read := dumped{own.Timeline, from, r.Replayable}
	if d := i.held.dumped; d.timeline == read.timeline && d.to == read.to && d.from <= read.from {
		return nil // the same records: a recruit that is promoted has had them read
	}
	ctx, end := context.WithTimeout(ctx, 10*time.Second)
	defer end()
	args := []string{"--stats", "-p", filepath.Join(i.cfg.DataDir, "pg_wal"), "-t", strconv.FormatUint(uint64(own.Timeline), 10),
		"-s", wal.Text(from), "-e", wal.Text(r.Replayable)}
	_, err := i.output(i.command(ctx, "pg_waldump", args...))
	if err == nil {
		i.held.dumped = read
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("pg_waldump: %w", context.Cause(ctx))
	}
	at, ok := waldumpStop(err.Error())
	if !ok {
		return fmt.Errorf("read WAL from %s to %s: %w", wal.Text(from), wal.Text(r.Replayable), err)
	}
	i.log.Warn("pg_waldump does not read all that was found", "at", wal.Text(at), "found", wal.Text(r.Replayable), "error", err)
	r.Replayable, r.Why = min(r.Replayable, at), err.Error()
	return nil
}

// waldumpStop finds the last record that pg_waldump could read in what it says:
// "error in WAL record at 0/3000148: …".
func waldumpStop(said string) (cluster.LSN, bool) {
	_, rest, ok := strings.Cut(said, "error in WAL record at ")
	if !ok {
		return 0, false
	}
	text, _, _ := strings.Cut(rest, ":")
	at, err := wal.ParseLSN(strings.TrimSpace(text))
	return at, err == nil
}
