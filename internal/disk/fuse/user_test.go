package fuse_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/disk/control"
)

// TestPlainUser mounts without root, through fusermount3. It runs in a mount
// namespace of its own, where /dev/fuse is open to all, as it is on machines
// with udev.
func TestPlainUser(t *testing.T) {
	needRoot(t)
	for _, tool := range []string{"fusermount3", "unshare", "setpriv", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: apt-get install fuse3 util-linux", tool)
		}
	}
	dir, err := os.MkdirTemp("", "hfuser")
	must(t, err)
	defer func() { _ = os.RemoveAll(dir) }()
	must(t, os.Chmod(dir, 0o755))
	must(t, unix.Mknod(dir+"/fuse", unix.S_IFCHR|0o666, int(unix.Mkdev(10, 229))))
	must(t, os.Chmod(dir+"/fuse", 0o666))
	for _, d := range []string{dir + "/home", dir + "/home/mnt"} {
		must(t, os.Mkdir(d, 0o755))
		must(t, os.Chown(d, nobody, nobody))
	}
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, os.WriteFile(dir+"/daemon", self, 0o755))

	cfg := daemonConfig{
		Backing: dir + "/home/backing", Mountpoint: dir + "/home/mnt", Socket: dir + "/home/sock", Disk: "null", Crash: "lose-all", DirtyLimit: 64 << 20,
	}
	config, err := json.Marshal(cfg)
	must(t, err)
	const as = "setpriv --reuid=65534 --regid=65534 --clear-groups "
	d := &daemon{t: t, cfg: cfg, mnt: cfg.Mountpoint}
	d.run(exec.Command("unshare", "-m", "sh", "-c", fmt.Sprintf("mount --bind %s/fuse /dev/fuse && exec env %s='%s' %s%s/daemon", dir, daemonEnv, config, as, dir)))
	defer d.kill()
	if d.line != "ready" {
		<-d.exited
		t.Fatalf("the daemon said %q, not ready: %s", d.line, d.errs)
	}
	d.Client, err = control.Dial(cfg.Socket)
	must(t, err)
	inside := func(script string) string {
		t.Helper()
		c := exec.Command("nsenter", "-m", "-t", fmt.Sprint(d.cmd.Process.Pid), "sh", "-c", as+"sh -c '"+script+"'")
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", script, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	inside("cd " + d.mnt + " && echo 1 > kept && sync kept && echo 2 > lost")
	// A program with an open file does not hold up the power cycle.
	holder := exec.Command("nsenter", "-m", "-t", fmt.Sprint(d.cmd.Process.Pid), "sh", "-c", as+"sh -c 'exec 3>"+d.mnt+"/open; echo open; read x'")
	in, err := holder.StdinPipe()
	must(t, err)
	out, err := holder.StdoutPipe()
	must(t, err)
	must(t, holder.Start())
	_, err = out.Read(make([]byte, 5))
	must(t, err)
	d.cycle()
	if got := inside("ls " + d.mnt); got != "kept" {
		t.Errorf("after the cut there is %q", got)
	}
	_ = in.Close()
	_ = holder.Wait()
	must(t, d.Stop(d.ctx()))
	d.wait()
	if _, err := os.Stat(filepath.Join(dir, "home/sock")); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	if d.errs.Len() > 0 {
		t.Errorf("the daemon said: %s", d.errs)
	}
}
