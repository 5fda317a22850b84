package fuse_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/disk/fuse"
)

func residentMB(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	must(t, err)
	return kb / 1024
}

// wantErr checks for one errno.
func wantErr(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// TestPOSIX is what Postgres, SQLite and ordinary programs expect of a file
// system. All subtests share one mount.
func TestPOSIX(t *testing.T) {
	d := mount(t, "null", "lose-all")
	for name, test := range map[string]func(*testing.T, string){
		"files": posixFiles, "names": posixNames, "directories": posixDirectories, "attributes": posixAttributes,
		"unlinked": posixUnlinked, "sizes": posixSizes, "special": posixSpecial, "locks": posixLocks,
		"permissions": posixPermissions, "programs": posixPrograms, "concurrent": posixConcurrent,
	} {
		dir := d.path(name)
		must(t, os.Mkdir(dir, 0o755))
		t.Run(name, func(t *testing.T) { test(t, dir) })
	}
	var st unix.Statfs_t
	must(t, unix.Statfs(d.mnt, &st))
	if st.Type != fuse.SuperMagic || st.Namelen != 255 || st.Bavail == 0 {
		t.Errorf("statfs: %+v", st)
	}
	table, err := os.ReadFile("/proc/self/mounts")
	must(t, err)
	if !strings.Contains(string(table), "null "+d.mnt+" fuse.holdfast ") {
		t.Error("the mount table does not show disk and type")
	}
	// All of it survives a sync and a cut.
	before := listing(t, d.mnt)
	d.sync()
	d.cycle()
	if after := listing(t, d.mnt); !slices.Equal(before, after) {
		for i := range min(len(before), len(after)) {
			if before[i] != after[i] {
				t.Fatalf("after the cut:\n%s\nwant\n%s", after[i], before[i])
			}
		}
		t.Errorf("after the cut %d names, want %d", len(after), len(before))
	}
}

// listing describes every name below a directory.
func listing(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	must(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		must(t, err)
		var st unix.Stat_t
		must(t, unix.Lstat(path, &st))
		line := fmt.Sprintf("%s %o %d %d:%d %d %v %v", path, st.Mode, st.Nlink, st.Uid, st.Gid, st.Size, st.Mtim, st.Ctim)
		if e.Type().IsRegular() {
			b, err := os.ReadFile(path)
			must(t, err)
			line += fmt.Sprintf(" %x", len(b))
			for i := 0; i < len(b); i += 97 {
				line += string(rune('a' + b[i]%26))
			}
		}
		all = append(all, line)
		return nil
	}))
	return all
}

