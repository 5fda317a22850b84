package pgbench

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// Summaries as the versions print them.
const (
	out13 = `starting vacuum...end.
transaction type: <builtin: simple update>
scaling factor: 50
query mode: simple
number of clients: 8
number of threads: 2
duration: 20 s
number of transactions actually processed: 25431
latency average = 6.292 ms
tps = 1271.390000 (including connections establishing)
tps = 1271.520000 (excluding connections establishing)
`
	out14 = `pgbench (14.11)
transaction type: <builtin: simple update>
scaling factor: 50
query mode: simple
number of clients: 8
number of threads: 2
duration: 20 s
number of transactions actually processed: 25431
latency average = 6.292 ms
initial connection time = 12.409 ms
tps = 1271.520000 (without initial connection time)
`
	out18 = `pgbench (18.1 (Debian 18.1-1))
transaction type: <builtin: simple update>
scaling factor: 50
query mode: prepared
number of clients: 8
number of threads: 2
maximum number of tries: 1
duration: 20 s
number of transactions actually processed: 25431
number of failed transactions: 3 (0.012%)
latency average = 6.292 ms (including failures)
initial connection time = 12.409 ms
tps = 1271.520000 (without initial connection time)
`
)

func TestOutputOfVersions(t *testing.T) {
	for name, c := range map[string]struct {
		out, version string
		failed       int64
	}{"13": {out13, "", -1}, "14": {out14, "14.11", -1}, "18": {out18, "18.1 (Debian 18.1-1)", 3}} {
		s, err := ParseOutput(c.out, "")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if s.Version != c.version || s.Transactions != 25431 || s.TPS == nil || *s.TPS != 1271.52 || s.LatencyMs == nil || *s.LatencyMs != 6.292 {
			t.Errorf("%s: %+v", name, s)
		}
		if (s.Failed == nil) != (c.failed < 0) || s.Failed != nil && *s.Failed != c.failed {
			t.Errorf("%s: failed is %v", name, s.Failed)
		}
		if (s.ConnectMs == nil) != (name == "13") {
			t.Errorf("%s: connection time is %v", name, s.ConnectMs)
		}
	}
	if _, err := ParseOutput("pgbench (15.8)\n", "pgbench: error: could not create connection for client 0\n"); err == nil || !strings.Contains(err.Error(), "could not create connection") {
		t.Errorf("without a summary: %v", err)
	}
	if _, err := ParseOutput("number of transactions actually processed: 99999999999999999999\n", ""); err == nil {
		t.Error("a count beyond 64 bits is taken")
	}
}

func TestArgs(t *testing.T) {
	got := strings.Join(Args(Config{Clients: 8, Jobs: 2, Seconds: 20, Protocol: "prepared", Seed: 10, LogPrefix: "/r/l", Host: "/run/pg", Port: 5433, User: "u", Database: "d"}), " ")
	if want := "-N -c 8 -j 2 -T 20 -M prepared --random-seed=5 -l --log-prefix=/r/l -h /run/pg -p 5433 -U u d"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	got = strings.Join(Args(Config{File: "x.sql", Jobs: 9, Seconds: 1, Rate: 12.5, NoVacuum: true, Database: "d"}), " ")
	if want := "-f x.sql -c 1 -j 1 -T 1 -M simple -R 12.5 -n d"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := LogNames(Config{LogPrefix: "p", Clients: 4, Jobs: 3}, 7); !slices.Equal(got, []string{"p.7", "p.7.1", "p.7.2"}) {
		t.Errorf("log names: %v", got)
	}
	if Deadline(Config{Seconds: 20}) != 20*time.Second+Grace {
		t.Error("deadline")
	}
	good := Config{Seconds: 1, Database: "d"}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for i, spoil := range []func(*Config){
		func(c *Config) { c.Seconds = 0 },
		func(c *Config) { c.Clients = -1 },
		func(c *Config) { c.Script = "tpch" },
		func(c *Config) { c.Script, c.File = TPCB, "f" },
		func(c *Config) { c.Protocol = "binary" },
		func(c *Config) { c.Database = "" },
		func(c *Config) { c.Database = "-i" },
		func(c *Config) { c.Port = 70000 },
	} {
		c := good
		spoil(&c)
		if c.Validate() == nil {
			t.Errorf("spoiled config %d is taken", i)
		}
	}
}

// steadyLog is a log of clients that each commit n times a second for a while,
// from second 1000 on.
func steadyLog(clients, perSecond, seconds int, change func(client int, at float64, us int64) (int64, bool)) (string, int) {
	var b strings.Builder
	n := 0
	for i := range perSecond * seconds {
		for c := range clients {
			at := float64(i+1) / float64(perSecond)
			us, keep := int64(900), true
			if change != nil {
				us, keep = change(c, at, us)
			}
			if keep {
				end := 1000_000_000 + int64(at*1e6)
				fmt.Fprintf(&b, "%d %d %d 0 %d %06d\n", c, i+1, us, end/1e6, end%1e6)
				n++
			}
		}
	}
	return b.String(), n
}

