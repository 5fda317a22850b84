package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
)

// TestFullCPU runs `pgbench -c 8` as fast as it goes, for an hour (or as many
// minutes as HOLDFAST_MINUTES says): nobody takes a busy primary for a dead one.
func TestFullCPU(t *testing.T) {
	minutes, _ := strconv.Atoi(os.Getenv("HOLDFAST_MINUTES"))
	switch {
	case minutes > 0:
	case long():
		minutes = 60
	default:
		t.Skip("an hour of load: set HOLDFAST_LONG, or HOLDFAST_MINUTES")
	}
	c := newTrio(t, "local-nvme")
	pgbench := filepath.Join(c.bin, "pgbench")
	run := func(from place.Host, env []string, args ...string) string {
		t.Helper()
		out, err := from.Run(t.Context(), place.Cmd{Path: pgbench, Args: args, Env: env})
		if err != nil {
			t.Fatalf("pgbench %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	before := c.await("open", func(s status) bool { return s.Open && len(s.S) == 2 })
	h := c.hosts[c.index(before.Primary)]
	run(h, []string{"PGOPTIONS=-c search_path=public"}, "-i", "-q", "-s", "20", "-h", h.RunDir()+"/hf", "-p", "5432", "-U", "holdfast", "postgres")
	c.must(c.index(before.Primary), "GRANT ALL ON ALL TABLES IN SCHEMA public TO "+c.user)

	stalled, began := pressure(t), time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	shrunk := make(chan int)
	go func() { shrunk <- c.watchS(ctx) }()
	out := run(c.client, []string{"PGPASSWORD=" + c.secret}, "-n", "-c", "8", "-j", "2", "-T", strconv.Itoa(60*minutes), "-h", h.Addr(), "-p", "5432", "-U", c.user, "postgres")
	took := time.Since(began)
	cancel()
	less := <-shrunk
	after := c.await("still open", func(s status) bool { return s.Open })
	if after.Epoch != before.Epoch || after.Primary != before.Primary {
		t.Errorf("epoch %d of %s became epoch %d of %s: %+v", before.Epoch, before.Primary, after.Epoch, after.Primary, after.Failovers)
	}
	c.tellLogs()
	t.Logf("%s: %s transactions, %s a second; some program waited for a processor in %.0f %% of the time; epoch %d throughout; a standby was out of S in %d of %.0f looks a second apart; agents' memory %s MB",
		took.Round(time.Second), find(out, `actually processed: (\d+)`), find(out, `tps = ([\d.]+)`),
		100*float64(pressure(t)-stalled)/float64(took), after.Epoch, less, took.Seconds(), strings.Join(c.memory(), ", "))
}

// watchS counts the looks, one a second, in which S was not whole.
func (c *trio) watchS(ctx context.Context) (less int) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return less
		case <-tick.C:
			if s, err := c.statusOf(0); err == nil && len(s.S) < 2 {
				less++
			}
		}
	}
}

// memory is what each agent has in memory, in MB.
func (c *trio) memory() []string {
	var out []string
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for i := range c.hosts {
		for _, path := range all {
			b, err := os.ReadFile(path)
			args := strings.Split(string(b), "\x00")
			if err != nil || len(args) < 4 || args[1] != "node" || args[3] != c.config(i) { // not who started it
				continue
			}
			s, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
			if kb, err := strconv.Atoi(find(string(s), `VmRSS:\s+(\d+) kB`)); err == nil {
				out = append(out, fmt.Sprintf("%.0f", float64(kb)/1024))
			}
		}
	}
	return out
}

func find(text, form string) string {
	if m := regexp.MustCompile(form).FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return "?"
}

// pressure is for how long some program has waited for a processor since the
// machine's start.
func pressure(t *testing.T) time.Duration {
	t.Helper()
	b, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		t.Skip("no pressure is told here:", err)
	}
	us, err := strconv.ParseInt(find(string(b), `some .*total=(\d+)`), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(us) * time.Microsecond
}
