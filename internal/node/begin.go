package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/quorum"
)

// begin finds out what this host holds, founds the cluster with the others if
// there is none, and refuses what must not go on.
func (a *agent) begin(ctx context.Context, ca []byte) (cluster.Disk, error) {
	var d cluster.Disk
	var found bool
	var err error
	if a.promises, found, err = openPromise(a.c.State); err != nil {
		return d, err
	}
	d.Promise, d.HasPromise = a.promises.have, found
	held, err := quorum.Inspect(a.voterDir())
	if err != nil {
		return d, err
	}
	d.Voter, d.HasVoter, d.VoterIndex = held.Voter, held.Voter != 0, held.Last
	if a.inst != nil {
		d.Incarnation = a.inst.Incarnation()
		if d.Incarnation == 0 && !a.mayCreate() {
			if err := a.refuseForeignData(); err != nil {
				return d, err
			}
		}
	}
	a.mu.Lock()
	a.held, a.looked = d, true
	a.mu.Unlock()
	if d.HasVoter && d.HasPromise {
		return d, nil
	}
	if !d.HasVoter && !d.HasPromise {
		founded, err := a.found(ctx, ca)
		if err == nil && !founded && a.inst != nil && d.Incarnation == 0 {
			err = a.refuseForeignData() // this node is not the first of anything
		}
		if err != nil || !founded {
			return d, err
		}
		if err := a.promises.save(0); err != nil {
			return d, err
		}
		d.Voter, d.HasVoter, d.HasPromise, d.VoterIndex = founderID(ca, a.c.Node), true, true, 1
	}
	if a.first() {
		inc, err := a.firstWrite(ctx, ca)
		if err != nil {
			return d, err
		}
		d.Incarnation = inc
	}
	return d, nil
}

// first says whether this node makes the cluster's first data directory.
func (a *agent) first() bool {
	return firstOf(a.c) == a.c.Node
}

func (a *agent) mayCreate() bool { return a.first() }

// refuseForeignData keeps a data directory that is not this cluster's from being
// taken for one: it would be thrown away, or worse, followed.
func (a *agent) refuseForeignData() error {
	entries, err := os.ReadDir(a.c.Postgres.Data)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the data directory: %w", err)
	}
	return fmt.Errorf("%w: %s is not empty, and this agent did not make it: move it away, or name another directory in postgres.data; this node then copies the primary's", ErrRefused, a.c.Postgres.Data)
}

// founding is what this node says to others who want to found the cluster.
func (a *agent) founding() (founding, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.looked {
		return founding{}, errors.New("not looked yet at what is here")
	}
	f := founding{Node: a.c.Node, Voter: a.held.Voter, Last: a.held.VoterIndex, Version: a.view.Register.Version}
	if n := a.reg.now(); n != nil {
		s := n.Status()
		f.Version = max(f.Version, s.Value.Version)
		if f.Last > 1 {
			f.Last = max(f.Last, s.Last)
		}
	}
	return f, nil
}

