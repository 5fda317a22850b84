package instance_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance"
)

// receiver is a pg_receivewal that calls itself like a member: to a primary it is
// a standby that flushes at once.
type receiver struct {
	cmd  *exec.Cmd
	done chan struct{}
	said bytes.Buffer
}

// credentialFiles writes a credential where libpq finds it, and returns the
// part of a conninfo that names it.
func (n *nodes) credentialFiles(name string, c instance.Credential) string {
	n.t.Helper()
	dir := filepath.Join(n.dir, "cred-"+name)
	must(n.t, os.MkdirAll(dir, 0o755))
	for file, data := range map[string][]byte{"client.crt": c.CertPEM, "client.key": c.KeyPEM, "root.crt": c.RootPEM} {
		path := filepath.Join(dir, file)
		must(n.t, os.WriteFile(path, data, 0o600))
		if a := n.asPostgres("true").SysProcAttr.Credential; a != nil {
			must(n.t, os.Chown(path, int(a.Uid), int(a.Gid)))
		}
	}
	return fmt.Sprintf("sslmode=verify-ca sslcert=%[1]s/client.crt sslkey=%[1]s/client.key sslrootcert=%[1]s/root.crt", dir)
}

// receive starts a receiver of p's under a member's name.
func (n *nodes) receive(p *testNode, m cluster.Member) *receiver {
	n.t.Helper()
	c, err := p.Issue(m.Node)
	must(n.t, err)
	dir := filepath.Join(n.dir, "received-"+instance.SlotName(m))
	must(n.t, os.MkdirAll(dir, 0o777))
	must(n.t, os.Chmod(dir, 0o777))
	conninfo := fmt.Sprintf("host=%s port=%d user=holdfast_replication application_name=%s %s", p.cfg.Address, p.cfg.Port,
		instance.MemberName(clusterName, m), n.credentialFiles(string(m.Node), c))
	r := &receiver{cmd: n.asPostgres("pg_receivewal", "-D", dir, "--synchronous", "--no-loop", "-s", "1", "-d", conninfo), done: make(chan struct{})}
	r.cmd.Stderr = &r.said
	r.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	must(n.t, r.cmd.Start())
	go func() { _ = r.cmd.Wait(); close(r.done) }()
	n.t.Cleanup(func() {
		r.end()
		if n.t.Failed() {
			n.t.Logf("pg_receivewal said %s", r.said.String())
		}
	})
	return r
}

func (r *receiver) end() {
	_ = r.cmd.Process.Kill()
	<-r.done
}

// streams waits until p sees a member stream.
func (p *testNode) streams(t testing.TB, m cluster.Member) {
	t.Helper()
	p.looks(t, "a stream of "+string(m.Node), func(v cluster.Postgres) bool {
		for _, s := range v.Senders {
			if s.Member == m && s.Named && s.Streaming {
				return true
			}
		}
		return false
	})
}

// commits says whether a commit is acknowledged within a time.
func commits(t testing.TB, p *testNode, within time.Duration) bool {
	t.Helper()
	c, err := pgx.Connect(t.Context(), fmt.Sprintf("host=%s port=%d user=holdfast dbname=postgres", p.cfg.RunDir, p.cfg.Port))
	must(t, err)
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = c.Close(ctx)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	_, err = c.Exec(ctx, "SELECT pg_logical_emit_message(true, 'test', 'commit')")
	return err == nil
}

var (
	memberB = cluster.Member{Node: "b", Incarnation: 1<<52 | 2}
	memberC = cluster.Member{Node: "c", Incarnation: 1<<52 | 3}
)

func any1(m ...cluster.Member) cluster.SSN { return cluster.SSN{K: 1, Names: m} }

func startedPrimary(t *testing.T, change ...func(*instance.Config)) (*nodes, *testNode) {
	t.Helper()
	n := newNodes(t)
	p := n.node("a", change...)
	p.create(t)
	p.watch(t)
	p.startPrimary(t)
	return n, p
}

