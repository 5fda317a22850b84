package register

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var seed = flag.Uint64("seed", 0, "for who loses power and when; 0: drawn")

// quantile of sorted durations.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))].Round(time.Millisecond)
}

func figures(t *testing.T, what string, took []time.Duration) (median time.Duration) {
	t.Helper()
	slices.Sort(took)
	median = quantile(took, 0.5)
	t.Logf("%s: %d times, p50 %s, p95 %s, max %s (simulated disks and network)", what, len(took), median, quantile(took, 0.95), quantile(took, 1))
	return median
}

func upTo(rnd *rand.Rand, d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }

// TestLeaderLosesPower: silently, and another member leads and confirms a write.
// The bound is for a machine that has nothing else to do.
func TestLeaderLosesPower(t *testing.T) {
	cuts, bound := 3, 3*time.Second
	if long() {
		cuts, bound = 30, 600*time.Millisecond
	}
	c := newCluster(t, "local-nvme", nil)
	stop := c.use()
	rnd := rand.New(rand.NewPCG(4, 1))
	var took []time.Duration
	for range cuts {
		old := c.settled()
		time.Sleep(upTo(rnd, 300*time.Millisecond)) // at any moment between two heartbeats
		confirmed := c.confirmedBy(old)
		began := c.off(old)
		took = append(took, confirmed(began).Sub(began))
		t.Logf("%s lost its power: a write was confirmed elsewhere after %s", c.hosts[old].Name(), took[len(took)-1].Round(time.Millisecond))
		c.on(old)
		c.settled()
		c.ledger.check(t)
	}
	stop()
	c.ledger.check(t)
	t.Logf("%d writes confirmed, none lost", c.ledger.applied)
	if m := figures(t, "from the beginning of the cut to a write confirmed by another leader", took); m > bound {
		t.Errorf("p50 is %s, want at most %s", m, bound)
	}
}

// TestNothingConfirmedIsLost: whoever loses power, and however many do.
func TestNothingConfirmedIsLost(t *testing.T) {
	rounds, drawn := 1, *seed
	if long() {
		rounds = 6
	}
	if drawn == 0 {
		drawn = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", drawn)
	rnd := rand.New(rand.NewPCG(drawn, 0))
	c := newCluster(t, "local-nvme", nil)
	stop := c.use()
	kinds := []struct {
		name string
		who  func(leader int) []int
	}{
		{"the leader", func(l int) []int { return []int{l} }},
		{"a follower", func(l int) []int { return []int{(l + 1 + rnd.IntN(2)) % 3} }},
		{"the leader and a follower", func(l int) []int { return []int{l, (l + 1 + rnd.IntN(2)) % 3} }},
		{"all", func(int) []int { return []int{0, 1, 2} }},
	}
	for range rounds {
		for _, k := range rnd.Perm(len(kinds)) {
			who := kinds[k].who(c.settled())
			rnd.Shuffle(len(who), func(i, j int) { who[i], who[j] = who[j], who[i] })
			gap := upTo(rnd, 30*time.Millisecond)
			c.writes(20)
			before := c.ledger.floor()
			t.Logf("power off: %s, with %s between them; version %d is confirmed", kinds[k].name, gap.Round(time.Millisecond), before)
			for _, i := range who {
				c.off(i)
				time.Sleep(gap)
			}
			rnd.Shuffle(len(who), func(i, j int) { who[i], who[j] = who[j], who[i] })
			for _, i := range who {
				c.on(i)
				time.Sleep(upTo(rnd, 600*time.Millisecond))
			}
			c.settled()
			for i := range c.hosts {
				m, _ := c.running(i)
				if a, ok := m.wait(func(done func(Answer)) { m.read(patience, done) }); !ok || a.Error != "" || a.Value.Version < before {
					t.Errorf("%s reads version %d (%s), want %d at least", m.name(), a.Value.Version, a.Error, before)
				}
			}
			c.ledger.check(t)
		}
	}
	stop()
	c.ledger.check(t)
	t.Logf("%d cuts, %d writes confirmed, none lost", rounds*len(kinds), c.ledger.applied)
}
