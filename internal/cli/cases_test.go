package cli

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCaseZfsIssue2431: 329 flushes a second and 6,676 came from one machine. So
// the file system, the disk's cache and the system stand beside the numbers,
// and two file systems of one machine are told apart.
func TestCaseZfsIssue2431(t *testing.T) {
	on := func(dir string) string {
		code, out, errs := runMeasure(t.Context(), "", "measure", "disk", dir, "--for", "20ms", "--only", "same-block/fdatasync/buffered")
		if code != exitOK {
			t.Fatalf("exit %d: %s", code, errs)
		}
		for _, fact := range []string{"file system", "mount options", "write cache", "fua", "kernel", "cpu"} {
			if !strings.Contains(strings.ToLower(out), fact) {
				t.Errorf("%s is not beside the numbers:\n%s", fact, out)
			}
		}
		return out
	}
	disk := on(t.TempDir())
	var st unix.Statfs_t
	if unix.Statfs("/dev/shm", &st) != nil || st.Type != unix.TMPFS_MAGIC {
		t.Skip("needs a tmpfs at /dev/shm")
	}
	dir, err := os.MkdirTemp("/dev/shm", "holdfast-case-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	memory := on(dir)
	if !strings.Contains(memory, "tmpfs") || strings.Contains(disk, "tmpfs") && unix.Statfs(t.TempDir(), &st) == nil && st.Type != unix.TMPFS_MAGIC {
		t.Errorf("memory and disk are not told apart:\n%s\n%s", memory, disk)
	}
}
