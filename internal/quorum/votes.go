package quorum

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// pooled is how many idle connections raft keeps for a peer.
const pooled = 3

// voting is raft's transport with two repairs, each for an extra round of
// election. A vote is asked for again when the connection turns out to be dead:
// pooled connections outlive a peer's restart. And two followers that look for
// their leader in the same moment take turns, or each grants the other's
// pre-vote, both vote for themselves, and nobody wins.
type voting struct {
	*raft.NetworkTransport
	node    atomic.Pointer[Node]
	stagger time.Duration
	asked   atomic.Int64 // when a peer last asked for a pre-vote, in nanoseconds since 1970
}

// askSlack is how much longer than it should need a voter is given to look for its leader.
const askSlack = 30 * time.Millisecond

var errNoCandidate = errors.New("this voter is no candidate any more")

// stagger is how long a candidate of the first rank needs from its pre-vote to
// its vote: two round trips, and its term and vote on disk.
func stagger(flush time.Duration) time.Duration { return 15*time.Millisecond + 4*flush }

// observe notes when a peer asks for a pre-vote; it is a filter that lets nothing through.
func (v *voting) observe(o *raft.Observation) bool {
	if _, ok := o.Data.(raft.RequestPreVoteRequest); ok {
		v.asked.Store(time.Now().UnixNano())
	}
	return false
}

// turn waits while a voter of lower rank may be about to win. One that asked
// longer ago was refused, and waits for our question.
func (v *voting) turn() error {
	n := v.node.Load()
	if n == nil {
		return nil
	}
	since := time.Since(time.Unix(0, v.asked.Load()))
	rank := n.rank()
	if rank == 0 || since > v.stagger && since < n.timers.Heartbeat/2 {
		return nil
	}
	return v.await(time.Duration(rank) * v.stagger)
}

// yield waits, with a pre-vote in hand, while a voter of lower rank may have got
// ours: both would vote for themselves.
func (v *voting) yield() error {
	n := v.node.Load()
	if n == nil || time.Since(time.Unix(0, v.asked.Load())) > v.stagger || n.rank() == 0 {
		return nil
	}
	return v.await(v.stagger)
}

// await waits, and fails if this voter is no candidate after that.
func (v *voting) await(d time.Duration) error {
	n := v.node.Load()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-n.closing.Done():
		return raft.ErrRaftShutdown
	}
	if n.raft.State() != raft.Candidate {
		return errNoCandidate
	}
	return nil
}

// RequestVote implements raft.Transport.
func (v *voting) RequestVote(id raft.ServerID, to raft.ServerAddress, q *raft.RequestVoteRequest, r *raft.RequestVoteResponse) error {
	return again(func() error { return v.NetworkTransport.RequestVote(id, to, q, r) })
}

// RequestPreVote implements raft.WithPreVote. A peer that still believes in the
// leader is asked again when its own turn must have come: it may not be able to
// win, for its log is behind, and raft would wait for an election timeout.
func (v *voting) RequestPreVote(id raft.ServerID, to raft.ServerAddress, q *raft.RequestPreVoteRequest, r *raft.RequestPreVoteResponse) error {
	if err := v.turn(); err != nil {
		return err
	}
	for began := time.Now(); ; {
		*r = raft.RequestPreVoteResponse{}
		err := again(func() error { return v.NetworkTransport.RequestPreVote(id, to, q, r) })
		if err == nil && r.Granted {
			return v.yield()
		}
		// One that refuses for its longer log answers with our term.
		if err != nil || r.Term >= q.Term || !v.mayAsk(began) {
			return err
		}
	}
}

// mayAsk waits a moment, and says whether a candidate that began to ask then is
// to ask once more. A peer hears the leader up to a fifth of the heartbeat
// timeout later than we do.
func (v *voting) mayAsk(began time.Time) bool {
	n := v.node.Load()
	if n == nil || n.timers.NoPoke {
		return false
	}
	voters, err := n.Voters(n.closing)
	if err != nil || time.Since(began) > n.timers.Heartbeat/5+time.Duration(len(voters))*askSlack {
		return false
	}
	t := time.NewTimer(pokeEvery)
	defer t.Stop()
	select {
	case <-t.C:
	case <-n.closing.Done():
	}
	return n.raft.State() == raft.Candidate
}

// again repeats f while it fails at once: a timeout is not repeated.
func again(f func() error) (err error) {
	began := time.Now()
	for range pooled + 1 {
		if err = f(); err == nil || time.Since(began) > 50*time.Millisecond {
			return err
		}
	}
	return err
}
