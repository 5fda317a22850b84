package diagnose

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// scene builds evidence: what is seen in each sample, and what is counted in each second.
type scene struct {
	e     Evidence
	tps   float64
	reads float64
}

func client(n int, state, typ, event string) Group {
	return Group{Backend: clientBackend, State: state, Type: typ, Event: event, N: n}
}

// newScene is 20 s at ten samples a second; groups of each sample come from see.
func newScene(tps, reads float64, see func(i int) []Group) *scene {
	s := &scene{tps: tps, reads: reads}
	s.e = Evidence{Asked: 50 * time.Millisecond, PingMs: ptr(0.05), Server: Server{Role: "primary", Major: 15, User: "mona", Database: "app"}}
	for i := range 200 {
		s.e.Samples = append(s.e.Samples, Sample{At: time.Duration(i) * 100 * time.Millisecond, Took: time.Millisecond, Groups: see(i)})
	}
	for i := range 21 {
		t := float64(i)
		s.e.Ticks = append(s.e.Ticks, Tick{At: time.Duration(i) * time.Second, OwnXacts: 11 * i, Xacts: 1000 + t*(tps+11), Reads: t * reads, Hits: t * 9 * reads, LSN: ptr(t * tps * 300)})
	}
	s.e.Begin = &Snapshot{Views: map[string][]Row{}}
	s.e.End = &Snapshot{At: 20 * time.Second, Views: map[string][]Row{}}
	return s
}

// counter has a view's column grow by so much over the window.
func (s *scene) counter(view, column string, grown float64) *scene {
	for _, at := range []struct {
		snap *Snapshot
		v    float64
	}{{s.e.Begin, 100}, {s.e.End, 100 + grown}} {
		if len(at.snap.Views[view]) == 0 {
			at.snap.Views[view] = []Row{{}}
		}
		at.snap.Views[view][0][column] = at.v
	}
	return s
}

func (s *scene) setting(name, value string) *scene {
	s.e.Begin.Views["settings"] = append(s.e.Begin.Views["settings"], Row{"name": name, "setting": value})
	return s
}

func (s *scene) at(snap *Snapshot, view string, row Row) *scene {
	snap.Views[view] = append(snap.Views[view], row)
	return s
}

func (s *scene) onHost(cores int) *scene {
	s.e.Host = &HostEvidence{Cores: cores, Begin: HostCounters{}, End: HostCounters{At: 20 * time.Second}}
	return s
}

func always(g ...Group) func(int) []Group { return func(int) []Group { return g } }

const idleFor = "idle"

