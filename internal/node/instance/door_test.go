package instance_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance"
)

func (p *testNode) openDoor(t testing.TB) {
	t.Helper()
	p.begin(cluster.OpenDoor{})
	p.looks(t, "an open door", func(v cluster.Postgres) bool { return v.DoorOpen })
	eventually(t, "a client gets in", func() bool {
		c, err := p.client(t.Context())
		if err == nil {
			_ = c.Close(t.Context())
		}
		return err == nil
	})
}

func TestDoor(t *testing.T) {
	_, p := startedPrimary(t)
	p.setSSN(t, cluster.SSN{})
	if _, err := p.client(t.Context()); err == nil {
		t.Fatal("a client got in before the door was opened")
	}
	p.openDoor(t)
	var sessions []*pgx.Conn
	for range 5 {
		c, err := p.client(t.Context())
		must(t, err)
		sessions = append(sessions, c)
	}
	agent := p.agent(t)
	p.begin(cluster.OpenDoor{}) // before the closing: it must not undo it
	p.begin(cluster.CloseDoor{})
	began := time.Now()
	for _, c := range sessions {
		eventually(t, "the end of a session", func() bool { return c.Ping(t.Context()) != nil })
	}
	t.Logf("sessions were ended within %v", time.Since(began).Round(time.Millisecond))
	p.looks(t, "a closed door", func(v cluster.Postgres) bool { return !v.DoorOpen })
	for range 20 {
		if _, err := p.client(t.Context()); err == nil {
			t.Fatal("a client got in through the closed door")
		}
	}
	must(t, agent.Ping(t.Context()))
	p.openDoor(t)
}

// TestDoorExhausted: with every connection in use, the agent sees, probes and
// closes the door.
func TestDoorExhausted(t *testing.T) {
	_, p := startedPrimary(t, func(c *instance.Config) {
		c.Settings["max_connections"] = "32"
		c.HBA = append(c.HBA, "local all all trust")
	})
	p.setSSN(t, cluster.SSN{})
	p.exec(t, "CREATE ROLE app LOGIN")
	p.openDoor(t)
	var all []*pgx.Conn
	for {
		c, err := pgx.Connect(t.Context(), fmt.Sprintf("host=%s port=%d user=app dbname=postgres", p.cfg.RunDir, p.cfg.Port))
		if err != nil {
			break
		}
		all = append(all, c)
		defer func() { _ = c.Close(context.Background()) }()
	}
	if len(all) < 10 {
		t.Fatalf("%d sessions only", len(all))
	}
	p.mu.Lock()
	p.probes = nil
	p.mu.Unlock()
	eventually(t, "two probes", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.probes) >= 2
	})
	p.mu.Lock()
	if slices.Contains(p.probes, false) {
		t.Error("a probe failed for want of a connection")
	}
	p.mu.Unlock()
	p.setSSN(t, any1(memberB)) // a fresh connection is to be had
	p.begin(cluster.CloseDoor{})
	for _, c := range all {
		eventually(t, "the end of a session", func() bool { return c.Ping(t.Context()) != nil })
	}
}

// TestRoles: our roles are let in nowhere but where they belong, whatever the
// user's rules say, and a credential admits to one node.
func TestRoles(t *testing.T) {
	n, p := startedPrimary(t, func(c *instance.Config) {
		c.HBA = []string{"local all all trust", "host all all 0.0.0.0/0 trust"}
	})
	p.openDoor(t)
	for _, role := range []string{"holdfast", "holdfast_replication", "holdfast_rewind"} {
		dsn := fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=postgres sslmode=require", p.cfg.Port, role)
		if c, err := pgx.Connect(t.Context(), dsn); err == nil {
			_ = c.Close(t.Context())
			t.Errorf("%s got in over the network without a certificate", role)
		}
	}
	if c, err := pgx.Connect(t.Context(), p.dsn()+" replication=true"); err == nil {
		_ = c.Close(t.Context())
		t.Error("a superuser was let in for replication")
	}
	q := n.node("b")
	mine, err := p.Issue("b")
	must(t, err)
	other, err := q.Issue("b")
	must(t, err)
	replication := func(c instance.Credential, name, user string) error {
		conn, err := pgx.Connect(t.Context(), fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=postgres replication=true ", p.cfg.Port, user)+n.credentialFiles(name, c))
		if err == nil {
			_ = conn.Close(t.Context())
		}
		return err
	}
	if err := replication(mine, "mine", "holdfast_replication"); err != nil {
		t.Errorf("the credential that this node issued: %v", err)
	}
	if err := replication(mine, "mine", "postgres"); err == nil {
		t.Error("it admits another role")
	}
	crossed := instance.Credential{CertPEM: other.CertPEM, KeyPEM: other.KeyPEM, RootPEM: mine.RootPEM}
	if err := replication(crossed, "crossed", "holdfast_replication"); err == nil {
		t.Error("the credential of another node admits here")
	}
	if err := replication(instance.Credential{CertPEM: mine.CertPEM, KeyPEM: mine.KeyPEM, RootPEM: other.RootPEM}, "server", "holdfast_replication"); err == nil {
		t.Error("another node's server passes for this one")
	}
	if _, err := os.Stat(p.cfg.DataDir + "/server.key"); err == nil {
		t.Error("a key lies in the data directory, where clones would get it")
	}
}

func TestSlotsAndSenders(t *testing.T) {
	n, p := startedPrimary(t, func(c *instance.Config) { c.SlotCap = 1 << 30 })
	old := cluster.Member{Node: "b", Incarnation: 1<<52 | 1}
	for _, m := range []cluster.Member{old, memberB, memberC} {
		p.begin(cluster.EnsureSlot{Member: m})
	}
	has := func(v cluster.Postgres, m cluster.Member) bool {
		return slices.ContainsFunc(v.Slots, func(s cluster.Slot) bool { return s.Member == m && !s.Lost && !s.Logical })
	}
	v := p.looks(t, "the slots", func(v cluster.Postgres) bool { return has(v, memberB) && has(v, memberC) && !has(v, old) })
	if len(v.Slots) != 2 {
		t.Errorf("slots %v", v.Slots)
	}
	var limit string
	must(t, p.ask(t, "SHOW max_slot_wal_keep_size", &limit))
	if limit != "1GB" {
		t.Errorf("a slot may hold back %s", limit)
	}
	r := n.receive(p, memberB)
	p.streams(t, memberB)
	p.begin(cluster.EndSenders{Member: memberB})
	select {
	case <-r.done:
	case <-time.After(20 * time.Second):
		t.Error("its walsender was not ended")
	}
	p.looks(t, "no stream", func(v cluster.Postgres) bool { return len(v.Senders) == 0 })
}
