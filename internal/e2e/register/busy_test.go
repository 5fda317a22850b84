package register

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/quorum"
)

// steady watches for some time that nothing happens: the leader and its term
// stay, and no entry is written to any log.
func (c *cluster) steady(d time.Duration) {
	c.t.Helper()
	leader := c.settled()
	var first [3]quorum.Status
	for i := range c.hosts {
		m, _ := c.running(i)
		first[i], _ = m.status()
	}
	slowest, doubts := time.Duration(0), 0
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for i := range c.hosts {
			m, _ := c.running(i)
			asked := time.Now()
			s, ok := m.status()
			if !ok {
				c.t.Fatalf("%s does not answer", m.name())
			}
			slowest = max(slowest, time.Since(asked))
			f := first[i]
			if s.Leader == 0 && i != leader {
				doubts++ // it asks the others, and they still hear the leader: no election
				s.Leader = c.voters[leader].ID
			}
			if s.Term != f.Term || s.Leader != c.voters[leader].ID || s.Leads != (i == leader) {
				c.t.Fatalf("%s, %s before the end: term %d, leader %d (leads: %v); it was term %d and leader %d", m.name(),
					time.Until(end).Round(time.Millisecond), s.Term, s.Leader, s.Leads, f.Term, c.voters[leader].ID)
			}
			if s.Last != f.Last || s.Value.Version != f.Value.Version {
				c.t.Fatalf("%s: entry %d, version %d; they were %d and %d, and nobody writes", m.name(), s.Last, s.Value.Version, f.Last, f.Value.Version)
			}
		}
	}
	c.t.Logf("%s in term %d for %s: entry %d is the last, the slowest answer took %s, a follower was in doubt %d times", c.hosts[leader].Name(), first[leader].Term, d,
		first[leader].Last, slowest.Round(time.Millisecond), doubts)
}

// write1 writes once, so that the log has what a new leader puts there.
func (c *cluster) write1() {
	c.t.Helper()
	m, _ := c.running(c.settled())
	v, ok := m.wait(func(done func(Answer)) { m.read(patience, done) })
	if !ok || v.Error != "" {
		c.t.Fatalf("read at %s: %s", m.name(), v.Error)
	}
	a, ok := m.wait(func(done func(Answer)) { m.propose(c.ledger.next(v.Value), patience, done) })
	if !ok || a.Error != "" || a.Outcome != quorum.Applied {
		c.t.Fatalf("write at %s: %v (%s)", m.name(), a.Outcome, a.Error)
	}
	for i := range c.hosts {
		m, _ := c.running(i)
		for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
			s, ok := m.status()
			if ok && s.Value.Version == a.Value.Version {
				break
			}
			if !ok || time.Now().After(end) {
				c.t.Fatalf("%s stays at version %d, want %d", m.name(), s.Value.Version, a.Value.Version)
			}
		}
	}
}

// TestSteadyState writes nothing to the log.
func TestSteadyState(t *testing.T) {
	c := newCluster(t, "local-nvme", nil)
	c.write1()
	c.steady(5 * time.Second)
	c.ledger.check(t)
}

var busyFor = flag.Duration("busy-for", 0, "how long the processors are busy; 0: a few seconds, with HOLDFAST_LONG ten minutes")

// TestBusyProcessors: more loops than processors are no reason for an election.
func TestBusyProcessors(t *testing.T) {
	for _, s := range []struct {
		name, disk  string
		changes     map[string]string
		short, long time.Duration
	}{
		{"local-nvme", "local-nvme", nil, 8 * time.Second, 10 * time.Minute},
		{"cloud-volume", "cloud-volume", nil, 3 * time.Second, time.Minute},
		{"slow", "cloud-volume", map[string]string{"flush_ms": "25"}, 3 * time.Second, time.Minute},
	} {
		t.Run(s.name, func(t *testing.T) {
			c := newCluster(t, s.disk, s.changes)
			for i, d := range c.heartbeats {
				// A flush that waits for a processor is slow as well: that the others are
				// not widened holds on a machine with nothing else to do.
				wide, slow := d > quorum.DefaultTimers().Heartbeat, s.name == "slow"
				if slow && !wide || wide && !slow && long() {
					t.Errorf("%s runs with a heartbeat of %s", c.hosts[i].Name(), d)
				}
			}
			c.write1()
			busy(t)
			stalled, began := pressure(t), time.Now()
			defer func() {
				t.Logf("some program waited for a processor in %.0f %% of the time", 100*float64(pressure(t)-stalled)/float64(time.Since(began)))
			}()
			d := s.short
			if long() {
				d = s.long
			}
			c.steady(cmp.Or(*busyFor, d))
			c.ledger.check(t)
		})
	}
}

// busy has two loops for every processor until the test ends, however it ends:
// with one, whoever wakes up gets a processor at once.
func busy(t *testing.T) {
	t.Helper()
	for range 2 * runtime.NumCPU() {
		cmd := exec.CommandContext(context.Background(), "sh", "-c", `while kill -0 "$PPID"; do i=0; while [ $i -lt 10000 ]; do i=$((i+1)); done; done 2>/dev/null`)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := cmd.Process.Kill(); err != nil {
				t.Errorf("end a busy loop: %v", err)
			}
			_ = cmd.Wait()
		})
	}
}

// pressure is for how long some program has waited for a processor since the
// machine started; 0 where the kernel does not say.
func pressure(t *testing.T) time.Duration {
	b, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		t.Logf("no figure for how busy the processors are: %v", err)
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var us int64
	if _, total, ok := strings.Cut(line, "total="); ok {
		_, _ = fmt.Sscan(total, &us)
	}
	return time.Duration(us) * time.Microsecond
}
