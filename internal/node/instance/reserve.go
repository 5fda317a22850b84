package instance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

// Postgres takes the next free number for a new timeline: the first above its
// own of which there is no history file. The register gives numbers out, so the
// ones between are reserved by files that say so.
//
// Such a file names no ancestor. A standby looks for the newest timeline all the
// time, and takes one that is a child of its own for its target: with the present
// branch as its parent, a reserved number became an ancestor of the promoted one,
// if the look came between the two. A start with one as the newest would fail,
// hence tidyHistories before each.

// reserve makes the history files that are missing below t. h is the directory's
// own history. They are there when it returns; the returned function waits until
// they are on disk, which followers that come after a loss of power depend on, and
// the promotion does not.
func (i *Instance) reserve(h []cluster.Branch, t cluster.Timeline) (flushed func() error, err error) {
	dir := filepath.Join(i.cfg.DataDir, "pg_wal")
	var made []string
	for n := cluster.Timeline(2); n < t; n++ {
		path := filepath.Join(dir, wal.HistoryName(n))
		if exists(path) {
			continue
		}
		text := []byte(wal.Reserved)
		if at := slices.IndexFunc(h, func(b cluster.Branch) bool { return b.Timeline == n }); at >= 0 {
			text = wal.FormatHistory(h[:at+1], "a former timeline") // missing where a base backup made the directory
		}
		if err := i.writeVolatile(path, text); err != nil {
			return nil, fmt.Errorf("reserve timeline %d: %w", n, err)
		}
		made = append(made, path)
	}
	done := make(chan error, 1)
	go func() {
		var errs error
		for _, path := range made {
			errs = errors.Join(errs, syncDir(path)) // a file is flushed as a directory is
		}
		if len(made) > 0 {
			errs = errors.Join(errs, syncDir(dir))
		}
		done <- errs
	}()
	return func() error { return <-done }, nil
}

// tidyHistories removes history files above own, the directory's own timeline,
// that no record belongs to: reserved by a promotion that did not happen, or of
// one that ended before its first record. A standby would take the newest for its
// target: it would not start, or the next promotion would leave from there. Those
// of the upstream are fetched again by whoever streams from it. Segments that such
// a promotion began hold copies only; they are kept aside all the same.
//
// From a running server only reserved ones are taken that no begun timeline lies above.
func (i *Instance) tidyHistories(own cluster.Timeline, running bool) error {
	dir := filepath.Join(i.cfg.DataDir, "pg_wal")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	segments, newest := map[cluster.Timeline][]string{}, own
	above := map[cluster.Timeline]bool{} // value: reserved
	for _, e := range entries {
		name := e.Name()
		var n uint32
		if _, err := fmt.Sscanf(name, "%08X", &n); err != nil {
			continue
		}
		t := cluster.Timeline(n)
		switch {
		case name == wal.HistoryName(t) && t > own:
			above[t] = isReserved(filepath.Join(dir, name), t)
			if !above[t] {
				newest = max(newest, t)
			}
		case len(name) == 24 && t > own:
			segments[t] = append(segments[t], name)
		}
	}
	gone := false
	for t, reserved := range above {
		if running && (!reserved || t < newest) {
			continue
		}
		if err := i.moveAside(fmt.Sprintf("unfinished-timeline-%d", t), dir, segments[t]); err != nil {
			return err
		}
		if err := os.Remove(filepath.Join(dir, wal.HistoryName(t))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		gone = true
	}
	if !gone {
		return nil
	}
	return syncDir(dir)
}

// moveAside moves files out of the way, into the agent's state.
func (i *Instance) moveAside(what, from string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	if _, err := i.asideRoom(); err != nil {
		return err
	}
	to := filepath.Join(i.asideDir(), time.Now().UTC().Format(asideTime)+"-"+what)
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, name := range names {
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return fmt.Errorf("keep %s aside: %w", name, err)
		}
	}
	if err := errors.Join(syncDir(to), syncDir(i.asideDir())); err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Remove(filepath.Join(from, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func isReserved(path string, t cluster.Timeline) bool {
	b, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	_, reserved, err := wal.ParseHistory(t, b)
	return err == nil && reserved
}
