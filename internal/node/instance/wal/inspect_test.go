package wal

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/pgbench/pgtest"
)

// crashed is a data directory whose server was killed, with WAL since its last
// checkpoint. It is made once, and copied by the tests.
func crashed(t *testing.T) (*pgtest.Server, string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Postgres")
	}
	s := pgtest.Start(t, "fsync=off", "max_wal_size=2GB", "checkpoint_timeout=1h", "autovacuum=off", "bgwriter_delay=10s", "full_page_writes=on")
	c, err := pgx.Connect(t.Context(), s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	for _, q := range []string{
		"CREATE TABLE t (id int, v text)",
		"INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 2000) g",
		"SELECT pg_switch_wal()", // the rest of a segment is left out
		"INSERT INTO t SELECT g, repeat('y', 100) FROM generate_series(1, 3000) g",
		"SELECT pg_logical_emit_message(false, 'big', repeat('z', 300000))", // one record over many pages
		"INSERT INTO t SELECT g, repeat('v', g % 300) FROM generate_series(1, 500) g",
	} {
		if _, err := c.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	s.Kill()
	return s, filepath.Join(s.Socket, "data")
}

// copyDir copies what Inspect looks at.
func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	for _, d := range []string{"pg_wal", "global"} {
		if err := os.CopyFS(filepath.Join(to, d), os.DirFS(filepath.Join(from, d))); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// waldump is what pg_waldump reads from start on: where the last record begins,
// how many there are, and what it says in the end.
func waldump(t *testing.T, s *pgtest.Server, data string, start cluster.LSN, tl cluster.Timeline) (last cluster.LSN, n int, end string) {
	t.Helper()
	cmd := s.Command(t.Context(), "pg_waldump", "-p", filepath.Join(data, "pg_wal"), "-t", fmt.Sprint(tl), "-s", Text(start))
	cmd.SysProcAttr.Credential = nil
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	for line := range strings.Lines(out.String()) {
		_, rest, ok := strings.Cut(line, ", lsn: ")
		if !ok {
			continue
		}
		text, _, _ := strings.Cut(rest, ",")
		l, err := ParseLSN(text)
		if err != nil {
			t.Fatal(err)
		}
		last, n = l, n+1
	}
	return last, n, errs.String()
}

func inspect(t *testing.T, data string, o Options) Report {
	t.Helper()
	r, err := Inspect(data, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestInspect(t *testing.T) {
	s, data := crashed(t)
	whole := inspect(t, data, Options{Sync: true})
	last, n, said := waldump(t, s, data, whole.Start, 1)
	t.Logf("ends at %s (%s); pg_waldump read %d records: %s", Text(whole.End), whole.Why, n, said)
	if whole.Last != last || n < 100 {
		t.Fatalf("last record at %s, pg_waldump says %s", Text(whole.Last), Text(last))
	}
	if at := align(uint64(whole.End)); uint64(whole.End) != at || !strings.Contains(said, Text(whole.End)) {
		t.Fatalf("ends at %s, pg_waldump: %s", Text(whole.End), said)
	}
	if whole.Replayable != whole.End || len(whole.History) != 1 || whole.History[0].Timeline != 1 {
		t.Fatalf("%+v", whole)
	}
	t.Run("from a hint", func(t *testing.T) {
		for _, back := range []cluster.LSN{0, 8, 1000, 8192, 100000, 400000} {
			at := time.Now()
			got := inspect(t, data, Options{From: whole.End - back, Sync: true})
			t.Logf("%d bytes back: %v", back, time.Since(at).Round(10*time.Microsecond))
			if got.End != whole.End || got.Replayable != whole.End || got.Last != last {
				t.Fatalf("from %d bytes before the end: %+v", back, got)
			}
		}
	})
	t.Run("from behind a switch", func(t *testing.T) {
		for at := (uint64(whole.Start)/whole.SegSize + 1) * whole.SegSize; at < uint64(whole.End); at += whole.SegSize {
			if got := inspect(t, data, Options{From: cluster.LSN(at)}); got.End != whole.End || got.Replayable != whole.End {
				t.Fatalf("from %s: %+v", Text(cluster.LSN(at)), got)
			}
		}
	})
	t.Run("a live receiver", func(t *testing.T) {
		for cut := cluster.LSN(0); cut < 60000; cut += 997 {
			got := inspect(t, data, Options{Received: whole.End - cut, From: whole.End - 70000, Live: true})
			if got.End > whole.End-cut || got.End != got.Replayable {
				t.Fatalf("received up to %s, reports %s", Text(whole.End-cut), Text(got.End))
			}
		}
	})
	t.Run("cut anywhere", func(t *testing.T) { cutAnywhere(t, s, data, whole) })
	t.Run("damage", func(t *testing.T) { damage(t, data, whole) })
	t.Run("gap", func(t *testing.T) { gap(t, data, whole) })
}

// edit changes bytes of WAL.
func edit(t *testing.T, data string, size uint64, at cluster.LSN, b []byte) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(data, "pg_wal", Segment{1, uint64(at) / size}.Name(size)), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, int64(uint64(at)%size)); err != nil {
		t.Fatal(err)
	}
}

// cutAnywhere has WAL end at any byte, as after a loss of power: the last whole
// record before it is the end, and nothing is taken for damage.
func cutAnywhere(t *testing.T, s *pgtest.Server, data string, whole Report) {
	d := copyDir(t, data)
	rnd := rand.New(rand.NewPCG(1, 2))
	at := whole.End
	for range 40 {
		at -= cluster.LSN(1 + rnd.IntN(3000))
		edit(t, d, whole.SegSize, at, make([]byte, whole.End-at))
		got := inspect(t, d, Options{})
		if uint64(got.End) > align(uint64(at)) || got.Replayable != got.End || got.Debris != 0 {
			t.Fatalf("cut at %s: ends at %s, replayable %s", Text(at), Text(got.End), Text(got.Replayable))
		}
		if last, _, said := waldump(t, s, d, whole.Start, 1); last != got.Last {
			t.Fatalf("cut at %s: last record %s, pg_waldump %s: %s", Text(at), Text(got.Last), Text(last), said)
		}
		got = inspect(t, d, Options{From: got.Last, Received: at})
		if got.Replayable != got.End {
			t.Fatalf("cut at %s, and received so: the beginning of a record is taken for damage: %+v", Text(at), got)
		}
	}
}

// damage flips one byte: replay ends before it, the rest is still held.
func damage(t *testing.T, data string, whole Report) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 12 {
		d := copyDir(t, data)
		// Behind the record that spans pages no page has room for a new beginning.
		at := whole.End - 30000 - cluster.LSN(rnd.IntN(20000))
		b := make([]byte, 1)
		f, err := os.Open(filepath.Join(d, "pg_wal", Segment{1, uint64(at) / whole.SegSize}.Name(whole.SegSize)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.ReadAt(b, int64(uint64(at)%whole.SegSize)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		b[0] ^= 0x55
		edit(t, d, whole.SegSize, at, b)
		for _, o := range []Options{{}, {From: at - 9000, Received: whole.End}} {
			got := inspect(t, d, o)
			if got.Replayable == whole.End {
				continue // between two records, where nothing is read
			}
			if got.Replayable > at || got.End != whole.End {
				t.Fatalf("damage at %s: replayable %s, ends at %s, want %s (%s)", Text(at), Text(got.Replayable), Text(got.End), Text(whole.End), got.Why)
			}
		}
	}
}

// gap loses pages that were never flushed: after a loss of power what lies
// beyond proves nothing, unless a later segment was begun.
func gap(t *testing.T, data string, whole Report) {
	d := copyDir(t, data)
	at := (whole.End - 30000) &^ (blockSize - 1)
	edit(t, d, whole.SegSize, at, make([]byte, blockSize))
	if got := inspect(t, d, Options{}); got.End != whole.End || got.Replayable > at {
		t.Fatalf("without a loss of power that is damage: %+v", got)
	}
	got := inspect(t, d, Options{Fresh: true})
	if got.End > at || got.Replayable != got.End || got.Debris != whole.End {
		t.Fatalf("after a loss of power it is the end: %+v", got)
	}
	if again := inspect(t, d, Options{Debris: got.Debris}); again.End != got.End || again.Replayable != got.End {
		t.Fatalf("known debris proves nothing: %+v", again)
	}
	first := (whole.Start &^ (blockSize - 1)) + 3*blockSize // in a segment before
	if uint64(first)/whole.SegSize == uint64(at)/whole.SegSize {
		t.Fatalf("the test's WAL begins too late: %s", Text(whole.Start))
	}
	edit(t, d, whole.SegSize, first, make([]byte, blockSize))
	if got := inspect(t, d, Options{Fresh: true}); got.Replayable > first || got.End <= first {
		t.Fatalf("a gap in a segment that was flushed is damage: %+v", got)
	}
}
