package quorum

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// retryEvery is how often a leader is looked for.
const retryEvery = 10 * time.Millisecond

// tryTime bounds one attempt at what can be repeated: the way may have been cut
// after the question went out, and then no answer comes.
const tryTime = time.Second

// future is what all of raft's futures have.
type future interface{ Error() error }

// await waits for f, but not longer than ctx. Raft resolves each of its futures
// at the latest when it steps down or stops.
func await(ctx context.Context, f future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serve answers another node's request.
func (n *Node) serve(ctx context.Context, q request) response {
	r := response{Voter: n.id}
	switch q.Kind {
	case askPropose:
		res, begun := n.proposeHere(ctx, q.Proposal)
		r.Outcome, r.Value, r.Again = res.Outcome, res.Value, !begun
		if res.Err != nil {
			r.Error = res.Err.Error()
		}
	case askRead:
		v, err := n.readHere(ctx)
		r.Value = v
		if err != nil {
			r.Error, r.Again = err.Error(), true
		}
	case askTerm:
		r.Term = n.raft.CurrentTerm()
	default:
		r.Error = fmt.Sprintf("request of kind %d: this node is of an older version", q.Kind)
	}
	return r
}

// waitRetry waits a moment, and says whether there is time for another try.
func (n *Node) waitRetry(ctx context.Context) bool {
	t := time.NewTimer(retryEvery)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-n.closing.Done():
	}
	return false
}

// Propose implements Register.
func (n *Node) Propose(ctx context.Context, p Proposal) Result {
	for {
		r, begun := n.propose(ctx, p)
		if begun {
			return r
		}
		if !n.waitRetry(ctx) {
			return Result{Err: fmt.Errorf("write the register: %w", cmp.Or(r.Err, ctx.Err()))}
		}
	}
}

func (n *Node) propose(ctx context.Context, p Proposal) (r Result, begun bool) {
	if n.raft.State() == raft.Leader {
		return n.proposeHere(ctx, p)
	}
	at, id := n.raft.LeaderWithID()
	if at == "" || voterID(id) == n.id {
		return Result{Err: errors.New("no leader is known")}, false
	}
	a, sent, err := n.wire.ask(ctx, string(at), request{Kind: askPropose, Proposal: p})
	if err != nil {
		return Result{Err: err}, sent
	}
	r = Result{Outcome: a.Outcome, Value: a.Value}
	if a.Error != "" {
		r.Err = errors.New(a.Error)
	}
	return r, !a.Again
}

// proposeHere is Propose at the leader. begun: the proposal may be in a log.
func (n *Node) proposeHere(ctx context.Context, p Proposal) (r Result, begun bool) {
	b, err := json.Marshal(p)
	if err != nil {
		return Result{Err: fmt.Errorf("encode a proposal: %w", err)}, false
	}
	enqueue := time.Second
	if d, ok := ctx.Deadline(); ok {
		enqueue = max(time.Until(d), time.Millisecond)
	}
	f := n.raft.Apply(b, enqueue)
	if err := await(ctx, f); err != nil {
		begun = !errors.Is(err, raft.ErrNotLeader) && !errors.Is(err, raft.ErrLeadershipTransferInProgress) &&
			!errors.Is(err, raft.ErrEnqueueTimeout)
		return Result{Err: fmt.Errorf("write the register: %w", err)}, begun
	}
	res, ok := f.Response().(Result)
	if !ok {
		return Result{Err: fmt.Errorf("write the register: unexpected answer %T", f.Response())}, true
	}
	return res, true
}

// Read implements Register.
func (n *Node) Read(ctx context.Context) (Value, error) {
	for {
		try, cancel := context.WithTimeout(ctx, tryTime)
		v, err := n.read(try)
		cancel()
		if err == nil {
			return v, nil
		}
		if !n.waitRetry(ctx) {
			return Value{}, fmt.Errorf("read the register: %w", err)
		}
	}
}

func (n *Node) read(ctx context.Context) (Value, error) {
	if n.raft.State() == raft.Leader {
		return n.readHere(ctx)
	}
	at, id := n.raft.LeaderWithID()
	if at == "" || voterID(id) == n.id {
		return Value{}, errors.New("no leader is known")
	}
	a, _, err := n.wire.ask(ctx, string(at), request{Kind: askRead})
	if err != nil {
		return Value{}, err
	}
	if a.Error != "" {
		return Value{}, errors.New(a.Error)
	}
	return a.Value, nil
}

