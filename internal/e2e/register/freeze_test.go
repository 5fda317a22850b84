package register

import (
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/quorum"
)

// TestFrozenLeader: one that was frozen while another took over confirms nothing
// and claims no read when it wakes, neither of what was on its way nor of what
// was asked meanwhile.
func TestFrozenLeader(t *testing.T) {
	rounds := 2
	if long() {
		rounds = 20
	}
	c := newCluster(t, "local-nvme", nil)
	stop := c.use()
	var took []time.Duration
	outcomes := map[string]int{}
	for range rounds {
		took = append(took, c.freezeLeader(outcomes))
	}
	stop()
	c.ledger.check(t)
	figures(t, "from the freeze to a write confirmed by another leader", took)
	t.Logf("asked while it was frozen: %v; %d writes confirmed", outcomes, c.ledger.applied)
}

// freezeLeader is one round; it returns how long nobody confirmed a write.
func (c *cluster) freezeLeader(outcomes map[string]int) time.Duration {
	c.t.Helper()
	old := c.settled()
	m, _ := c.running(old)
	f, ok := c.hosts[old].(place.Freezer)
	if !ok {
		c.t.Fatal("the hosts cannot be frozen")
	}
	known, ok := m.wait(func(done func(Answer)) { m.read(patience, done) })
	if !ok || known.Error != "" {
		c.t.Fatalf("read at %s: %s", m.name(), known.Error)
	}
	confirmed := c.confirmedBy(old)
	began := time.Now()
	if err := f.Freeze(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	c.forget(old)
	took := confirmed(began).Sub(began)
	c.t.Logf("%s is frozen: a write was confirmed elsewhere after %s", m.name(), took.Round(time.Millisecond))
	c.writes(20)
	const each = 20
	answers := make(chan string, 2*each)
	for range each {
		m.propose(c.ledger.next(known.Value), 3*time.Second, func(a Answer) {
			if a.Error == "" && a.Outcome == quorum.Applied {
				c.t.Errorf("%s confirms a write on top of version %d, when it was long overwritten", m.name(), known.Value.Version)
			}
			answers <- "write " + a.Outcome.String()
		})
		m.read(3*time.Second, func(a Answer) { // the ledger knows what is too old
			if a.Error != "" {
				answers <- "read refused"
			} else {
				answers <- "read"
			}
		})
	}
	if err := f.Thaw(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	for range 2 * each {
		select {
		case a := <-answers:
			outcomes[a]++
		case <-time.After(patience):
			c.t.Fatalf("%s does not answer after it was frozen", m.name())
		}
	}
	if now := c.settled(); now == old {
		c.t.Logf("%s leads again", m.name())
	}
	c.ledger.check(c.t)
	return took
}

// forget makes nobody the leader if that is i, which cannot say so itself.
func (c *cluster) forget(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leader == i {
		c.leader = -1
		c.tell()
	}
}