func TestVerdict(t *testing.T) {
	flushing := always(client(6, "active", "LWLock", "WALWrite"), client(1, "active", "IO", "WALSync"), client(1, "active", "", ""))
	quickIdle := Group{Backend: clientBackend, State: idleFor, Idle: IdleBrief, N: 1}
	thinking := Group{Backend: clientBackend, State: idleFor, Idle: IdleSome, N: 9}
	vary := func(i int) []Group { // between 2 and 10 wait for pages, in turns of 4 s
		n := 2
		if i/40%2 == 1 {
			n = 10
		}
		return []Group{client(n, "active", "IO", "DataFileRead")}
	}
	for _, c := range []struct {
		name    string
		s       *scene
		cause   string
		storage string
		say     string
	}{
		{"flush", newScene(1000, 0, flushing).counter("pg_stat_wal", "wal_sync", 7000), CauseFlush, Yes, "at 2.86 ms a flush"},
		{"flush of a local disk", newScene(8000, 0, always(client(2, "active", "LWLock", "WALWrite"), client(1, "active", "IO", "WalSync"), client(1, "active", "", ""))).
			counter("pg_stat_wal", "wal_sync", 60000), CauseNone, No, "no bottleneck"},
		{"flush by O_DSYNC", newScene(1000, 0, always(client(6, "active", "LWLock", "WALWrite"), client(1, "active", "IO", "WALWrite"))).
			counter("pg_stat_wal", "wal_write", 7000).counter("pg_stat_wal", "wal_sync", 0).setting("wal_sync_method", "open_datasync"), CauseFlush, Yes, "at 2.86 ms a flush"},
		{"reads", newScene(500, 4000, always(client(8, "active", "IO", "DataFileRead"), client(1, "active", "", ""))), CauseReads, Yes, "2.00 ms a page"},
		{"many quick reads", newScene(500, 90000, always(client(8, "active", "IO", "DataFileRead"), client(1, "active", "", ""))), CauseReads, No, "many reads rather than slow ones"},
		{"reads bounded by latency", varied(newScene(500, 0, vary), 400, 2000), CauseReads, Yes, "Transactions wait for pages"},
		{"reads bounded by rate", varied(newScene(500, 0, vary), 1000, 1010), CauseIOPS, Yes, "while between 2.0 and 10.0 sessions waited"},
		{"level reads in a queue", newScene(1700, 3000, always(client(29, "active", "IO", "DataFileRead"), client(10, "active", "LWLock", "WALWrite"))), CauseIOPS, Yes, "a queue, no device's latency"},
		{"replication", newScene(300, 0, always(client(7, "active", "IPC", "SyncRep"), client(1, "active", "IO", "WALSync"))), CauseReplication, No, "synchronous standby"},
		{"row locks", newScene(300, 0, always(client(14, "active", "Lock", "transactionid"), client(1, "active", "", ""))), CauseRowLocks, No, "rows that others hold"},
		{"row locks behind flushes", newScene(300, 0, always(client(14, "active", "Lock", "tuple"), client(3, "active", "IO", "WALSync"))), CauseRowLocks, No, "rows that others hold"},
		{"lightweight locks", newScene(300, 0, always(client(14, "active", "LWLock", "LockManager"), client(2, "active", "", ""))), CauseOtherLocks, No, "LWLock:LockManager"},
		{"extending a table", newScene(300, 0, always(client(14, "active", "Lock", "extend"), client(2, "active", "", ""))), CauseOtherLocks, No, "Lock:extend"},
		{"cpu", newScene(3000, 0, always(client(9, "active", "", ""))).onHost(4), CauseCPU, No, "wanted one of 4.00 processors"},
		{"cpu to spare", newScene(3000, 0, always(client(2, "active", "", ""))).onHost(16), CauseCPUWork, No, "processors were not short"},
		{"cpu, seen from elsewhere", newScene(3000, 0, always(client(2, "active", "", ""))), CauseCPUWork, No, ""},
		{"client", newScene(200, 0, always(client(1, "active", "", ""), thinking)), CauseClient, No, "of 10.0 sessions that ran something lately, 1.00 were in a statement"},
		{"client in its transaction", newScene(200, 0, always(client(1, "active", "", ""), Group{Backend: clientBackend, State: "idle in transaction", Idle: IdleBrief, N: 9})), CauseClient, No, "waits for its clients"},
		{"no thinking", newScene(3000, 0, always(client(6, "active", "", ""), quickIdle)).onHost(4), CauseCPU, No, ""},
		{"data writes", newScene(100, 0, always(client(5, "active", "IO", "DataFileExtend"), client(1, "active", "", ""))), CauseWrites, Yes, "write data files themselves"},
		{"temporary files", newScene(100, 0, always(client(5, "active", "IO", "BufFileWrite"), client(1, "active", "", ""))), CauseWrites, Yes, "work_mem"},
		{"checkpoints", newScene(600, 0, storm).counter("pg_stat_bgwriter", "checkpoints_req", 6).counter("pg_stat_bgwriter", "checkpoints_timed", 0).counter("pg_stat_wal", "wal_fpi", 15000),
			CauseCheckpoints, Yes, "6 were forced"},
		{"checkpoints of 17", newScene(600, 0, storm).counter("pg_stat_checkpointer", "num_requested", 6).counter("pg_stat_checkpointer", "num_timed", 0).counter("pg_stat_wal", "wal_fpi", 15000),
			CauseCheckpoints, Yes, "1.25 full pages a transaction"},
		{"idle", newScene(0, 0, always(Group{Backend: clientBackend, State: idleFor, N: 5})), CauseIdle, No, "nothing to diagnose"},
		{"something else", newScene(100, 0, always(client(5, "active", "Extension", "Extension"))), CauseUnknown, CantTell, "Extension:Extension"},
		{"few that wait long", newScene(2, 0, always(client(1, "active", "IO", "DataFileRead"), thinking)), CauseReads, Yes, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Assess(c.s.e)
			text := strings.Join(append(d.Verdict.Sentences, d.Verdict.Advice), " ")
			if d.Verdict.Cause != c.cause || d.Verdict.Storage != c.storage || !strings.Contains(text, c.say) {
				t.Errorf("%s, storage %s: %s\nwant %s, %s and %q", d.Verdict.Cause, d.Verdict.Storage, text, c.cause, c.storage, c.say)
			}
			if len(d.Verdict.Sentences) != 2 {
				t.Errorf("%d sentences", len(d.Verdict.Sentences))
			}
			sound(t, d)
		})
	}
}