func summary(n int) string {
	return fmt.Sprintf("number of transactions actually processed: %d\nnumber of failed transactions: 0 (0.000%%)\nlatency average = 1.000 ms\ntps = 100.0 (without initial connection time)\n", n)
}

func read(t *testing.T, cfg Config, stdout string, logs ...string) *Result {
	t.Helper()
	out := Output{Stdout: stdout}
	for _, l := range logs {
		out.Logs = append(out.Logs, strings.NewReader(l))
	}
	r, err := Read(cfg, out)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestValidityByTheLog(t *testing.T) {
	cfg := Config{Clients: 2, Seconds: 12, Database: "d"}
	log, n := steadyLog(2, 50, 12, nil)
	r := read(t, cfg, summary(n), log)
	if !r.Valid() || r.NotSteady != "" {
		t.Fatalf("a steady log: %v, %q", r.Invalid, r.NotSteady)
	}
	if p50 := r.Metrics()["latency_p50_ms"]; p50 != 0.9 {
		t.Errorf("p50 = %v ms", p50)
	}
	sum := 0
	for _, sec := range r.Seconds {
		sum += sec.Done
	}
	if len(r.Seconds) != 12 || sum != n || r.Seconds[11].Done > 105 {
		t.Errorf("%d seconds with %d of %d: %+v", len(r.Seconds), sum, n, r.Seconds)
	}
	type change = func(int, float64, int64) (int64, bool)
	for _, c := range []struct {
		name, want string
		f          change
	}{
		{"stall", "no transaction ended for 1.5 s", func(_ int, at float64, us int64) (int64, bool) { return us, at <= 5 || at >= 6.48 }},
		{"ended early", "ended after 9.0 of 12 s", func(_ int, at float64, us int64) (int64, bool) { return us, at <= 9 }},
		{"one client dead", "1 of 2 clients had ended nothing", func(c int, at float64, us int64) (int64, bool) { return us, c == 0 || at <= 9 }},
		{"one client never there", "1 of 2 clients had ended nothing", func(c int, _ float64, us int64) (int64, bool) { return us, c == 0 }},
	} {
		log, n := steadyLog(2, 50, 12, c.f)
		if r := read(t, cfg, summary(n), log); !strings.Contains(r.Why(), c.want) || r.Valid() {
			t.Errorf("%s: %q", c.name, r.Why())
		}
	}
	log, n = steadyLog(2, 50, 12, func(_ int, at float64, us int64) (int64, bool) {
		if at > 8 {
			us *= 4
		}
		return us, true
	})
	if r := read(t, cfg, summary(n), log); r.Valid() || !strings.Contains(r.Why(), "changed after 7.8 s from 0.900 to 3.600") || len(r.Metrics()) > 0 {
		t.Errorf("throttled: %q, %q", r.Why(), r.NotSteady)
	}
}

func TestValidityByTheSummary(t *testing.T) {
	cfg := Config{Clients: 2, Seconds: 12, Database: "d"}
	log, n := steadyLog(2, 50, 12, nil)
	for _, c := range []struct{ name, stdout, log, want string }{
		{"counts differ", summary(n + 7), log, "its logs hold"},
		{"cut log", summary(n), log[:len(log)-5], "cut off"},
		{"few", summary(9), "", "only 9 transactions"},
		{"zero latency", strings.Replace(summary(n), "= 1.000 ms", "= 0.000 ms", 1), log, "0.000 ms"},
		{"no tps", strings.Replace(summary(n), "tps", "xps", 1), log, "no TPS"},
		{"empty log", summary(n), "", "no finished transaction"},
		{"nothing", "", log, "no number of transactions"},
	} {
		if r := read(t, cfg, c.stdout, c.log); r.Valid() || !strings.Contains(r.Why(), c.want) {
			t.Errorf("%s: %q", c.name, r.Why())
		}
	}
	if r := read(t, cfg, summary(n)); !r.Valid() || r.Latency != nil {
		t.Errorf("without logs: %q", r.Why())
	} else if _, ok := r.Metrics()["latency_p50_ms"]; ok {
		t.Error("a percentile without a log")
	}
}

func TestLogLines(t *testing.T) {
	var got []Entry
	log := "0 1 2124 0 1796045417 894234 96 0\n1 2 skipped 0 1796045417 900000 5000.5\n0 3 failed 0 1796045418 1\n0 4 deadlock 0 1796045418 2 0 3\n"
	cut, err := ParseLog(strings.NewReader("3 7 100 0 1 000005\n4 5 6"), false, func(e Entry) { got = append(got, e) })
	if err != nil || !cut || len(got) != 1 || got[0] != (Entry{Client: 3, EndUs: 1000005, LatencyUs: 100}) {
		t.Errorf("%v %v %+v", cut, err, got)
	}
	got = nil
	if _, err = ParseLog(strings.NewReader(strings.Replace(log, "418 1\n", "418 1 0\n", 1)), true, func(e Entry) { got = append(got, e) }); err != nil {
		t.Fatal(err)
	}
	kinds := []Kind{Done, Skipped, Failed, Failed}
	for i, e := range got {
		if e.Kind != kinds[i] {
			t.Errorf("line %d is of kind %d", i+1, e.Kind)
		}
	}
	if got[0].LagUs != 96 {
		t.Errorf("lag %d", got[0].LagUs)
	}
	for _, bad := range []string{"x\n", "1 2 3 4 5\n", "1 2 -3 0 5 6\n", "1 2 3 0 5 1000000\n", "1 2 3 4 5 6 7 8 9\n", "\n",
		"1 2 3 0 99999999999999 6\n", strings.Repeat("1 ", 5000) + "\n", "1 2 99999999999999 0 5 6\n"} {
		if _, err := ParseLog(strings.NewReader(bad), false, func(Entry) {}); err == nil {
			t.Errorf("%.30q is taken for a log line", bad)
		}
	}
	broken := errors.New("host is gone")
	if _, err := ParseLog(io.MultiReader(strings.NewReader("1 2 3 0 5 6\n"), iotest.ErrReader(broken)), false, func(Entry) {}); !errors.Is(err, broken) {
		t.Errorf("a broken read gives %v", err)
	}
	if _, err := Read(Config{Seconds: 1}, Output{Stdout: summary(1000), Logs: []io.Reader{strings.NewReader("what\n")}}); err == nil {
		t.Error("a file that is no log is judged")
	}
}

func FuzzOutput(f *testing.F) {
	for _, s := range []string{out13, out14, out18, "", "tps = . (without initial connection time)\n", "latency average = 1.2.3 ms\n"} {
		f.Add(s, "pgbench: error: client 2 aborted in command 4 (SQL) of script 0\npgbench: error: Run was aborted; the above results are incomplete.\n")
	}
	f.Fuzz(func(t *testing.T, stdout, stderr string) {
		s, err := ParseOutput(stdout, stderr)
		if err != nil {
			return
		}
		for _, p := range []*float64{s.TPS, s.LatencyMs, s.ConnectMs} {
			if p != nil && (math.IsNaN(*p) || math.IsInf(*p, 0) || *p < 0) {
				t.Errorf("a figure of %v", *p)
			}
		}
		if s.Transactions < 0 || s.AbortedClients < 0 {
			t.Errorf("%+v", s)
		}
	})
}

func FuzzLog(f *testing.F) {
	log, _ := steadyLog(2, 5, 3, nil)
	f.Add(log, false, uint8(3))
	f.Add("0 1 2124 0 1796045417 894234 96 0\n", true, uint8(1))
	f.Add("1 2 skipped 0 1796045417 900000 5000.5\n0 1 5 0 0 0\n0 1 5 0 999999999 0\n", false, uint8(200))
	f.Fuzz(func(t *testing.T, log string, rated bool, seconds uint8) {
		cfg := Config{Clients: 2, Seconds: int(seconds) + 1}
		if rated {
			cfg.Rate = 10
		}
		r, err := Read(cfg, Output{Stdout: summary(1000), Logs: []io.Reader{strings.NewReader(log)}})
		if err != nil {
			return
		}
		if r.Latency.TotalCount() != r.Done {
			t.Errorf("the histogram holds %d of %d", r.Latency.TotalCount(), r.Done)
		}
		if len(r.Seconds) > 10*cfg.Seconds {
			t.Errorf("%d seconds of a run of %d", len(r.Seconds), cfg.Seconds)
		}
		if r.Valid() && r.Done != 1000 {
			t.Errorf("valid with %d of 1000 transactions", r.Done)
		}
	})
}

// TestTrending: a latency that creeps up over the run makes it invalid, however
// short the run; one that wanders does not.
func TestTrending(t *testing.T) {
	for _, c := range []struct {
		name    string
		seconds int
		us      func(at float64) float64
		want    string
	}{
		{"creeping", 12, func(at float64) float64 { return 900 + 40*at }, "drifted by +"},
		{"creeping, 4 s", 4, func(at float64) float64 { return 900 + 120*at }, "drifted by +"},
		{"throttled, 4 s", 4, func(at float64) float64 { return 900 + 2700*math.Floor(at/4+0.5) }, "changed after 1.8 s"},
		{"wandering", 12, func(at float64) float64 { return 900 + 200*math.Sin(2*at) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			log, n := steadyLog(2, 50, c.seconds, func(_ int, at float64, _ int64) (int64, bool) {
				return int64(c.us(at)), true
			})
			r := read(t, Config{Clients: 2, Seconds: c.seconds, Database: "d"}, summary(n), log)
			switch {
			case c.want == "" && !r.Valid():
				t.Errorf("invalid: %s", r.Why())
			case c.want != "" && (r.Valid() || !strings.Contains(r.Why(), c.want) || len(r.Metrics()) != 0):
				t.Errorf("valid: %v, %q, want %q", r.Valid(), r.Why(), c.want)
			}
		})
	}
}
