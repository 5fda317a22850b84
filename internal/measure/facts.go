package measure

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// NA stands for a fact that this machine does not tell.
const NA = "n/a"

// DiskFacts says what a number measured at path rests on. Its keys are always
// all there, with "n/a" for what the machine does not tell: filesystem,
// mount_point, mount_options, device, write_cache, fua, rotational, model,
// kernel, cpu.
func DiskFacts(path string) map[string]string {
	f := map[string]string{
		"filesystem": NA, "mount_point": NA, "mount_options": NA, "device": NA,
		"write_cache": NA, "fua": NA, "rotational": NA, "model": NA, "kernel": kernel(), "cpu": cpu(),
	}
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return f
	}
	major, minor := unix.Major(st.Dev), unix.Minor(st.Dev)
	if m, ok := findMount(fmt.Sprintf("%d:%d", major, minor), path); ok {
		f["filesystem"], f["mount_point"], f["device"] = m.fstype, m.point, m.source
		f["mount_options"] = m.options
		// btrfs, and others with several devices, give files a number that no
		// block device has: go by the mount's source.
		var src unix.Stat_t
		if major == 0 && strings.HasPrefix(m.source, "/dev/") && unix.Stat(m.source, &src) == nil {
			major, minor = unix.Major(src.Rdev), unix.Minor(src.Rdev)
		}
	}
	if major == 0 {
		return f
	}
	dev, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", major, minor))
	if err != nil {
		return f
	}
	if _, err := os.Stat(filepath.Join(dev, "queue")); err != nil {
		dev = filepath.Dir(dev) // a partition: the queue is the whole disk's
	}
	if f["device"] == NA || !strings.HasPrefix(f["device"], "/dev/") {
		f["device"] = "/dev/" + filepath.Base(dev)
	}
	for key, file := range map[string]string{
		"write_cache": "queue/write_cache", "fua": "queue/fua", "rotational": "queue/rotational", "model": "device/model",
	} {
		if v := readLine(filepath.Join(dev, file)); v != "" {
			f[key] = v
		}
	}
	return f
}

type mount struct{ point, fstype, source, options string }

// findMount looks path's mount up in /proc/self/mountinfo (proc(5)): of the
// mounts with the device number, the longest that path lies under.
func findMount(dev, path string) (best mount, ok bool) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return mount{}, false
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real
	}
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return mount{}, false
	}
	defer file.Close()
	sc := bufio.NewScanner(file)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		m, mdev, valid := parseMount(sc.Text())
		under := m.point == "/" || abs == m.point || strings.HasPrefix(abs, m.point+"/")
		// Of equal ones the later is mounted over the earlier.
		if valid && mdev == dev && under && len(m.point) >= len(best.point) {
			best, ok = m, true
		}
	}
	return best, ok
}

func parseMount(line string) (m mount, dev string, ok bool) {
	left, right, found := strings.Cut(line, " - ")
	l, r := strings.Fields(left), strings.Fields(right)
	if !found || len(l) < 6 || len(r) < 2 {
		return mount{}, "", false
	}
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	m = mount{point: unescape.Replace(l[4]), fstype: r[0], source: unescape.Replace(r[1]), options: l[5]}
	if len(r) > 2 { // the file system's own options, without repeating rw and ro
		for _, o := range strings.Split(r[2], ",") {
			if !strings.Contains(","+m.options+",", ","+o+",") {
				m.options += "," + o
			}
		}
	}
	return m, l[2], true
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return NA
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
}

func cpu() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return NA
	}
	defer file.Close()
	model, n := "", 0
	sc := bufio.NewScanner(file)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		key, val, _ := strings.Cut(sc.Text(), ":")
		switch strings.TrimSpace(key) {
		case "processor":
			n++
		case "model name":
			model = strings.TrimSpace(val)
		}
	}
	switch {
	case n == 0:
		return NA
	case model == "":
		return fmt.Sprintf("%d × unnamed", n)
	}
	return fmt.Sprintf("%d × %s", n, model)
}

func readLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(line)
}
