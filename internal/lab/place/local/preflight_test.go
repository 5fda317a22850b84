package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/testbin"
)

func TestPreflight(t *testing.T) {
	o := options(t)
	if err := Preflight(o); err != nil {
		t.Fatalf("this machine: %v", err)
	}
	if entries, err := os.ReadDir(o.WorkDir); err != nil || len(entries) > 0 {
		t.Errorf("it left %v in the work directory (%v)", entries, err)
	}
	private := filepath.Join(t.TempDir(), "holdfast")
	if err := os.WriteFile(private, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func(*Options)
		want   []string
	}{
		{func(o *Options) { o.Space = 1 << 60 }, []string{o.WorkDir, "MB free", "work directory"}},
		{func(o *Options) { o.WorkDir = "relative" }, []string{"relative", "absolute"}},
		{func(o *Options) { o.Binary = private }, []string{private, "chmod 755"}},
		{func(o *Options) { o.Binary = "/nothing/there" }, []string{"/nothing/there", "no such file"}},
		{func(o *Options) { o.WorkDir += "/not/there/yet" }, nil},
	} {
		bad := o
		c.change(&bad)
		checkMessage(t, Preflight(bad), c.want)
	}
}

func checkMessage(t *testing.T, err error, want []string) {
	t.Helper()
	if want == nil && err == nil {
		return
	}
	if err == nil || want == nil {
		t.Errorf("got %v, want %q", err, want)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q is more than one line", err)
	}
}

// A process that lacks something, and says what Preflight makes of it.
const preflightEnv = "HOLDFAST_LOCAL_TEST_PREFLIGHT"

type preflightTask struct {
	Options Options
	Drop    []uint // capabilities
	HideDev bool   // an empty /dev
}

func runPreflightProcess() {
	task := os.Getenv(preflightEnv)
	if task == "" {
		return
	}
	if err := preflightProcess(task); err != nil {
		fmt.Println(err)
	}
	os.Exit(0)
}

func preflightProcess(task string) error {
	var p preflightTask
	if err := json.Unmarshal([]byte(task), &p); err != nil {
		return err
	}
	if p.HideDev {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", "/dev", "tmpfs", 0, ""); err != nil {
			return err
		}
	}
	if len(p.Drop) > 0 {
		if err := dropCapabilities(p.Drop); err != nil {
			return err
		}
	}
	return Preflight(p.Options)
}

func dropCapabilities(drop []uint) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3, Pid: int32(os.Getpid())}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return err
	}
	for _, bit := range drop {
		data[bit/32].Effective &^= 1 << (bit % 32)
	}
	return unix.Capset(&head, &data[0])
}

func TestPreflightNamesWhatIsMissing(t *testing.T) {
	o := options(t)
	o.Log = nil
	for name, c := range map[string]struct {
		task preflightTask
		sys  *syscall.SysProcAttr
		want []string
	}{
		"nothing":       {task: preflightTask{}, want: nil},
		"root":          {sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}, want: []string{"root", "sudo"}},
		"CAP_SYS_ADMIN": {task: preflightTask{Drop: []uint{21}}, want: []string{"CAP_SYS_ADMIN", "--privileged"}},
		"CAP_NET_ADMIN": {task: preflightTask{Drop: []uint{12}}, want: []string{"CAP_NET_ADMIN", "--privileged"}},
		"fuse": {
			task: preflightTask{HideDev: true}, sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS},
			want: []string{"/dev/fuse", "modprobe fuse", "--device"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.task.Options = o
			task, err := json.Marshal(c.task)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(publicSelf(t))
			cmd.Dir = "/"
			cmd.Env = append(os.Environ(), preflightEnv+"="+string(task))
			cmd.SysProcAttr = c.sys
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			var got error
			if text := strings.TrimSpace(string(out)); text != "" {
				got = errors.New(text)
			}
			checkMessage(t, got, c.want)
		})
	}
}

// publicSelf is a copy of the test binary that any user can run.
func publicSelf(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "holdfast-local-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "self")
	copyFile(t, self, path)
	return path
}

func TestNewRefuses(t *testing.T) {
	needRoot(t)
	for _, o := range []Options{
		{Binary: "holdfast"}, {Binary: "/nothing/there"}, {Binary: testbin.Build(t), WorkDir: "relative"},
		{Binary: testbin.Build(t), WorkDir: "/proc/nothing"},
	} {
		if p, err := New(o); err == nil {
			t.Errorf("%+v was taken", o)
			_ = p.Release(t.Context())
		}
	}
}
