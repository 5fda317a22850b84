package experiment

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/history"
	"github.com/holdfast-db/holdfast/internal/lab/driver"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
)

// spec is what a study that says no more asks for.
func spec(t *testing.T, yaml string) config.Experiment {
	t.Helper()
	s, err := config.ParseStudy("x", []byte("study: x\nsetups: [{setup: pg-any1}]\nexperiments: [{"+yaml+"}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	return s.Experiments[0]
}

// TestGroups: which faults fit how many hosts, and what they stand under in
// run.json. Those of power-off are what earlier runs have.
func TestGroups(t *testing.T) {
	for _, c := range []struct {
		yaml   string
		hosts  int
		want   int
		fault  string // of the last group
		params Params // which the last group has, among others
		heals  time.Duration
	}{
		{"experiment: power-off", 3, 1, "host-power", Params{"lag_ms": 0, "seconds": 5.0, "after_s": 5.0, "writers": 4, "rate": 0.0, "payload_bytes": 64}, 0},
		{"experiment: power-off, lag_ms: [0, 1500]", 1, 1, "host-power", Params{"lag_ms": 0}, 0},
		{"experiment: power-off, lag_ms: [0, 1500], repeat_in_load: 3", 3, 2, "host-power", Params{"lag_ms": 1500, "repeat_in_load": 3}, 0},
		{"experiment: host-lost, reads: 0.1", 1, 1, "host-lost", Params{"reads": 0.1}, 0},
		{"experiment: restart", 1, 1, "restart", nil, 0},
		{"experiment: standby-power-off", 1, 0, "", nil, 0},
		{"experiment: standby-power-off", 2, 1, "standby-power", nil, 0},
		{"experiment: lose-standbys", 1, 0, "", nil, 0},
		{"experiment: lose-standbys", 2, 1, "standby-power", Params{"standbys": 1, "hold_s": 3.0}, 0},
		{"experiment: lose-standbys", 3, 2, "standby-power", Params{"standbys": 2}, 0},
		{"experiment: all-off", 1, 1, "all-power", nil, 0},
		{"experiment: all-off", 3, 2, "all-power", Params{"order": "seeded"}, 0},
		{"experiment: freeze", 1, 1, "freeze", Params{"promote": false}, 0},
		{"experiment: freeze, hold: 7", 3, 2, "freeze", Params{"promote": true, "hold_s": 7.0}, 0},
		{"experiment: partition", 1, 3, "partition", Params{"ways": "to-primary", "promote": false, "drivers": 2}, 0},
		{"experiment: partition, promote: [false]", 3, 3, "partition", Params{"promote": false, "drivers": 1}, 0},
		{"experiment: partition, ways: [both], repeat_in_load: 2", 3, 2, "partition", Params{"promote": true, "drivers": 2}, 0},
		{"experiment: restart", 3, 0, "", nil, time.Second},
		{"experiment: freeze, targets: [host, agent]", 3, 2, "freeze", Params{"promote": true}, 0},
		{"experiment: freeze, targets: [host, agent]", 3, 4, "freeze", Params{"promote": true, "target": "agent", "heals_s": 30.0}, 30 * time.Second},
		{"experiment: partition, targets: [standby]", 2, 0, "", nil, 0},
		{"experiment: partition, targets: [primary, standby]", 3, 7, "standby-partition", Params{"target": "standby", "drivers": 1}, 0},
		{"experiment: lose-standbys, targets: [postgres]", 3, 0, "", nil, 0},
		{"experiment: lose-standbys, targets: [host, postgres]", 3, 4, "standby-postgres", Params{"standbys": 2, "target": "postgres"}, time.Second},
		{"experiment: postgres-kill", 1, 1, "postgres-kill", nil, 0},
		{"experiment: double-failure", 2, 0, "", nil, 0},
		{"experiment: double-failure, targets: [standby, successor]", 3, 2, "double-failure", Params{"target": "successor"}, 0},
		{"experiment: disk-full", 1, 1, "disk-full", Params{"hold_s": 3.0}, 0},
		{"experiment: disk-hang", 1, 1, "disk-hang", nil, 0},
		{"experiment: switchover", 3, 0, "", nil, 0},
		{"experiment: switchover", 3, 1, "switchover", nil, time.Second},
		{"experiment: cancel-storm", 1, 0, "", nil, 0},
		{"experiment: cancel-storm", 3, 1, "cancel-storm", nil, 0},
		{"experiment: nemesis", 3, 0, "", nil, 0},
		{"experiment: nemesis", 3, 1, "nemesis", Params{"hold_s": 60.0}, 2 * time.Second},
	} {
		s := spec(t, c.yaml)
		e, err := Find(s.Experiment)
		if err != nil {
			t.Fatal(err)
		}
		gs := e.Groups(s, setup.Kind{Hosts: c.hosts, Heals: c.heals})
		if len(gs) != c.want {
			t.Errorf("%s on %d hosts: %d groups, want %d", c.yaml, c.hosts, len(gs), c.want)
			continue
		}
		if len(gs) == 0 {
			continue
		}
		last := gs[len(gs)-1]
		for k, v := range c.params {
			if last[k] != v {
				t.Errorf("%s on %d hosts: %s is %v, want %v", c.yaml, c.hosts, k, last[k], v)
			}
		}
		if f := e.(drill).fault(last); f.Kind() != c.fault {
			t.Errorf("%s: fault %s, want %s", c.yaml, f.Kind(), c.fault)
		} else if _, again := last["repeat_in_load"]; again && f.TakesOverLiving() {
			t.Errorf("%s: the primary is beside the second driver once only", c.yaml)
		}
		if d := e.Estimate(s, last); d < 5*time.Second || d > 10*time.Minute {
			t.Errorf("%s: estimated at %s", c.yaml, d)
		}
	}
	// Nothing that was not asked for: groups of older runs stay the same.
	if p := powerOff().Groups(spec(t, "experiment: power-off"), setup.Kind{Hosts: 3})[0]; len(p) != 6 {
		t.Errorf("power-off has the params %v", p)
	}
}

// tape is a history that is not in a file.
type tape struct{ events []history.Event }

func (r *tape) Next(e *history.Event) error {
	if len(r.events) == 0 {
		return io.EOF
	}
	*e, r.events = r.events[0], r.events[1:]
	return nil
}

func (r *tape) write(id uint64, sent, at time.Duration, o history.Outcome) {
	r.events = append(r.events, history.Event{Kind: history.KindIntent, ID: id, At: sent}, history.Event{Kind: history.KindOutcome, ID: id, At: at, Outcome: o})
}

// TestLook: acks count for the strike that their write was sent after, and only
// those of the driver on the client's host say that writes work again.
func TestLook(t *testing.T) {
	var r tape
	r.write(1, 5, 12, history.Acked) // sent before the first strike
	r.write(besideIDs, 11, 12, history.Acked)
	r.write(2, 13, 14, history.Unknown)
	r.write(3, 15, 18, history.Acked)
	r.write(4, 19, 25, history.Acked) // acked after the first strike has ended
	r.write(5, 31, 35, history.Acked)
	seen, err := look(&r, []window{{10, 20}, {30, -1}, {40, 50}})
	if err != nil {
		t.Fatal(err)
	}
	want := []watched{{firstAck: 18, outside: 1, beside: 1}, {firstAck: 35}, {firstAck: -1}}
	if !slices.Equal(seen, want) {
		t.Errorf("%+v, want %+v", seen, want)
	}
}

// TestOutside: without the writes beside a primary that was cut off, the gap
// that everybody else had is there.
func TestOutside(t *testing.T) {
	name := HistoryFile("1")
	dir := t.TempDir()
	w, err := history.Create(filepath.Join(mkdir(t, dir, "histories"), "1.history"), time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	add := func(e history.Event) {
		if err := w.Append(&e); err != nil {
			t.Fatal(err)
		}
	}
	id, beside := uint64(outsideIDs), uint64(besideIDs)
	for ms := time.Duration(0); ms < 3000; ms += 10 {
		at := ms * time.Millisecond
		if ms == 1000 {
			add(history.Event{Kind: history.KindMark, At: at, Text: history.MarkCut})
		}
		ids := []*uint64{&beside}
		if ms < 1000 || ms >= 1800 {
			ids = append(ids, &id)
		}
		for _, i := range ids {
			add(history.Event{Kind: history.KindIntent, At: at, ID: *i})
			add(history.Event{Kind: history.KindOutcome, At: at, ID: *i, Outcome: history.Acked})
			*i++
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[uint64]float64{besideIDs: 800, 1 << 62: 0} {
		f, err := findings(dir, name, limit, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if f.Gaps.FirstAckMs == nil || *f.Gaps.FirstAckMs != want {
			t.Errorf("ids below %d: first ack after %v ms, want %v", limit, f.Gaps.FirstAckMs, want)
		}
	}
}

// named is a host of which only the name matters.
type named struct {
	place.Host
	name string
}

func (n named) Name() string { return n.name }

// TestReturning: every order of hosts comes up, and the stalest is first where
// that is asked for.
func TestReturning(t *testing.T) {
	all := []place.Host{named{name: "a"}, named{name: "b"}, named{name: "c"}}
	count := func(order string) map[string]int {
		seen := map[string]int{}
		for seed := range uint64(200) {
			hs := returning(order, seed, all, all[2])
			if again := returning(order, seed, all, all[2]); hostNames(hs) != hostNames(again) {
				t.Fatalf("seed %d: %s and %s", seed, hostNames(hs), hostNames(again))
			}
			seen[hostNames(hs)]++
		}
		return seen
	}
	if seen := count(seeded); len(seen) != 6 {
		t.Errorf("orders %v, want all six", seen)
	}
	if seen := count(stalestFirst); len(seen) != 2 || seen["c, a, b"] == 0 || seen["c, b, a"] == 0 {
		t.Errorf("with the stalest first: %v", seen)
	}
}

// TestBeside: the second driver knows its own server only, shares no id with
// the first, and waits for its intents.
func TestBeside(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := driver.Config{
			Targets: []string{"10.0.0.1:5432", "10.0.0.2:5432"}, IDBase: outsideIDs, Collector: "x",
			Writers: rapid.IntRange(1, 9).Draw(rt, "writers"), Rate: rapid.Float64Range(0, 100).Draw(rt, "rate"),
			ReadShare: rapid.SampledFrom([]float64{0, 0.1}).Draw(rt, "reads"),
		}
		b := besideConfig(c, addressed{addr: "10.0.0.2"}, "/run/s")
		if !slices.Equal(b.Targets, []string{"10.0.0.2:5432"}) || !b.ConfirmIntents || b.Collector != "/run/s" || b.IDBase <= c.IDBase {
			rt.Fatalf("%+v", b)
		}
		if b.Writers < 1 || (b.Rate == 0) != (c.Rate == 0) || (b.ReadShare == 0) != (c.ReadShare == 0) {
			rt.Fatalf("%+v of %+v", b, c)
		}
	})
}

type addressed struct {
	place.Host
	addr string
}

func (a addressed) Addr() string { return a.addr }

// TestListeners: connections to any of them are accepted, one of them may go,
// and nothing is left when they are closed.
func TestListeners(t *testing.T) {
	var all []net.Listener
	for range 2 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ln)
	}
	l := join(all...)
	t.Cleanup(func() { _ = l.Close() })
	if l.Addr() != all[0].Addr() {
		t.Errorf("address %s", l.Addr())
	}
	reach := func(ln net.Listener) {
		t.Helper()
		var d net.Dialer
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		c, err := d.DialContext(ctx, "tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		got, err := l.Accept()
		if err != nil || got.RemoteAddr().String() != c.LocalAddr().String() {
			t.Fatalf("accepted %v, %v", got, err)
		}
		_ = got.Close()
	}
	reach(all[0])
	reach(all[1])
	if err := all[1].Close(); err != nil { // its host lost its power
		t.Fatal(err)
	}
	reach(all[0])
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Errorf("close: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
}

// TestPromisesOfFaults: what nobody has a copy of may be lost, and what comes
// back with its disk may not.
func TestPromisesOfFaults(t *testing.T) {
	const nothing, unbounded = "nothing", "unbounded"
	faults := []setup.Fault{setup.HostPower, setup.HostLost, setup.StandbyPower, setup.AllPower, setup.Restart, setup.Freeze, setup.FreezeTakeover, setup.Partition, setup.PartitionTakeover,
		setup.PostgresKill, setup.StandbyPostgres, setup.StandbyPartition, setup.DoubleFailure, setup.DiskFull, setup.DiskHang, setup.Switchover, setup.CancelStorm, setup.Nemesis}
	may := map[string][]setup.Fault{
		"pg-single":     {setup.HostLost},
		"pg-logical":    {setup.HostLost},
		"pg-fsync-off":  {setup.HostLost},
		"pg-commit-off": {setup.HostLost},
		"pg-lying-disk": {setup.HostLost},
		"pg-async":      {setup.HostPower, setup.HostLost, setup.DoubleFailure, setup.CancelStorm, setup.FreezeTakeover, setup.PartitionTakeover, setup.Nemesis},
	}
	for _, k := range setup.All() {
		for _, f := range faults {
			want := nothing
			if slices.Contains(may[k.Name], f) {
				want = unbounded
			}
			if b := k.New().Promise(f); b.Lose != want {
				t.Errorf("%s under %s may lose %s, want %s", k.Name, f, b.Lose, want)
			}
		}
	}
}

func mkdir(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestInstanceVolume: a power cut takes an instance store's data with it, so it
// is held against the promise for a lost host.
func TestInstanceVolume(t *testing.T) {
	for volume, want := range map[place.VolumeKind]setup.Fault{place.HostBound: setup.HostPower, place.Instance: setup.HostLost} {
		tr := &trial{drill: powerOff(), env: Env{Volume: volume}}
		if got := tr.fault(); got != want {
			t.Errorf("a power cut with a volume that is %s is %s, want %s", volume, got, want)
		}
	}
}