// storm has a checkpoint under way nearly always.
func storm(i int) []Group {
	g := []Group{client(5, "active", "LWLock", "WALWrite"), client(2, "active", "", ""), client(1, "active", "IO", "WALSync")}
	if i%10 < 9 {
		return append(g, Group{Backend: checkpointer, Type: "IO", Event: "DataFileSync", N: 1})
	}
	return append(g, Group{Backend: checkpointer, Type: "Activity", Event: "CheckpointerMain", N: 1})
}

// varied has reads come at low a second in turns of 4 s, and at high in the others.
func varied(s *scene, low, high float64) *scene {
	total := 0.0
	for i := range s.e.Ticks {
		s.e.Ticks[i].Reads = total
		// Counters trail by half a second.
		for _, half := range []int{i*10 - 5, i * 10} {
			if half/40%2 == 1 {
				total += high / 2
			} else {
				total += low / 2
			}
		}
	}
	return s
}

// sound are what every diagnosis must be.
func sound(t interface{ Errorf(string, ...any) }, d Diagnosis) {
	if _, err := json.Marshal(d); err != nil { // it refuses NaN and infinities
		t.Errorf("%v", err)
	}
	if len(d.Symptoms) != 5 {
		t.Errorf("%d symptoms", len(d.Symptoms))
	}
	shares, sum := 0.0, 0.0
	for i, p := range d.Breakdown {
		if p.Name != PartNames()[i] {
			t.Errorf("part %d is %s", i, p.Name)
		}
		shares += p.Share
		if p.Ms != nil {
			sum += *p.Ms
			if *p.Ms < 0 {
				t.Errorf("%s takes %v ms", p.Name, *p.Ms)
			}
			if p.Lo != nil && p.Hi != nil && (*p.Lo > *p.Ms+0.01+*p.Ms*0.05 || *p.Hi < *p.Ms-0.01-*p.Ms*0.05) && p.Samples > 50 {
				t.Errorf("%s: %v is not within %v to %v", p.Name, *p.Ms, *p.Lo, *p.Hi)
			}
		}
	}
	if len(d.Breakdown) > 0 && math.Abs(shares-1) > 0.01 {
		t.Errorf("shares come to %v", shares)
	}
	if d.Ms != nil && math.Abs(sum-*d.Ms) > 0.01+0.001**d.Ms {
		t.Errorf("parts come to %v ms of %v", sum, *d.Ms)
	}
}

// TestBreakdown: ms = 1000 × sessions ÷ transactions a second, our own transactions left out.
func TestBreakdown(t *testing.T) {
	s := newScene(1000, 0, func(i int) []Group {
		return []Group{client(4, "active", "LWLock", "WALWrite"), client(i%2, "active", "", ""), client(1, "idle in transaction", "Client", "ClientRead"),
			{Backend: clientBackend, State: "idle in transaction", N: 1}, {Backend: "walwriter", Type: "IO", Event: "WALSync", N: 1}}
	})
	for i := range s.e.Samples {
		s.e.Samples[i].Groups[2].Idle = IdleBrief
	}
	d := Assess(s.e)
	if v := deref(d.Rates.TPS); math.Abs(v-1000) > 0.1 {
		t.Errorf("%v transactions a second: ours do not count", v)
	}
	for name, want := range map[string]float64{CommitFlush: 4, CPU: 0.5, Client: 1.05, PageReads: 0} {
		for _, p := range d.Breakdown {
			if p.Name == name && math.Abs(deref(p.Ms)-want) > 0.001 {
				t.Errorf("%s: %v ms, want %v", name, deref(p.Ms), want)
			}
		}
	}
	if deref(d.Rates.IdleInTransaction) != 2 {
		t.Errorf("%v idle in transaction: the forgotten one counts as a session", deref(d.Rates.IdleInTransaction))
	}
	sound(t, d)
}

