package fuse_test

import (
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/stats"
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
// system, in turn. The target is 60 %, and a bound is kept only where the
// interval of the ratio is no wider to either side than the distance to it.
func TestSpeed(t *testing.T) {
	long(t)
	const target, fewest, most, seconds = 0.6, 40, 120, 1
	d := mount(t, "null", "lose-all")
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	plain, disk := newPostgres(t, dir), newPostgres(t, d.mnt)
	plain.start("fsync=off", "max_wal_size=4GB")
	disk.start("fsync=on", "max_wal_size=4GB")
	for _, p := range []*postgres{plain, disk} {
		pgbench(t, p, "-i", "-s", "10", "-q")
		p.exec("checkpoint")
		tps(t, p, 8, 4) // every page was changed once since the checkpoint
	}
	for _, clients := range []int{1, 8} {
		var onPlain, onDisk []float64
		var ratio stats.Interval
		for round := range most {
			if round%2 == 0 {
				onPlain = append(onPlain, tps(t, plain, clients, seconds))
			}
			onDisk = append(onDisk, tps(t, disk, clients, seconds))
			if round%2 == 1 {
				onPlain = append(onPlain, tps(t, plain, clients, seconds))
			}
			if round+1 < fewest {
				continue
			}
			ratio = stats.RatioPaired(onDisk, onPlain, 0.95, 1)
			if margin := math.Abs(ratio.Point - target); max(ratio.Hi-ratio.Point, ratio.Point-ratio.Lo) <= margin {
				break
			}
		}
		t.Logf("%d clients: %.0f against %.0f tps, ratio %.3f (%.3f to %.3f, 95 %%, %d rounds)",
			clients, median(onDisk), median(onPlain), ratio.Point, ratio.Lo, ratio.Hi, len(onDisk))
		if ratio.Lo < target {
			t.Errorf("%d clients: %.3f (%.3f to %.3f) of the plain file system: want %.2f beyond doubt", clients, ratio.Point, ratio.Lo, ratio.Hi, target)
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
