package disk

import (
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// shell runs lines such as "mkdir d", "create d/f", "mv d/f f", "ln f g", "rm f",
// "rmdir d", "fsync d" and "sync" on a session.
type shell struct {
	t *testing.T
	s *Session
}

func (sh *shell) ino(name string) uint64 {
	sh.t.Helper()
	ino := uint64(Root)
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." {
			continue
		}
		a, err := sh.s.Lookup(ino, part)
		if err != nil {
			sh.t.Fatalf("%s: %v", name, err)
		}
		ino = a.Ino
	}
	return ino
}

func (sh *shell) run(line string) {
	sh.t.Helper()
	f := strings.Fields(line)
	var dir, dir2 uint64
	var name, name2 string
	if len(f) > 1 {
		dir, name = sh.ino(path.Dir(f[1])), path.Base(f[1])
	}
	if len(f) > 2 {
		dir2, name2 = sh.ino(path.Dir(f[2])), path.Base(f[2])
	}
	var err error
	switch f[0] {
	case "mkdir":
		_, err = sh.s.Create(dir, name, NewNode{Mode: syscall.S_IFDIR | 0o755}, 0)
	case "create":
		_, err = sh.s.Create(dir, name, NewNode{Mode: syscall.S_IFREG | 0o644}, 0)
	case "mv":
		err = sh.s.Rename(dir, name, dir2, name2, 0, 0)
	case "ln":
		_, err = sh.s.Link(sh.ino(f[1]), dir2, name2, 0)
	case "rm":
		err = sh.s.Unlink(dir, name, 0)
	case "rmdir":
		err = sh.s.Rmdir(dir, name, 0)
	case "fsync":
		err = sh.s.Fsync(sh.ino(f[1]), false)
	case "sync":
		err = sh.s.Sync()
	default:
		sh.t.Fatalf("%s: what?", line)
	}
	if err != nil {
		sh.t.Fatalf("%s: %v", line, err)
	}
}

// paths lists all that can be reached.
func (sh *shell) paths(ino uint64, at string) (all []string) {
	sh.t.Helper()
	err := sh.s.ReadDir(ino, 2, func(e Entry) bool {
		all = append(all, at+e.Name)
		if e.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			all = append(all, sh.paths(e.Ino, at+e.Name+"/")...)
		}
		return true
	})
	if err != nil {
		sh.t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// TestPosixNames says what a power cut leaves of names, case by case.
func TestPosixNames(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"a file's fsync does not keep its name", "create f; fsync f", ""},
		{"its directory's does", "create f; fsync f; fsync .", "f"},
		{"a directory has a name of its own", "mkdir d; create d/f; fsync d/f; fsync d", ""},
		{"which its directory keeps", "mkdir d; create d/f; fsync d; fsync .", "d d/f"},
		{"a rename is kept whole by the old directory", "mkdir p; mkdir q; create p/f; sync; mv p/f q/f; fsync p", "p q q/f"},
		{"and by the new one", "mkdir p; mkdir q; create p/f; sync; mv p/f q/f; fsync q", "p q q/f"},
		{"and not at all by the file", "mkdir p; mkdir q; create p/f; sync; mv p/f q/f; fsync q/f", "p p/f q"},
		{"what had a name is not moved to where none leads", "mkdir p; create p/f; sync; mkdir n; mv p/f n/f; fsync p", "n n/f p"},
		{"not below a directory that is there without a name either", "mkdir p; create p/f; sync; mkdir c; mkdir c/d; fsync c; mv p/f c/d/f; fsync p", "c c/d c/d/f p"},
		{"moves of directories never make a ring", "mkdir a; mkdir a/c; mkdir a/c/b; mkdir q; sync; mv a/c q/c; mv a q/c/b/a; fsync q/c/b", "q q/c q/c/b q/c/b/a"},
		{"a directory goes after what was in it", "mkdir d; mkdir e; create d/f; sync; mv d/f e/f; rmdir d; fsync .", "e e/f"},
		{"a new name and the old one's end are two operations", "mkdir p; mkdir q; create p/f; sync; ln p/f q/f; rm p/f; fsync p", "p q"},
		{"names of one directory are kept together", "create f; sync; create t; fsync t; mv t f; create g; fsync .", "f g"},
		{"a name that was used again", "create f; sync; rm f; mkdir f; create f/g; fsync f; fsync .", "f f/g"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := Open(newMemImage(), Options{Profile: Posix, RootMode: 0o755})
			if err != nil {
				t.Fatal(err)
			}
			s, _, err := d.PowerOn(0)
			if err != nil {
				t.Fatal(err)
			}
			sh := &shell{t, s}
			for line := range strings.SplitSeq(c.script, ";") {
				sh.run(line)
			}
			s.Cut()
			if sh.s, _, err = d.PowerOn(0); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(sh.paths(Root, ""), " "); got != c.want {
				t.Errorf("%s: after the cut there is %q, want %q", c.script, got, c.want)
			}
			if err := d.durable.check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPosixKeepsAnInodesOrder keeps the last of an inode's records, and must keep
// those before it, but not another inode's.
func TestPosixKeepsAnInodesOrder(t *testing.T) {
	log := []record{
		{op: opCreate, ino: 2}, {op: opCreate, ino: 3}, {op: opTruncate, ino: 2, size: 100},
		{op: opTruncate, ino: 3, size: 7}, {op: opTruncate, ino: 2, size: 50},
	}
	keep := []bool{4: true}
	newTree(0).closure(log, keep)
	if want := []bool{true, false, true, false, true}; !slices.Equal(keep, want) {
		t.Errorf("kept %v, want %v", keep, want)
	}
}