func posixFiles(t *testing.T, dir string) {
	p := dir + "/f"
	f, err := os.OpenFile(p, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o640)
	must(t, err)
	defer f.Close()
	_, err = os.OpenFile(p, os.O_CREATE|os.O_EXCL, 0o640)
	wantErr(t, "create what exists", err, unix.EEXIST)
	_, err = f.WriteString("hello")
	must(t, err)
	a, err := os.OpenFile(p, os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	defer a.Close()
	_, err = a.WriteString(", world")
	must(t, err)
	b := make([]byte, 20)
	if n, _ := f.ReadAt(b, 3); string(b[:n]) != "lo, world" {
		t.Errorf("reads %q", b[:n])
	}
	if end, err := f.Seek(0, 2); err != nil || end != 12 {
		t.Errorf("end at %d (%v)", end, err)
	}
	if off, err := unix.Seek(int(f.Fd()), 2, unix.SEEK_DATA); err != nil || off != 2 {
		t.Errorf("SEEK_DATA: %d (%v)", off, err)
	}
	st, err := f.Stat()
	must(t, err)
	if st.Mode() != 0o640 || st.Size() != 12 {
		t.Errorf("stat: %v, %d bytes", st.Mode(), st.Size())
	}
	g, err := os.OpenFile(p, os.O_TRUNC|os.O_RDWR, 0)
	must(t, err)
	defer g.Close()
	if st, _ := f.Stat(); st.Size() != 0 {
		t.Errorf("%d bytes after O_TRUNC", st.Size())
	}
	_, err = f.WriteString("copied")
	must(t, err)
	c, err := os.Create(dir + "/copy")
	must(t, err)
	defer c.Close()
	off := int64(2) // where SEEK_DATA left it
	if n, err := unix.CopyFileRange(int(f.Fd()), &off, int(c.Fd()), nil, 6, 0); err != nil || n != 6 {
		t.Errorf("copy_file_range: %d (%v)", n, err)
	}
	_, err = os.Open(dir + "/missing")
	wantErr(t, "open", err, unix.ENOENT)
	must(t, os.WriteFile(dir+"/missing", nil, 0o600)) // the kernel must forget that it was missing
	_, err = os.Open(dir + "/" + strings.Repeat("n", 256))
	wantErr(t, "long name", err, unix.ENAMETOOLONG)
	_, err = os.Open(dir + "/f/below")
	wantErr(t, "below a file", err, unix.ENOTDIR)
}

func posixNames(t *testing.T, dir string) {
	p := func(n string) string { return dir + "/" + n }
	write := func(n, s string) { must(t, os.WriteFile(p(n), []byte(s), 0o600)) }
	read := func(n, want string) {
		t.Helper()
		if b, err := os.ReadFile(p(n)); err != nil || string(b) != want {
			t.Errorf("%s reads %q (%v), want %q", n, b, err, want)
		}
	}
	write("a", "A")
	write("b", "B")
	must(t, os.Link(p("a"), p("a2")))
	wantErr(t, "link to what exists", os.Link(p("a"), p("b")), unix.EEXIST)
	wantErr(t, "link a directory", os.Link(dir, p("d2")), unix.EPERM)
	var st unix.Stat_t
	must(t, unix.Stat(p("a2"), &st))
	if st.Nlink != 2 {
		t.Errorf("%d links", st.Nlink)
	}
	must(t, os.Rename(p("a"), p("a2"))) // the same file: both names stay
	read("a", "A")
	must(t, os.Remove(p("a2")))
	must(t, os.Rename(p("a"), p("b")))
	read("b", "A")
	_, err := os.Lstat(p("a"))
	wantErr(t, "renamed away", err, unix.ENOENT)
	write("c", "C")
	rename := func(a, b string, flags uint) error {
		return unix.Renameat2(unix.AT_FDCWD, p(a), unix.AT_FDCWD, p(b), flags)
	}
	wantErr(t, "NOREPLACE", rename("b", "c", unix.RENAME_NOREPLACE), unix.EEXIST)
	must(t, rename("b", "new", unix.RENAME_NOREPLACE))
	must(t, rename("new", "c", unix.RENAME_EXCHANGE))
	read("new", "C")
	read("c", "A")
	wantErr(t, "EXCHANGE", rename("c", "missing", unix.RENAME_EXCHANGE), unix.ENOENT)
	wantErr(t, "WHITEOUT", rename("c", "w", unix.RENAME_WHITEOUT), unix.EINVAL)
	must(t, os.Symlink("c", p("link")))
	read("link", "A")
	if target, err := os.Readlink(p("link")); err != nil || target != "c" {
		t.Errorf("link to %q (%v)", target, err)
	}
	if st, err := os.Lstat(p("link")); err != nil || st.Size() != 1 || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("lstat of a link: %v (%v)", st, err)
	}
	must(t, os.Symlink("nowhere", p("dangling")))
	_, err = os.Stat(p("dangling"))
	wantErr(t, "dangling link", err, unix.ENOENT)
}

