package local

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/lab/place"
)

// TestMemoryLimit: a file larger than the host's memory has to come from the
// disk each time; without the limit the kernel keeps it.
func TestMemoryLimit(t *testing.T) {
	l := openLab(t)
	h := acquire(t, l, "small")[0]
	const limit = 64 << 20
	if err := h.LimitMemory(t.Context(), limit); errors.Is(err, errNoMemoryLimit) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if err := h.LimitMemory(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	reads := func(what string) float64 {
		t.Helper()
		before, err := h.DiskStats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		run(t, h, "cat "+place.Host(h).DataDir()+"/large >/dev/null")
		after, err := h.DiskStats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n := after["device_reads"] - before["device_reads"]
		t.Logf("%s: %.0f reads reached the disk", what, n)
		return n
	}
	run(t, h, "head -c 192M /dev/zero >"+h.DataDir()+"/large && sync "+h.DataDir()+"/large")
	reads("first")
	if n := reads("unlimited"); n > 0 {
		t.Errorf("without a limit %.0f reads of a cached file reached the disk", n)
	}
	if err := h.LimitMemory(t.Context(), limit); err != nil {
		stat, _ := os.ReadFile(h.machine.memory.dir + "/memory.stat")
		t.Fatalf("%v\n%s", err, stat)
	}
	const fewest = 192 << 20 / (1 << 20) / 2 // half the file, in requests of 1 MB at most
	reads("limited, first")
	if n := reads("limited"); n < fewest {
		t.Errorf("a file of three times the memory: %.0f reads reached the disk", n)
	}
	if _, _, err := h.Off(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.On(t.Context()); err != nil {
		t.Fatal(err)
	}
	reads("after a power cycle")
	if n := reads("after a power cycle, limited"); n < fewest {
		t.Errorf("after a power cycle %.0f reads reached the disk: the limit is gone", n)
	}
}

func TestBoundingParents(t *testing.T) {
	const mounts = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	for _, c := range []struct {
		own  string
		want []string
	}{
		{"4:memory:/a/b\n1:cpu:/\n", []string{"/sys/fs/cgroup/memory/a/b"}},
		{"4:cpuset,memory:/\n", []string{"/sys/fs/cgroup/memory"}},
		{"0::/a\n1:cpu:/\n", nil},
		{"", nil},
	} {
		if got := boundingParents(c.own, strings.NewReader(mounts)); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.own, got, c.want)
		}
	}
}
