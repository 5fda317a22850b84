package driver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/collector"
	"github.com/holdfast-db/holdfast/internal/testbin"
)

// TestSpeed: a driver that has 10,000 writes a second acknowledged takes less
// than half a core for itself, so that it does not measure itself. Postgres has
// fsync off and shares this machine's cores with the driver and the collector;
// where they do not reach 10,000, the cost of a write is multiplied up.
func TestSpeed(t *testing.T) {
	if os.Getenv("HOLDFAST_LONG") == "" {
		t.Skip("a figure of a quiet machine; HOLDFAST_LONG=1 runs it")
	}
	const (
		want   = 10_000 // acked writes a second
		share  = 0.5    // of a core
		window = 15 * time.Second
	)
	for _, c := range []struct {
		name    string
		writers int
		rate    float64
	}{
		{"as fast as it goes", 16, 0},
		{"on a schedule", 16, want},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, nil, "fsync=off", "full_page_writes=off", "autovacuum=off", "max_wal_size='4GB'")
			ledger(s)
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			coll, err := collector.New(ln, token, filepath.Join(t.TempDir(), "h"), collector.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = coll.Stop(expired()) }()
			cfg := testConfig(s.target())
			cfg.Collector, cfg.Writers, cfg.Rate, cfg.PayloadBytes = ln.Addr().String(), c.writers, c.rate, 64
			cmd := startDriver(t, cfg)
			if err := coll.WaitAcks(within(t, 30*time.Second), want); err != nil {
				t.Fatal(err)
			}
			before, cpu, self, start := coll.Live().Acked, processorTime(t, cmd.Process.Pid), processorTime(t, os.Getpid()), time.Now()
			time.Sleep(window) // the window that is measured
			acked, took := coll.Live().Acked-before, time.Since(start)
			cpu, self = processorTime(t, cmd.Process.Pid)-cpu, processorTime(t, os.Getpid())-self
			if err := coll.Stop(within(t, 10*time.Second)); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			if v := coll.Live(); v.Refused+v.Unknown > 0 {
				t.Errorf("%+v", v)
			}
			each := cpu / time.Duration(acked)
			cores := each.Seconds() * want
			t.Logf("%.0f writes/s acknowledged; the driver took %v of processor time for each, %.2f of a core at %d/s; the collector %v",
				float64(acked)/took.Seconds(), each, cores, want, self/time.Duration(acked))
			if cores >= share {
				t.Errorf("%.2f of a core for %d writes/s, want under %.2f", cores, want, share)
			}
		})
	}
}

// startDriver starts the driver as a program of its own.
func startDriver(t *testing.T, cfg *Config) *exec.Cmd {
	t.Helper()
	in, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(testbin.Build(t), "lab-driver")
	cmd.Stdin, cmd.Stderr, cmd.Env = bytes.NewReader(in), os.Stderr, []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

// processorTime is what a process has used so far, to 10 ms (proc(5)).
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	var ticks int
	for _, f := range strings.Fields(rest)[11:13] { // user and system time
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