func TestSSN(t *testing.T) {
	n, p := startedPrimary(t)
	if commits(t, p, 200*time.Millisecond) {
		t.Error("a commit was acknowledged before anybody was permitted to confirm it")
	}
	p.setSSN(t, cluster.SSN{})
	if !commits(t, p, 5*time.Second) {
		t.Error("with nobody to wait for, no commit is acknowledged")
	}
	n.receive(p, memberB)
	p.streams(t, memberB)
	p.setSSN(t, any1(memberC))
	if commits(t, p, 200*time.Millisecond) {
		t.Error("acknowledged, though only a stranger to SSN streams")
	}
	p.setSSN(t, any1(memberB, memberC))
	if !commits(t, p, 5*time.Second) {
		t.Error("not acknowledged, though a member streams")
	}
	p.setSSN(t, cluster.SSN{K: 2, Names: []cluster.Member{memberB, memberC}})
	if commits(t, p, 200*time.Millisecond) {
		t.Error("acknowledged with one confirmation of two")
	}
	p.stop(t, true)
	p.setSSN(t, any1(memberC))
	p.startPrimary(t)
	if commits(t, p, 200*time.Millisecond) {
		t.Error("what was permitted while it was down is not in force after its start")
	}
	if v := p.looks(t, "a primary", func(v cluster.Postgres) bool { return v.Running }); v.WaitsCancelled != 0 {
		t.Logf("%d waits were cancelled by this test's own clients", v.WaitsCancelled)
	}
}

// TestSSNFrozenSender: a walsender that cannot come by its check for a reload
// must not release anybody by the older SSN afterwards, once Done was said.
func TestSSNFrozenSender(t *testing.T) {
	n, p := startedPrimary(t)
	n.receive(p, memberB)
	p.streams(t, memberB)
	for round := range 6 {
		p.setSSN(t, any1(memberB))
		if !commits(t, p, 10*time.Second) {
			t.Fatal("no commit with the member streaming")
		}
		var pid int
		must(t, p.ask(t, "SELECT pid FROM pg_stat_replication", &pid))
		must(t, syscall.Kill(pid, syscall.SIGSTOP))
		p.setSSN(t, any1(memberC))
		acked := make(chan bool)
		go func() { acked <- commits(t, p, 400*time.Millisecond) }()
		time.Sleep(time.Duration(round) * 20 * time.Millisecond) // the commit's WAL waits for the frozen sender
		must(t, syscall.Kill(pid, syscall.SIGCONT))
		if <-acked {
			t.Fatalf("round %d: the frozen walsender released a commit by what was in force before", round)
		}
	}
}

// TestSSNInForce changes SSN to and fro under load: after each Done for a member
// that does not answer, nothing may be acknowledged by the one that does.
func TestSSNInForce(t *testing.T) {
	n, p := startedPrimary(t)
	n.receive(p, memberB)
	p.streams(t, memberB)
	p.setSSN(t, any1(memberB))
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for range 4 {
		load.Add(1)
		go func() { // WAL to send and replies to take, all the time
			defer load.Done()
			c, err := pgx.Connect(ctx, fmt.Sprintf("host=%s port=%d user=holdfast dbname=postgres synchronous_commit=local", p.cfg.RunDir, p.cfg.Port))
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = c.Close(context.Background()) }()
			for ctx.Err() == nil {
				_, _ = c.Exec(ctx, "SELECT pg_logical_emit_message(true, 'load', repeat('x', 2000))")
			}
		}()
	}
	defer func() { cancel(); load.Wait() }()
	var slowest time.Duration
	for round := range 15 {
		began := time.Now()
		p.setSSN(t, any1(memberC))
		slowest = max(slowest, time.Since(began))
		if commits(t, p, 30*time.Millisecond) {
			t.Fatalf("round %d: acknowledged by a member that is no longer in SSN", round)
		}
		p.setSSN(t, any1(memberB))
	}
	t.Logf("the slowest change took %v", slowest.Round(time.Millisecond))
}

// TestSSNSuperseded: each is answered, and the last one holds.
func TestSSNSuperseded(t *testing.T) {
	_, p := startedPrimary(t)
	var ids []uint64
	for n := range 8 {
		ssn := any1(memberB)
		if n%2 == 1 {
			ssn = any1(memberC)
		}
		ids = append(ids, p.next())
		p.begin(cluster.SetSSN{ID: ids[n], SSN: ssn})
	}
	for _, id := range ids[:7] {
		p.answer(t, id)
	}
	if d := p.answer(t, ids[7]); !d.OK {
		t.Fatal(d.Why)
	}
	var shown string
	must(t, p.ask(t, "SHOW synchronous_standby_names", &shown))
	if !strings.Contains(shown, instance.MemberName(clusterName, memberC)) {
		t.Errorf("in force is %s", shown)
	}
}

