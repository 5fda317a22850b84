package diagnose

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/measure"
)

// userHz is the kernel's unit of processor times in /proc, a constant of its
// interface on every architecture that Go runs on.
const userHz = 100

// machine reads what this machine says about a server whose processes are on
// it. Everything is read from files that any user may read, where it is there.
type machine struct {
	proc, sys   string // "/proc", "/sys"; others in tests
	postmaster  int
	backend     int // ours; 0 through a pooler
	data, wal   DeviceFacts
	dataStat    string // files of device counters; "" for what is no block device
	walStat     string
	same        *bool
	cpuStat     string // of the server's cgroup, version 2 or 1
	cpuLimit    *float64
	memoryLimit *float64
}

// findMachine is nil when the server's processes are not to be seen here: it
// is elsewhere, or in a container with process ids of its own.
func findMachine(addr net.Addr, id identity) *machine {
	if !local(addr) {
		return nil
	}
	m := &machine{proc: "/proc", sys: "/sys"}
	stat, ok := m.stat(id.pid)
	if !ok || !strings.HasPrefix(stat.name, "postgres") && !strings.HasPrefix(stat.name, "postmaster") {
		return nil
	}
	parent, ok := m.stat(stat.parent)
	if !ok || !strings.HasPrefix(parent.name, "postgres") && !strings.HasPrefix(parent.name, "postmaster") {
		return nil
	}
	m.postmaster = stat.parent
	if !id.pooler {
		m.backend = id.pid
	}
	m.findDevices(id.directory)
	m.findCgroup()
	return m
}

// local says whether an address is this machine's.
func local(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return addr != nil && addr.Network() == "unix"
	}
	if tcp.IP.IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(tcp.IP) {
			return true
		}
	}
	return false
}

type procStat struct {
	name           string
	parent         int
	self, children float64 // processor seconds
}

// stat reads /proc/PID/stat (proc(5)); the name may hold anything.
func (m *machine) stat(pid int) (s procStat, ok bool) {
	data, err := os.ReadFile(filepath.Join(m.proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return s, false
	}
	text := string(data)
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return s, false
	}
	s.name = text[open+1 : end]
	f := strings.Fields(text[end+1:])
	if len(f) < 15 {
		return s, false
	}
	s.parent, _ = strconv.Atoi(f[1])
	num := func(i int) float64 { v, _ := strconv.ParseFloat(f[i], 64); return v / userHz }
	s.self, s.children = num(11)+num(12), num(13)+num(14)
	return s, true
}

func (m *machine) findDevices(directory string) {
	if directory == "" {
		directory, _ = os.Readlink(filepath.Join(m.proc, strconv.Itoa(m.postmaster), "cwd"))
	}
	if directory == "" {
		return
	}
	// Through the postmaster's root, where its mounts are not ours.
	m.data, m.dataStat = m.device(directory)
	wal, err := filepath.EvalSymlinks(filepath.Join(directory, "pg_wal"))
	if err != nil {
		return
	}
	m.wal, m.walStat = m.device(wal)
	same := m.dataStat == m.walStat && m.data.Device == m.wal.Device && m.data.FileSystem == m.wal.FileSystem
	m.same = &same
}

func (m *machine) device(path string) (DeviceFacts, string) {
	facts := measure.DiskFacts(path)
	d := DeviceFacts{Path: path, Device: facts["device"], FileSystem: facts["filesystem"], Options: facts["mount_options"]}
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return d, ""
	}
	major, minor := unix.Major(st.Dev), unix.Minor(st.Dev)
	var src unix.Stat_t
	if major == 0 && strings.HasPrefix(d.Device, "/dev/") && unix.Stat(d.Device, &src) == nil {
		major, minor = unix.Major(src.Rdev), unix.Minor(src.Rdev)
	}
	file := fmt.Sprintf("%s/dev/block/%d:%d/stat", m.sys, major, minor)
	if _, err := os.Stat(file); major == 0 || err != nil {
		return d, ""
	}
	return d, file
}

// deviceCounters reads a device's stat file (the kernel's
// Documentation/block/stat.rst); nil where there is none.
func deviceCounters(file string, at time.Duration) *DeviceCounters {
	if file == "" {
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return parseDevice(string(data), at)
}

func parseDevice(text string, at time.Duration) *DeviceCounters {
	f := strings.Fields(text)
	if len(f) < 11 {
		return nil
	}
	num := func(i int) float64 {
		if i >= len(f) {
			return 0
		}
		v, _ := strconv.ParseFloat(f[i], 64)
		return v
	}
	const sector = 512
	return &DeviceCounters{
		At: at, Reads: num(0), ReadMs: num(3), Writes: num(4), WriteMs: num(7), Bytes: sector * (num(2) + num(6)),
		BusyMs: num(9), QueueMs: num(10), Flushes: num(15), FlushMs: num(16),
	}
}

// findCgroup looks up the limits of the server's control group.
func (m *machine) findCgroup() {
	data, err := os.ReadFile(filepath.Join(m.proc, strconv.Itoa(m.postmaster), "cgroup"))
	if err != nil {
		return
	}
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		path := f[2]
		switch {
		case f[1] == "":
			m.cgroup2(path)
		case f[1] == "cpu" || strings.HasPrefix(f[1], "cpu,"):
			dir := m.cgroupDir("cpu", path)
			m.cpuStat = filepath.Join(dir, "cpu.stat")
			if quota, period := readNum(dir, "cpu.cfs_quota_us"), readNum(dir, "cpu.cfs_period_us"); quota > 0 && period > 0 {
				limit := quota / period
				m.cpuLimit = &limit
			}
		case f[1] == "memory":
			if v := readNum(m.cgroupDir("memory", path), "memory.limit_in_bytes"); v > 0 && v < 1<<60 {
				m.memoryLimit = &v
			}
		}
	}
}

