package cli

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPaths: every path that cannot be used ends in one line that says why and
// what to do, with the code of wrong usage, or of a refusal where something
// would be put at risk; and nothing is made.
func TestPaths(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"empty", "full", "junk", "ro"} {
		if err := os.Mkdir(in(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"file", "full/precious", "junk/data"} {
		if err := os.WriteFile(in(f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	long := in(strings.Repeat("x", 300))
	for want, c := range map[string]struct {
		code int
		args []string
	}{
		"mount point " + in("none") + " does not exist: `mkdir -p":                        {exitUsage, []string{"simdisk", "--disk", "null", in("b"), in("none")}},
		"mount point " + in("file") + " is not a directory":                               {exitUsage, []string{"simdisk", "--disk", "null", in("b"), in("file")}},
		`is not empty: it holds "precious", which would be out of sight`:                  {exitRefused, []string{"simdisk", "--disk", "null", in("b"), in("full")}},
		"backing directory " + in("file") + " is a file: name a folder":                   {exitUsage, []string{"simdisk", "--disk", "null", in("file"), in("empty")}},
		"backing directory " + in("file/b") + ": " + in("file") + " is a file, so":        {exitUsage, []string{"simdisk", "--disk", "null", in("file/b"), in("empty")}},
		"backing directory /proc/x: /proc is the kernel's own":                            {exitUsage, []string{"simdisk", "--disk", "null", "/proc/x", in("empty")}},
		"backing directory: the path is empty":                                            {exitUsage, []string{"simdisk", "--disk", "null", "", in("empty")}},
		`holds "data", which is not part of a simulated disk: use an empty one`:           {exitRefused, []string{"simdisk", "--disk", "null", in("junk"), in("empty")}},
		"lies below the mount point":                                                      {exitRefused, []string{"simdisk", "--disk", "null", in("empty/b"), in("empty")}},
		"control socket " + in("none/s") + ": " + in("none") + " is not a directory":      {exitUsage, []string{"simdisk", "--disk", "null", in("b"), in("empty"), "--control", in("none/s")}},
		"control socket " + in("file") + ": something else is there":                      {exitRefused, []string{"simdisk", "--disk", "null", in("b"), in("empty"), "--control", in("file")}},
		"its path has 210 bytes and a socket's has 107 at most":                           {exitUsage, []string{"simdisk", "--disk", "null", in("b"), in("empty"), "--control", "/" + strings.Repeat("y/", 104) + "z"}},
		"no simulated disk answers at " + in("file"):                                      {exitInfra, []string{"simdisk", "stats", in("file")}},
		"--out " + in("file") + " is a file: name a folder":                               {exitUsage, []string{"lab", "run", "quick", "--out", in("file")}},
		"--out " + in("file/x") + ": " + in("file") + " is a file, so no folder":          {exitUsage, []string{"lab", "run", "quick", "--out", in("file/x")}},
		"--out /sys/x: /sys is the kernel's own":                                          {exitUsage, []string{"lab", "run", "quick", "--out", "/sys/x"}},
		"--out: the path is empty":                                                        {exitUsage, []string{"lab", "run", "quick", "--out", ""}},
		"--out " + long + ": a name in it is longer":                                      {exitUsage, []string{"lab", "run", "quick", "--out", long}},
		"--out " + in("ro/x") + ": " + in("ro") + " lies on a read-only file system":      {exitUsage, []string{"lab", "run", "quick", "--out", in("ro/x")}},
		"--work-dir " + in("file") + " is a file: name a folder":                          {exitUsage, []string{"lab", "run", "quick", "--out", in("o"), "--work-dir", in("file")}},
		"--work-dir " + in("none/"+filepath.Base(long)) + ": a name in it is longer than": {exitUsage, []string{"lab", "run", "quick", "--out", in("o"), "--work-dir", in("none/" + filepath.Base(long))}},
		"--work-dir: the path is empty":                                                   {exitUsage, []string{"lab", "run", "quick", "--out", in("o"), "--work-dir", ""}},
	} {
		t.Run(want, func(t *testing.T) {
			if strings.Contains(want, "read-only") {
				mountReadOnly(t, in("ro"))
			}
			code, out, errs := runMeasure(t.Context(), "", c.args...)
			if code != c.code || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 || out != "" {
				t.Errorf("%q: exit %d (want %d), stdout %q, stderr %q", c.args, code, c.code, out, errs)
			}
		})
	}
	for _, made := range []string{"b", "b.sock", "none", "o", "empty/b"} {
		if _, err := os.Lstat(in(made)); err == nil {
			t.Errorf("%s was made all the same", made)
		}
	}
}

func mountReadOnly(t *testing.T, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a read-only file system")
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// TestUsable: what may be used is.
func TestUsable(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "a/b/c"), ".", "a"} {
		if err := usableDir("it", path); err != nil {
			t.Error(err)
		}
	}
	if err := usableMountpoint(dir, true); err != nil {
		t.Error(err)
	}
	if err := usableMountpoint(t.TempDir(), false); err != nil {
		t.Error(err)
	}
	// The default socket lies beside a backing directory that is yet to be made.
	if err := usableSocket(filepath.Join(dir, "a/b.sock"), filepath.Join(dir, "a/b")); err != nil {
		t.Error(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := usableSocket(filepath.Join(dir, "s"), filepath.Join(dir, "b")); err != nil {
		t.Errorf("a socket that is there is for the disk to judge: %v", err)
	}
}
