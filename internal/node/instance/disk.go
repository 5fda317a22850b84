package instance

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// onDisk looks at the data directory's files without ever waiting long for its
// disk: what hangs is left alone in one goroutine, and what was seen last holds.
type onDisk struct {
	i *Instance

	mu   sync.Mutex
	last dirView
	busy chan struct{} // closed when the look that is under way has ended; nil: none is
}

type dirView struct {
	exists      bool
	incarnation cluster.Incarnation
	standby     bool
	headroom    bool
}

// diskPatience is how long a look waits for the disk.
const diskPatience = 50 * time.Millisecond

// view is what the directory is, as far as the disk answers, or was seen to be.
func (d *onDisk) view(again bool) cluster.Postgres {
	if again {
		d.refresh()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return cluster.Postgres{Exists: d.last.exists, Incarnation: d.last.incarnation, Headroom: d.last.headroom}
}

// stopped fills in what a directory says on which nothing answers.
func (d *onDisk) stopped(v cluster.Postgres) cluster.Postgres {
	d.mu.Lock()
	defer d.mu.Unlock()
	v.Primary = v.Exists && !d.last.standby
	return v
}

func (d *onDisk) refresh() {
	d.mu.Lock()
	busy := d.busy
	if busy == nil {
		busy = make(chan struct{})
		d.busy = busy
		go func() {
			v := d.i.lookAtDirectory()
			d.mu.Lock()
			defer d.mu.Unlock()
			d.last, d.busy = v, nil
			close(busy)
		}()
	}
	d.mu.Unlock()
	t := time.NewTimer(diskPatience)
	defer t.Stop()
	select {
	case <-busy:
	case <-t.C:
	}
}

func (i *Instance) lookAtDirectory() dirView {
	v := dirView{headroom: i.headroom()}
	if v.exists = exists(filepath.Join(i.cfg.DataDir, "PG_VERSION")); !v.exists {
		return v
	}
	if i.halfRewound() { // pg_rewind copies the source's over it, and it is put back after that
		v.incarnation, v.standby = i.Incarnation(), true
		return v
	}
	n, err := readIncarnation(filepath.Join(i.cfg.DataDir, incarnationName))
	if err != nil {
		i.log.Error("read the directory's incarnation", "error", err)
	}
	v.incarnation = n
	v.standby = exists(filepath.Join(i.cfg.DataDir, "standby.signal"))
	return v
}

// diskProbe writes and flushes a file beside the data, off the path of anything
// else; it answers within its time whatever the disk does.
type diskProbe struct {
	mu   sync.Mutex
	busy chan struct{}
	ok   bool
}

// probeName is one that base backups and pg_rewind leave out.
const probeName = "pgsql_tmp_holdfast_probe"

func (d *diskProbe) within(ctx context.Context, dir string, owner osUser) bool {
	d.mu.Lock()
	busy := d.busy
	if busy == nil {
		busy = make(chan struct{})
		d.busy = busy
		go func() {
			err := touch(filepath.Join(dir, probeName), owner)
			d.mu.Lock()
			defer d.mu.Unlock()
			d.ok, d.busy = err == nil, nil
			close(busy)
		}()
	}
	d.mu.Unlock()
	select {
	case <-busy:
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.ok
	case <-ctx.Done():
		return false
	}
}

// touch writes and flushes a file. It belongs to whoever runs Postgres: pg_rewind
// opens all that it finds in a directory.
func touch(path string, owner osUser) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if owner.switches {
		if err := f.Chown(int(owner.uid), int(owner.gid)); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	_, err = f.WriteAt([]byte(strconv.FormatInt(time.Now().UnixNano(), 10)), 0)
	return errors.Join(err, f.Sync(), f.Close())
}
