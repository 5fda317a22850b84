package instance

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance/wal"
)

func TestReceives(t *testing.T) {
	for title, want := range map[string]receiverState{
		"postgres: walreceiver ":                                  receiver,
		"postgres: walreceiver streaming 0/3000148":               receiver,
		"postgres: trial: walreceiver streaming 0/3000148":        receiver,
		"postgres: startup recovering 000000010000000000000003":   notReceiver,
		"postgres: walsender holdfast_replication 127.0.0.1(1) s": notReceiver,
		"postgres: app app 127.0.0.1(4711) idle":                  notReceiver,
		"/usr/lib/postgresql/15/bin/postgres -D /data":            unborn,
		"": notReceiver,
	} {
		if got := receives(title, "trial"); got != want {
			t.Errorf("%q is %d, want %d", title, got, want)
		}
	}
}

var chain = []cluster.Branch{{Epoch: 1, Timeline: 1}, {Epoch: 3, Timeline: 4, Fork: 0x3800000}, {Epoch: 7, Timeline: 9, Fork: 0x5000000}}

func TestMayRestore(t *testing.T) {
	const size = 16 << 20
	for name, ok := range map[string]bool{
		"000000010000000000000001":         true,
		"000000010000000000000002":         true,
		"000000010000000000000003":         false, // the fork is within it: what comes after is another history's
		"000000010000000000000004":         false,
		"000000040000000000000003":         true,
		"000000040000000000000004":         true, // it ends where timeline 9 begins
		"000000040000000000000005":         false,
		"000000090000000000000005":         true,
		"000000090000000000000009":         true,
		"000000020000000000000002":         false,
		"00000004.history":                 true,
		"00000005.history":                 false,
		"../../etc/passwd":                 false,
		"0000000100000000000000010":        false,
		"000000010000000000000001.partial": false,
	} {
		if err := mayRestore(chain, name, size); (err == nil) != ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRestore(t *testing.T) {
	run, state := t.TempDir(), t.TempDir()
	i := &Instance{cfg: Config{RunDir: run, StateDir: state}}
	const good, beyond = "000000010000000000000002", "000000010000000000000003"
	dir := filepath.Join(i.asideDir(), "20260101T000000")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{good, beyond} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Truncate(16<<20), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	target := filepath.Join(run, "target")
	if err := Restore(run, state, good, target); !errors.Is(err, ErrNotRestored) {
		t.Fatalf("the register's history is not known yet: %v", err)
	}
	if err := i.SetChain(chain); err != nil {
		t.Fatal(err)
	}
	i.cfg.Exe = "/opt/it's/holdfast"
	if got, want := i.restoreCommand(), `'/opt/it'\''s/holdfast' wal-restore --run-dir '`+run+`' --state-dir '`+state+`' %f "%p"`; got != want {
		t.Fatalf("restore_command is %s, want %s", got, want)
	}
	if err := Restore(run, state, beyond, target); !errors.Is(err, ErrNotRestored) || exists(target) {
		t.Fatalf("beyond the fork: %v", err)
	}
	if err := Restore(run, state, "000000010000000000000001", target); !errors.Is(err, ErrNotRestored) {
		t.Fatalf("what is not there: %v", err)
	}
	if err := Restore(run, state, good, target); err != nil || !exists(target) {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, good)); err != nil {
		t.Fatal(err)
	}
	if got := i.restoreCommand(); got != "" {
		t.Fatalf("nothing that is kept may be restored, and restore_command is %s", got)
	}
	text, err := os.ReadFile(filepath.Join(run, forksName))
	if err != nil {
		t.Fatal(err)
	}
	again, err := readForks(string(text))
	if err != nil || len(again) != len(chain) || again[2].Fork != chain[2].Fork || again[2].Timeline != 9 {
		t.Fatalf("%v: %v", again, err)
	}
}

func FuzzForks(f *testing.F) {
	f.Add("1 0/0\n4 0/3800000\n", "000000010000000000000001")
	f.Fuzz(func(t *testing.T, text, name string) {
		c, err := readForks(text)
		if err != nil {
			return
		}
		if mayRestore(c, name, 16<<20) == nil && len(c) == 0 {
			t.Fatalf("%q is restored on no history", name)
		}
	})
}

func FuzzWaldump(f *testing.F) {
	f.Add("pg_waldump: error: error in WAL record at 0/3000148: invalid record length at 0/3000180: wanted 24, got 0")
	f.Fuzz(func(t *testing.T, said string) {
		if at, ok := waldumpStop(said); !ok && at != 0 {
			t.Fatalf("%q", said)
		}
	})
}

func TestWaldumpStop(t *testing.T) {
	for _, said := range []string{"pg_waldump: error: error in WAL record at 0/3000148: invalid record length at 0/3000180: wanted 24, got 0",
		"pg_waldump: fatal: error in WAL record at 0/3000148: x"} { // 13, 14
		if at, ok := waldumpStop(said); !ok || at != 0x3000148 {
			t.Errorf("%q: %s", said, wal.Text(at))
		}
	}
	if _, ok := waldumpStop("pg_waldump: error: could not open file"); ok {
		t.Error("no record is named there")
	}
}

func TestContinues(t *testing.T) {
	one, two := chain[:1], []cluster.Branch{{Timeline: 1}, {Timeline: 4, Fork: 100}}
	for _, c := range []struct {
		mine   []cluster.Branch
		end    cluster.LSN
		theirs []cluster.Branch
		want   bool
	}{
		{[]cluster.Branch{{Timeline: 1}}, 50, []cluster.Branch{{Timeline: 1}}, true},
		{[]cluster.Branch{{Timeline: 1}}, 100, two, true},
		{[]cluster.Branch{{Timeline: 1}}, 101, two, false},
		{two, 150, []cluster.Branch{{Timeline: 1}}, false},
		{two, 150, []cluster.Branch{{Timeline: 1}, {Timeline: 4, Fork: 101}}, false},
		{one, 150, nil, false},
	} {
		if got := continues(c.mine, c.end, c.theirs); got != c.want {
			t.Errorf("%v to %d, then %v: %v", c.mine, c.end, c.theirs, got)
		}
	}
}

// TestReserve: whatever the files are called, they name ancestors only, and the
// numbers below the new one are taken.
func TestReserve(t *testing.T) {
	dir := t.TempDir()
	i := &Instance{cfg: Config{DataDir: dir}}
	if err := os.Mkdir(filepath.Join(dir, "pg_wal"), 0o700); err != nil {
		t.Fatal(err)
	}
	h := []cluster.Branch{{Timeline: 1}, {Timeline: 3, Fork: 0x100}, {Timeline: 5, Fork: 0x200}}
	flushed, err := i.reserve(h, 8)
	if err = errors.Join(err, flushed()); err != nil {
		t.Fatal(err)
	}
	for n := cluster.Timeline(2); n < 8; n++ {
		b, err := os.ReadFile(filepath.Join(dir, "pg_wal", wal.HistoryName(n)))
		if err != nil {
			t.Fatal(err)
		}
		want := []cluster.Branch{{Timeline: n}}
		if n == 3 || n == 5 {
			want = h[:(n+1)/2]
		}
		got, reserved, err := wal.ParseHistory(n, b)
		if err != nil || !slices.Equal(got, want) || reserved != (len(want) == 1) {
			t.Errorf("%d: %v (reserved %v), want %v: %v", n, got, reserved, want, err)
		}
	}
	if exists(filepath.Join(dir, "pg_wal", wal.HistoryName(8))) {
		t.Error("the new one's own is Postgres's to write")
	}
	if err := i.tidyHistories(5, true); err != nil {
		t.Errorf("of a promotion that did not happen: %v", err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "pg_wal", "*"))
	if len(left) != 4 {
		t.Errorf("left: %v", left)
	}
}

func TestFence(t *testing.T) {
	var f fence
	before := f.pass(t.Context())
	ctx, end := before.join(t.Context())
	defer end()
	if err := before.do(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	f.raise(t.Context())
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("what was begun before goes on")
	}
	if !errors.Is(context.Cause(ctx), errEnded) {
		t.Fatalf("ended by %v", context.Cause(ctx))
	}
	if err := before.do(func() error { t.Error("it wrote"); return nil }); !errors.Is(err, errEnded) {
		t.Fatal(err)
	}
	if err := f.pass(t.Context()).do(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestConninfo(t *testing.T) {
	if got, want := conninfo("host", "a b", "x", `it's \`), `host='a b' x='it\'s \\'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestAsideBounds: the oldest goes when there is too much, and segments come in
// the order of their positions.
func TestAsideBounds(t *testing.T) {
	i := &Instance{cfg: Config{StateDir: t.TempDir()}}
	for _, name := range []string{"1", "2", "3", "4"} {
		dir := filepath.Join(i.asideDir(), name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(filepath.Join(dir, "x"))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Truncate(asideEach), f.Close()); err != nil { // sparse
			t.Fatal(err)
		}
	}
	if _, err := i.asideRoom(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(i.asideDir()); len(left) != 3 || left[0].Name() != "2" {
		t.Fatalf("left: %v", left)
	}
	dir := t.TempDir()
	for _, name := range []string{"000000010000000000000002", "000000010000000000000003", "000000040000000000000003", "000000010000000000000004", "00000004.history"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := segmentsFrom(dir, 16<<20, 0x3000001, 0x4000000)
	if want := []string{"000000010000000000000003", "000000040000000000000003"}; err != nil || !slices.Equal(got, want) {
		t.Fatalf("%v, want %v: %v", got, want, err)
	}
}

// TestOrder: a look that began before an operation ended is not told after it.
func TestOrder(t *testing.T) {
	var o order
	var told []string
	say := func(what string) func() { return func() { told = append(told, what) } }
	early := o.begin()
	if !o.told(early, say("look")) {
		t.Error("nothing was newer")
	}
	o.newer(say("promoted"))
	if o.told(early, say("a standby")) {
		t.Error("an older look was told")
	}
	if !o.told(o.begin(), say("a primary")) {
		t.Error("a newer look was not")
	}
	if want := []string{"look", "promoted", "a primary"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

// TestWhole: a position at a page's border may lie within a record, and counts for
// nothing that must be held.
func TestWhole(t *testing.T) {
	var x whole
	s := &server{}
	b, c := cluster.Member{Node: "b", Incarnation: 1}, cluster.Member{Node: "c", Incarnation: 2}
	look := func(s *server, flushed, ofB, ofC, end, wantB, wantC cluster.LSN) {
		t.Helper()
		senders := []cluster.Sender{{Member: b, Named: true, Flush: ofB}, {Named: false, Flush: 5 * pageSize}, {Member: c, Named: true, Flush: ofC}}
		if got := x.end(s, flushed, senders); got != end || senders[0].Flush != wantB || senders[2].Flush != wantC {
			t.Errorf("flushed %d, b %d, c %d: end %d, b %d, c %d; want %d, %d, %d", flushed, ofB, ofC, got, senders[0].Flush, senders[2].Flush, end, wantB, wantC)
		}
		if senders[1].Flush != 5*pageSize {
			t.Error("a stranger's position was changed")
		}
	}
	look(s, 100, 90, 0, 100, 90, 0)
	look(s, 2*pageSize, 2*pageSize, pageSize, 100, 90, 0) // all at borders
	look(s, 2*pageSize+40, 2*pageSize, 120, 2*pageSize+40, 90, 120)
	look(s, 2*pageSize+40, 2*pageSize+80, 120, 2*pageSize+80, 2*pageSize+80, 120) // b was asked later
	look(&server{}, 3*pageSize, 3*pageSize, 130, 3*pageSize, 0, 130)              // another run: nothing is known yet
}