// TestUnknownIsAbsent: what is not known is absent in the JSON, never 0.
func TestUnknownIsAbsent(t *testing.T) {
	s := newScene(1000, 0, always(client(4, "active", "IO", "WALSync")))
	s.e.Begin, s.e.End, s.e.PingMs = nil, nil, nil
	b, err := json.Marshal(Assess(s.e))
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"flush_ms", "read_ms", "full_page_images_per_tx", "statements_per_tx", "checkpoints", "host", "counter_ms", "round_trip_ms", "hit_ratio", "what_if"} {
		if strings.Contains(string(b), `"`+key+`"`) {
			t.Errorf("%s is there: %s", key, b)
		}
	}
	s = newScene(0, 0, always(client(3, "active", "IO", "DataFileRead"))) // one long query, no transaction ends
	d := Assess(s.e)
	if d.Ms != nil || len(d.Breakdown) == 0 || d.Breakdown[0].Ms != nil || d.Breakdown[0].Share < 0.99 || d.Verdict.Cause != CauseReads {
		t.Errorf("%+v", d)
	}
}

func TestHiddenSessions(t *testing.T) {
	s := newScene(1000, 0, always(Group{N: 5}, client(1, "active", "", "")))
	s.e.Partial = true
	d := Assess(s.e)
	if d.Verdict.Cause != CauseUnknown || len(d.Breakdown) != 0 || !strings.Contains(d.Verdict.Advice, "GRANT pg_monitor TO mona") {
		t.Errorf("%+v", d.Verdict)
	}
	s = newScene(3000, 0, always(client(3, "active", "", ""))) // nobody else is there
	s.e.Partial = true
	if d := Assess(s.e); d.Verdict.Cause != CauseCPUWork {
		t.Errorf("%+v", d.Verdict)
	}
}

// TestCountersReset: statistics that begin anew in the middle give no rates.
func TestCountersReset(t *testing.T) {
	s := newScene(1000, 500, always(client(4, "active", "IO", "WALSync"))).counter("pg_stat_wal", "wal_sync", -50)
	last := len(s.e.Ticks) - 1
	s.e.Ticks[last].Xacts, s.e.Ticks[last].Reads = 3, 3
	d := Assess(s.e)
	if d.Rates.TPS != nil || d.Storage.FlushMs != nil || d.Ms != nil || d.Rates.ReadsPerS != nil {
		t.Errorf("%+v %+v", d.Rates, d.Storage)
	}
	sound(t, d)
}

func TestHazards(t *testing.T) {
	modest := always(client(1, "active", "", ""), Group{Backend: clientBackend, State: idleFor, Idle: IdleSome, N: 9})
	base := func() *scene { return newScene(300, 0, modest) }
	slot := func(s *scene, name string, active bool, was, now float64, typ string) *scene {
		s.at(s.e.Begin, "slots", Row{"slot_name": name, "active": active, "retained": was, "behind": was, "slot_type": typ})
		return s.at(s.e.End, "slots", Row{"slot_name": name, "active": active, "retained": now, "behind": now, "slot_type": typ})
	}
	holder := func(s *scene, row Row) *scene {
		s.at(s.e.Begin, "tables", Row{"table": "a", "dead": 100.0, "live": 1000.0})
		s.at(s.e.End, "tables", Row{"table": "a", "dead": 5000.0, "live": 1000.0})
		return s.at(s.e.End, "holders", row)
	}
	idle := Row{"pid": 42.0, "user": "app", "backend": clientBackend, "state": "idle in transaction", "in_tx_s": 300.0, "in_state_s": 290.0, "xid_age": 6000.0}
	for _, c := range []struct {
		name, cause, say string
		s                *scene
	}{
		{"slot nobody reads", CauseSlot, `"old" holds 419 MB of WAL back and nobody reads it; it grows by 10.5 MB a second`, slot(base(), "old", false, 200<<20, 400<<20, "physical")},
		{"slot with a slow reader", CauseSlot, "does not keep up", slot(base(), "sub", true, 100<<20, 400<<20, "logical")},
		{"slot in use", CauseClient, "", slot(base(), "ok", true, 4<<20, 4<<20, "logical")},
		{"idle in transaction", CauseVacuum, "pid 42, user app", holder(base(), idle)},
		{"long statement", CauseVacuum, "A statement that has run for 15 minutes", holder(base(), Row{"pid": 7.0, "user": "app", "backend": clientBackend, "state": "active", "in_tx_s": 900.0, "xmin_age": 9000.0})},
		{"short transaction", CauseClient, "", holder(base(), Row{"pid": 7.0, "backend": clientBackend, "state": "idle in transaction", "in_tx_s": 1.0, "xmin_age": 9000.0})},
		{"prepared", CauseVacuum, `The prepared transaction "x"`, func() *scene {
			s := holder(base(), Row{})
			return s.at(s.e.End, "pg_prepared_xacts", Row{"gid": "x", "prepared": "2026-01-01"})
		}()},
		{"behind a bottleneck", CauseFlush, "Besides: the replication slot", slot(newScene(300, 0, always(client(8, "active", "IO", "WALSync"))), "old", false, 200<<20, 400<<20, "physical")},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Assess(c.s.e)
			if text := strings.Join(d.Verdict.Sentences, " "); d.Verdict.Cause != c.cause || !strings.Contains(text, c.say) {
				t.Errorf("%s: %s\nwant %s and %q", d.Verdict.Cause, text, c.cause, c.say)
			}
			sound(t, d)
		})
	}
}