// cgroupDir allows for a control group namespace, in which the root is what is mounted.
func (m *machine) cgroupDir(controller, path string) string {
	dir := filepath.Join(m.sys, "fs/cgroup", controller, path)
	if _, err := os.Stat(dir); err != nil {
		dir = filepath.Join(m.sys, "fs/cgroup", controller)
	}
	return dir
}

func (m *machine) cgroup2(path string) {
	dir := filepath.Join(m.sys, "fs/cgroup", path)
	if _, err := os.Stat(filepath.Join(dir, "cpu.stat")); err != nil {
		return // version 1, or a hierarchy without controllers beside it
	}
	m.cpuStat = filepath.Join(dir, "cpu.stat")
	if data, err := os.ReadFile(filepath.Join(dir, "cpu.max")); err == nil {
		f := strings.Fields(string(data))
		if len(f) == 2 && f[0] != "max" {
			quota, _ := strconv.ParseFloat(f[0], 64)
			period, _ := strconv.ParseFloat(f[1], 64)
			if quota > 0 && period > 0 {
				limit := quota / period
				m.cpuLimit = &limit
			}
		}
	}
	if v := readNum(dir, "memory.max"); v > 0 {
		m.memoryLimit = &v
	}
}

func readNum(dir, file string) float64 {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	v, _ := strconv.ParseFloat(strings.TrimSpace(string(data)), 64)
	return v
}

// counters reads everything that is a sum since boot.
func (m *machine) counters(at time.Duration) HostCounters {
	c := HostCounters{At: at, Data: deviceCounters(m.dataStat, at), WAL: deviceCounters(m.walStat, at)}
	if data, err := os.ReadFile(filepath.Join(m.proc, "stat")); err == nil {
		parseCPU(string(data), &c)
	}
	for name, to := range map[string]**float64{"cpu": &c.PSICPU, "io": &c.PSIIO, "memory": &c.PSIMemory} {
		if data, err := os.ReadFile(filepath.Join(m.proc, "pressure", name)); err == nil {
			*to = parsePSI(string(data))
		}
	}
	if data, err := os.ReadFile(m.cpuStat); m.cpuStat != "" && err == nil {
		c.Throttled = parseThrottled(string(data))
	}
	c.Server = m.serverCPU()
	return c
}

func parseCPU(text string, c *HostCounters) {
	line, _, _ := strings.Cut(text, "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return
	}
	v := make([]float64, 8) // user nice system idle iowait irq softirq steal
	all := 0.0
	for i := range v {
		v[i], _ = strconv.ParseFloat(f[i+1], 64)
		v[i] /= userHz
		all += v[i]
	}
	busy := all - v[3] - v[4] - v[7]
	c.Busy, c.IOWait, c.Steal, c.All = &busy, &v[4], &v[7], &all
}

// parsePSI is the "some" total of a pressure file, in seconds.
func parsePSI(text string) *float64 {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "some ") {
			continue
		}
		if _, total, ok := strings.Cut(line, "total="); ok {
			if v, err := strconv.ParseFloat(strings.TrimSpace(total), 64); err == nil {
				v /= 1e6
				return &v
			}
		}
	}
	return nil
}

// parseThrottled is the time that a group's processes were held back, in
// seconds; version 2 counts microseconds, version 1 nanoseconds.
func parseThrottled(text string) *float64 {
	for line := range strings.Lines(text) {
		name, val, _ := strings.Cut(strings.TrimSpace(line), " ")
		unit := map[string]float64{"throttled_usec": 1e6, "throttled_time": 1e9}[name]
		if v, err := strconv.ParseFloat(val, 64); unit > 0 && err == nil {
			v /= unit
			return &v
		}
	}
	return nil
}

// serverCPU adds up the postmaster, its living children, and those that it
// has buried, which the kernel adds to the postmaster's own account.
func (m *machine) serverCPU() *float64 {
	top, ok := m.stat(m.postmaster)
	if !ok {
		return nil
	}
	total := top.self + top.children
	dirs, err := os.ReadDir(m.proc)
	if err != nil {
		return nil
	}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		if s, ok := m.stat(pid); ok && s.parent == m.postmaster {
			total += s.self + s.children
		}
	}
	return &total
}

// evidence is what does not change while sampling.
func (m *machine) evidence() *HostEvidence {
	h := &HostEvidence{Cores: runtime.NumCPU(), Data: m.data, WAL: m.wal, SameDevice: m.same, CPULimit: m.cpuLimit, MemoryLimit: m.memoryLimit}
	if data, err := os.ReadFile(filepath.Join(m.sys, "devices/system/clocksource/clocksource0/current_clocksource")); err == nil {
		h.Clock = strings.TrimSpace(string(data))
	}
	return h
}

// ownCPU is the processor time that sampling has taken: of our backend, and of
// this program. ok is false where the backend's cannot be read.
func (m *machine) ownCPU() (d time.Duration, ok bool) {
	if m == nil || m.backend == 0 {
		return 0, false
	}
	data, err := os.ReadFile(filepath.Join(m.proc, strconv.Itoa(m.backend), "schedstat"))
	if err != nil {
		return 0, false
	}
	first, _, _ := strings.Cut(string(data), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, false
	}
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		return 0, false
	}
	return time.Duration(ns) + time.Duration(ru.Utime.Nano()) + time.Duration(ru.Stime.Nano()), true
}