func posixDirectories(t *testing.T, dir string) {
	p := func(n string) string { return dir + "/" + n }
	must(t, os.MkdirAll(p("x/y/z"), 0o755))
	must(t, os.WriteFile(p("file"), nil, 0o600))
	wantErr(t, "rmdir of a full one", unix.Rmdir(p("x")), unix.ENOTEMPTY)
	wantErr(t, "rmdir of a file", unix.Rmdir(p("file")), unix.ENOTDIR)
	wantErr(t, "unlink of a directory", unix.Unlink(p("x")), unix.EISDIR)
	wantErr(t, "into itself", unix.Rename(p("x"), p("x/y/x")), unix.EINVAL)
	wantErr(t, "onto a file", unix.Rename(p("x"), p("file")), unix.ENOTDIR)
	wantErr(t, "a file onto it", unix.Rename(p("file"), p("x")), unix.EISDIR)
	must(t, os.Mkdir(p("empty"), 0o755))
	must(t, unix.Rename(p("x/y"), p("empty")))
	var st unix.Stat_t
	for name, links := range map[string]uint64{"x": 2, "empty": 3} {
		must(t, unix.Stat(p(name), &st))
		if st.Nlink != links {
			t.Errorf("%s has %d links, want %d", name, st.Nlink, links)
		}
	}
	must(t, unix.Stat(p("empty/.."), &st))
	var up unix.Stat_t
	must(t, unix.Stat(dir, &up))
	if st.Ino != up.Ino {
		t.Error(".. leads elsewhere after a rename")
	}
	const many = 3000
	must(t, os.Mkdir(p("many"), 0o755))
	for i := range many {
		f, err := os.Create(p(fmt.Sprintf("many/%d", i)))
		must(t, err)
		f.Close()
	}
	f, err := os.Open(p("many"))
	must(t, err)
	defer f.Close()
	seen := map[string]bool{}
	for { // remove while listing, as rm -r does
		names, err := f.Readdirnames(100)
		for _, n := range names {
			if seen[n] {
				t.Fatalf("%s is listed twice", n)
			}
			seen[n] = true
			must(t, os.Remove(p("many/"+n)))
		}
		if err != nil {
			break
		}
	}
	if len(seen) != many {
		t.Errorf("%d of %d names listed", len(seen), many)
	}
	must(t, os.Remove(p("many")))
	must(t, os.Mkdir(p("again"), 0o755)) // a listing is not older than its directory
	if e, err := os.ReadDir(p("again")); err != nil || len(e) != 0 {
		t.Errorf("%v (%v)", e, err)
	}
	must(t, os.WriteFile(p("again/1"), nil, 0o600))
	if e, err := os.ReadDir(p("again")); err != nil || len(e) != 1 {
		t.Errorf("%v (%v)", e, err)
	}
}

func posixAttributes(t *testing.T, dir string) {
	p := dir + "/f"
	must(t, os.WriteFile(p, []byte("x"), 0o600))
	must(t, os.Chmod(p, 0o4751))
	must(t, os.Chown(p, 12, 34))
	at, mt := time.Unix(1e9, 5), time.Unix(-5, 7)
	must(t, os.Chtimes(p, at, mt))
	var st unix.Stat_t
	must(t, unix.Stat(p, &st))
	// The change of owner took the set-user-id bit away.
	if st.Mode != unix.S_IFREG|0o751 || st.Uid != 12 || st.Gid != 34 || st.Atim.Nano() != at.UnixNano() || st.Mtim.Nano() != mt.UnixNano() {
		t.Errorf("%o %d:%d %v %v", st.Mode, st.Uid, st.Gid, st.Atim, st.Mtim)
	}
	f, err := os.OpenFile(p, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString("yy")
	must(t, err)
	f.Close()
	old := st
	must(t, unix.Stat(p, &st))
	if st.Mtim.Nano() <= old.Mtim.Nano() || st.Ctim.Nano() < old.Ctim.Nano() || st.Size != 2 || st.Blocks != 8 {
		t.Errorf("after a write: %+v", st)
	}
	must(t, os.Mkdir(dir+"/g", 0o755))
	must(t, os.Chown(dir+"/g", 0, 77))
	must(t, os.Chmod(dir+"/g", 0o755|os.ModeSetgid))
	must(t, os.Mkdir(dir+"/g/sub", 0o755))
	must(t, unix.Stat(dir+"/g/sub", &st))
	if st.Gid != 77 || st.Mode&unix.S_ISGID == 0 {
		t.Errorf("below a set-group-id directory: group %d, mode %o", st.Gid, st.Mode)
	}
	if _, err := unix.Getxattr(p, "user.x", nil); err != unix.EOPNOTSUPP {
		t.Errorf("getxattr: %v", err)
	}
}

func posixUnlinked(t *testing.T, dir string) {
	p := dir + "/f"
	f, err := os.Create(p)
	must(t, err)
	defer f.Close()
	_, err = f.WriteString("still here")
	must(t, err)
	must(t, os.Remove(p))
	_, err = f.WriteAt([]byte("STILL"), 0)
	must(t, err)
	must(t, f.Sync())
	b := make([]byte, 10)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "STILL here" {
		t.Errorf("reads %q (%v)", b, err)
	}
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	if st.Nlink != 0 {
		t.Errorf("%d links", st.Nlink)
	}
	// A file that never had a name gets one.
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
	must(t, err)
	defer func() { _ = unix.Close(fd) }()
	_, err = unix.Write(fd, []byte("tmp"))
	must(t, err)
	must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, dir+"/named", unix.AT_SYMLINK_FOLLOW))
	if b, err := os.ReadFile(dir + "/named"); err != nil || string(b) != "tmp" {
		t.Errorf("reads %q (%v)", b, err)
	}
}