func TestTraps(t *testing.T) {
	s := newScene(100, 0, always(client(1, "active", "", "")))
	for k, v := range map[string]string{"fsync": "off", "synchronous_commit": "on", "full_page_writes": "off", "data_checksums": "off", "track_io_timing": "off", "autovacuum": "off"} {
		s.setting(k, v)
	}
	s.at(s.e.Begin, "role_settings", Row{"role": "batch", "database": "", "config": "work_mem=1GB synchronous_commit=off"})
	s.at(s.e.Begin, "role_settings", Row{"role": "", "database": "app", "config": "synchronous_commit=local"})
	s.e.ClockNs = ptr(900)
	got := map[string]string{}
	for _, tr := range Assess(s.e).Traps {
		got[tr.Name] += tr.Level + ": " + tr.Text + "\n"
	}
	for name, want := range map[string]string{
		"fsync": "danger", "full_page_writes": "danger", "data_checksums": "warning", "track_io_timing": "notice", "autovacuum": "danger",
		"clock source": "900 ns", "synchronous_commit": `lowered to off for the role "batch"`,
	} {
		if !strings.Contains(got[name], want) {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
	if !strings.Contains(got["synchronous_commit"], `lowered to local for the database "app"`) {
		t.Errorf("%q", got["synchronous_commit"])
	}
	s = newScene(100, 0, always(client(1, "active", "", ""))).setting("full_page_writes", "off").onHost(4)
	s.e.Host.Data = DeviceFacts{Path: "/d", FileSystem: "zfs"}
	if traps := Assess(s.e).Traps; len(traps) != 1 || traps[0].Level != Notice {
		t.Errorf("full_page_writes off on ZFS: %+v", traps)
	}
}

func TestSymptoms(t *testing.T) {
	answer := func(s *scene, name string) (string, string) {
		for _, x := range Assess(s.e).Symptoms {
			if x.Name == name {
				return x.Answer, x.Evidence
			}
		}
		return "", ""
	}
	reading := func(i int) []Group { return []Group{client(2+18*(i/100), "active", "IO", "DataFileRead")} }
	steady := newScene(500, 1000, always(client(4, "active", "IO", "DataFileRead")))
	slowdown := func() *scene {
		s := newScene(1000, 0, func(i int) []Group {
			if i/50%2 == 1 {
				return []Group{client(4, "active", "", ""), {Backend: checkpointer, Type: "Timeout", Event: "CheckpointWriteDelay", N: 1}}
			}
			return []Group{client(4, "active", "", ""), {Backend: checkpointer, Type: "Activity", Event: "CheckpointerMain", N: 1}}
		})
		total := 0.0
		for i := range s.e.Ticks {
			s.e.Ticks[i].Xacts = total + float64(s.e.Ticks[i].OwnXacts)
			if i*10/50%2 == 1 {
				total += 300
			} else {
				total += 1500
			}
		}
		return s
	}
	tables := func(dead, live, age float64) *scene {
		s := newScene(100, 0, always(client(1, "active", "", "")))
		return s.at(s.e.End, "tables", Row{"table": "public.t", "dead": dead, "live": live, "xid_age": age})
	}
	lag := func(was, now float64) *scene {
		s := newScene(100, 0, always(client(1, "active", "", "")))
		s.at(s.e.Begin, "slots", Row{"slot_name": "sub", "slot_type": "logical", "active": true, "behind": was})
		return s.at(s.e.End, "slots", Row{"slot_name": "sub", "slot_type": "logical", "active": true, "behind": now})
	}
	for _, c := range []struct {
		name, symptom, want string
		s                   *scene
	}{
		{"slow flush", SlowIngestion, Yes, newScene(1000, 0, always(client(7, "active", "IO", "WALSync"))).counter("pg_stat_wal", "wal_sync", 7000)},
		{"all CPU", SlowIngestion, No, newScene(1000, 0, always(client(7, "active", "", "")))},
		{"no load", SlowIngestion, CantTell, newScene(0, 0, always())},
		{"steady reads", ReadLatency, No, steady},
		{"reads that get slow", ReadLatency, Yes, newScene(500, 1000, reading)},
		{"no reads", ReadLatency, CantTell, newScene(500, 0, always(client(1, "active", "", "")))},
		{"bloat", VacuumBehind, Yes, tables(900000, 100000, 0)},
		{"wraparound", VacuumBehind, Yes, tables(0, 100000, 3e8)},
		{"tidy", VacuumBehind, No, tables(1000, 100000, 1e6)},
		{"unreadable", VacuumBehind, CantTell, newScene(100, 0, always(client(1, "active", "", "")))},
		{"slower under a checkpoint", CheckpointJolt, Yes, slowdown()},
		{"forced", CheckpointJolt, Yes, newScene(100, 0, always(client(1, "active", "", ""))).counter("pg_stat_bgwriter", "checkpoints_req", 3).counter("pg_stat_bgwriter", "checkpoints_timed", 0)},
		{"none", CheckpointJolt, CantTell, newScene(100, 0, always(client(1, "active", "", "")))},
		{"grows", LogicalLag, Yes, lag(1<<20, 40<<20)},
		{"far behind", LogicalLag, Yes, lag(900<<20, 800<<20)},
		{"near", LogicalLag, No, lag(1<<20, 1<<20)},
		{"without", LogicalLag, No, newScene(100, 0, always(client(1, "active", "", "")))},
	} {
		t.Run(c.symptom+"/"+c.name, func(t *testing.T) {
			if got, why := answer(c.s, c.symptom); got != c.want || why == "" {
				t.Errorf("%s: %s; want %s", got, why, c.want)
			}
		})
	}
}

// TestRegimeChange: credit that is used up in the middle is found.
func TestRegimeChange(t *testing.T) {
	s := newScene(500, 0, always(client(8, "active", "IO", "DataFileRead")))
	total := 0.0
	for i := range s.e.Ticks {
		s.e.Ticks[i].Reads = total
		if i < 12 {
			total += 5000
		} else {
			total += 1000 + float64(i%3)
		}
	}
	d := Assess(s.e)
	if at := deref(d.Storage.RegimeAtS); at < 11 || at > 13 || !strings.Contains(d.Storage.RegimeText, "burst credits") {
		t.Errorf("%v: %q", at, d.Storage.RegimeText)
	}
}

// TestAnyEvidence: whatever was seen, a diagnosis is sound.
func TestAnyEvidence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := func(v ...string) string { return rapid.SampledFrom(v).Draw(t, "pick") }
		s := newScene(rapid.Float64Range(0, 1e5).Draw(t, "tps"), rapid.Float64Range(0, 1e5).Draw(t, "reads"), func(int) []Group { return nil })
		if rapid.Bool().Draw(t, "host") {
			s.onHost(rapid.IntRange(1, 64).Draw(t, "cores"))
		}
		var groups []Group
		for range rapid.IntRange(0, 6).Draw(t, "groups") {
			groups = append(groups, Group{Backend: pick(clientBackend, checkpointer, autovacuum, "walwriter", ""), State: pick("active", "idle", "idle in transaction", ""),
				Type: pick("", "IO", "LWLock", "Lock", "Client", "IPC", "Activity"), Event: pick("", "WALSync", "WalSync", "DataFileRead", "SyncRep", "tuple", "ClientRead", "WALWrite"),
				Idle: Idle(rapid.IntRange(0, 2).Draw(t, "idle")), N: rapid.IntRange(0, 500).Draw(t, "n")})
		}
		s.e.Samples = s.e.Samples[:rapid.IntRange(0, 200).Draw(t, "samples")]
		for i := range s.e.Samples {
			for _, g := range groups {
				if rapid.Bool().Draw(t, "there") {
					s.e.Samples[i].Groups = append(s.e.Samples[i].Groups, g)
				}
			}
		}
		s.e.Ticks = s.e.Ticks[:rapid.IntRange(0, 21).Draw(t, "ticks")]
		s.counter("pg_stat_wal", "wal_sync", rapid.Float64Range(-10, 1e6).Draw(t, "syncs"))
		s.e.Partial = rapid.Bool().Draw(t, "partial")
		d := Assess(s.e)
		if len(d.Verdict.Sentences) != 2 || d.Verdict.Cause == "" {
			t.Errorf("%+v", d.Verdict)
		}
		sound(t, d)
	})
}

