package quorum

import "time"

// Timers decide when an election is tried; never whether it is safe.
type Timers struct {
	Heartbeat time.Duration // silence after which a follower suspects the leader
	Election  time.Duration // how long a candidate waits for votes; not below Heartbeat
	Lease     time.Duration // silence of a majority after which a leader steps down; not above Heartbeat
	NoPoke    bool          // leave the detection to the stock timer of one to two heartbeats
}

// DefaultTimers suits shared machines: no spurious election was seen at full CPU.
func DefaultTimers() Timers {
	return Timers{Heartbeat: 500 * time.Millisecond, Election: 500 * time.Millisecond, Lease: 250 * time.Millisecond}
}

// FastTimers is the profile `fast`.
func FastTimers() Timers {
	return Timers{Heartbeat: 250 * time.Millisecond, Election: 250 * time.Millisecond, Lease: 125 * time.Millisecond}
}

// An election flushes about a dozen times in a row (term and vote at two
// voters, then the first entry, two flushes each). The timeout has room for
// these at three times their usual length.
const flushesPerTimeout = 36

// maxTimeout bounds the widening: a disk slower than that is broken.
const maxTimeout = 10 * time.Second

// Widen returns timers that leave room for a disk whose flush takes so long:
// unchanged on a quick one, all in the same proportion on a slow one.
func (t Timers) Widen(flush time.Duration) Timers {
	need := min(flushesPerTimeout*flush, maxTimeout)
	if t.Heartbeat <= 0 || need <= t.Heartbeat {
		return t
	}
	f := float64(need) / float64(t.Heartbeat)
	scale := func(d time.Duration) time.Duration { return time.Duration(float64(d) * f) }
	t.Heartbeat, t.Election, t.Lease = need, max(need, scale(t.Election)), min(need, scale(t.Lease))
	return t
}

const (
	pokeEvery  = 10 * time.Millisecond
	pokeMargin = 5 * time.Millisecond
	pokeStep   = 10 * time.Millisecond
)

// overdue says whether a follower that heard nothing for silence should look
// now. rank is its place among the followers. They look one after the other, but
// soon: an election waits for the second, and who votes first is settled in turn.
func (t Timers) overdue(silence time.Duration, rank int) bool {
	return silence > t.Heartbeat+pokeMargin+time.Duration(rank)*pokeStep
}
