// Package disk is the model of a disk that can lose power: what a program wrote
// is volatile until it was flushed, a flush takes the time that it takes on a
// named kind of disk, and a power cut leaves what the crash policy says.
//
// The model is pure: it has no clock, no goroutine and no device of its own.
// Time and seeds come in as values, durable bytes go to an Image. Methods may
// be called from many goroutines at once.
package disk

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

// Policy says what a power cut leaves of what was not flushed.
type Policy string

const (
	// LoseAll keeps exactly what was made durable.
	LoseAll Policy = "lose-all"
	// RandomSectors also keeps a random part of the rest, in any order that a
	// disk may have written it: some later sectors without earlier ones.
	RandomSectors Policy = "random-sectors"
	// OperationPrefix keeps, of what was not durable, the first operations in the
	// order in which they were done, writes and names alike, up to a random one.
	OperationPrefix Policy = "operation-prefix"
	// TornWrite does so too, and cuts the next write that is longer than a sector
	// in its middle.
	TornWrite Policy = "torn-write"
	// Lying acknowledges every flush and keeps nothing by it. The disk destages
	// in order now and then, so that it comes back as it was some seconds ago.
	Lying Policy = "lying"
)

// ParsePolicy checks a policy's name.
func ParsePolicy(s string) (Policy, error) {
	if p := Policy(s); slices.Contains(Policies(), p) {
		return p, nil
	}
	return "", fmt.Errorf("unknown crash policy %q: use one of %v", s, Policies())
}

// Policies returns all crash policies, the default first.
func Policies() []Policy {
	return []Policy{LoseAll, RandomSectors, OperationPrefix, TornWrite, Lying}
}

// ordered says whether the policy needs to know the order of operations.
func (p Policy) ordered() bool { return p == OperationPrefix || p == TornWrite }

// DefaultDirtyLimit bounds the bytes that are held in memory until flushed.
const DefaultDirtyLimit = 256 << 20

// Options of a disk. The root's fields and InodeBase count only for an image
// that is empty yet.
type Options struct {
	Policy     Policy  // LoseAll if empty
	Profile    Profile // Ext4 if empty
	Seed       uint64
	DirtyLimit int64 // bytes; DefaultDirtyLimit if 0
	Space      int64 // bytes, see SetSpace
	InodeBase  uint64
	RootMode   uint32 // permission bits
	RootUID    uint32
	RootGID    uint32
	Now        int64 // Unix ns
}

// Disk is a durable image and, while it is powered on, one Session over it.
type Disk struct {
	img     Image
	stats   counters
	policy  atomic.Value // Policy
	profile Profile
	limit   atomic.Int64
	space   atomic.Int64 // pages
	fail    atomic.Int64 // write-backs that are to fail

	// gate lets durable changes in (read side): whoever passes it checks first
	// that its session is not dead. Shutting it once after a cut makes sure that
	// nothing of the old session is still on its way.
	gate    sync.RWMutex
	power   sync.Mutex // one power cycle at a time
	durable *tree      // under the session's logMu, or power when there is none
	journal int64      // bytes; like durable
	session atomic.Pointer[Session]
	base    uint64
	rngMu   sync.Mutex
	rng     *rand.Rand
	kept    []bool // of the last crash: which records of the log
}

// Dropped says what a power cut cost.
type Dropped struct {
	Bytes      int64 // not yet durable when the power went
	Operations int64 // metadata operations not yet durable
	Kept       int64 // of Bytes, kept by the crash policy
}

// Open reads the image, or formats it if it is empty. The disk is off.
func Open(img Image, o Options) (*Disk, error) {
	d := &Disk{img: img, profile: o.Profile, rng: rand.New(rand.NewPCG(o.Seed, 0x9e3779b97f4a7c15))}
	if o.Policy == "" {
		o.Policy = LoseAll
	}
	if o.DirtyLimit == 0 {
		o.DirtyLimit = DefaultDirtyLimit
	}
	d.policy.Store(o.Policy)
	d.SetDirtyLimit(o.DirtyLimit)
	d.SetSpace(o.Space)
	journal, err := img.Journal()
	if err != nil {
		return nil, fmt.Errorf("read the metadata journal: %w", err)
	}
	if len(journal) == 0 {
		d.durable = newTree(o.InodeBase)
		d.durable.insert(Root, &Attr{
			Mode: syscall.S_IFDIR | o.RootMode&0o7777, Nlink: 2, UID: o.RootUID, GID: o.RootGID,
			Atime: o.Now, Mtime: o.Now, Ctime: o.Now,
		}, "")
	} else {
		d.durable = newTree(0)
		if _, err := replay(journal, d.durable.apply); err != nil {
			return nil, err
		}
		if err := d.durable.check(); err != nil {
			return nil, fmt.Errorf("%w: %w", errJournal, err)
		}
	}
	d.base = d.durable.base
	objects, err := img.Objects()
	if err != nil {
		return nil, fmt.Errorf("list the objects: %w", err)
	}
	if err := d.settle(objects); err != nil {
		return nil, err
	}
	if err := d.compact(); err != nil {
		return nil, err
	}
	return d, nil
}

