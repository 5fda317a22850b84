package measure

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// whims are what a test's file system does to flushes and refuses.
type whims struct {
	flushNs     atomic.Int64 // each flush takes at least so long
	hang        chan struct{}
	noDirect    bool
	noFallocate bool
	flushes     atomic.Int64
}

// whimsNode is a directory or file of a loopback with whims.
type whimsNode struct {
	fs.LoopbackNode
	w *whims
}

var (
	_ fs.NodeOpener    = (*whimsNode)(nil)
	_ fs.NodeCreater   = (*whimsNode)(nil)
	_ fs.NodeFsyncer   = (*whimsNode)(nil)
	_ fs.NodeAllocater = (*whimsNode)(nil)
)

func (n *whimsNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if n.w.noDirect && flags&syscall.O_DIRECT != 0 {
		return nil, 0, syscall.EINVAL
	}
	f, fl, errno := n.LoopbackNode.Open(ctx, flags&^uint32(syscall.O_DIRECT|syscall.O_DSYNC))
	if errno != fs.OK {
		return nil, 0, errno
	}
	return handle{f.(*fs.LoopbackFile)}, fl, errno
}

func (n *whimsNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	i, f, fl, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	if errno != fs.OK {
		return nil, nil, 0, errno
	}
	return i, handle{f.(*fs.LoopbackFile)}, fl, errno
}

// handle is a loopback's file without passthrough, by which the kernel would
// go to the backing file and never come by.
type handle struct{ *fs.LoopbackFile }

func (handle) PassthroughFd() (int, bool) { return 0, false }

func (n *whimsNode) Fsync(ctx context.Context, f fs.FileHandle, flags uint32) syscall.Errno {
	n.w.flushes.Add(1)
	if n.w.hang != nil {
		<-n.w.hang
	}
	time.Sleep(time.Duration(n.w.flushNs.Load()))
	return fs.OK
}

func (n *whimsNode) Allocate(ctx context.Context, f fs.FileHandle, off, size uint64, mode uint32) syscall.Errno {
	if n.w.noFallocate {
		return syscall.EOPNOTSUPP
	}
	return f.(fs.FileAllocater).Allocate(ctx, off, size, mode)
}

// mountWhims mounts a real FUSE file system for the test.
func mountWhims(t *testing.T, w *whims) string {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs /dev/fuse and root to mount a file system")
	}
	// Backed by memory: the whims alone decide how long a flush takes.
	back, err := os.MkdirTemp("/dev/shm", "hm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(back) })
	mnt := filepath.Join(t.TempDir(), "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	root := &fs.LoopbackRoot{Path: back}
	//nolint:staticcheck // wrapping children would need copies of nodes that hold locks
	root.NewNode = func(rootData *fs.LoopbackRoot, _ *fs.Inode, _ string, _ *syscall.Stat_t) fs.InodeEmbedder {
		return &whimsNode{LoopbackNode: fs.LoopbackNode{RootData: rootData}, w: w}
	}
	node := root.NewNode(root, nil, "", nil) //nolint:staticcheck // as above
	root.RootNode = node
	srv, err := fs.Mount(mnt, node, &fs.Options{MountOptions: fuse.MountOptions{DirectMount: true, FsName: "whims", Name: "whims"}})
	if err != nil {
		t.Fatalf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := srv.Unmount(); err != nil {
			_ = syscall.Unmount(mnt, syscall.MNT_DETACH|syscall.MNT_FORCE)
		}
		srv.Wait()
	})
	return mnt
}