// TestPartOf: the names of versions lead to the same parts.
func TestPartOf(t *testing.T) {
	for _, c := range []struct{ typ, event, part string }{
		{"IO", "WALSync", CommitFlush}, {"IO", "WalSync", CommitFlush}, {"LWLock", "WALWrite", CommitFlush}, {"LWLock", "WALWriteLock", CommitFlush}, {"IO", "WalWrite", CommitFlush},
		{"IO", "DataFileRead", PageReads}, {"IO", "AioIoCompletion", PageReads}, {"LWLock", "BufferIO", PageReads}, {"IPC", "BufferIO", PageReads}, {"IO", "SLRURead", PageReads}, {"IO", "SlruRead", PageReads},
		{"LWLock", "WALInsert", OtherWAL}, {"IO", "WALInitWrite", OtherWAL}, {"IO", "WalInitSync", OtherWAL}, {"LWLock", "WALBufMapping", OtherWAL},
		{"IPC", "SyncRep", Replication}, {"Lock", "transactionid", RowLocks}, {"Lock", "tuple", RowLocks}, {"Lock", "advisory", RowLocks}, {"Lock", "extend", OtherLocks},
		{"LWLock", "BufferContent", OtherLocks}, {"LWLock", "LockManager", OtherLocks}, {"BufferPin", "BufferPin", OtherLocks}, {"IPC", "ProcArrayGroupUpdate", OtherLocks},
		{"IO", "DataFileExtend", DataWrites}, {"IPC", "CheckpointDone", DataWrites}, {"IO", "BufFileRead", DataWrites}, {"IO", "BuffileRead", DataWrites},
		{"Client", "ClientRead", Client}, {"", "", CPU}, {"Timeout", "PgSleep", Unexplained}, {"Extension", "Extension", Unexplained}, {"IPC", "ExecuteGather", Unexplained},
	} {
		if got := partOf(c.typ, c.event); got != c.part {
			t.Errorf("%s:%s is %s, want %s", c.typ, c.event, got, c.part)
		}
	}
}

