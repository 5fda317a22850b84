package guest

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDiskMounts(t *testing.T) {
	const table = `22 1 254:0 / / rw,relatime - ext4 /dev/root rw
30 22 0:40 / /run/holdfast/labs/1/a/disk rw,nosuid - fuse.holdfast local-nvme rw,user_id=0
31 22 0:41 / /mnt/fuse.holdfast rw shared:4 master:3 - ext4 fuse.holdfast rw
32 22 0:42 / /home/x/with\040space\134 rw shared:4 - fuse.holdfast null rw
33 22 0:43 / /home/x/other rw - fuse.sshfs null rw
34 22 0:44 / /home/x/longer rw - fuse.holdfastest null rw
`
	got, err := DiskMounts(strings.NewReader(table))
	if want := []string{`/home/x/with space\`, "/run/holdfast/labs/1/a/disk"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestSendReceive(t *testing.T) {
	a, theirs, err := Pair(unix.SOCK_STREAM)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	fd, err := unix.Dup(int(theirs.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	b, err := Conn(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	// Larger than any one read, with more of the stream right behind it.
	want := Request{Path: "/p", Args: []string{strings.Repeat("x", 300_000)}, Dir: "/", Root: true}
	sent := make(chan error, 1)
	go func() {
		err := Send(a, want, int(w.Fd()))
		if err == nil {
			err = Send(a, Kill{})
		}
		sent <- errors.Join(err, w.Close(), a.CloseWrite())
	}()
	var got Request
	fds, rest, err := Receive(b, &got)
	if err != nil {
		t.Fatal(err)
	}
	if got.Path != want.Path || !slices.Equal(got.Args, want.Args) || !got.Root {
		t.Errorf("the request came as %d bytes of arguments, %+v", len(got.Args[0]), got.Path)
	}
	line, err := bufio.NewReader(rest).ReadString('\n')
	if err != nil || line != "{}\n" {
		t.Errorf("then came %q, %v", line, err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if len(fds) != 1 {
		t.Fatalf("%d descriptors came", len(fds))
	}
	if flags, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("the descriptor is not close-on-exec: %#x, %v", flags, err)
	}
	f := os.NewFile(uintptr(fds[0]), "w")
	if _, err := f.WriteString("through"); err != nil {
		t.Error(err)
	}
	f.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != "through" {
		t.Errorf("through the descriptor came %q, %v", got, err)
	}
	if _, _, err := Receive(b, &got); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestInitOnlyAsFirstProcess(t *testing.T) {
	if err := Init(); err == nil || !strings.Contains(err.Error(), "started by the lab") {
		t.Errorf("got %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	s := &supervisor{}
	got := s.environment(Request{Env: []string{"A=1", "PATH=/mine", "A=2", "EMPTY="}})
	for _, want := range []string{"A=2", "PATH=/mine", "EMPTY=", "HOME=" + RunDir, "USER=" + User, "LANG=C.UTF-8"} {
		if n := len(slices.DeleteFunc(slices.Clone(got), func(v string) bool { return v != want })); n != 1 {
			t.Errorf("%q is there %d times: %q", want, n, got)
		}
	}
	if slices.Contains(got, "A=1") || slices.ContainsFunc(got, func(v string) bool { return strings.HasPrefix(v, "PATH="+binDir) }) {
		t.Errorf("what was overridden is there: %q", got)
	}
	if got := s.environment(Request{Root: true}); !slices.Contains(got, "USER=root") {
		t.Errorf("root has %q", got)
	}
}

func TestLookPath(t *testing.T) {
	s := &supervisor{binary: "/somewhere/holdfast"}
	for name, want := range map[string]string{"/somewhere/holdfast": Program, "/x/y": "/x/y", "./y": "./y"} {
		if got, err := s.lookPath(name); err != nil || got != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	if got, err := s.lookPath("sh"); err != nil || filepath.Base(got) != "sh" {
		t.Errorf("sh is %q, %v", got, err)
	}
	if _, err := s.lookPath("no-such-program"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
}

// TestSupervisor starts a program and an orphan, outside of any host.
func TestSupervisor(t *testing.T) {
	s := &supervisor{id: os.Getuid(), programs: map[int]chan<- syscall.WaitStatus{}}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	fds := []int{int(null.Fd()), int(null.Fd()), int(null.Fd())}
	if _, _, _, err := s.start(Request{Path: "true", Dir: "/"}, fds[:2]); err == nil {
		t.Error("a program without stderr was started")
	}
	if _, _, _, err := s.start(Request{Path: "/etc/passwd", Dir: "/", Root: true}, fds); !errors.Is(err, syscall.EACCES) {
		t.Errorf("a file that is no program: %v", err)
	}
	pid, pidfd, ended, err := s.start(Request{Path: "sh", Args: []string{"-c", "sleep 60 & sleep 61"}, Dir: "/", Root: true}, fds)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pidfd) }()
	s.reap() // nothing yet, and it does not wait
	s.kill(pid)
	var status syscall.WaitStatus
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.reap()
		select {
		case status = <-ended:
		default:
			if time.Now().After(end) {
				t.Fatal("not reaped within 10 s")
			}
			continue
		}
		break
	}
	if !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v", status)
	}
	s.kill(pid) // the number is no longer its own
	if err := syscall.Kill(-pid, 0); !errors.Is(err, syscall.ESRCH) {
		// The shell's child was killed too; who reaps it is not this test's matter.
		stat, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, name := range stat {
			text, _ := os.ReadFile(name)
			fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
			if len(fields) > 2 && fields[2] == strconv.Itoa(pid) && fields[0] != "Z" && fields[0] != "X" {
				t.Errorf("of its process group there is still %s", text)
			}
		}
	}
}

func TestPutGet(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "made", "here", "file")
	for _, text := range []string{"first", "second, and longer", ""} {
		if err := Put(strings.NewReader(text), path, 0o640); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		if err := Get(&got, path); err != nil || got.String() != text {
			t.Errorf("got %q, %v, want %q", got.String(), err, text)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	// A failed put leaves what was there, and nothing else.
	if err := Put(io.MultiReader(strings.NewReader("half"), failing{}), path, 0o600); err == nil {
		t.Error("a reader's error was swallowed")
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("beside it there is %v, %v", entries, err)
	}
	if err := Get(io.Discard, path+"x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("get of nothing: %v", err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("broken") }