func posixSizes(t *testing.T, dir string) {
	f, err := os.Create(dir + "/f")
	must(t, err)
	defer f.Close()
	fd := int(f.Fd())
	read := func(off int64, want string) {
		t.Helper()
		b := make([]byte, len(want))
		if _, err := f.ReadAt(b, off); err != nil || string(b) != want {
			t.Errorf("at %d: %q (%v), want %q", off, b, err, want)
		}
	}
	zeros := func(n int) string { return strings.Repeat("\x00", n) }
	_, err = f.WriteAt([]byte("end"), 100<<10)
	must(t, err)
	read(50<<10, zeros(100))
	must(t, f.Truncate(10))
	must(t, f.Truncate(200<<10))
	read(100<<10, zeros(3))
	must(t, f.Truncate(0))
	for i := range 10 {
		_, err = f.WriteAt([]byte(strings.Repeat(string(rune('a'+i)), 4096)), int64(i)*4096)
		must(t, err)
	}
	must(t, f.Sync())
	const keep = unix.FALLOC_FL_KEEP_SIZE
	must(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|keep, 4096+100, 3*4096))
	read(4096, strings.Repeat("b", 100)+zeros(3*4096)+strings.Repeat("e", 4096-100))
	must(t, unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, 9*4096+5, 4096))
	read(9*4096, "jjjjj"+zeros(4096))
	must(t, unix.Fallocate(fd, keep, 0, 1<<20))
	size := func() int64 { st, err := f.Stat(); must(t, err); return st.Size() }
	if size() != 10*4096+5 {
		t.Errorf("%d bytes", size())
	}
	must(t, unix.Fallocate(fd, 0, 0, 1<<20))
	if size() != 1<<20 {
		t.Errorf("%d bytes after fallocate", size())
	}
	read(1<<20-100, zeros(100))
	wantErr(t, "collapse", unix.Fallocate(fd, unix.FALLOC_FL_COLLAPSE_RANGE, 0, 4096), unix.EOPNOTSUPP)
	wantErr(t, "too large", unix.Ftruncate(fd, 1<<50), unix.EFBIG)
}

func posixSpecial(t *testing.T, dir string) {
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	go func() { _ = os.WriteFile(dir+"/fifo", []byte("through"), 0) }()
	if b, err := os.ReadFile(dir + "/fifo"); err != nil || string(b) != "through" {
		t.Errorf("fifo: %q (%v)", b, err)
	}
	t.Chdir(dir) // a socket's path is short
	l, err := net.Listen("unix", "sock")
	must(t, err)
	defer func() { _ = l.Close() }()
	c, err := net.Dial("unix", "sock")
	must(t, err)
	_ = c.Close()
}

