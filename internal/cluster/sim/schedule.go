package sim

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// Schedule determines a run: the cluster, the weather, and the faults.
type Schedule struct {
	Seed         uint64
	Nodes        int
	Witness      bool // the last node holds no data
	K            int
	Mode         cluster.Mode
	Loss         float64 // of messages
	Twice        float64
	Slow         float64
	CrashBetween float64 // an agent dies between two effects of one step
	Absent       bool    // the last node is blank and not yet in the cluster
	Reader       bool    // the last node holds data and never enters S
	Faults       []Fault
	Mutation     cluster.Mutation // not part of the text

	announced *cluster.Announcement
}

// Fault is one thing that goes wrong, or that a person asks for.
type Fault struct {
	At   ms
	What string
	Node int
	To   int // another node, or a number that What explains
	For  ms
}

func (s *Schedule) forcing() bool {
	for _, f := range s.Faults {
		if f.What == "force" {
			return true
		}
	}
	return false
}

// kinds of fault, with their weight. Families that void a guarantee when they
// meet others stand apart: see Generate.
var kinds = []struct {
	what   string
	weight int
}{
	{"power-off", 10}, {"power-primary", 10}, {"lag-then-fail", 8}, {"power-all", 2}, {"wipe", 3}, {"kill-agent", 6}, {"die-proposing", 6}, {"kill-postgres", 5}, {"kill-primary", 5},
	{"freeze-host", 4}, {"freeze-primary", 3}, {"freeze-agent", 4}, {"freeze-postgres", 3}, {"isolate", 5}, {"register-cut", 3}, {"late-removal", 4}, {"isolate-primary", 6},
	{"cut", 5}, {"cut-one-way", 5}, {"split", 4}, {"slow-disk", 4}, {"hang-disk", 3}, {"full-disk", 2}, {"reject-reload", 4},
	{"break-replay", 3}, {"corrupt", 2}, {"restore", 4}, {"lag-replay", 4}, {"foreign-start", 4}, {"clock", 3}, {"cancel-waits", 2}, {"no-slot", 1},
	{"block-stop", 2}, {"switchover", 5}, {"restart", 2}, {"pause", 1}, {"fence", 1}, {"reinit", 3}, {"set-k", 3}, {"twin", 1},
	{"standbys-down", 5}, {"lose-slot", 1}, {"leave", 1}, {"join", 1}, {"transfer", 2}, {"second-failover", 5},
}

// Generate makes the schedule of a seed.
func Generate(seed uint64) Schedule {
	r := random{s: seed}
	s := Schedule{Seed: seed, K: 1}
	switch r.n(10) {
	case 0, 1, 2, 3, 4:
		s.Nodes = 3
	case 5, 6:
		s.Nodes, s.Witness = 3, true
	default:
		s.Nodes = 5
		s.K = 1 + r.n(2)
	}
	s.Absent = !s.Witness && r.chance(0.1)
	if r.chance(0.3) {
		s.Mode = cluster.Required
	}
	s.Reader = s.Nodes == 5 && !s.Absent && seed%4 == 1
	weather := []float64{0, 0, 0.02, 0.1}
	s.Loss, s.Twice, s.Slow = weather[r.n(4)], weather[r.n(4)], weather[r.n(4)]
	if r.chance(0.3) {
		s.CrashBetween = 0.002
	}
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	pick := func() string {
		x := r.n(total)
		for _, k := range kinds {
			if x -= k.weight; x < 0 {
				return k.what
			}
		}
		return ""
	}
	family := r.n(20)
	if family == 0 && r.chance(0.6) {
		s.Nodes, s.Witness, s.Absent, s.Reader, s.K = 5, false, false, false, 1
	}
	if family == 1 || family == 2 {
		s.CrashBetween = 0 // who forgets cannot notice that another one did
		if r.chance(0.5) {
			s.Loss, s.Slow = 0, 0
		}
	}
	at := r.between(1500, 5000)
	for i, n := 0, 2+r.n(9); i < n && at < 30000; i++ {
		f := Fault{At: at, What: pick(), Node: r.n(s.Nodes), To: r.n(s.Nodes), For: r.between(300, 7000)}
		switch {
		case family == 0 && i == 0:
			f.What = "force"
			ahead := r.n(s.Nodes) // all but one are behind when it happens
			for x := range s.Nodes {
				if x != ahead && r.chance(0.7) {
					s.Faults = append(s.Faults, Fault{At: max(0, at-r.between(1000, 2500)), What: "freeze-standby", Node: x, For: 3000})
				}
			}
			s.Faults = append(s.Faults, Fault{At: max(0, at-r.between(0, 900)), What: "power-primary", For: 12000})
			if r.chance(0.5) {
				s.Faults = append(s.Faults, Fault{At: max(0, at-r.between(0, 900)), What: "power-off", Node: r.n(s.Nodes), For: 12000})
			}
			f.At = at + 2500
		case family == 1:
			f.What = []string{"lie", "cut", "isolate-primary", "freeze-postgres", "lie", "lie-primary"}[r.n(6)]
		case family == 2:
			f.What = []string{"rollback", "cut", "cut", "isolate", "rollback", "transfer"}[r.n(6)]
		}
		if s.Absent && i == 1 {
			f.What, f.Node = "join", s.Nodes-1
		}
		s.Faults = append(s.Faults, f)
		if r.chance(0.4) {
			at += r.between(0, 800) // close together is where the trouble is
		} else {
			at += r.between(800, 7000)
		}
	}
	return s
}

// String writes the schedule so that Parse reads it back.
func (s Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster seed=%d nodes=%d witness=%t k=%d required=%t loss=%g twice=%g slow=%g crash=%g absent=%t reader=%t\n",
		s.Seed, s.Nodes, s.Witness, s.K, s.Mode == cluster.Required, s.Loss, s.Twice, s.Slow, s.CrashBetween, s.Absent, s.Reader)
	for _, f := range s.Faults {
		fmt.Fprintf(&b, "fault at=%d what=%s node=%d to=%d for=%d\n", f.At, f.What, f.Node, f.To, f.For)
	}
	return b.String()
}

// Parse reads what String wrote; lines that begin with # are comments.
func Parse(text string) (Schedule, error) {
	var s Schedule
	sc := bufio.NewScanner(strings.NewReader(text))
	for line := 1; sc.Scan(); line++ {
		t := strings.TrimSpace(sc.Text())
		var err error
		switch {
		case t == "" || strings.HasPrefix(t, "#"):
		case strings.HasPrefix(t, "cluster "):
			var required bool
			if !strings.Contains(t, " reader=") {
				t += " reader=false" // kept before there were readers
			}
			_, err = fmt.Sscanf(t, "cluster seed=%d nodes=%d witness=%t k=%d required=%t loss=%g twice=%g slow=%g crash=%g absent=%t reader=%t",
				&s.Seed, &s.Nodes, &s.Witness, &s.K, &required, &s.Loss, &s.Twice, &s.Slow, &s.CrashBetween, &s.Absent, &s.Reader)
			if required {
				s.Mode = cluster.Required
			}
		case strings.HasPrefix(t, "fault "):
			var f Fault
			_, err = fmt.Sscanf(t, "fault at=%d what=%s node=%d to=%d for=%d", &f.At, &f.What, &f.Node, &f.To, &f.For)
			s.Faults = append(s.Faults, f)
		default:
			err = fmt.Errorf("neither cluster nor fault: %q", t)
		}
		if err != nil {
			return s, fmt.Errorf("read line %d of a schedule: %w", line, err)
		}
	}
	return s, nil
}
