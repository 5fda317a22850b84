package quorum_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"github.com/holdfast-db/holdfast/internal/quorum"
	"github.com/holdfast-db/holdfast/internal/quorum/quorumtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRaft(t *testing.T) {
	quorumtest.Run(t, func(t testing.TB, founders, others int) quorumtest.Cluster {
		return quorumtest.NewNodes(t, founders, others, quorum.FastTimers())
	})
}

func TestModel(t *testing.T) { quorumtest.Run(t, quorumtest.NewModel) }

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func put(t *testing.T, r quorum.Register, data string) quorum.Value {
	t.Helper()
	ctx := within(t, 20*time.Second)
	v, err := r.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	res := r.Propose(ctx, quorum.Proposal{Epoch: v.Epoch, Version: v.Version, NextEpoch: v.Epoch, Data: []byte(data)})
	if res.Outcome != quorum.Applied {
		t.Fatalf("write: %v (%v)", res.Outcome, res.Err)
	}
	return res.Value
}

// TestSteadyState: reads and time write nothing to the log.
func TestSteadyState(t *testing.T) {
	c := quorumtest.NewNodes(t, 3, 0, quorum.FastTimers())
	leader := quorumtest.Leader(t, c, 0, 1, 2)
	put(t, c.Register(leader), "x")
	last := func() (all [3]uint64) {
		for i := range all {
			all[i] = c.Register(i).Status().Last
		}
		return all
	}
	quorumtest.Until(t, "all logs are equally long", func() bool { l := last(); return l[0] == l[1] && l[1] == l[2] })
	before := last()
	term := c.Register(leader).Status().Term
	reads := 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); reads++ {
		if _, err := c.Register(reads % 3).Read(within(t, 5*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if after := last(); after != before {
		t.Errorf("after %d reads in 3 s the logs end at %v, before at %v", reads, after, before)
	}
	if now := c.Register(leader).Status().Term; now != term {
		t.Errorf("an election without a cause: term %d, was %d", now, term)
	}
	t.Logf("%d linearizable reads in 3 s", reads)
}

// TestLeaderLoss measures how long it takes to have a leader again after the
// old one fell silent.
func TestLeaderLoss(t *testing.T) {
	rounds := 10
	if os.Getenv("HOLDFAST_LONG") != "" {
		rounds = 100
	}
	for _, profile := range []struct {
		name   string
		timers quorum.Timers
		bound  time.Duration // for the median, with room for a busy machine
	}{
		{"default, poked", quorum.DefaultTimers(), 800 * time.Millisecond},
		{"fast, poked", quorum.FastTimers(), 500 * time.Millisecond},
	} {
		t.Run(profile.name, func(t *testing.T) {
			c := quorumtest.NewNodes(t, 3, 0, profile.timers)
			var took []time.Duration
			for range rounds {
				old := quorumtest.Leader(t, c, 0, 1, 2)
				put(t, c.Register(old), "x")
				rest := slices.DeleteFunc([]int{0, 1, 2}, func(i int) bool { return i == old })
				quorumtest.Until(t, "the followers hear the leader", func() bool {
					return !slices.ContainsFunc(rest, func(i int) bool {
						s := c.Register(i).Status()
						return s.Leader != c.Voter(old).ID || s.Last != c.Register(old).Status().Last
					})
				})
				began := time.Now()
				c.Cut(old)
				quorumtest.Leader(t, c, rest...)
				took = append(took, time.Since(began))
				c.Heal(old)
			}
			slices.Sort(took)
			t.Logf("leader lost to leader found, %d rounds: median %s, max %s", rounds,
				took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
			if m := took[len(took)/2]; m > profile.bound {
				t.Errorf("median %s, want at most %s: %v", m, profile.bound, took)
			}
		})
	}
}

// TestStrangers: nobody without a certificate of this cluster's authority gets
// an answer, and no node talks to one.
func TestStrangers(t *testing.T) {
	c := quorumtest.NewNodes(t, 1, 0, quorum.FastTimers())
	quorumtest.Leader(t, c, 0)
	other, err := quorum.NewAuthority("other", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	config := func(a *quorum.Authority, now time.Time) *tls.Config {
		id, err := a.Issue("stranger", now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := id.TLS()
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	none := config(c.Authority(), time.Now())
	none.Certificates = nil
	foreign := config(other, time.Now())
	foreign.RootCAs = none.RootCAs // it trusts us; we must not trust it
	old := config(c.Authority(), time.Now().Add(-48*time.Hour))
	question := []byte("Q\x00\x00\x00\x22" + `{"Kind":3,"Within":1000000000    }`)
	for _, s := range []struct {
		name   string
		config *tls.Config
		answer bool
	}{
		{"a member", config(c.Authority(), time.Now()), true},
		{"no certificate", none, false},
		{"another authority's", foreign, false},
		{"expired", old, false},
		{"no TLS", nil, false},
	} {
		t.Run(s.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", c.Voter(0).Address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close() //nolint:errcheck // only read
			if s.config != nil {
				conn = tls.Client(conn, s.config)
			}
			if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			_, err = conn.Write(question)
			n := 0
			if err == nil {
				n, err = conn.Read(make([]byte, 64))
			}
			// A TLS alert may be told to one who speaks no TLS: no more than that.
			if got := err == nil && (s.config != nil || n > 7); got != s.answer {
				t.Errorf("answered: %v (%d bytes, %v), want %v", got, n, err, s.answer)
			}
		})
	}
}

func TestCertificateFiles(t *testing.T) {
	dir := t.TempDir()
	a, err := quorum.NewAuthority("main", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Save(dir); err != nil {
		t.Fatal(err)
	}
	if err := a.Save(dir); err == nil {
		t.Error("an authority was overwritten")
	}
	again, err := quorum.LoadAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	id, err := again.Issue("n1", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	node := t.TempDir()
	if err := id.Save(node); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{filepath.Join(dir, quorum.CAKeyFile), filepath.Join(node, quorum.NodeKeyFile)} {
		fi, err := os.Stat(key)
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %04o, want 0600", filepath.Base(key), fi.Mode().Perm())
		}
	}
	got, err := quorum.LoadIdentity(node)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := got.TLS(); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(filepath.Join(node, quorum.NodeKeyFile), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := quorum.LoadIdentity(node); err == nil {
		t.Error("a key that the group may read was taken")
	}
}

// TestInspect: what a stopped voter holds can be seen before it takes part, and
// files that are not whole are nobody's.
func TestInspect(t *testing.T) {
	c := quorumtest.NewNodes(t, 3, 0, quorum.FastTimers())
	leader := quorumtest.Leader(t, c, 0, 1, 2)
	for i := range 5 {
		put(t, c.Register(leader), fmt.Sprint(i))
	}
	status := c.Register(leader).Status()
	c.Stop(leader)
	dir := c.Dir(leader)
	h, err := quorum.Inspect(dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := (quorum.Held{Voter: c.Voter(leader).ID, Last: status.Last, Term: status.Term}); h != want {
		t.Errorf("inspected %+v, want %+v", h, want)
	}
	open := func(id uint64) error {
		ca, err := c.Authority().Issue("n", time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := ca.TLS()
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		n, err := quorum.Open(quorum.Options{Dir: dir, ID: id, Address: l.Addr().String(), Listener: l, TLS: cfg, Timers: quorum.FastTimers()})
		if err == nil {
			_ = n.Close()
		}
		return err
	}
	if err := open(99); err == nil {
		t.Error("a voter started on another's files")
	}
	if err := os.Rename(filepath.Join(dir, "raft.db"), filepath.Join(dir, "away")); err != nil {
		t.Fatal(err)
	}
	if h, err := quorum.Inspect(dir); err != nil || h != (quorum.Held{}) {
		t.Errorf("without its log: %+v, %v, want none", h, err)
	}
	if err := open(c.Voter(leader).ID); err == nil {
		t.Error("a voter started under its former id without its log")
	}
	if err := os.Rename(filepath.Join(dir, "away"), filepath.Join(dir, "raft.db")); err != nil {
		t.Fatal(err)
	}
	c.Start(leader)
}

// TestConfirmTerm: a leader of a former term is refused by those who know a
// newer one, whatever it believes itself, and so is one that reaches too few.
func TestConfirmTerm(t *testing.T) {
	c := quorumtest.NewNodes(t, 3, 0, quorum.FastTimers())
	leader := quorumtest.Leader(t, c, 0, 1, 2)
	put(t, c.Register(leader), "x")
	term := c.Register(leader).Status().Term
	ctx := within(t, 10*time.Second)
	if err := c.Node(leader).ConfirmTerm(ctx, term); err != nil {
		t.Errorf("the present term: %v", err)
	}
	if err := c.Register(leader).Transfer(ctx, 0); err != nil {
		t.Fatal(err)
	}
	next := quorumtest.Leader(t, c, 0, 1, 2)
	put(t, c.Register(next), "y") // a majority has the new term on disk
	if err := c.Node(leader).ConfirmTerm(ctx, term); err == nil {
		t.Error("a former term was confirmed")
	}
	term = c.Register(next).Status().Term
	for i := range 3 {
		if i != next {
			c.Cut(i)
		}
	}
	if err := c.Node(next).ConfirmTerm(within(t, 300*time.Millisecond), term); err == nil {
		t.Error("a leader that reaches nobody was confirmed")
	}
}

// TestLateProposal: a proposal that arrived while its answer did not is unknown,
// and holds all the same.
func TestLateProposal(t *testing.T) {
	c := quorumtest.NewNodes(t, 3, 0, quorum.FastTimers())
	leader := quorumtest.Leader(t, c, 0, 1, 2)
	before := put(t, c.Register(leader), "before")
	proposer := (leader + 1) % 3
	if _, err := c.Register(proposer).Read(within(t, 20*time.Second)); err != nil {
		t.Fatal(err) // it knows the leader
	}
	late := bytes.Repeat([]byte("late"), 8<<10)
	c.CutAfter(proposer, len(late))
	res := c.Register(proposer).Propose(within(t, time.Second), quorum.Proposal{
		Epoch: before.Epoch, Version: before.Version, NextEpoch: before.Epoch, Data: late,
	})
	if res.Outcome != quorum.Unknown || res.Err == nil {
		t.Errorf("an answer that did not arrive: %v, version %d (%v)", res.Outcome, res.Value.Version, res.Err)
	}
	quorumtest.Until(t, "the proposal holds at the leader", func() bool {
		return c.Register(leader).Status().Value.Version == before.Version+1
	})
	c.Heal(proposer)
	for i := range 3 {
		v, err := c.Register(i).Read(within(t, 20*time.Second))
		if err != nil || v.Version != before.Version+1 || !bytes.Equal(v.Data, late) {
			t.Errorf("node %d reads version %d, %d bytes (%v)", i, v.Version, len(v.Data), err)
		}
	}
}

// TestSentOnce: what may have arrived is not proposed again, even when there is
// time and another leader.
func TestSentOnce(t *testing.T) {
	c := quorumtest.NewNodes(t, 3, 0, quorum.FastTimers())
	leader := quorumtest.Leader(t, c, 0, 1, 2)
	before := put(t, c.Register(leader), "before")
	proposer := (leader + 1) % 3
	if _, err := c.Register(proposer).Read(within(t, 20*time.Second)); err != nil {
		t.Fatal(err) // it knows the leader
	}
	big := bytes.Repeat([]byte("once"), 8<<10)
	c.CutAfter(proposer, len(big))
	done := make(chan quorum.Result, 1)
	ctx := within(t, 20*time.Second)
	go func() {
		done <- c.Register(proposer).Propose(ctx, quorum.Proposal{
			Epoch: before.Epoch, Version: before.Version, NextEpoch: before.Epoch, Data: big,
		})
	}()
	quorumtest.Until(t, "the proposal holds at the leader", func() bool {
		return c.Register(leader).Status().Value.Version == before.Version+1
	})
	c.Drop(proposer)
	c.Stop(leader)
	c.Heal(proposer)
	if res := <-done; res.Outcome != quorum.Unknown || ctx.Err() != nil {
		t.Errorf("the connection broke before the answer: %v, version %d (%v)", res.Outcome, res.Value.Version, res.Err)
	}
}

// TestLostLeadership: a leader that loses the majority says at once that it does
// not know, and does not try elsewhere what may be in its log.
func TestLostLeadership(t *testing.T) {
	c := quorumtest.NewNodes(t, 3, 0, quorum.DefaultTimers())
	for range 3 { // the machine may pause between the cut and the proposal
		leader := quorumtest.Leader(t, c, 0, 1, 2)
		v := put(t, c.Register(leader), "x")
		c.Cut(leader)
		res := c.Register(leader).Propose(within(t, 5*time.Second), quorum.Proposal{
			Epoch: v.Epoch, Version: v.Version, NextEpoch: v.Epoch, Data: []byte("y"),
		})
		c.Heal(leader)
		if res.Outcome != quorum.Unknown {
			t.Fatalf("a leader without a majority: %v", res.Outcome)
		}
		if errors.Is(res.Err, raft.ErrLeadershipLost) {
			return
		}
	}
	t.Error("three times, and it never said that the leadership was lost while the proposal was in its log")
}