func TestPredict(t *testing.T) {
	// One session: the flush alone changes, by its ratio.
	one := Assess(newScene(250, 0, func(i int) []Group {
		if i%4 == 0 {
			return []Group{client(1, "active", "", "")}
		}
		return []Group{client(1, "active", "IO", "WALSync")}
	}).counter("pg_stat_wal", "wal_sync", 5000).onHost(4).e)
	p, ok := Predict(one, Disk{Name: "x", FlushMs: 0.3})
	if !ok || math.Abs(p.FromMs-4.05) > 0.01 || math.Abs(p.Ms-(0.3+1+0.05)) > 0.02 {
		t.Errorf("%v %+v", ok, p)
	}
	// Many on few processors: they are the next limit, and no faster than cores ÷ demand.
	many := Assess(newScene(1000, 0, always(client(30, "active", "LWLock", "WALWrite"), client(2, "active", "", ""))).counter("pg_stat_wal", "wal_sync", 6000).onHost(2).e)
	p, ok = Predict(many, Disk{Name: "x", FlushMs: 0.01})
	if ok { // the flush is not timed here, since the leader was never seen in it
		t.Errorf("%+v", p)
	}
	many.Storage.FlushMs = ptr(3)
	p, ok = Predict(many, Disk{Name: "x", FlushMs: 0.01})
	if !ok || p.BoundBy != "cpu" || p.Ms < 18 || p.Ms > 34 {
		t.Errorf("%v %+v", ok, p)
	}
	if _, ok := Predict(one, Disk{Name: "slower", FlushMs: 9}); ok {
		t.Error("a slower disk promises nothing")
	}
	if _, ok := Predict(Diagnosis{}, LocalNVMe()); ok {
		t.Error("nothing is known")
	}
}

