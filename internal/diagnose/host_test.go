package diagnose

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestParseDevice(t *testing.T) {
	c := parseDevice("  120 3 4000 600 80 5 2000 900 2 1500 1700 0 0 0 0 30 45\n", time.Second)
	if c == nil || c.Reads != 120 || c.ReadMs != 600 || c.Writes != 80 || c.WriteMs != 900 || c.BusyMs != 1500 || c.QueueMs != 1700 || c.Flushes != 30 || c.FlushMs != 45 || c.Bytes != 512*6000 {
		t.Errorf("%+v", c)
	}
	if c := parseDevice("120 3 4000 600 80 5 2000 900 2 1500 1700", 0); c == nil || c.Flushes != 0 { // before Linux 5.5
		t.Errorf("%+v", c)
	}
	if c := parseDevice("1 2", 0); c != nil {
		t.Errorf("%+v", c)
	}
}

func TestParseMachine(t *testing.T) {
	var c HostCounters
	parseCPU("cpu  100 0 50 1000 200 5 5 40 0 0\ncpu0 1 2\n", &c)
	if round(deref(c.Busy), 6) != 1.6 || deref(c.IOWait) != 2 || deref(c.Steal) != 0.4 || round(deref(c.All), 6) != 14 {
		t.Errorf("%v %v %v %v", deref(c.Busy), deref(c.IOWait), deref(c.Steal), deref(c.All))
	}
	if v := parsePSI("some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=1\n"); deref(v) != 2.5 {
		t.Errorf("%v", deref(v))
	}
	for text, want := range map[string]float64{"nr_periods 5\nnr_throttled 2\nthrottled_usec 1500000\n": 1.5, "nr_periods 5\nthrottled_time 2000000000\n": 2} {
		if v := parseThrottled(text); deref(v) != want {
			t.Errorf("%q: %v", text, deref(v))
		}
	}
	if parsePSI("") != nil || parseThrottled("usage_usec 1\n") != nil {
		t.Error("what is not there is absent")
	}
}

// TestCgroups reads the limits of both versions.
func TestCgroups(t *testing.T) {
	dir := t.TempDir()
	file := func(path, text string) { write2(t, filepath.Join(dir, path), text, 0o644) }
	file("proc/7/cgroup", "0::/pg.slice\n")
	file("sys/fs/cgroup/pg.slice/cpu.stat", "usage_usec 9\nnr_throttled 3\nthrottled_usec 4000000\n")
	file("sys/fs/cgroup/pg.slice/cpu.max", "150000 100000\n")
	file("sys/fs/cgroup/pg.slice/memory.max", "1073741824\n")
	m := &machine{proc: filepath.Join(dir, "proc"), sys: filepath.Join(dir, "sys"), postmaster: 7}
	m.findCgroup()
	if deref(m.cpuLimit) != 1.5 || deref(m.memoryLimit) != 1<<30 || deref(m.counters(0).Throttled) != 4 {
		t.Errorf("version 2: %v %v", deref(m.cpuLimit), deref(m.memoryLimit))
	}
	file("proc/8/cgroup", "4:memory:/box\n3:cpu,cpuacct:/box\n1:name=systemd:/\n")
	file("sys/fs/cgroup/cpu/box/cpu.stat", "nr_periods 9\nthrottled_time 3000000000\n")
	file("sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "50000\n")
	file("sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n")
	file("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "9223372036854771712\n")
	m = &machine{proc: filepath.Join(dir, "proc"), sys: filepath.Join(dir, "sys"), postmaster: 8}
	m.findCgroup()
	if deref(m.cpuLimit) != 0.5 || m.memoryLimit != nil || deref(m.counters(0).Throttled) != 3 {
		t.Errorf("version 1: %v %v", deref(m.cpuLimit), m.memoryLimit)
	}
}

func TestStat(t *testing.T) {
	dir := t.TempDir()
	write2(t, filepath.Join(dir, "42/stat"), "42 (post) (gres) S 7 1 1 0 -1 4194560 100 0 0 0 150 50 1000 500 20 0 1 0 100 0 0\n", 0o644)
	s, ok := (&machine{proc: dir}).stat(42)
	if !ok || s.name != "post) (gres" || s.parent != 7 || s.self != 2 || s.children != 15 {
		t.Errorf("%v %+v", ok, s)
	}
	if _, ok := (&machine{proc: dir}).stat(43); ok {
		t.Error("nobody is there")
	}
}

// TestFindMachine: a server is on this machine when its session's process is
// one of Postgres's here; the same number of somebody else's is not.
func TestFindMachine(t *testing.T) {
	unixAddr := &net.UnixAddr{Name: "/x", Net: "unix"}
	if m := findMachine(unixAddr, identity{pid: os.Getpid()}); m != nil {
		t.Error("this test is no server")
	}
	if m := findMachine(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}, identity{pid: 1}); m != nil {
		t.Error("that address is another machine's")
	}
	if !local(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}) || local(nil) {
		t.Error("loopback is here")
	}
	s := newServer(t, debianBin(t), "", "fsync=off")
	d := s.diagnose(time.Second)
	if !d.Server.OnHost || d.Host == nil || d.Host.Cores < 1 || d.Host.Data == nil || d.Host.Data.FileSystem == "" || d.Host.SameDevice == nil || !*d.Host.SameDevice || d.Host.CPUSeconds == nil {
		t.Errorf("%+v %+v", d.Server, d.Host)
	}
	if d.Verdict.Cause != CauseIdle {
		t.Errorf("%+v", d.Verdict)
	}
	if _, err := strconv.Atoi(d.Server.Version[:2]); err != nil {
		t.Errorf("version %q", d.Server.Version)
	}
}
