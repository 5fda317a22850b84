package instance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

// TestFailover plays the whole way: the primary dies under load, both standbys
// are recruited, one is promoted to a timeline far ahead, the other follows, the
// old primary is rewound, and a blank directory is cloned.
func TestFailover(t *testing.T) {
	p := newPeers(t, "a", "b", "c")
	p.begin("a", "b", "c")
	stop := p.load("a")
	p.until(30*time.Second, func() error {
		if p.query("a", "SELECT (count(*) > 1000)::text FROM public.t") != "true" {
			return errNotYet
		}
		return nil
	})
	killTree(p.all["a"])
	rows := stop()
	if rows < 100 {
		t.Fatalf("only %d rows were written", rows)
	}

	b, tookB := p.recruit("b")
	c, tookC := p.recruit("c")
	t.Logf("recruited: b in %v, c in %v", ms(tookB), ms(tookC))
	if b.Replayable != b.End || c.Replayable != c.End || b.Running != true {
		t.Fatalf("b %+v\nc %+v", b, c)
	}
	x, other, fork := cluster.NodeID("b"), cluster.NodeID("c"), b.End
	if c.End > b.End {
		x, other, fork = "c", "b", c.End
	}
	if d, _ := p.try(x, func(id uint64) cluster.Effect { return cluster.Promote{ID: id, Timeline: 7, Fork: fork - 8} }); d.OK {
		t.Fatal("it was promoted at a fork where its WAL does not end")
	}
	d, took := p.do(x, func(id uint64) cluster.Effect { return cluster.Promote{ID: id, Timeline: 7, Fork: fork} })
	t.Logf("promoted %s at %s in %v", x, wal.Text(fork), ms(took))
	want := []cluster.Branch{{Timeline: 1}, {Timeline: 7, Fork: fork}}
	if !d.Postgres.Primary || !slices.Equal(d.Postgres.History, want) {
		t.Fatalf("promoted: %+v, want %v", d.Postgres, want)
	}
	p.exec(x, "INSERT INTO public.t (v) VALUES ('first of timeline 7')")
	at := time.Now()
	took = p.follow(other, x, 2)
	t.Logf("%s follows %s: answered in %v, streams after %v", other, x, ms(took), ms(time.Since(at)))

	// The old primary wrote something that nobody got.
	old := p.all["a"]
	p.do("a", func(id uint64) cluster.Effect { return cluster.StartPrimary{ID: id} })
	p.exec("a", "INSERT INTO public.t (v) SELECT 'nobody has this' FROM generate_series(1, 500)")
	killTree(old)
	was := old.Incarnation()
	_, took = p.do("a", func(id uint64) cluster.Effect { return cluster.Rewind{ID: id, Upstream: p.member(x)} })
	t.Logf("a rewound in %v", ms(took))
	if old.Incarnation() != was || directoryIncarnation(old.cfg.DataDir) != was {
		t.Fatalf("a rewind keeps the incarnation: %d, was %d", directoryIncarnation(old.cfg.DataDir), was)
	}
	notes, _ := filepath.Glob(filepath.Join(old.asideDir(), "*", "note.json"))
	if len(notes) != 1 {
		t.Fatalf("what nobody has was not kept aside: %v", notes)
	}
	kept, _ := filepath.Glob(filepath.Join(filepath.Dir(notes[0]), "00000001*"))
	if len(kept) == 0 {
		t.Fatal("no segment was kept aside")
	}
	at = time.Now()
	p.follow("a", x, 2)
	t.Logf("a follows %s after %v", x, ms(time.Since(at)))

	// A blank host.
	p.do(other, func(id uint64) cluster.Effect { return cluster.StopPostgres{ID: id, Immediate: true} })
	before := p.all[other].Incarnation()
	if err := os.RemoveAll(p.all[other].cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s cloned in %v", other, ms(p.clone(other, x)))
	if now := p.all[other].Incarnation(); now == before || now == 0 {
		t.Fatalf("a clone has a new incarnation: %d, was %d", now, before)
	}
	p.follow(other, x, 2)
	p.exec(x, "INSERT INTO public.t (v) VALUES ('last')")
	sum := p.query(x, "SELECT count(*)::text || md5(string_agg(id || v, '' ORDER BY id)) FROM public.t")
	for _, s := range []cluster.NodeID{"a", other} {
		p.until(10*time.Second, func() error {
			if got := p.query(s, "SELECT count(*)::text || md5(string_agg(id || v, '' ORDER BY id)) FROM public.t"); got != sum {
				return fmt.Errorf("%s has %s, the primary %s", s, got, sum)
			}
			return nil
		})
	}
	if got := p.query(x, "SELECT count(*)::text FROM public.t WHERE v = 'nobody has this'"); got != "0" {
		t.Fatalf("%s rows of the old primary's own came back", got)
	}
	p.until(10*time.Second, func() error { // the slot of the directory that went is gone
		got := p.query(x, "SELECT coalesce(string_agg(slot_name, ' '), '') FROM pg_replication_slots")
		if strings.Contains(got, SlotName(cluster.Member{Node: other, Incarnation: before})) {
			return fmt.Errorf("slots: %s", got)
		}
		return nil
	})
}

// TestRecruitHardly recruits standbys that make it hard: one's replay is paused,
// and all of its connections are in use; the other does not let anybody in yet.
func TestRecruitHardly(t *testing.T) {
	p := newPeers(t, "a", "b")
	p.begin("a", "b")
	b := p.all["b"]
	p.exec("b", "SELECT pg_wal_replay_pause()")
	p.until(5*time.Second, func() error {
		if p.query("b", "SELECT pg_get_wal_replay_pause_state()") != "paused" {
			return errNotYet
		}
		return nil
	})
	for { // every connection, those reserved for us too
		c, err := b.connect(t.Context())
		if err != nil {
			break
		}
		defer closeConn(c)
	}
	stop := p.load("a")
	p.until(10*time.Second, func() error { // that it may receive what it does not replay
		if p.query("a", "SELECT coalesce(bool_or(flush_lsn > replay_lsn + 100000), false)::text FROM pg_stat_replication") != "true" {
			return errNotYet
		}
		return nil
	})
	report, took := p.recruit("b")
	t.Logf("recruited in %v", ms(took))
	if report.Replayable != report.End || report.End == 0 {
		t.Fatalf("%+v", report)
	}
	// Nobody comes back, though the primary lives, and though the permit says otherwise.
	back := b.conninfo(Endpoint{p.all["a"].cfg.Address, p.all["a"].cfg.Port}, MemberName("trial", p.member("b")), b.credentialPath)
	if err := b.editPermit(func(g *permit) { g.PrimaryConninfo = back }); err != nil {
		t.Fatal(err)
	}
	b.hup()
	for deadline := time.Now().Add(1500 * time.Millisecond); time.Now().Before(deadline); time.Sleep(3 * time.Millisecond) {
		if err := p.streams("b", "a"); err == nil {
			t.Fatal("a walreceiver came back without a credential")
		}
	}
	stop()
	d, _ := p.do("b", func(id uint64) cluster.Effect { return cluster.InspectWAL{ID: id} })
	if d.Postgres.End != report.End {
		t.Fatalf("WAL grew after the report: %s, was %s", wal.Text(d.Postgres.End), wal.Text(report.End))
	}
	d, took = p.do("b", func(id uint64) cluster.Effect {
		return cluster.Promote{ID: id, Timeline: 2, Fork: report.End}
	})
	t.Logf("promoted in %v", ms(took))
	if want := []cluster.Branch{{Timeline: 1}, {Timeline: 2, Fork: report.End}}; !d.Postgres.Primary || !slices.Equal(d.Postgres.History, want) {
		t.Fatalf("promoted: %+v", d.Postgres)
	}
}

// TestFollowAndCut: a Follow that is still waiting when a recruit's cut comes
// must not hand out the credential afterwards.
func TestFollowAndCut(t *testing.T) {
	p := newPeers(t, "a", "b")
	p.begin("a", "b")
	asked, let := make(chan struct{}), make(chan struct{})
	p.admit = func(context.Context, cluster.NodeID) error { // as a slow agent might, it answers after all
		close(asked)
		select {
		case <-let:
		case <-t.Context().Done():
		}
		return nil
	}
	answer := make(chan cluster.Done, 1)
	p.all["b"].Begin(cluster.Follow{ID: 1 << 40, Upstream: p.member("a"), Epoch: 3, Name: p.member("b")}, func(e cluster.Event) {
		answer <- e.(cluster.Done)
	})
	<-asked
	report, _ := p.recruit("b")
	close(let)
	if d := <-answer; d.OK {
		t.Fatal("a Follow of before the cut succeeded")
	}
	if exists(p.all["b"].credentialPath(clientKey)) {
		t.Fatal("the credential is back")
	}
	p.exec("a", "INSERT INTO public.t (v) VALUES ('x')")
	d, _ := p.do("b", func(id uint64) cluster.Effect { return cluster.InspectWAL{ID: id} })
	if d.Postgres.End != report.End {
		t.Fatal("WAL grew after the cut")
	}
}

// TestFetch: a recruit that holds less gets the rest from one that holds more,
// whose primary is gone, and is then promoted. Nobody streams for it.
func TestFetch(t *testing.T) {
	for _, down := range []bool{false, true} {
		t.Run(fmt.Sprintf("down=%v", down), func(t *testing.T) {
			p := newPeers(t, "a", "b", "c")
			p.begin("a", "b", "c")
			p.recruit("b") // it stops receiving here
			from := p.query("a", "SELECT pg_current_wal_lsn()::text")
			stop := p.load("a")
			p.until(30*time.Second, func() error {
				if p.query("a", "SELECT coalesce(max(flush_lsn) > '"+from+"'::pg_lsn + 2000000, false)::text FROM pg_stat_replication") != "true" {
					return errNotYet
				}
				return nil
			})
			killTree(p.all["a"])
			stop()
			c, _ := p.recruit("c")
			if down {
				p.do("b", func(id uint64) cluster.Effect { return cluster.StopPostgres{ID: id, Immediate: true} })
			}
			b, _ := p.recruit("b")
			if b.End+1<<20 > c.End {
				t.Fatalf("b ends at %s, c at %s: that is no test", wal.Text(b.End), wal.Text(c.End))
			}
			d, took := p.do("b", func(id uint64) cluster.Effect { return cluster.FetchWAL{ID: id, From: "c", Until: c.End} })
			t.Logf("%d kB fetched in %v", (c.End-b.End)>>10, ms(took))
			if d.Postgres.End != c.End || d.Postgres.Replayable != c.End {
				t.Fatalf("b ends at %s now, c at %s", wal.Text(d.Postgres.End), wal.Text(c.End))
			}
			_, took = p.do("b", func(id uint64) cluster.Effect { return cluster.Promote{ID: id, Timeline: 3, Fork: c.End} })
			t.Logf("promoted in %v", ms(took))
			rows := p.query("b", "SELECT count(*)::text FROM public.t")
			p.follow("c", "b", 3)
			p.until(5*time.Second, func() error {
				if got := p.query("c", "SELECT count(*)::text FROM public.t"); got != rows {
					return fmt.Errorf("c has %s rows, b %s", got, rows)
				}
				return nil
			})
		})
	}
}

// TestAbandonedPromotion: what a promotion reserved, and did not use, is in
// nobody's way.
func TestAbandonedPromotion(t *testing.T) {
	p := newPeers(t, "a", "b")
	p.begin("a", "b")
	b, _ := p.recruit("b")
	if _, err := p.all["b"].reserve(b.History, 9); err != nil {
		t.Fatal(err)
	}
	// The running server finds them and takes the newest for its target.
	time.Sleep(300 * time.Millisecond)
	p.exec("a", "INSERT INTO public.t (v) VALUES ('the old primary goes on')")
	p.follow("b", "a", 4)
	p.until(5*time.Second, func() error {
		if p.query("b", "SELECT count(*)::text FROM public.t") != "1" {
			return errNotYet
		}
		return nil
	})
	left, _ := filepath.Glob(filepath.Join(p.all["b"].cfg.DataDir, "pg_wal", "*.history"))
	if len(left) > 0 {
		t.Fatalf("left behind: %v", left)
	}
}

// TestUnfinishedPromotion: a promotion that ended before its first record left a
// history file, and copies of WAL. The next one leaves from where that one did.
func TestUnfinishedPromotion(t *testing.T) {
	p := newPeers(t, "a", "b")
	p.begin("a", "b")
	b, _ := p.recruit("b")
	p.do("b", func(id uint64) cluster.Effect { return cluster.StopPostgres{ID: id, Immediate: true} })
	i := p.all["b"]
	dir := filepath.Join(i.cfg.DataDir, "pg_wal")
	rep, err := wal.Inspect(i.cfg.DataDir, wal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	last := wal.Segment{Timeline: 1, Number: uint64(b.End) / rep.SegSize}
	h := append(slices.Clone(b.History), cluster.Branch{Timeline: 2, Fork: b.End})
	began := wal.Segment{Timeline: 2, Number: last.Number}.Name(rep.SegSize)
	if exists(filepath.Join(dir, last.Name(rep.SegSize))) {
		if err := copyFile(filepath.Join(dir, last.Name(rep.SegSize)), filepath.Join(dir, began)); err != nil {
			t.Fatal(err)
		}
		if u := i.user; u.switches {
			if err := os.Chown(filepath.Join(dir, began), int(u.uid), int(u.gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := i.writeDurable(filepath.Join(dir, wal.HistoryName(2)), wal.FormatHistory(h, "unfinished")); err != nil {
		t.Fatal(err)
	}
	d, _ := p.do("b", func(id uint64) cluster.Effect { return cluster.Promote{ID: id, Timeline: 3, Fork: b.End} })
	if want := []cluster.Branch{{Timeline: 1}, {Timeline: 3, Fork: b.End}}; !slices.Equal(d.Postgres.History, want) {
		t.Fatalf("promoted to %v, want %v", d.Postgres.History, want)
	}
}

// TestNeedsClone: an upstream that no longer has the WAL is noticed.
func TestNeedsClone(t *testing.T) {
	p := newPeers(t, "a", "b")
	p.begin("a", "b")
	p.do("b", func(id uint64) cluster.Effect { return cluster.StopPostgres{ID: id, Immediate: true} })
	slot := SlotName(p.member("b"))
	p.until(10*time.Second, func() error {
		if p.query("a", "SELECT coalesce(bool_or(active), false)::text FROM pg_replication_slots") != "false" {
			return errNotYet
		}
		return nil
	})
	p.exec("a", "SELECT pg_drop_replication_slot('"+slot+"')")
	for range 3 {
		p.exec("a", "INSERT INTO public.t (v) VALUES ('x')")
		p.exec("a", "SELECT pg_switch_wal()")
		p.exec("a", "CHECKPOINT")
	}
	p.do("b", func(id uint64) cluster.Effect {
		return cluster.Follow{ID: id, Upstream: p.member("a"), Epoch: 2, Name: p.member("b")}
	})
	p.until(15*time.Second, func() error {
		if d, _ := p.do("b", func(id uint64) cluster.Effect { return cluster.InspectWAL{ID: id} }); !d.Postgres.NeedsClone {
			return errNotYet
		}
		return nil
	})
	p.clone("b", "a")
	p.follow("b", "a", 2)
	if d, _ := p.do("b", func(id uint64) cluster.Effect { return cluster.InspectWAL{ID: id} }); d.Postgres.NeedsClone {
		t.Fatal("a new directory needs no clone")
	}
}

// TestRecloneEnded: a clone that a stop ends leaves the old directory, and
// nothing that the next attempt minds.
func TestRecloneEnded(t *testing.T) {
	p := newPeers(t, "a", "b")
	p.begin("a", "b")
	p.exec("a", "INSERT INTO public.t (v) SELECT repeat('x', 7000) FROM generate_series(1, 6000)")
	b := p.all["b"]
	was := b.Incarnation()
	answer := make(chan cluster.Done, 1)
	b.Begin(cluster.Reclone{ID: 1 << 40, Upstream: p.member("a"), Name: cluster.Member{Node: "b"}}, func(e cluster.Event) {
		if d, ok := e.(cluster.Done); ok {
			answer <- d
		}
	})
	p.until(20*time.Second, func() error {
		if !exists(filepath.Join(b.newDir(), "base")) {
			return errNotYet
		}
		return nil
	})
	p.do("b", func(id uint64) cluster.Effect { return cluster.StopPostgres{ID: id, Immediate: true} })
	if d := <-answer; d.OK {
		t.Fatal("it was not ended")
	}
	if b.Incarnation() != was || directoryIncarnation(b.cfg.DataDir) != was {
		t.Fatal("the old directory is gone")
	}
	p.clone("b", "a")
	if b.Incarnation() == was || directoryIncarnation(b.cfg.DataDir) != b.Incarnation() {
		t.Fatalf("incarnation %d in the directory, %d in the state, %d before", directoryIncarnation(b.cfg.DataDir), b.Incarnation(), was)
	}
	p.follow("b", "a", 2)
	for _, dir := range []string{b.newDir(), b.oldDir()} {
		if exists(dir) {
			t.Errorf("%s is left", dir)
		}
	}
	var n int
	if err := p.all["a"].session(t.Context(), func(c *pgx.Conn) error {
		return c.QueryRow(t.Context(), "SELECT count(*) FROM pg_replication_slots").Scan(&n)
	}); err != nil || n != 1 {
		t.Fatalf("%d slots at the primary, want the one in use: %v", n, err)
	}
}
