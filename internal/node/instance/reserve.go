package instance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

// Postgres takes the next free number for a new timeline: the first above its
// own of which there is no history file. The register gives numbers out, so the
// ones between are reserved by files that say so.
//
// Such a file names the branches that the directory is on, as if its timeline had
// begun at the fork. A standby looks for the newest timeline all the time, and
// would not start at all if the newest were not a child of its own.

// reserve makes the history files that are missing below t. h is the
// directory's own history, fork its end. They are there when it returns; the
// returned function waits until they are on disk, which followers that come after
// a loss of power depend on, and the promotion does not.
func (i *Instance) reserve(h []cluster.Branch, t cluster.Timeline, fork cluster.LSN) (flushed func() error, err error) {
	dir := filepath.Join(i.cfg.DataDir, "pg_wal")
	own := h[len(h)-1].Timeline
	var made []string
	for n := cluster.Timeline(2); n < t; n++ {
		path := filepath.Join(dir, wal.HistoryName(n))
		if exists(path) {
			continue
		}
		branches := append([]cluster.Branch(nil), h...)
		for len(branches) > 1 && branches[len(branches)-1].Timeline > n {
			branches = branches[:len(branches)-1]
		}
		comment := wal.Reserved
		switch {
		case branches[len(branches)-1].Timeline == n:
			comment = "a former timeline" // its file is missing where a base backup made the directory
		case n > own:
			branches = append(branches, cluster.Branch{Timeline: n, Fork: fork})
		default:
			branches = append(branches, cluster.Branch{Timeline: n, Fork: h[len(branches)].Fork})
		}
		if err := i.writeVolatile(path, wal.FormatHistory(branches, comment)); err != nil {
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
// that no WAL belongs to: reserved by a promotion that did not happen, or of one
// that ended before its first record. A standby would take the newest for its
// target, and not start or not follow. Those of the upstream are fetched again
// by whoever streams from it.
//
// From a running server only reserved ones are taken that no begun timeline lies
// above; stale says that there were some, and that it has to be started anew.
func (i *Instance) tidyHistories(own cluster.Timeline, running bool) (stale bool, err error) {
	dir := filepath.Join(i.cfg.DataDir, "pg_wal")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	begun, newest := map[cluster.Timeline]bool{}, own
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
		case len(name) == 24:
			begun[t] = true
		}
	}
	for t, reserved := range above {
		if begun[t] || running && (!reserved || t < newest) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, wal.HistoryName(t))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return stale, err
		}
		stale = true
	}
	if !stale {
		return false, nil
	}
	return running, syncDir(dir)
}

func isReserved(path string, t cluster.Timeline) bool {
	b, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	_, reserved, err := wal.ParseHistory(t, b)
	return err == nil && reserved
}
