package fuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// SuperMagic is the type that statfs gives for a FUSE mount: programs that need
// the disk to be there check it before they write.
const SuperMagic = 0x65735546

// fsType follows "fuse." in the mount table.
const fsType = "holdfast"

// mountFD mounts and returns the descriptor that requests come from. As root it
// mounts directly and for all users, otherwise through fusermount3 and for this
// user alone.
func mountFD(mountpoint, name string, root bool) (int, error) {
	if root {
		return mountDirect(mountpoint, name)
	}
	return mountHelper(mountpoint, name)
}

func mountDirect(mountpoint, name string) (int, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /dev/fuse: %w", err)
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read=%d", fd, maxWrite)
	if err := unix.Mount(name, mountpoint, "fuse."+fsType, unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("mount %s: %w", mountpoint, err)
	}
	return fd, nil
}

// mountHelper lets the set-user-id program mount; it sends the descriptor back
// over a socket.
func mountHelper(mountpoint, name string) (int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(pair[0]) }()
	theirs := os.NewFile(uintptr(pair[1]), "fusermount")
	cmd := exec.CommandContext(context.Background(), "fusermount3", "-o",
		fmt.Sprintf("fsname=%s,subtype=%s,default_permissions,max_read=%d", name, fsType, maxWrite), "--", mountpoint)
	cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	cmd.ExtraFiles = []*os.File{theirs}
	out, err := cmd.CombinedOutput()
	theirs.Close()
	if err != nil {
		return -1, fmt.Errorf("mount %s: %s (%w)", mountpoint, strings.TrimSpace(string(out)), err)
	}
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 8), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("mount %s: take the descriptor from fusermount3: %w", mountpoint, err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err == nil && len(messages) == 1 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			return fds[0], nil
		}
	}
	return -1, fmt.Errorf("mount %s: fusermount3 sent no descriptor", mountpoint)
}

// mountable says what is missing for a mount, and how to get it.
func mountable(mountpoint string, root bool) error {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return errors.New("/dev/fuse is missing: the kernel needs FUSE (modprobe fuse), a container needs --device /dev/fuse")
	}
	if !root {
		if err := unix.Access("/dev/fuse", unix.R_OK|unix.W_OK); err != nil {
			return fmt.Errorf("open /dev/fuse: %w: make it usable for all users (chmod 666 /dev/fuse), or run as root", err)
		}
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

// abortPath is the file through which a mount's user can end its connection,
// which frees everybody who waits for it; "" if there is none.
func abortPath(mountpoint string) string {
	var st unix.Stat_t
	if err := unix.Stat(mountpoint, &st); err != nil {
		return ""
	}
	p := filepath.Join("/sys/fs/fuse/connections", strconv.FormatUint(uint64(unix.Minor(st.Dev)), 10), "abort")
	if _, err := os.Stat(p); err != nil {
		return ""
	}
	return p
}

// detach takes a mount away at once, even in use, and aborts what its users
// wait for.
func detach(mountpoint, abort string, root bool) error {
	var err error
	if root {
		err = unix.Unmount(mountpoint, unix.MNT_FORCE|unix.MNT_DETACH)
	} else {
		if abort != "" {
			_ = os.WriteFile(abort, []byte("1"), 0o200)
		}
		err = fusermount("-u", "-z", "--", mountpoint)
	}
	if err != nil && !errors.Is(err, syscall.EINVAL) { // EINVAL: not mounted
		return fmt.Errorf("unmount %s: %w", mountpoint, err)
	}
	return nil
}

// release unmounts cleanly; a mount in use is an error.
func release(mountpoint string, root bool) error {
	if root {
		return unix.Unmount(mountpoint, 0)
	}
	return fusermount("-u", "--", mountpoint)
}

func fusermount(args ...string) error {
	out, err := exec.CommandContext(context.Background(), "fusermount3", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("fusermount3: %s", strings.TrimSpace(string(out)))
	}
	return nil
}
