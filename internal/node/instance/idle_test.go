package instance_test

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// TestIdle says what looking costs at rest: the agent's processor time, and that
// of the backend which answers.
func TestIdle(t *testing.T) {
	if os.Getenv("HOLDFAST_LONG") == "" {
		t.Skip("takes half a minute: HOLDFAST_LONG=1")
	}
	_, p := startedPrimary(t)
	p.setSSN(t, cluster.SSN{})
	p.openDoor(t)
	time.Sleep(3 * time.Second) // what follows an effect is looked at closely
	used := func() (agent, server time.Duration) {
		var r syscall.Rusage
		must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
		agent = time.Duration(r.Utime.Nano() + r.Stime.Nano())
		for _, pid := range pidsOn(p.cfg.DataDir) {
			data, _ := os.ReadFile("/proc/" + itoa(pid) + "/stat")
			_, rest, _ := strings.Cut(string(data), ") ")
			if f := strings.Fields(rest); len(f) > 14 {
				server += ticks(f[11]) + ticks(f[12]) + ticks(f[13]) + ticks(f[14])
			}
		}
		return agent, server
	}
	a0, s0 := used()
	began := time.Now()
	time.Sleep(20 * time.Second)
	a1, s1 := used()
	share := func(d time.Duration) float64 { return 100 * d.Seconds() / time.Since(began).Seconds() }
	t.Logf("at rest: the instance %.2f %% of a core, Postgres with it %.2f %%", share(a1-a0), share(s1-s0))
	if share(a1-a0) > 2 {
		t.Error("looking takes more than the agent may")
	}
}

// ticks are hundredths of a second, as /proc counts them.
func ticks(s string) time.Duration {
	n := 0
	for _, c := range s {
		n = 10*n + int(c-'0')
	}
	return time.Duration(n) * 10 * time.Millisecond
}