// readHere is Read at the leader, without an entry in the log. The order
// matters: what is committed in this leader's term, then the proof that nobody
// led since, then the wait until the local copy has it.
func (n *Node) readHere(ctx context.Context) (Value, error) {
	term := n.raft.CurrentTerm()
	if n.raft.State() != raft.Leader {
		return Value{}, ErrNotLeader
	}
	commit := n.raft.CommitIndex()
	var last raft.Log
	if err := n.log.GetLog(commit, &last); err != nil {
		return Value{}, fmt.Errorf("read entry %d of the log: %w", commit, err)
	}
	if last.Term != term { // former leaders may have committed more than is known here
		return Value{}, errors.New("the leader is new and has committed nothing yet")
	}
	if err := await(ctx, n.raft.VerifyLeader()); err != nil {
		return Value{}, fmt.Errorf("verify the leader: %w", err)
	}
	if err := n.confirmTerm(ctx, term); err != nil {
		return Value{}, err
	}
	index, err := n.lastWrite(commit)
	if err != nil {
		return Value{}, err
	}
	return n.fsm.at(ctx, index)
}

// confirmTerm asks the voters, after the read began, whether a majority knows
// of no newer term. VerifyLeader alone takes an answer for a proof that was
// under way before it was called: a leader that was frozen finds such answers
// waiting when it wakes, and by then somebody else may lead.
func (n *Node) confirmTerm(ctx context.Context, term uint64) error {
	voters, err := n.Voters(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, len(voters))
	for _, v := range voters {
		go func() {
			r := response{Voter: n.id, Term: n.raft.CurrentTerm()}
			if v.ID != n.id {
				var err error
				if r, _, err = n.wire.ask(ctx, v.Address, request{Kind: askTerm}); err != nil {
					answers <- err
					return
				}
			}
			switch {
			case r.Voter != v.ID:
				answers <- fmt.Errorf("voter %d answers at %s, where %d should be", r.Voter, v.Address, v.ID)
			case r.Term > term:
				answers <- fmt.Errorf("voter %d is in term %d, this leader in %d", v.ID, r.Term, term)
			default:
				answers <- nil
			}
		}()
	}
	good := 0
	var why error
	for range voters {
		if err := <-answers; err != nil {
			why = errors.Join(why, err)
		} else if good++; 2*good > len(voters) {
			return nil
		}
	}
	return fmt.Errorf("no majority confirms the leader: %w", why)
}

// lastWrite finds the newest write to the register at or before commit: other
// entries do not reach the local copy.
func (n *Node) lastWrite(commit uint64) (uint64, error) {
	_, have := n.fsm.now()
	for i := commit; i > have; i-- {
		var l raft.Log
		if err := n.log.GetLog(i, &l); err != nil {
			if errors.Is(err, raft.ErrLogNotFound) {
				return have, nil // compacted: then a snapshot contains it, and so does the copy
			}
			return 0, fmt.Errorf("read entry %d of the log: %w", i, err)
		}
		if l.Type == raft.LogCommand {
			return i, nil
		}
	}
	return have, nil
}

// Voters implements Membership.
func (n *Node) Voters(ctx context.Context) ([]Voter, error) {
	f := n.raft.GetConfiguration()
	if err := await(ctx, f); err != nil {
		return nil, fmt.Errorf("list the voters: %w", err)
	}
	var all []Voter
	for _, s := range f.Configuration().Servers {
		if s.Suffrage == raft.Voter {
			all = append(all, Voter{ID: voterID(s.ID), Address: string(s.Address)})
		}
	}
	slices.SortFunc(all, func(a, b Voter) int { return cmp.Compare(a.ID, b.ID) })
	return all, nil
}

// AddVoter implements Membership.
func (n *Node) AddVoter(ctx context.Context, v Voter) error {
	return n.lead(ctx, fmt.Sprintf("add voter %d", v.ID), n.raft.AddVoter(serverID(v.ID), raft.ServerAddress(v.Address), 0, 0))
}

// RemoveVoter implements Membership.
func (n *Node) RemoveVoter(ctx context.Context, id uint64) error {
	return n.lead(ctx, fmt.Sprintf("remove voter %d", id), n.raft.RemoveServer(serverID(id), 0, 0))
}

// Transfer implements Membership.
func (n *Node) Transfer(ctx context.Context, to uint64) error {
	if to == 0 {
		return n.lead(ctx, "hand over the lead", n.raft.LeadershipTransfer())
	}
	voters, err := n.Voters(ctx)
	if err != nil {
		return err
	}
	for _, v := range voters {
		if v.ID == to {
			return n.lead(ctx, fmt.Sprintf("hand the lead to voter %d", to),
				n.raft.LeadershipTransferToServer(serverID(to), raft.ServerAddress(v.Address)))
		}
	}
	return fmt.Errorf("hand the lead to voter %d: it is no voter", to)
}

func (n *Node) lead(ctx context.Context, what string, f future) error {
	err := await(ctx, f)
	if errors.Is(err, raft.ErrNotLeader) {
		err = ErrNotLeader
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
