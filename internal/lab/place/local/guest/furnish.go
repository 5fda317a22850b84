package guest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// furnish turns freshly unshared namespaces into a host: private /proc, /tmp,
// /run and /dev/shm, the disk, the unprivileged user, and a name.
func furnish(c Config) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// Descriptors outlive the paths: /run and /tmp are about to be covered.
	binary, err := openPath(c.Binary)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(binary) }()
	disk := -1
	if c.Disk != "" {
		if disk, err = openPath(c.Disk); err != nil {
			return err
		}
		defer func() { _ = unix.Close(disk) }()
	}
	if err := detachDisks(c.Disk); err != nil {
		return err
	}
	if err := coverSystemDirs(); err != nil {
		return err
	}
	if err := makeDirs(c); err != nil {
		return err
	}
	if err := bindPrograms(binary, c.Binary); err != nil {
		return err
	}
	if disk >= 0 {
		if err := unix.Mount(fdPath(disk), diskDir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount the disk on the host: %w", err)
		}
	}
	if err := addUser(c); err != nil {
		return err
	}
	if err := coverFile("hosts", []byte(c.Hosts)); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return fmt.Errorf("set the host's name: %w", err)
	}
	// Without IPv6 on the host's link nothing is sent before a program sends.
	err = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("switch off IPv6 on the host: %w", err)
	}
	return nil
}

func openPath(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

func fdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// detachDisks drops the mounts of all other simulated disks from this
// namespace: a copy of a mount keeps its file system alive after a power cut.
func detachDisks(own string) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	mounts, err := DiskMounts(f)
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	for _, m := range mounts {
		if m == own {
			continue
		}
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			return fmt.Errorf("detach %s: %w", m, err)
		}
	}
	return nil
}

// DiskMounts returns the mount points of simulated disks in a mountinfo file,
// the latest first.
func DiskMounts(mountinfo io.Reader) ([]string, error) {
	var points []string
	sc := bufio.NewScanner(mountinfo)
	for sc.Scan() {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		if !ok || !strings.HasPrefix(after, FSType+" ") {
			continue
		}
		if fields := strings.Fields(before); len(fields) > 4 {
			points = append([]string{unescapeMount(fields[4])}, points...)
		}
	}
	return points, sc.Err()
}

// unescapeMount undoes mountinfo's octal escapes of space, tab, newline and
// backslash.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func coverSystemDirs() error {
	const safe = unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("proc", "/proc", "proc", safe|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, m := range []struct{ dir, mode string }{{"/dev/shm", "1777"}, {"/tmp", "1777"}, {"/run", "0755"}} {
		if err := unix.Mount("tmpfs", m.dir, "tmpfs", safe, "mode="+m.mode); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	return nil
}

func makeDirs(c Config) error {
	for _, dir := range []string{root, binDir, etcDir, diskDir, "/run/lock"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	// Debian's Postgres puts its socket in /run/postgresql.
	for _, dir := range []string{RunDir, "/run/postgresql"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chown(dir, c.ID, c.ID); err != nil {
			return err
		}
	}
	return nil
}

// bindPrograms makes this program reachable to the unprivileged user, who may
// be unable to read the directory that it is in, and at its usual path, which
// the host's own /tmp or /run may have covered.
func bindPrograms(fd int, path string) error {
	if err := bindFile(fd, Program); err != nil {
		return err
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return bindFile(fd, path)
}

func bindFile(fd int, path string) error {
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(fdPath(fd), path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind this program to %s: %w", path, err)
	}
	return nil
}

// addUser lets the unprivileged user exist on this host, and only there.
func addUser(c Config) error {
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return err
	}
	group, err := os.ReadFile("/etc/group")
	if err != nil {
		return err
	}
	line := fmt.Sprintf("%s:x:%d:%d:holdfast lab:%s:/bin/sh", User, c.ID, c.ID, RunDir)
	if err := coverFile("passwd", appendLine(passwd, line)); err != nil {
		return err
	}
	return coverFile("group", appendLine(group, fmt.Sprintf("%s:x:%d:", User, c.ID)))
}

func appendLine(text []byte, line string) []byte {
	if n := len(text); n > 0 && text[n-1] != '\n' {
		text = append(text, '\n')
	}
	return append(text, line+"\n"...)
}

// coverFile hides /etc/NAME behind a file of the host's own.
func coverFile(name string, data []byte) error {
	own := filepath.Join(etcDir, name)
	if err := os.WriteFile(own, data, 0o644); err != nil {
		return err
	}
	if err := unix.Mount(own, filepath.Join("/etc", name), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind /etc/%s: %w", name, err)
	}
	return nil
}
