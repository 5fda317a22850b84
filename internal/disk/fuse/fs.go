package fuse

import (
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/holdfast-db/holdfast/internal/disk"
)

// ttl is how long the kernel may keep names and attributes: nobody changes them
// behind its back.
const ttl = 24 * time.Hour

// fileSystem serves one session of a disk: from power on to the next cut.
type fileSystem struct {
	gofuse.RawFileSystem
	d    *Drive
	s    *disk.Session
	base uint64
	lane lane
	dead chan struct{} // closed by the cut
	once sync.Once
	// spin and bias of delays are shared by all that wait.
	sleeper sleeper

	paying atomic.Bool // somebody pays for write-back
	payMu  sync.Mutex
}

func newFileSystem(d *Drive, s *disk.Session) *fileSystem {
	return &fileSystem{
		RawFileSystem: gofuse.NewDefaultRawFileSystem(),
		d:             d, s: s, base: d.disk.InodeBase(),
		lane: lane{batches: &d.batches}, dead: make(chan struct{}),
	}
}

// bug is called when a request panicked: such a disk is not to be trusted.
func (f *fileSystem) bug(v any) {
	f.d.cfg.Log.Error("bug in the simulated disk, cutting its power", "panic", v, "stack", string(debug.Stack()))
	f.cut()
}

// cut ends the session: what waits is woken and fails, as does all that comes.
func (f *fileSystem) cut() {
	f.s.Cut()
	f.once.Do(func() { close(f.dead) })
}

func status(err error) gofuse.Status {
	if err == nil {
		return gofuse.OK
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return gofuse.Status(errno)
	}
	return gofuse.EIO
}

func now() int64 { return time.Now().UnixNano() }

func (f *fileSystem) String() string { return "holdfast" }

func (f *fileSystem) attr(a *disk.Attr, out *gofuse.Attr) {
	out.Ino = f.base + a.Ino
	out.Size = uint64(a.Size)
	out.Blocks = uint64(a.Blocks)
	out.Mode = a.Mode
	out.Nlink = a.Nlink
	out.Uid, out.Gid = a.UID, a.GID
	out.Rdev = a.Rdev
	out.Blksize = disk.PageSize
	out.Atime, out.Atimensec = split(a.Atime)
	out.Mtime, out.Mtimensec = split(a.Mtime)
	out.Ctime, out.Ctimensec = split(a.Ctime)
}

func split(ns int64) (uint64, uint32) {
	sec, rest := ns/1e9, ns%1e9
	if rest < 0 {
		sec, rest = sec-1, rest+1e9
	}
	return uint64(sec), uint32(rest)
}

func (f *fileSystem) entry(a *disk.Attr, out *gofuse.EntryOut) {
	out.NodeId = a.Ino
	out.SetEntryTimeout(ttl)
	out.SetAttrTimeout(ttl)
	f.attr(a, &out.Attr)
}

// Lookup caches that a name is missing, too: only this mount can make it.
func (f *fileSystem) Lookup(_ <-chan struct{}, h *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	a, err := f.s.Lookup(h.NodeId, name)
	if errors.Is(err, syscall.ENOENT) {
		out.SetEntryTimeout(ttl)
		return gofuse.OK
	}
	if err == nil {
		f.entry(&a, out)
	}
	return status(err)
}

func (f *fileSystem) Forget(nodeid, n uint64) { f.s.Forget(nodeid, n) }

func (f *fileSystem) GetAttr(_ <-chan struct{}, in *gofuse.GetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	a, err := f.s.GetAttr(in.NodeId)
	if err == nil {
		out.SetTimeout(ttl)
		f.attr(&a, &out.Attr)
	}
	return status(err)
}

func (f *fileSystem) SetAttr(_ <-chan struct{}, in *gofuse.SetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	if !f.awake() {
		return gofuse.EIO
	}
	t := now()
	var v disk.SetAttr
	if m, ok := in.GetMode(); ok {
		v.Mode = &m
	}
	if id, ok := in.GetUID(); ok {
		v.UID = &id
	}
	if id, ok := in.GetGID(); ok {
		v.GID = &id
	}
	if n, ok := in.GetSize(); ok {
		size := int64(n)
		v.Size = &size
	}
	stamp := func(bit, nowBit uint32, sec uint64, nsec uint32) *int64 {
		if in.Valid&bit == 0 {
			return nil
		}
		ns := int64(sec)*1e9 + int64(nsec)
		if in.Valid&nowBit != 0 {
			ns = t
		}
		return &ns
	}
	v.Atime = stamp(gofuse.FATTR_ATIME, gofuse.FATTR_ATIME_NOW, in.Atime, in.Atimensec)
	v.Mtime = stamp(gofuse.FATTR_MTIME, gofuse.FATTR_MTIME_NOW, in.Mtime, in.Mtimensec)
	v.Ctime = stamp(gofuse.FATTR_CTIME, 0, in.Ctime, in.Ctimensec)
	a, err := f.s.SetAttr(in.NodeId, v, t)
	if err == nil {
		out.SetTimeout(ttl)
		f.attr(&a, &out.Attr)
	}
	return status(err)
}

