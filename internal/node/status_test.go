package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

var rewrite = flag.Bool("rewrite", false, "write what status is now")

// at is when all of these clusters were looked at.
var at = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// looked is a cluster as its agents tell of it.
type looked struct {
	members []Member
	answers []*Local
	errs    []error
}

func memberOf(node string, n uint64) cluster.Member {
	return cluster.Member{Node: cluster.NodeID(node), Incarnation: cluster.Incarnation(n)}
}

// calm is three nodes with nothing to tell: a leads, b and c may confirm.
func calm() looked {
	l := looked{errs: make([]error, 3)}
	r := cluster.Register{Version: 7, Epoch: 3, Named: 3, Primary: memberOf("a", 1), Timeline: 4, LastTimeline: 4, S: []cluster.Member{memberOf("b", 2), memberOf("c", 3)}, K: 1, WantK: 1,
		Chain: []cluster.Branch{{Epoch: 1, Timeline: 1}, {Epoch: 3, Timeline: 4, Fork: 0x3000000}}}
	for i, name := range []string{"a", "b", "c"} {
		r.Nodes = append(r.Nodes, cluster.Node{ID: cluster.NodeID(name), Voter: uint64(i + 10)})
		l.members = append(l.members, Member{Node: name, Role: "standby", Zone: "zone-" + name, Address: fmt.Sprintf("10.0.0.%d:7400", i+1), Postgres: fmt.Sprintf("10.0.0.%d:5432", i+1)})
		p := cluster.Postgres{Exists: true, Running: true, Incarnation: cluster.Incarnation(i + 1), History: []cluster.Branch{{Timeline: 1}, {Timeline: 4, Fork: 0x3000000}},
			End: 0x5000100, Replayed: 0x5000100, Replayable: 0x5000100, Upstream: "a", Headroom: true}
		l.answers = append(l.answers, &Local{Node: cluster.NodeID(name), Version: "v1", Since: at.Add(-time.Hour), Known: true, Phase: "off", Voter: uint64(i + 10), Postgres: p})
	}
	l.answers[0].Postgres.Primary, l.answers[0].Postgres.Upstream, l.answers[0].Postgres.DoorOpen = true, "", true
	l.answers[0].Open, l.answers[0].Phase, l.answers[0].Leads = true, "open", true
	l.register(func(x *cluster.Register) { *x = r })
	return l
}

// register changes what everybody knows.
func (l *looked) register(change func(*cluster.Register)) {
	for _, a := range l.answers {
		if a != nil {
			a.Register.S, a.Register.Nodes = slices.Clone(a.Register.S), slices.Clone(a.Register.Nodes)
			change(&a.Register)
		}
	}
}

func (l *looked) silent(i int, err error) { l.answers[i], l.errs[i] = nil, err }

var errRefused = errors.New("connect: connection refused")

