package fuse_test

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"
)

// long skips what takes minutes unless it is asked for.
func long(t testing.TB) {
	t.Helper()
	if os.Getenv("HOLDFAST_LONG") == "" {
		t.Skip("takes minutes: set HOLDFAST_LONG=1")
	}
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[len(v)/2] + v[(len(v)-1)/2]) / 2
}

func pgbench(t testing.TB, p *postgres, args ...string) []byte {
	t.Helper()
	c := exec.Command(pgBin+"/pgbench", append([]string{"-h", p.run, "-U", "postgres", "postgres"}, args...)...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("pgbench: %v\n%s", err, out)
	}
	return out
}

var tpsLine = regexp.MustCompile(`tps = ([0-9.]+)`)

func tps(t testing.TB, p *postgres, clients, seconds int) float64 {
	t.Helper()
	out := pgbench(t, p, "-N", "-n", "-c", strconv.Itoa(clients), "-T", strconv.Itoa(seconds))
	m := tpsLine.FindSubmatch(out)
	if m == nil {
		t.Fatalf("pgbench says no tps:\n%s", out)
	}
	v, err := strconv.ParseFloat(string(m[1]), 64)
	must(t, err)
	return v
}

// TestSpeed measures what the simulation itself costs: the same Postgres, with
// fsync on over a disk without latency and with fsync off on the plain file
// system, in turn. The target is 60 %.
func TestSpeed(t *testing.T) {
	long(t)
	const target, rounds, seconds = 0.6, 9, 3
	d := mount(t, "null", "lose-all")
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	plain, disk := newPostgres(t, dir), newPostgres(t, d.mnt)
	plain.start("fsync=off", "max_wal_size=4GB")
	disk.start("fsync=on", "max_wal_size=4GB")
	for _, p := range []*postgres{plain, disk} {
		pgbench(t, p, "-i", "-s", "10", "-q")
		p.exec("checkpoint")
		tps(t, p, 8, 2)
	}
	for _, clients := range []int{1, 8} {
		var ratios, onPlain, onDisk []float64
		for round := range rounds {
			order := []*postgres{plain, disk}
			if round%2 == 1 {
				slices.Reverse(order)
			}
			r := map[*postgres]float64{}
			for _, p := range order {
				r[p] = tps(t, p, clients, seconds)
			}
			ratios = append(ratios, r[disk]/r[plain])
			onPlain, onDisk = append(onPlain, r[plain]), append(onDisk, r[disk])
		}
		t.Logf("%d clients: %.0f against %.0f tps, ratio %.2f (from %.2f to %.2f)",
			clients, median(onDisk), median(onPlain), median(ratios), slices.Min(ratios), slices.Max(ratios))
		if m := median(ratios); m < target {
			t.Errorf("%d clients: %.0f %% of the plain file system, want %.0f %%", clients, m*100, target*100)
		}
	}
}

// TestCutIsFast measures power cuts under load: from the request until nothing
// can be written any more, and until the disk is back.
func TestCutIsFast(t *testing.T) {
	d := mount(t, "local-nvme", "lose-all")
	p := newPostgres(t, d.mnt)
	p.start()
	p.exec("create table acks (id bigint primary key)")
	var cuts, ons []float64
	for cut := range 7 {
		stop := make(chan struct{})
		wait := p.load(int64(cut)*1e6, stop)
		time.Sleep(150 * time.Millisecond) // the load itself
		began := time.Now()
		_, err := d.Cut(d.ctx())
		must(t, err)
		cuts = append(cuts, time.Since(began).Seconds()*1000)
		p.kill()
		close(stop)
		wait()
		began = time.Now()
		_, err = d.On(d.ctx())
		must(t, err)
		ons = append(ons, time.Since(began).Seconds()*1000)
		p.start()
	}
	t.Logf("cut: median %.1f ms, worst %.1f; on: median %.1f ms, worst %.1f", median(cuts), slices.Max(cuts), median(ons), slices.Max(ons))
	if m := median(cuts) + median(ons); m > 50 {
		t.Errorf("a power cycle takes %.1f ms, want under 50", m)
	}
}
