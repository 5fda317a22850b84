package driver

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/collector"
	"github.com/holdfast-db/holdfast/internal/testbin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestProcess runs the driver as the lab does, as a program of its own, and
// ends it in each way that there is.
func TestProcess(t *testing.T) {
	bin := testbin.Build(t)
	for _, c := range []struct {
		name    string
		confirm bool
		end     func(p *os.Process, c *collector.Collector)
		state   collector.DriverState
		why     string
		exit    int
	}{
		{"stop", false, func(_ *os.Process, c *collector.Collector) { _ = c.Stop(within(t, 10*time.Second)) }, collector.Finished, "the collector said stop", 0},
		{"SIGTERM", false, func(p *os.Process, _ *collector.Collector) { _ = p.Signal(syscall.SIGTERM) }, collector.Finished, "it was interrupted", 0},
		{"SIGKILL", false, func(p *os.Process, _ *collector.Collector) { _ = p.Kill() }, collector.Gone, "gone with", -1},
		{"SIGKILL, with confirmed intents", true, func(p *os.Process, _ *collector.Collector) { _ = p.Kill() }, collector.Gone, "gone with", -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, n := counting(t)
			ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "c"))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "h")
			coll, err := collector.New(ln, token, path, collector.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = coll.Stop(expired()) }()
			cfg := testConfig(f.target())
			cfg.Collector, cfg.Writers, cfg.ConfirmIntents = ln.Addr().String(), 4, c.confirm
			in, err := json.Marshal(cfg)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(bin, "lab-driver")
			var said bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = bytes.NewReader(in), &said, &said, []string{}
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill() }()
			if err := coll.WaitAcks(within(t, 10*time.Second), 100); err != nil {
				t.Fatal(err, said.String())
			}
			for _, file := range []string{"cmdline", "environ"} {
				b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), file))
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(string(b), password) || strings.Contains(string(b), token) {
					t.Errorf("a secret is in its %s: %q", file, b)
				}
			}
			c.end(cmd.Process, coll)
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != c.exit || said.Len() > 0 {
				t.Errorf("exit code %d, want %d; it said %q", got, c.exit, said.String())
			}
			if err := coll.Stop(within(t, 10*time.Second)); err != nil {
				t.Fatal(err)
			}
			d, v := coll.Drivers()[0], coll.Live()
			if d.State != c.state || !strings.Contains(d.Why, c.why) {
				t.Errorf("%+v", d)
			}
			sent := int(n.Load())
			if c.exit == 0 && (v.Acked != sent || v.Unknown+v.Refused != 0) {
				t.Errorf("%+v, but %d writes reached the server", v, sent)
			}
			// What reached the server and was not acked is unknown, and nothing
			// reached it without an intent.
			if v.Acked > sent || v.Acked+v.Unknown < sent || v.Unknown > 4 {
				t.Errorf("%+v, but %d writes reached the server", v, sent)
			}
			r, err := history.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = r.Close() }()
			incomplete := false
			var e history.Event
			for r.Next(&e) == nil {
				incomplete = incomplete || e.Kind == history.KindMark && e.Text == history.MarkIncomplete
			}
			if want := c.state == collector.Gone && !c.confirm; incomplete != want {
				t.Errorf("incomplete: %v, want %v", incomplete, want)
			}
		})
	}
}

// TestProcessComplains: wrong configuration is wrong usage, an unreachable
// collector a failure of the lab; the message is one line without secrets.
func TestProcessComplains(t *testing.T) {
	bin := testbin.Build(t)
	cfg := testConfig("127.0.0.1:1")
	cfg.Collector = "/nonexistent/socket"
	unreachable, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		in, want string
		exit     int
	}{
		{"", "JSON on standard input", 1},
		{"{}", `"collector" is missing`, 1},
		{`{"tokn":"` + token + `"}`, "tokn", 1},
		{string(unreachable), "collector is out of reach", 2},
	} {
		cmd := exec.Command(bin, "lab-driver")
		cmd.Stdin, cmd.Env = strings.NewReader(c.in), []string{}
		out, _ := cmd.CombinedOutput()
		s := string(out)
		if cmd.ProcessState.ExitCode() != c.exit || !strings.Contains(s, c.want) || strings.Count(s, "\n") != 1 {
			t.Errorf("%q: exit code %d: %s", c.in, cmd.ProcessState.ExitCode(), s)
		}
		if strings.Contains(s, token) || strings.Contains(s, password) {
			t.Errorf("a secret is in %q", s)
		}
	}
}