func posixLocks(t *testing.T, dir string) {
	open := func() int {
		fd, err := unix.Open(dir+"/lock", unix.O_CREAT|unix.O_RDWR, 0o600)
		must(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	a, b := open(), open()
	must(t, unix.Flock(a, unix.LOCK_EX))
	wantErr(t, "flock", unix.Flock(b, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 10, Len: 5}
	must(t, unix.FcntlFlock(uintptr(a), unix.F_OFD_SETLK, &lock))
	other := lock
	wantErr(t, "fcntl", unix.FcntlFlock(uintptr(b), unix.F_OFD_SETLK, &other), unix.EAGAIN)
}

// posixPermissions asks as another user.
func posixPermissions(t *testing.T, dir string) {
	must(t, os.WriteFile(dir+"/secret", []byte("x"), 0o600))
	must(t, os.WriteFile(dir+"/open", []byte("x"), 0o644))
	run := func(script string) error {
		c := exec.Command("/bin/sh", "-c", script)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return c.Run()
	}
	for script, ok := range map[string]bool{
		"cat " + dir + "/open":   true,
		"cat " + dir + "/secret": false,
		"echo > " + dir + "/new": false,
		"rm -f " + dir + "/open": false,
	} {
		if err := run(script); (err == nil) != ok {
			t.Errorf("as another user %q: %v", script, err)
		}
	}
	must(t, os.Mkdir(dir+"/theirs", 0o700))
	must(t, os.Chown(dir+"/theirs", 65534, 65534))
	must(t, run("echo x > "+dir+"/theirs/f && mkdir "+dir+"/theirs/d"))
	var st unix.Stat_t
	must(t, unix.Stat(dir+"/theirs/f", &st))
	if st.Uid != 65534 || st.Gid != 65534 {
		t.Errorf("their file belongs to %d:%d", st.Uid, st.Gid)
	}
}

func posixPrograms(t *testing.T, dir string) {
	sh, err := os.ReadFile("/bin/sh")
	must(t, err)
	must(t, os.WriteFile(dir+"/sh", sh, 0o755))
	out, err := exec.Command(dir+"/sh", "-c", "cd "+dir+" && tar cf t.tar --exclude=t.tar sh && rm sh && tar xf t.tar && cmp sh /bin/sh && echo same").CombinedOutput()
	if err != nil || string(out) != "same\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// posixConcurrent has many goroutines work on files of their own and on one
// that they share.
func posixConcurrent(t *testing.T, dir string) {
	shared, err := os.Create(dir + "/shared")
	must(t, err)
	defer shared.Close()
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := hammer(fmt.Sprintf("%s/%d", dir, g), shared, g); err != nil {
				t.Errorf("worker %d: %v", g, err)
			}
		}()
	}
	wg.Wait()
	b, err := os.ReadFile(dir + "/shared")
	must(t, err)
	for i, c := range b {
		if c != byte('a'+i/1000%8) {
			t.Fatalf("byte %d of the shared file is %q", i, c)
		}
	}
}

func hammer(path string, shared *os.File, g int) error {
	for i := range 60 {
		name := fmt.Sprintf("%s.%d", path, i%7)
		want := strings.Repeat(string(rune('a'+g)), 1000*(i%9))
		if err := os.WriteFile(name+".tmp", []byte(want), 0o600); err != nil {
			return err
		}
		if err := os.Rename(name+".tmp", name); err != nil {
			return err
		}
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			return fmt.Errorf("%s reads %d bytes, want %d (%w)", name, len(got), len(want), err)
		}
		if _, err := shared.WriteAt([]byte(strings.Repeat(string(rune('a'+g)), 1000)), int64(i)*8000+int64(g)*1000); err != nil {
			return err
		}
		if i%10 == g {
			if err := shared.Sync(); err != nil {
				return err
			}
		}
	}
	return nil
}