func (f *fileSystem) create(h *gofuse.InHeader, dir uint64, name string, v disk.NewNode, out *gofuse.EntryOut) gofuse.Status {
	if !f.awake() {
		return gofuse.EIO
	}
	v.UID, v.GID = h.Uid, h.Gid
	a, err := f.s.Create(dir, name, v, now())
	if err == nil {
		f.entry(&a, out)
	}
	return status(err)
}

func (f *fileSystem) Mknod(_ <-chan struct{}, in *gofuse.MknodIn, name string, out *gofuse.EntryOut) gofuse.Status {
	return f.create(&in.InHeader, in.NodeId, name, disk.NewNode{Mode: in.Mode, Rdev: in.Rdev}, out)
}

func (f *fileSystem) Mkdir(_ <-chan struct{}, in *gofuse.MkdirIn, name string, out *gofuse.EntryOut) gofuse.Status {
	return f.create(&in.InHeader, in.NodeId, name, disk.NewNode{Mode: syscall.S_IFDIR | in.Mode&0o7777}, out)
}

func (f *fileSystem) Symlink(_ <-chan struct{}, h *gofuse.InHeader, target, name string, out *gofuse.EntryOut) gofuse.Status {
	return f.create(h, h.NodeId, name, disk.NewNode{Mode: syscall.S_IFLNK | 0o777, Target: target}, out)
}

func (f *fileSystem) Create(_ <-chan struct{}, in *gofuse.CreateIn, name string, out *gofuse.CreateOut) gofuse.Status {
	out.OpenFlags = gofuse.FOPEN_KEEP_CACHE
	return f.create(&in.InHeader, in.NodeId, name, disk.NewNode{Mode: syscall.S_IFREG | in.Mode&0o7777}, &out.EntryOut)
}

func (f *fileSystem) Tmpfile(_ <-chan struct{}, in *gofuse.CreateIn, out *gofuse.CreateOut) gofuse.Status {
	out.OpenFlags = gofuse.FOPEN_KEEP_CACHE
	return f.create(&in.InHeader, 0, "", disk.NewNode{Mode: syscall.S_IFREG | in.Mode&0o7777}, &out.EntryOut)
}

func (f *fileSystem) Link(_ <-chan struct{}, in *gofuse.LinkIn, name string, out *gofuse.EntryOut) gofuse.Status {
	if !f.awake() {
		return gofuse.EIO
	}
	a, err := f.s.Link(in.Oldnodeid, in.NodeId, name, now())
	if err == nil {
		f.entry(&a, out)
	}
	return status(err)
}

func (f *fileSystem) Unlink(_ <-chan struct{}, h *gofuse.InHeader, name string) gofuse.Status {
	if !f.awake() {
		return gofuse.EIO
	}
	return status(f.s.Unlink(h.NodeId, name, now()))
}

func (f *fileSystem) Rmdir(_ <-chan struct{}, h *gofuse.InHeader, name string) gofuse.Status {
	if !f.awake() {
		return gofuse.EIO
	}
	return status(f.s.Rmdir(h.NodeId, name, now()))
}

// opRename2 is the opcode of a rename with flags; without, the flags' place
// holds something else.
const opRename2 = 45

func (f *fileSystem) Rename(_ <-chan struct{}, in *gofuse.RenameIn, name, name2 string) gofuse.Status {
	if !f.awake() {
		return gofuse.EIO
	}
	var flags uint32
	if in.Opcode == opRename2 {
		flags = in.Flags
	}
	return status(f.s.Rename(in.NodeId, name, in.Newdir, name2, flags, now()))
}

func (f *fileSystem) Readlink(_ <-chan struct{}, h *gofuse.InHeader) ([]byte, gofuse.Status) {
	target, err := f.s.Readlink(h.NodeId)
	return []byte(target), status(err)
}

// Open and OpenDir are not needed: the kernel then keeps caches, and stops asking.
func (f *fileSystem) Open(<-chan struct{}, *gofuse.OpenIn, *gofuse.OpenOut) gofuse.Status {
	return gofuse.ENOSYS
}

func (f *fileSystem) OpenDir(<-chan struct{}, *gofuse.OpenIn, *gofuse.OpenOut) gofuse.Status {
	return gofuse.ENOSYS
}

// Flush (at close) has nothing to do.
func (f *fileSystem) Flush(<-chan struct{}, *gofuse.FlushIn) gofuse.Status { return gofuse.ENOSYS }

