package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func runSimdiskCLI(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	code = Run(ctx, Env{
		Args: append([]string{"simdisk"}, args...), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
		Getenv: func(string) string { return "" }, Root: os.Geteuid() == 0,
	})
	return code, out.String(), errs.String()
}

func TestSimdiskBadInput(t *testing.T) {
	dir := t.TempDir()
	for want, c := range map[string]struct {
		code int
		args []string
	}{
		`required flag(s) "disk" not set`:         {exitUsage, []string{dir, dir}},
		`unknown disk "floppy": use one of null`:  {exitUsage, []string{"--disk", "floppy", dir, dir}},
		`unknown crash policy "maybe"`:            {exitUsage, []string{"--disk", "null", "--crash", "maybe", dir, dir}},
		`unknown profile "zfs": use ext4`:         {exitUsage, []string{"--disk", "null", "--profile", "zfs", dir, dir}},
		`--dirty-limit 5: want at least`:          {exitUsage, []string{"--disk", "null", "--dirty-limit", "5", dir, dir}},
		`accepts 2 arg(s), received 1`:            {exitUsage, []string{"--disk", "null", dir}},
		`mount point /nowhere does not exist`:     {exitUsage, []string{"--disk", "null", dir + "/b", "/nowhere"}},
		`is the disk mounted?`:                    {exitInfra, []string{"stats", dir + "/none.sock"}},
		`"flush_ms": want KEY=VALUE`:              {exitUsage, []string{"set", dir + "/none.sock", "flush_ms"}},
		`requires at least 2 arg(s), only receiv`: {exitUsage, []string{"set", dir + "/none.sock"}},
	} {
		code, stdout, stderr := runSimdiskCLI(t, c.args...)
		if code != c.code || !strings.Contains(stderr, want) || stdout != "" {
			t.Errorf("simdisk %q: exit %d (want %d), stderr %q (want %q), stdout %q", c.args, code, c.code, stderr, want, stdout)
		}
	}
}

// TestSimdiskCommands mounts a disk and uses every control command on it. This
// process hosts the disk, so it does not touch the mount itself.
func TestSimdiskCommands(t *testing.T) {
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("needs root, and not -short: mounts")
	}
	dir := t.TempDir()
	mnt, sock := filepath.Join(dir, "mnt"), filepath.Join(dir, "backing.sock")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	stdin, lifeline := io.Pipe()
	out, stdout := io.Pipe()
	ended := make(chan int, 1)
	var errs bytes.Buffer
	go func() {
		ended <- Run(context.Background(), Env{
			Args:  []string{"simdisk", "--disk", "local-nvme", "--lifeline", filepath.Join(dir, "backing"), mnt},
			Stdin: stdin, Stdout: stdout, Stderr: &errs, Getenv: func(string) string { return "" }, Root: true,
		})
		_ = stdout.Close()
	}()
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("it said %q, not ready; exit %d: %s", line, <-ended, errs.String())
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"set", sock, "flush_ms=5", "crash=lying"}, exitOK, "set\n"},
		{[]string{"stats", sock}, exitOK, "flush_set_ms           5\n"},
		{[]string{"set", sock, "flush_ms=soon"}, exitUsage, "want a number"},
		{[]string{"sync", sock}, exitOK, "everything is durable\n"},
		{[]string{"on", sock}, exitInfra, "the power is on"},
		{[]string{"wipe", sock}, exitInfra, "cut it first"},
		{[]string{"cut", sock}, exitOK, "power cut after "},
		{[]string{"cut", "--stay-off", sock}, exitOK, ", and off\n"},
		{[]string{"cut", sock}, exitInfra, "the power is cut already"},
		{[]string{"sync", sock}, exitInfra, "the power is cut"},
		{[]string{"wipe", sock}, exitOK, "the disk is empty\n"},
		{[]string{"on", sock}, exitOK, "power is back; dropped 0 bytes"},
	} {
		code, stdout, stderr := runSimdiskCLI(t, c.args...)
		if code != c.code || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("simdisk %v: exit %d (want %d), %q%q (want %q)", c.args, code, c.code, stdout, stderr, c.want)
		}
	}
	_, stdoutJSON, _ := runSimdiskCLI(t, "stats", "--json", sock)
	var stats map[string]float64
	if err := json.Unmarshal([]byte(stdoutJSON), &stats); err != nil || stats["on"] != 1 || stats["cuts"] != 2 {
		t.Errorf("stats --json: %v: %s", err, stdoutJSON)
	}
	_ = lifeline.Close()
	select {
	case code := <-ended:
		if code != exitOK {
			t.Errorf("exit %d: %s", code, errs.String())
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end with its lifeline")
	}
	if table, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(table), mnt) {
		t.Errorf("still mounted (%v)", err)
	}
}
