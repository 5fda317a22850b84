package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Preflight checks that the machine has what local hosts need, without leaving
// anything. The error names the first piece that is missing and how to get it.
func Preflight(o Options) error {
	if o.WorkDir == "" {
		o.WorkDir = DefaultWorkDir
	}
	if o.Space == 0 {
		o.Space = DefaultSpace
	}
	for _, check := range []func() error{
		checkRoot, checkCapabilities,
		func() error { return checkBinary(o.Binary) },
		checkFuse, checkNamespaces, checkLinks,
		func() error { return checkSpace(o.WorkDir, o.Space) },
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func checkRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("the lab needs root, to make network namespaces and mount disks: run it with sudo")
	}
	return nil
}

// capabilities that root may lack within a container, by their bit.
var capabilities = []struct {
	bit  uint
	name string
}{{0, "CAP_CHOWN"}, {5, "CAP_KILL"}, {6, "CAP_SETGID"}, {7, "CAP_SETUID"}, {12, "CAP_NET_ADMIN"}, {21, "CAP_SYS_ADMIN"}}

func checkCapabilities() error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return fmt.Errorf("read this process's capabilities: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		hex, ok := strings.CutPrefix(line, "CapEff:")
		if !ok {
			continue
		}
		has, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		if err != nil {
			return fmt.Errorf("read this process's capabilities: %w", err)
		}
		for _, c := range capabilities {
			if has&(1<<c.bit) == 0 {
				return fmt.Errorf("root lacks %s here: in a container, start it with --privileged; otherwise use a virtual machine", c.name)
			}
		}
	}
	return nil
}

func checkFuse() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	switch {
	case err == nil:
		return f.Close()
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return errors.New("/dev/fuse is missing, on which simulated disks depend: run `modprobe fuse`; in a container, start it with --device /dev/fuse")
	}
	return fmt.Errorf("simulated disks need /dev/fuse: %w; in a container, start it with --privileged", err)
}

func checkNamespaces() error {
	for _, kind := range []string{"pid", "mnt", "ipc", "uts", "net"} {
		if _, err := os.Stat("/proc/self/ns/" + kind); err != nil {
			return fmt.Errorf("this kernel has no %s namespaces, which hosts are made of: use a distribution's standard kernel", kind)
		}
	}
	return nil
}

// checkLinks makes a bridge and a pair of links in a namespace of their own.
func checkLinks() error {
	n, err := newNetwork()
	if err != nil {
		return fmt.Errorf("%w: hosts need network namespaces and bridges: run `modprobe bridge`, or use a distribution's standard kernel", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "probe"
	attrs.MasterIndex = n.bridge
	err = n.handle.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"})
	if err != nil {
		err = fmt.Errorf("make a pair of links: %w: hosts need veth: run `modprobe veth`, or use a distribution's standard kernel", err)
	}
	return errors.Join(err, n.close())
}

// checkSpace looks at the nearest directory above dir that is there.
func checkSpace(dir string, want uint64) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("work directory %q: want an absolute path", dir)
	}
	at := dir
	for {
		_, err := os.Stat(at)
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("work directory: %w", err)
		}
		at = filepath.Dir(at)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(at, &fs); err != nil {
		return fmt.Errorf("look for free space in %s: %w", at, err)
	}
	free := fs.Bavail * uint64(fs.Bsize)
	if free < want {
		return fmt.Errorf("%s has %d MB free and the disks may need %d MB: free some space, or choose another work directory", dir, free>>20, (want+1<<20-1)>>20)
	}
	return nil
}