// found makes this node one of the voters of a new cluster, if every other member
// answers and none knows a register that was written. A host that comes back
// empty finds one, and joins under a new id instead: founded is false then.
func (a *agent) found(ctx context.Context, ca []byte) (founded bool, err error) {
	told := ""
	for {
		missing, live := a.others(ctx)
		if live {
			return false, nil
		}
		if len(missing) == 0 {
			break
		}
		if s := strings.Join(missing, ", "); s != told {
			a.log.Info("waiting for the other members, to found the cluster or to join it", "missing", s)
			a.o.Notify("STATUS=waiting for " + s + " to found the cluster")
			told = s
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
	var all []quorum.Voter
	for _, m := range a.c.Members {
		all = append(all, quorum.Voter{ID: founderID(ca, m.Name), Address: m.Address})
	}
	id := founderID(ca, a.c.Node)
	n, err := a.reg.open(id, true, all)
	if err != nil {
		return false, err
	}
	a.mu.Lock()
	a.held.Voter = id
	a.mu.Unlock()
	a.reg.take(n, id)
	a.log.Info("founded the register with the other members", "voter", id)
	return true, nil
}

// others asks every other member what it knows; live says that there is a cluster.
func (a *agent) others(ctx context.Context) (missing []string, live bool) {
	for _, m := range a.c.Members {
		if m.Name == a.c.Node {
			continue
		}
		each, cancel := context.WithTimeout(ctx, time.Second)
		var f founding
		err := a.ask.post(each, cluster.NodeID(m.Name), pathFounding, struct{}{}, &f)
		cancel()
		switch {
		case err != nil:
			missing = append(missing, m.Name+" ("+shortError(err)+")")
		case f.Version > 0:
			return nil, true
		case f.Last > 1: // a former life of it voted: whether a cluster lives shows once it has a leader
			missing = append(missing, m.Name+" (its register has no leader yet)")
		}
	}
	return missing, false
}

// firstWrite makes the first data directory and writes the register for the
// first time, unless that has been done.
func (a *agent) firstWrite(ctx context.Context, ca []byte) (cluster.Incarnation, error) {
	for {
		each, cancel := context.WithTimeout(ctx, a.reg.within)
		v, err := a.reg.value(each)
		cancel()
		if err == nil && v.Version > 0 {
			return a.inst.Incarnation(), nil
		}
		if err == nil {
			inc, err := a.makeFirst(ctx)
			if err != nil {
				return 0, err
			}
			if err := a.writeFirst(ctx, ca, inc); err == nil {
				return inc, nil
			}
			a.log.Info("the register could not be written yet", "err", err)
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// makeFirst initialises the data directory, or takes one over that is there.
func (a *agent) makeFirst(ctx context.Context) (cluster.Incarnation, error) {
	if inc := a.inst.Incarnation(); inc != 0 {
		return inc, nil
	}
	if _, err := os.Stat(filepath.Join(a.c.Postgres.Data, "PG_VERSION")); err == nil {
		a.log.Info("adopting the data directory", "dir", a.c.Postgres.Data)
		return a.inst.Adopt(ctx)
	}
	a.log.Info("making the first data directory", "dir", a.c.Postgres.Data)
	return a.inst.Create(ctx)
}

func (a *agent) writeFirst(ctx context.Context, ca []byte, inc cluster.Incarnation) error {
	system, history, err := a.inst.Identity(ctx)
	if err != nil {
		return err
	}
	last := history[len(history)-1].Timeline
	chain := slices.Clone(history)
	for i := range chain {
		chain[i].Epoch = 1
	}
	r := cluster.Register{Epoch: 1, Named: 1, Primary: cluster.Member{Node: a.self, Incarnation: inc}, Timeline: last, LastTimeline: last,
		K: 0, WantK: a.c.K, Chain: chain}
	if a.c.Mode == config.ModeRequired {
		r.Mode = cluster.Required
	}
	for _, m := range a.c.Members {
		r.Nodes = append(r.Nodes, cluster.Node{ID: cluster.NodeID(m.Name), Voter: founderID(ca, m.Name), Witness: m.Witness, Reader: m.Reader})
	}
	data, err := json.Marshal(content{a.c.Cluster, system, r})
	if err != nil {
		return err
	}
	each, cancel := context.WithTimeout(ctx, a.reg.within)
	defer cancel()
	res := a.reg.put(each, quorum.Proposal{NextEpoch: 1, Data: data})
	if res.Outcome != quorum.Applied {
		return errors.Join(fmt.Errorf("the first write is %s", res.Outcome), res.Err)
	}
	return nil
}

// firstLater is firstWrite for a node that founded the cluster in a former life
// and died before it wrote the register. What it makes counts in the next life.
func (a *agent) firstLater(ctx context.Context) {
	if _, err := a.firstWrite(ctx, a.ca); err != nil {
		if ctx.Err() == nil {
			a.cancel(err)
		}
		return
	}
	if a.inst.Incarnation() != 0 {
		a.cancel(errAgain)
	}
}

// checkSystem refuses a data directory whose system identifier is not the
// cluster's, as the register has it.
func (a *agent) checkSystem(system string) {
	if a.inst == nil || a.inst.Incarnation() == 0 {
		return
	}
	have, _, err := a.inst.Identity(a.ctx)
	if err != nil || system == "" || have == system {
		return
	}
	a.cancel(fmt.Errorf("%w: %s is of another cluster (system identifier %s, this cluster's is %s): name the right directory, or move it away and this node copies the primary's",
		ErrRefused, a.c.Postgres.Data, have, system))
}