func (f *fileSystem) ReadDir(_ <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	return status(f.s.ReadDir(in.NodeId, in.Offset, func(e disk.Entry) bool {
		return out.AddDirEntry(gofuse.DirEntry{Mode: e.Mode, Name: e.Name, Ino: f.base + e.Ino, Off: e.Cookie})
	}))
}

func (f *fileSystem) Read(_ <-chan struct{}, in *gofuse.ReadIn, buf []byte) (gofuse.ReadResult, gofuse.Status) {
	if !f.awake() {
		return nil, gofuse.EIO
	}
	n, device, err := f.s.Read(in.NodeId, buf[:min(len(buf), int(in.Size))], int64(in.Offset))
	if err != nil {
		return nil, status(err)
	}
	if device > 0 && !f.transfer(func(t *disk.Timing) disk.Latency { return t.Read }, device) {
		return nil, gofuse.EIO
	}
	return gofuse.ReadResultData(buf[:n]), gofuse.OK
}

func (f *fileSystem) Write(_ <-chan struct{}, in *gofuse.WriteIn, data []byte) (uint32, gofuse.Status) {
	st := f.write(in.NodeId, data, int64(in.Offset), in.Flags)
	if st != gofuse.OK {
		return 0, st
	}
	return uint32(len(data)), st
}

// write puts data at off; flags are those of the open file.
func (f *fileSystem) write(node uint64, data []byte, off int64, flags uint32) gofuse.Status {
	limited := f.d.limits.Load() != nil
	if limited && !f.awake() {
		return gofuse.EIO
	}
	if err := f.s.Write(node, data, off, now()); err != nil {
		return status(err)
	}
	if flags&syscall.O_DIRECT != 0 && !f.transfer(func(t *disk.Timing) disk.Latency { return t.Write }, 0) {
		return gofuse.EIO
	}
	if limited && !f.background(true) {
		return gofuse.EIO
	}
	return gofuse.OK
}

// delay waits as long as the disk takes. It returns false after a cut.
func (f *fileSystem) delay(which func(*disk.Timing) disk.Latency) bool {
	if d := f.d.sample(which); d > 0 {
		return f.sleeper.sleep(d, f.dead)
	}
	return !f.s.Dead()
}

// transfer waits as long as limits and latency of a transfer of n bytes ask for;
// what a direct write has to move is counted when it is flushed. It returns false
// after a cut.
func (f *fileSystem) transfer(which func(*disk.Timing) disk.Latency, n int) bool {
	l := f.d.limits.Load()
	if l == nil {
		return f.delay(which)
	}
	return f.throttled(l, transfers(n), int64(n)) && f.atDevice(l, func() bool { return f.delay(which) })
}

func (f *fileSystem) Fsync(_ <-chan struct{}, in *gofuse.FsyncIn) gofuse.Status {
	return f.fsync(in.NodeId, in.FsyncFlags)
}

func (f *fileSystem) FsyncDir(_ <-chan struct{}, in *gofuse.FsyncIn) gofuse.Status {
	return f.fsync(in.NodeId, in.FsyncFlags)
}

// fsync waits for a flush, then makes a file or directory durable.
func (f *fileSystem) fsync(node uint64, flags uint32) gofuse.Status {
	began := time.Now()
	flush := func(t *disk.Timing) disk.Latency { return t.Flush }
	l := f.d.limits.Load()
	if f.d.timing.Load().Flush.Median > 0 {
		if !f.lane.flush(func() bool { return f.atDevice(l, func() bool { return f.delay(flush) }) }, f.dead) {
			return gofuse.EIO
		}
	} else {
		f.d.batches.Add(1)
	}
	if l != nil && !f.admitFlush(l, node) {
		return gofuse.EIO
	}
	const dataSync = 1
	if err := f.s.Fsync(node, flags&dataSync != 0); err != nil {
		return status(err)
	}
	f.d.flushes.Add(time.Since(began))
	return gofuse.OK
}

func (f *fileSystem) Fallocate(_ <-chan struct{}, in *gofuse.FallocateIn) gofuse.Status {
	if !f.awake() {
		return gofuse.EIO
	}
	return status(f.s.Fallocate(in.NodeId, in.Mode, int64(in.Offset), int64(in.Length), now()))
}

func (f *fileSystem) StatFs(_ <-chan struct{}, _ *gofuse.InHeader, out *gofuse.StatfsOut) gofuse.Status {
	if f.s.Dead() {
		return gofuse.EIO
	}
	st, err := f.d.backing.Free()
	if err != nil {
		return status(err)
	}
	out.Bsize, out.Frsize = uint32(st.Bsize), uint32(st.Frsize)
	out.Blocks, out.Bfree, out.Bavail = st.Blocks, st.Bfree, st.Bavail
	out.Files, out.Ffree = st.Files, st.Ffree
	out.NameLen = 255
	f.size(out)
	return gofuse.OK
}