// troubles are clusters in every kind of trouble.
var troubles = map[string]func(*looked){
	"calm": func(*looked) {},
	"standby-silent": func(l *looked) {
		l.silent(2, fmt.Errorf("ask c: %w", errRefused))
	},
	"standby-stopped": func(l *looked) {
		p := &l.answers[2].Postgres
		p.Running, p.Upstream, p.End = false, "", 0x4ff0000
		l.register(func(r *cluster.Register) { r.S = r.S[:1] })
	},
	"standby-not-streaming": func(l *looked) {
		l.answers[2].Postgres.Upstream, l.answers[2].Postgres.End = "", 0x1000000
		l.register(func(r *cluster.Register) { r.S = r.S[:1] })
	},
	"standby-catching-up": func(l *looked) {
		l.answers[2].Postgres.End = 0x4000000
		l.register(func(r *cluster.Register) { r.S = r.S[:1] })
	},
	"standby-blank": func(l *looked) {
		l.answers[2].Postgres = cluster.Postgres{}
		l.register(func(r *cluster.Register) { r.S = r.S[:1] })
	},
	"fenced": func(l *looked) {
		l.answers[1].Postgres.Running, l.answers[1].Postgres.Upstream = false, ""
		l.register(func(r *cluster.Register) { r.Nodes[1].Fenced, r.S = true, r.S[1:] })
	},
	"degraded": func(l *looked) {
		l.register(func(r *cluster.Register) {
			r.S, r.K = nil, 0
			r.Degraded = cluster.Degraded{LSN: 0x5000000, Wall: time.Duration(at.Add(-time.Minute).UnixNano())}
		})
		l.answers[0].Alarms = map[string]string{"degraded": "commits are confirmed by this primary alone"}
		for _, i := range []int{1, 2} {
			l.answers[i].Postgres.Running, l.answers[i].Postgres.Upstream = false, ""
		}
	},
	"electing": func(l *looked) {
		l.silent(0, asking(errRefused))
		l.register(func(r *cluster.Register) { r.Epoch = 4 })
		l.answers[1].Leads = true
		l.answers[1].Alarms = map[string]string{"no-promotion": "1 of 2 members of S have reported, 2 are needed"}
	},
	"confirming": func(l *looked) {
		l.answers[0].Open, l.answers[0].Phase = false, "confirming"
	},
	"stalled": func(l *looked) {
		l.answers[0].Alarms = map[string]string{"stalled": "commits wait for 1 of b, c"}
	},
	"no-majority": func(l *looked) {
		for i := range l.answers {
			if i == 1 {
				l.answers[i].Known, l.answers[i].Register = false, cluster.Register{}
				l.answers[i].Postgres.Running, l.answers[i].Postgres.Upstream = false, ""
				continue
			}
			l.silent(i, errors.New("i/o timeout"))
		}
	},
	"paused-with-reader-and-witness": func(l *looked) {
		l.members[1].Role, l.members[2].Role, l.members[2].Postgres = "reader", "witness", ""
		l.answers[2].Postgres = cluster.Postgres{}
		l.register(func(r *cluster.Register) { r.Paused, r.S, r.Mode = true, nil, cluster.Required })
		l.register(func(r *cluster.Register) {
			r.Degraded = cluster.Degraded{LSN: 0x10, Wall: time.Duration(at.Add(-time.Hour).UnixNano())}
		})
	},
	"failed-over": func(l *looked) {
		began := at.Add(-time.Minute)
		l.answers[0].Failovers = []Failover{{Epoch: 3, From: "b", To: "a", Silent: began.Add(-510 * time.Millisecond), Began: began, Named: began.Add(20 * time.Millisecond),
			Promoted: began.Add(60 * time.Millisecond), Opened: began.Add(110 * time.Millisecond)}}
		l.answers[2].Failovers = []Failover{
			{Epoch: 2, From: "c", To: "b", Silent: began.Add(-time.Hour - time.Second), Began: began.Add(-time.Hour), Named: began.Add(-time.Hour + 30*time.Millisecond)},
			{Epoch: 3, From: "b", To: "a", Silent: began.Add(-500 * time.Millisecond), Began: began.Add(5 * time.Millisecond), Named: began.Add(25 * time.Millisecond)}}
	},
}

func asking(err error) error { return fmt.Errorf("Post \"https://a/status\": %w", err) }

// TestStatus holds what status says of each trouble to testdata/status; the
// command line's tests show how it looks. -rewrite writes it anew.
func TestStatus(t *testing.T) {
	for name, trouble := range troubles {
		l := calm()
		trouble(&l)
		got, err := json.MarshalIndent(assemble("orders", "b", l.members, l.answers, l.errs), "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, '\n')
		file := filepath.Join("testdata", "status", name+".json")
		if *rewrite {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v; status is\n%s", name, err, got)
		}
	}
	kept, _ := filepath.Glob("testdata/status/*.json")
	if len(kept) != len(troubles) {
		t.Errorf("testdata/status holds %d files for %d troubles", len(kept), len(troubles))
	}
}
