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

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/measure"
	"github.com/holdfast-db/holdfast/internal/pgbench/pgtest"
)

// runMeasure runs a command line in this process.
func runMeasure(ctx context.Context, stdin string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Run(ctx, Env{Args: args, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs, Getenv: os.Getenv, Version: "test", Root: os.Geteuid() == 0})
	return code, out.String(), errs.String()
}

func TestMeasureDisk(t *testing.T) {
	dir := t.TempDir()
	code, out, errs := runMeasure(t.Context(), "", "measure", "disk", dir, "--json", "--for", "260ms", "--only", "zero-filled,append/fsync")
	if code != exitOK || errs != "" {
		t.Fatalf("exit %d, %s", code, errs)
	}
	var rep measure.Report
	if err := json.Unmarshal([]byte(out), &rep); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if len(rep.Steps) != 8 || rep.Steps[0].Latency == nil || rep.Headline == nil {
		t.Errorf("%+v", rep)
	}
	code, out, errs = runMeasure(t.Context(), "", "measure", "disk", dir, "--for", "110ms")
	if code != exitOK {
		t.Fatalf("exit %d, %s", code, errs)
	}
	for _, want := range []string{"zero-filled  fdatasync  buffered", "file system", "local-nvme     0.34 ms", "cloud-volume    2.7 ms", "Published, on other machines", "POSETTE 2026", "Honesty: "} {
		if !strings.Contains(out, want) {
			t.Errorf("the table lacks %q:\n%s", want, out)
		}
	}
	if !strings.HasPrefix(errs, "measuring 1 of 24: zero-filled/fdatasync/buffered (about 3s left)\n") || strings.ContainsAny(errs, "\r\x1b") {
		t.Errorf("plain progress: %q", errs)
	}
}

func TestMeasureDiskRefusals(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		say  string
	}{
		{nil, exitUsage, "give one directory"},
		{[]string{dir, dir}, exitUsage, "give one directory"},
		{[]string{file}, exitUsage, "give a directory on the disk"},
		{[]string{filepath.Join(dir, "none")}, exitUsage, "no such file"},
		{[]string{dir, "--only", "apend"}, exitUsage, "a pattern of zero-filled"},
		{[]string{dir, "--for", "0s"}, exitUsage, "from 10ms to 1h"},
		{[]string{dir, "--for", "x"}, exitUsage, "for"},
	} {
		code, out, errs := runMeasure(t.Context(), "", append([]string{"measure", "disk"}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.say) || out != "" {
			t.Errorf("%v: exit %d, %q, %q", c.args, code, out, errs)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if code, out, errs := runMeasure(ctx, "", "measure", "disk", dir, "--for", "1h"); code != exitInterrupted || out != "" {
		t.Errorf("interrupted: exit %d, %q, %q", code, out, errs)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestMeasureSmallDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a tmpfs")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if code, _, errs := runMeasure(t.Context(), "", "measure", "disk", dir); code != exitInfra || !strings.Contains(errs, "needs 64") {
		t.Errorf("exit %d, %q", code, errs)
	}
}

func TestLabRoundTrip(t *testing.T) {
	s := pgtest.Start(t, "fsync=off")
	stdin, closeStdin := io.Pipe()
	stdout, echoOut := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- Run(t.Context(), Env{Args: []string{"lab-roundtrip", "--echo", "127.0.0.1:0"}, Stdin: stdin, Stdout: echoOut, Stderr: io.Discard, Getenv: os.Getenv})
	}()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var peer struct{ Echo string }
	if err := json.Unmarshal([]byte(line), &peer); err != nil {
		t.Fatal(err)
	}
	cfg, _ := json.Marshal(roundTripConfig{Echo: peer.Echo, DSN: s.DSN(), ForMs: 100})
	code, out, errs := runMeasure(t.Context(), string(cfg), "lab-roundtrip")
	var res roundTripOutput
	if err := json.Unmarshal([]byte(out), &res); err != nil || code != exitOK {
		t.Fatalf("exit %d, %v, %q, %q", code, err, out, errs)
	}
	if res.TCP == nil || res.TCP.P50Ms <= 0 || res.Select1 == nil || res.Select1.P50Ms <= res.TCP.P50Ms/10 {
		t.Errorf("%s", out)
	}
	_ = closeStdin.Close()
	select {
	case code := <-ended:
		if code != exitOK {
			t.Errorf("the echo peer ended with %d", code)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the echo peer goes on after its stdin closed")
	}
	for _, c := range []struct {
		stdin string
		code  int
		say   string
	}{
		{"", exitUsage, "config from stdin"},
		{"{}", exitUsage, "nothing to measure"},
		{`{"echoo":"x"}`, exitUsage, "echoo"},
		{`{"dsn":"host=/none port=99999999 password=sekret"}`, exitUsage, "read the dsn"},
		{`{"echo":"` + peer.Echo + `"}`, exitInfra, "connect to the echo peer"},
		{`{"dsn":"host=/none user=x password=sekret"}`, exitInfra, "connect to Postgres"},
	} {
		code, out, errs := runMeasure(t.Context(), c.stdin, "lab-roundtrip")
		if code != c.code || !strings.Contains(errs, c.say) || strings.Contains(out+errs, "sekret") {
			t.Errorf("%s: exit %d, %q, %q", c.stdin, code, out, errs)
		}
	}
}