// settle brings the durable image into the shape that a session expects: no
// inode without a name, and of the given objects none without an inode.
func (d *Disk) settle(objects []uint64) error {
	frame := beginFrame(nil)
	orphans := d.orphans()
	for len(orphans) > 0 {
		ino := orphans[0]
		orphans = orphans[1:]
		// What a directory without a name holds cannot be reached either.
		for name, e := range d.durable.nodes[ino].kids {
			r := record{op: opUnlink, dir: ino, name: name, ino: e.ino}
			if d.durable.nodes[e.ino].isDir() {
				r.op = opRmdir
			}
			if err := d.durable.apply(&r); err != nil {
				return fmt.Errorf("drop directory %d: %w", ino, err)
			}
			frame = appendRecord(frame, &r)
			if d.durable.nodes[e.ino].nlink == 0 {
				orphans = append(orphans, e.ino)
			}
		}
		delete(d.durable.nodes, ino)
		objects = append(objects, ino)
		frame = appendRecord(frame, &record{op: opDrop, ino: ino})
	}
	if len(frame) > frameHeader && d.journal > 0 {
		if err := d.img.Append(endFrame(frame, 0)); err != nil {
			return fmt.Errorf("commit metadata: %w", err)
		}
		d.journal += int64(len(frame))
	}
	for _, ino := range objects {
		if d.durable.nodes[ino] == nil {
			if err := d.img.Remove(ino); err != nil {
				return fmt.Errorf("remove object %d: %w", ino, err)
			}
		}
	}
	return nil
}

// orphans lists the durable inodes without a name.
func (d *Disk) orphans() []uint64 {
	var all []uint64
	for ino, n := range d.durable.nodes {
		if n.nlink == 0 {
			all = append(all, ino)
		}
	}
	slices.Sort(all)
	return all
}

// compact replaces the journal by a snapshot.
func (d *Disk) compact() error {
	b := d.durable.snapshot()
	if err := d.img.Replace(b); err != nil {
		return fmt.Errorf("rewrite the metadata journal: %w", err)
	}
	d.journal = int64(len(b))
	return nil
}

// InodeBase is added to every inode number that programs see.
func (d *Disk) InodeBase() uint64 { return d.base }

// SetPolicy changes the crash policy, at once. Everything becomes durable first
// if the policy needs the order of what is not.
func (d *Disk) SetPolicy(p Policy) error {
	if s := d.session.Load(); s != nil && !s.dead.Load() {
		if err := s.record(p.ordered()); err != nil {
			return err
		}
	}
	d.policy.Store(p)
	return nil
}

// Profile returns the rules that the disk keeps to.
func (d *Disk) Profile() Profile { return d.profile }

// Policy returns the crash policy in force.
func (d *Disk) Policy() Policy { return d.policy.Load().(Policy) }

// SetDirtyLimit changes the bound on bytes held in memory.
func (d *Disk) SetDirtyLimit(n int64) { d.limit.Store(max(n, 1<<20)) }

// DirtyLimit returns the bound on bytes held in memory.
func (d *Disk) DirtyLimit() int64 { return d.limit.Load() }

func (d *Disk) lying() bool { return d.Policy() == Lying }

func (d *Disk) random() uint64 {
	d.rngMu.Lock()
	defer d.rngMu.Unlock()
	return d.rng.Uint64()
}

// PowerOn starts a session over what is durable. The session before it, if
// there was one, must be dead; what the policy keeps of it is kept now.
func (d *Disk) PowerOn(now int64) (*Session, Dropped, error) {
	d.power.Lock()
	defer d.power.Unlock()
	lost, err := d.powerOff()
	if err != nil {
		return nil, lost, err
	}
	d.fail.Store(0)
	s := newSession(d, d.durable.clone(), now)
	if err := s.record(d.Policy().ordered()); err != nil {
		return nil, lost, err
	}
	d.session.Store(s)
	return s, lost, nil
}

// powerOff leaves the durable image alone with what the crash policy keeps of a
// dead session; power is held.
func (d *Disk) powerOff() (lost Dropped, err error) {
	old := d.session.Load()
	if old == nil {
		return lost, nil
	}
	if !old.dead.Load() {
		return lost, fmt.Errorf("the disk is on: cut its power first")
	}
	d.gate.Lock()
	d.gate.Unlock() //nolint:staticcheck // a barrier: see gate
	if old.syncing.Load() {
		if err := old.finish(); err != nil {
			return lost, fmt.Errorf("finish the destage: %w", err)
		}
	}
	lost, objects, err := d.crash(old)
	if err != nil {
		return lost, err
	}
	d.session.Store(nil)
	return lost, d.settle(objects)
}

// Wipe empties the durable image, which keeps its root directory's owner and
// mode. The disk must be off.
func (d *Disk) Wipe(now int64) error {
	d.power.Lock()
	defer d.power.Unlock()
	if _, err := d.powerOff(); err != nil {
		return err
	}
	root := d.durable.nodes[Root]
	a := root.attr()
	a.Nlink, a.Mtime, a.Ctime = 2, now, now
	t := newTree(d.durable.base)
	t.insert(Root, &a, "")
	d.durable = t
	if err := d.compact(); err != nil {
		return err
	}
	objects, err := d.img.Objects()
	if err != nil {
		return fmt.Errorf("list the objects: %w", err)
	}
	return d.settle(objects)
}
