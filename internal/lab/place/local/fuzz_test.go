package local

import (
	"os"
	"strings"
	"testing"
)

func TestParseStartTime(t *testing.T) {
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	want, err := startTime(os.Getpid())
	if got, perr := parseStartTime(string(own)); err != nil || perr != nil || got != want || got == 0 {
		t.Errorf("%d, %v; want %d, %v", got, perr, want, err)
	}
	odd := "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 9 9 9 9 20 0 1 0 555 6 7\n"
	if got, err := parseStartTime(odd); err != nil || got != 555 {
		t.Errorf("a name with parentheses: %d, %v", got, err)
	}
}

func TestFreezingParents(t *testing.T) {
	const v1 = "35 24 0:30 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"
	const v2 = "30 24 0:26 /ours /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	got := freezingParents("5:freezer:/a\n0::/ours/b\n", strings.NewReader(v1+v2))
	want := []cgroupParent{{"/sys/fs/cgroup/b", true}, {"/sys/fs/cgroup/freezer/a", false}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%v, want %v", got, want)
	}
}

// FuzzProc: what the kernel says of processes, control groups and mounts.
func FuzzProc(f *testing.F) {
	for _, name := range []string{"stat", "cgroup", "mountinfo"} {
		b, err := os.ReadFile("/proc/self/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b), string(b))
	}
	f.Add("5:freezer,cpu:/a\n0::/../..\n", "35 24 0:30 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n30 24 0:26 /x /c rw - cgroup2 cgroup2 rw\n")
	f.Add("7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 9 9 9 9 20 0 1 0 555 6 7\n", "")
	f.Fuzz(func(t *testing.T, a, b string) {
		if n, err := parseStartTime(a); err != nil && n != 0 {
			t.Fatalf("%d with %v", n, err)
		}
		for _, p := range freezingParents(a, strings.NewReader(b)) {
			if p.dir == "" {
				t.Fatalf("%q, %q: a parent without a directory", a, b)
			}
		}
	})
}
