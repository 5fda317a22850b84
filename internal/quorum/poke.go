package quorum

import (
	"context"
	"time"

	"github.com/hashicorp/raft"
)

// refillEvery is how often space is reserved again after it was given up.
const refillEvery = 15 * time.Second

// tend looks after what raft leaves to its stock timers, and after the space.
func (n *Node) tend() {
	look := time.NewTicker(pokeEvery)
	refill := time.NewTicker(refillEvery)
	greet := time.NewTicker(greetEvery)
	defer look.Stop()
	defer refill.Stop()
	defer greet.Stop()
	var poked, followed time.Time
	for {
		select {
		case <-n.closing.Done():
			return
		case <-refill.C:
			if !n.spare.isWhole() {
				if err := n.spare.fill(); err != nil {
					n.slog.Warn("the register's reserved space is spent", "err", err)
				}
			}
		case <-greet.C:
			n.greet()
		case <-look.C:
			now := time.Now()
			if _, leader := n.raft.LeaderWithID(); leader != "" {
				n.last.Store(voterID(leader))
			}
			if n.raft.State() != raft.Follower {
				followed = time.Time{}
				continue
			}
			if followed.IsZero() {
				followed = now // a former leader's last contact is from before it led
			}
			if !n.timers.NoPoke && now.Sub(poked) > n.timers.Heartbeat && n.silent(now, followed) {
				poked = now
				n.poke()
			}
		}
	}
}

// greetEvery is how often it is seen to that a connection to each voter is open.
const greetEvery = 2 * time.Second

// greet opens a connection for requests to each voter to which there is none. After a
// lost leader the first read goes to a new one, and asks all others: a handshake
// would come into it twice.
func (n *Node) greet() {
	if !n.greeting.CompareAndSwap(false, true) {
		return
	}
	n.work.Go(func() {
		defer n.greeting.Store(false)
		voters, err := n.Voters(n.closing)
		if err != nil {
			return
		}
		for _, v := range voters {
			if v.ID == n.id || n.wire.ready(v.Address) {
				continue
			}
			ctx, cancel := context.WithTimeout(n.closing, tryTime)
			if _, _, err := n.wire.ask(ctx, v.Address, request{Kind: askTerm}); err != nil {
				n.slog.Debug("greet a voter", "voter", v.ID, "err", err)
			}
			cancel()
		}
	})
}

// silent says whether it is the turn of this follower, which has been one for
// some time, to look for its leader.
func (n *Node) silent(now, followed time.Time) bool {
	last := n.raft.LastContact()
	if last.IsZero() {
		return false
	}
	since := min(now.Sub(last), now.Sub(followed))
	return since > n.timers.Heartbeat && n.timers.overdue(since, n.rank())
}

// rank is this voter's place among those that did not lead last.
func (n *Node) rank() int {
	voters, err := n.Voters(context.Background())
	if err != nil {
		return 0
	}
	leader := n.last.Load()
	rank := 0
	for _, v := range voters {
		if v.ID < n.id && v.ID != leader {
			rank++
		}
	}
	return rank
}

// poke makes raft look at its last contact now: that is what a decrease of the
// heartbeat timeout does.
func (n *Node) poke() {
	c := n.reload
	c.HeartbeatTimeout += time.Millisecond
	c.ElectionTimeout = max(c.ElectionTimeout, c.HeartbeatTimeout)
	for _, c := range []raft.ReloadableConfig{c, n.reload} {
		if err := n.raft.ReloadConfig(c); err != nil {
			n.slog.Error("poke the register's timer", "err", err)
			return
		}
	}
}