// TestSSNOverruled: ALTER SYSTEM and a line at the end of the user's file are put
// right; an error in it is reported and keeps SetSSN from being done.
func TestSSNOverruled(t *testing.T) {
	_, p := startedPrimary(t)
	p.setSSN(t, any1(memberB))
	p.exec(t, "ALTER SYSTEM SET synchronous_standby_names = ''")
	conf := filepath.Join(p.cfg.DataDir, "postgresql.conf")
	good, err := os.ReadFile(conf)
	must(t, err)
	must(t, os.WriteFile(conf, append(good, "synchronous_standby_names = ''\n"...), 0o600))
	p.setSSN(t, any1(memberC))
	if commits(t, p, 100*time.Millisecond) {
		t.Error("a file of the user's overrules SSN")
	}
	p.exec(t, "ALTER SYSTEM SET synchronous_standby_names = ''")
	p.exec(t, "SELECT pg_reload_conf()")
	eventually(t, "an overruled SSN is put right unasked", func() bool {
		var shown string
		return p.ask(t, "SHOW synchronous_standby_names", &shown) == nil && shown != ""
	})
	must(t, os.WriteFile(conf, append([]byte("no_such_thing = on\n"), good...), 0o600))
	id := p.next()
	p.begin(cluster.SetSSN{ID: id, SSN: any1(memberB)})
	p.looks(t, "an error in the settings", func(v cluster.Postgres) bool { return v.ReloadRejected })
	p.mu.Lock()
	d, early := p.done[id]
	p.mu.Unlock()
	if early {
		t.Errorf("answered while reloads apply nothing: %+v", d)
	}
	must(t, os.WriteFile(conf, good, 0o600))
	if d := p.answer(t, id); !d.OK {
		t.Error(d.Why)
	}
	p.looks(t, "no error in the settings", func(v cluster.Postgres) bool { return !v.ReloadRejected })
}

func TestCanary(t *testing.T) {
	_, p := startedPrimary(t)
	p.setSSN(t, cluster.SSN{})
	canary := func(id uint64) cluster.Effect { return cluster.Canary{ID: id} }
	if d := p.do(t, canary); d.OK {
		t.Error("a commit was seen waiting where nobody is waited for")
	}
	p.setSSN(t, cluster.SSN{K: 1})
	p.ok(t, canary)
	eventually(t, "no canary is left waiting", func() bool {
		var left int
		must(t, p.ask(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'", &left))
		return left == 0
	})
	if v := p.looks(t, "a primary", func(v cluster.Postgres) bool { return v.Running }); v.WaitsCancelled != 0 {
		t.Errorf("its own canaries are told as %d cancelled waits", v.WaitsCancelled)
	}
	// A client's cancelled wait is told.
	c := p.agent(t)
	go func() { _, _ = c.Exec(context.Background(), "SELECT pg_logical_emit_message(true, 'test', 'x')") }()
	eventually(t, "a waiting commit", func() bool {
		var n int
		must(t, p.ask(t, "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'", &n))
		return n > 0
	})
	p.looks(t, "the cancelled wait", func(v cluster.Postgres) bool { return v.WaitsCancelled == 1 })
}

func TestSampleAndRow(t *testing.T) {
	_, p := startedPrimary(t)
	var before int64
	must(t, p.ask(t, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint", &before))
	// Nobody confirms, and both come back.
	l := p.ok(t, func(id uint64) cluster.Effect { return cluster.SampleLSN{ID: id} }).LSN
	if l < cluster.LSN(before) {
		t.Errorf("sampled %X, behind %X", l, before)
	}
	p.looks(t, "the sampled position on disk", func(v cluster.Postgres) bool { return v.End >= l })
	for range 2 {
		row := p.ok(t, func(id uint64) cluster.Effect { return cluster.WriteRow{ID: id, Epoch: 7} }).LSN
		if row <= l {
			t.Errorf("the row is at %X, after %X", row, l)
		}
		l = row
	}
	p.looks(t, "the row on disk", func(v cluster.Postgres) bool { return v.End >= l })
	var rows int
	must(t, p.ask(t, "SELECT count(*) FROM holdfast.epochs WHERE epoch = 7 AND node = 'a'", &rows))
	if rows != 1 {
		t.Errorf("%d rows", rows)
	}
	p.stop(t, true)
	for _, e := range []func(id uint64) cluster.Effect{
		func(id uint64) cluster.Effect { return cluster.SampleLSN{ID: id} },
		func(id uint64) cluster.Effect { return cluster.WriteRow{ID: id, Epoch: 8} },
		func(id uint64) cluster.Effect { return cluster.Canary{ID: id} },
	} {
		if d := p.do(t, e); d.OK {
			t.Errorf("%#v on a stopped Postgres", e(0))
		}
	}
}
