package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

// Bounds of the WAL that is kept aside, in bytes. It is there for people to look
// at after an accident; it must not fill the disk and make the next one.
const (
	asideEach = 1 << 30
	asideAll  = 4 << 30
	asideFree = 1 << 30 // stays free on the file system
)

// asideTime begins the name of each directory: they sort by age.
const asideTime = "20060102T150405.000000"

// asideNote lies beside WAL that was kept aside, for people.
type asideNote struct {
	Why      string
	Time     time.Time
	Node     cluster.NodeID
	Member   cluster.Incarnation
	Upstream cluster.NodeID
	Fork     string // the upstream lacks what comes after this
	End      string // where the WAL ended
	History  []cluster.Branch
	Segments []string
	LeftOut  []string // did not fit within the bounds
	Read     string
}

func (i *Instance) asideDir() string { return filepath.Join(i.cfg.StateDir, "aside") }

// setAside copies WAL from fork on into the state directory, oldest first, and
// returns when the copy is on disk.
func (i *Instance) setAside(ctx context.Context, n asideNote, rep wal.Report, fork cluster.LSN) error {
	source := filepath.Join(i.cfg.DataDir, "pg_wal")
	names, err := segmentsFrom(source, rep.SegSize, fork, rep.End)
	if err != nil {
		return fmt.Errorf("keep WAL aside: %w", err)
	}
	if len(names) == 0 {
		return nil
	}
	n.Time, n.Node, n.History = time.Now().UTC(), i.cfg.Self, rep.History
	n.Fork, n.End = wal.Text(fork), wal.Text(rep.End)
	n.Read = fmt.Sprintf("pg_waldump -p . %s", names[0])
	space, err := i.asideRoom()
	if err != nil {
		return fmt.Errorf("keep WAL aside: %w", err)
	}
	fit := min(len(names), int(space/int64(rep.SegSize)))
	n.Segments, n.LeftOut = names[:fit], names[fit:]
	if len(n.LeftOut) > 0 {
		i.log.Warn("not all WAL that diverged is kept aside: it would take too much space", "kept", fit, "left out", len(n.LeftOut))
	}
	dir := filepath.Join(i.asideDir(), n.Time.Format(asideTime))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep WAL aside: %w", err)
	}
	files := slices.Clone(n.Segments)
	for _, b := range rep.History {
		if name := wal.HistoryName(b.Timeline); exists(filepath.Join(source, name)) {
			files = append(files, name)
		}
	}
	for _, name := range files {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := copyFile(filepath.Join(source, name), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("keep WAL aside: %w", err)
		}
	}
	text, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	if err := writePrivate(filepath.Join(dir, "note.json"), append(text, '\n')); err != nil {
		return fmt.Errorf("keep WAL aside: %w", err)
	}
	i.log.Warn("WAL was kept aside", "why", n.Why, "directory", dir, "from", n.Fork, "to", n.End, "segments", len(n.Segments))
	return errors.Join(syncDir(dir), syncDir(i.asideDir()), syncDir(i.cfg.StateDir))
}

// asideRoom is how much may be kept aside now. The oldest is removed for it.
func (i *Instance) asideRoom() (int64, error) {
	dir := i.asideDir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	entries, err := os.ReadDir(dir) // sorted: the oldest first
	if err != nil {
		return 0, err
	}
	sizes := make([]int64, len(entries))
	total := int64(0)
	for n, e := range entries {
		sizes[n] = treeSize(filepath.Join(dir, e.Name()))
		total += sizes[n]
	}
	for n, e := range entries {
		if total+asideEach <= asideAll {
			break
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return 0, err
		}
		total -= sizes[n]
	}
	free, err := room(dir)
	if err != nil {
		return 0, err
	}
	return max(0, min(asideEach, free-asideFree)), nil
}

// segmentsFrom lists the segments that hold anything between two positions, by
// position and then by timeline.
func segmentsFrom(dir string, size uint64, from, to cluster.LSN) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []wal.Segment
	for _, e := range entries {
		s, ok := wal.ParseSegment(e.Name(), size)
		if ok && (s.Number+1)*size > uint64(from) && s.Number*size < uint64(to) {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b wal.Segment) int {
		if a.Number != b.Number {
			return int(int64(a.Number) - int64(b.Number))
		}
		return int(a.Timeline) - int(b.Timeline)
	})
	names := make([]string, len(found))
	for n, s := range found {
		names[n] = s.Name(size)
	}
	return names, nil
}

// copyFile copies one file, flushed. One that is gone by now is left out.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

func treeSize(dir string) int64 {
	total := int64(0)
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // what goes away meanwhile takes no space
		}
		if st, err := e.Info(); err == nil && e.Type().IsRegular() {
			total += st.Size()
		}
		return nil
	})
	return total
}
