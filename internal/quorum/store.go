package quorum

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// What stands in the state directory.
const (
	voterFile   = "voter"     // the voter's id; written last, so that it stands for the rest
	logFile     = "raft.db"   // log, term and vote
	snapshotDir = "snapshots" // made by raft
	ballastFile = "ballast"   // space that is given up when the disk is full
)

// snapshotsKept: one to use, and one in case that it cannot be read.
const snapshotsKept = 2

const lockWait = 2 * time.Second

// Held is what a state directory holds.
type Held struct {
	Voter      uint64 // 0: no voter, or only a part of its files
	Last, Term uint64 // the last entry of its log, and that entry's term
}

// Inspect looks at the files of a voter that does not run, so that its peers
// can be asked whether they remember more before it takes part.
func Inspect(dir string) (Held, error) {
	id, err := readVoter(dir)
	if err != nil || id == 0 {
		return Held{}, err
	}
	path := filepath.Join(dir, logFile)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return Held{}, nil
	}
	bolt, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{Timeout: lockWait, ReadOnly: true}})
	if err != nil {
		return Held{}, fmt.Errorf("open the register's log %s: %w", path, err)
	}
	defer bolt.Close() //nolint:errcheck // only read
	h := Held{Voter: id}
	if h.Last, err = bolt.LastIndex(); err != nil {
		return Held{}, fmt.Errorf("read the register's log: %w", err)
	}
	if h.Last > 0 {
		var l raft.Log
		if err := bolt.GetLog(h.Last, &l); err != nil {
			return Held{}, fmt.Errorf("read entry %d of the register's log: %w", h.Last, err)
		}
		h.Term = l.Term
	}
	if _, err := os.Stat(filepath.Join(dir, snapshotDir)); errors.Is(err, os.ErrNotExist) {
		return h, nil
	}
	snaps, err := raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, hclog.NewNullLogger())
	if err != nil {
		return Held{}, fmt.Errorf("open the register's snapshots: %w", err)
	}
	list, err := snaps.List()
	if err != nil {
		return Held{}, fmt.Errorf("list the register's snapshots: %w", err)
	}
	if len(list) > 0 && list[0].Index > h.Last {
		h.Last, h.Term = list[0].Index, list[0].Term
	}
	return h, nil
}

func readVoter(dir string) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(dir, voterFile))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the voter's id: %w", err)
	}
	id, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, nil //nolint:nilerr // a torn file is no file: the voter comes back under a new id
	}
	return id, nil
}

// writeVoter makes the files of a voter complete.
func writeVoter(dir string, id uint64) error {
	tmp := filepath.Join(dir, voterFile+".new")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write the voter's id: %w", err)
	}
	_, err = fmt.Fprintf(f, "%d\n", id)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write the voter's id: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, voterFile)); err != nil {
		return fmt.Errorf("write the voter's id: %w", err)
	}
	return syncDir(dir)
}

// wipe removes a voter's files: the id first, so that a crash leaves a blank.
func wipe(dir string) error {
	for _, name := range []string{voterFile, logFile, snapshotDir} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove the former voter's files: %w", err)
		}
		if err := syncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open %s to flush it: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("flush %s: %w", dir, err)
	}
	return nil
}

// store is the log on disk; when the disk is full it writes on in the space
// that was reserved for that.
type store struct {
	*raftboltdb.BoltStore
	spare *reserve
}

func openStore(dir string, spare *reserve) (*store, error) {
	path := filepath.Join(dir, logFile)
	var bolt *raftboltdb.BoltStore
	err := spare.spend(func() (err error) {
		bolt, err = raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{Timeout: lockWait}})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open the register's log %s: %w", path, err)
	}
	return &store{BoltStore: bolt, spare: spare}, nil
}

// StoreLog implements raft.LogStore.
func (s *store) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (s *store) StoreLogs(ls []*raft.Log) error {
	return s.spare.spend(func() error { return s.BoltStore.StoreLogs(ls) })
}

// DeleteRange implements raft.LogStore.
func (s *store) DeleteRange(from, to uint64) error {
	return s.spare.spend(func() error { return s.BoltStore.DeleteRange(from, to) })
}

// Set implements raft.StableStore.
func (s *store) Set(k, v []byte) error {
	return s.spare.spend(func() error { return s.BoltStore.Set(k, v) })
}

// SetUint64 implements raft.StableStore.
func (s *store) SetUint64(k []byte, v uint64) error {
	return s.spare.spend(func() error { return s.BoltStore.SetUint64(k, v) })
}

// reserve is a file that only takes space.
type reserve struct {
	path  string
	bytes int64
	mu    sync.Mutex
	whole bool
}

// fill takes the space, if the disk still has as much again afterwards.
func (r *reserve) fill() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.whole || r.bytes <= 0 {
		r.whole = true
		return nil
	}
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("reserve space: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("reserve space: %w", err)
	}
	if have := st.Blocks * 512; have < r.bytes {
		var fs unix.Statfs_t
		if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
			return fmt.Errorf("reserve space: %w", err)
		}
		if free := int64(fs.Bavail) * fs.Bsize; free < 2*r.bytes-have {
			_ = os.Remove(r.path)
			return fmt.Errorf("reserve %d bytes in %s: only %d are free; make room", r.bytes, filepath.Dir(r.path), free)
		}
		if err := unix.Fallocate(int(f.Fd()), 0, 0, r.bytes); err != nil {
			_ = os.Remove(r.path)
			return fmt.Errorf("reserve %d bytes in %s: %w", r.bytes, filepath.Dir(r.path), err)
		}
	}
	r.whole = true
	return nil
}

// spend runs write, and once more in the reserved space if the disk is full.
func (r *reserve) spend(write func() error) error {
	err := write()
	if !diskFull(err) {
		return err
	}
	r.mu.Lock()
	r.whole = false
	gone := os.Remove(r.path)
	r.mu.Unlock()
	if gone != nil {
		return fmt.Errorf("%w (and no space is reserved)", err)
	}
	return write()
}

func (r *reserve) isWhole() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.whole
}

func diskFull(err error) bool {
	if err == nil {
		return false
	}
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || strings.Contains(err.Error(), unix.ENOSPC.Error())
}

// FlushTime measures what a small write and its flush cost in dir: the second
// longest of twenty, since one may be an accident.
func FlushTime(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, "flush-")
	if err != nil {
		return 0, fmt.Errorf("measure a flush: %w", err)
	}
	defer os.Remove(f.Name()) //nolint:errcheck // scratch
	defer f.Close()
	var longest, second time.Duration
	block := make([]byte, 4096)
	for range 20 {
		began := time.Now()
		if _, err := f.WriteAt(block, 0); err != nil {
			return 0, fmt.Errorf("measure a flush: %w", err)
		}
		if err := f.Sync(); err != nil {
			return 0, fmt.Errorf("measure a flush: %w", err)
		}
		if d := time.Since(began); d > longest {
			longest, second = d, longest
		} else {
			second = max(second, d)
		}
	}
	return second, nil
}