// TestResidence holds the queue against what is known of it exactly.
func TestResidence(t *testing.T) {
	for _, c := range []struct {
		n                          int
		cores, demand, delay, want float64
	}{
		{1, 2, 3, 10, 3},       // alone: no queue
		{50, 1, 1, 0, 50},      // all in one queue
		{100, 2, 1, 10, 40},    // bound: n × demand ÷ cores − delay
		{4, 1000, 5, 5, 5},     // processors to spare
		{100, 0.5, 1, 10, 190}, // half a core
	} {
		if got := residence(c.n, c.cores, c.demand, c.delay); math.Abs(got-c.want) > 0.03*c.want {
			t.Errorf("%+v: %.3f", c, got)
		}
	}
}

func TestElasticity(t *testing.T) {
	var x, y, z []float64
	for i := range 30 {
		n := float64(2 + i%10)
		x, y, z = append(x, n), append(y, 100*n), append(z, 1000)
	}
	if s, ok := elasticity(x, y); !ok || math.Abs(s-1) > 0.05 {
		t.Errorf("latency: %v %v", s, ok)
	}
	if s, ok := elasticity(x, z); !ok || math.Abs(s) > 0.05 {
		t.Errorf("rate: %v %v", s, ok)
	}
	if _, ok := elasticity(z, y); ok {
		t.Error("nothing varied")
	}
}

// TestPlateau: a device whose operations, or bytes, stay level while requests
// queue is at a cap; one that is only busy, or not asked for more, is not.
func TestPlateau(t *testing.T) {
	device := func(ops, mb, queue func(i int) float64) string {
		s := newScene(500, 0, always(client(8, "active", "IO", "DataFileRead"))).onHost(4)
		c := DeviceCounters{}
		for i := range s.e.Ticks {
			c.At = s.e.Ticks[i].At
			now := c
			s.e.Ticks[i].Device = &now
			c.Reads += ops(i)
			c.Bytes += 1e6 * mb(i)
			c.QueueMs += 1000 * queue(i)
			c.ReadMs += 1000 * queue(i)
			c.BusyMs += 1000
		}
		s.e.Host.Data = DeviceFacts{Path: "/d", Device: "/dev/x", FileSystem: "ext4"}
		s.e.Host.Begin.Data, s.e.Host.End.Data = s.e.Ticks[0].Device, s.e.Ticks[20].Device
		d := Assess(s.e)
		if v := d.Host.Data; deref(v.Util) != 1 || math.Abs(deref(v.Queue)-queue(1)) > 3 || v.IOPS == nil || v.MBps == nil || deref(v.ReadMs) <= 0 {
			t.Errorf("%+v", v)
		}
		sound(t, d)
		return d.Host.Data.Plateau
	}
	flat := func(v float64) func(int) float64 { return func(i int) float64 { return v + v*0.005*float64(i%3) } }
	wild := func(v float64) func(int) float64 { return func(i int) float64 { return v + v*0.4*float64(i%4) } }
	if p := device(flat(3000), wild(24), flat(20)); !strings.Contains(p, "operations a second") || !strings.Contains(p, "a cap") {
		t.Errorf("operations: %q", p)
	}
	if p := device(wild(900), flat(125), flat(20)); !strings.Contains(p, "MB/s") {
		t.Errorf("throughput: %q", p)
	}
	if p := device(wild(3000), wild(24), flat(20)); p != "" {
		t.Errorf("no cap: %q", p)
	}
	if p := device(flat(300), flat(24), flat(0.2)); p != "" {
		t.Errorf("not asked for more: %q", p)
	}
}
