package fuse

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"strings"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// SuperMagic is the type that statfs gives for a FUSE mount: programs that need
// the disk to be there check it before they write.
const SuperMagic = 0x65735546

// fsType follows "fuse." in the mount table.
const fsType = "holdfast"

// maxWrite is the largest request.
const maxWrite = 1 << 20

// serve mounts f. As root directly and for all users, otherwise through
// fusermount3 and for this user alone.
func serve(f *fileSystem, mountpoint, name string, root bool) (*gofuse.Server, error) {
	server, err := gofuse.NewServer(f, mountpoint, &gofuse.MountOptions{
		AllowOther:        root,
		DirectMountStrict: root,
		FsName:            name,
		Name:              fsType,
		Options:           []string{"default_permissions"},
		MaxBackground:     64,
		MaxWrite:          maxWrite,
		MaxReadAhead:      maxWrite,
		// The kernel's cache is never wrong: all changes come through it.
		ExplicitDataCacheControl: true,
		EnableSymlinkCaching:     true,
		DisableXAttrs:            true,
		DisableReadDirPlus:       true,
		DisableSplice:            true,
		ExtraCapabilities:        gofuse.CAP_NO_OPENDIR_SUPPORT,
		Logger:                   log.New(io.Discard, "", 0),
		PanicHandler: func(v any) gofuse.Status {
			f.d.cfg.Log.Error("bug in the simulated disk, cutting its power", "panic", v)
			f.cut()
			return gofuse.EIO
		},
	})
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", mountpoint, err)
	}
	return server, nil
}

// mountable says what is missing for a mount, and how to get it.
func mountable(mountpoint string, root bool) error {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return errors.New("/dev/fuse is missing: the kernel needs FUSE (modprobe fuse), a container needs --device /dev/fuse")
	}
	if !root {
		if _, err := exec.LookPath("fusermount3"); err != nil {
			return errors.New("fusermount3 is needed to mount without root: apt-get install fuse3, or run as root")
		}
	}
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil
	}
	escaped := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(mountpoint)
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == escaped && strings.HasPrefix(f[2], "fuse") {
			return fmt.Errorf("mount point %s: a %s is mounted there already: umount it first", mountpoint, f[2])
		}
	}
	return nil
}

// detach takes a mount away at once, even in use, and as root aborts what its
// users wait for.
func detach(mountpoint string, root bool) error {
	var err error
	if root {
		err = unix.Unmount(mountpoint, unix.MNT_FORCE|unix.MNT_DETACH)
	} else {
		err = fusermount("-u", "-z", mountpoint)
	}
	if err != nil && err != syscall.EINVAL { // EINVAL: not mounted
		return fmt.Errorf("unmount %s: %w", mountpoint, err)
	}
	return nil
}

// release unmounts cleanly; a mount in use is an error.
func release(mountpoint string, root bool) error {
	if root {
		return unix.Unmount(mountpoint, 0)
	}
	return fusermount("-u", mountpoint)
}

func fusermount(args ...string) error {
	out, err := exec.Command("fusermount3", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("fusermount3: %s", strings.TrimSpace(string(out)))
	}
	return nil
}
