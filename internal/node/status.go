package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

// Local is what one agent says of itself.
type Local struct {
	Node      cluster.NodeID    `json:"node"`
	Version   string            `json:"version"`
	Since     time.Time         `json:"since"` // this life of the agent
	Known     bool              `json:"known"` // it has read the register
	Register  cluster.Register  `json:"register"`
	Leads     bool              `json:"leads"` // its voter leads the register
	Voter     uint64            `json:"voter"`
	Phase     string            `json:"phase"` // of the primary's way to an open door
	Open      bool              `json:"open"`
	Promise   cluster.Epoch     `json:"promise"`
	Postgres  cluster.Postgres  `json:"postgres"`
	Alarms    map[string]string `json:"alarms"`
	Failovers []Failover        `json:"failovers"`
}

// Member is one line of a cluster's status.
type Member struct {
	Node       string            `json:"node"`
	Role       string            `json:"role"` // primary, standby, reader, witness
	State      string            `json:"state"`
	Zone       string            `json:"zone,omitempty"`
	Address    string            `json:"address"`
	Postgres   string            `json:"postgres,omitempty"`
	Answers    bool              `json:"answers"`
	Error      string            `json:"error,omitempty"`
	InS        bool              `json:"in_s"`
	Voter      bool              `json:"voter"`
	Leads      bool              `json:"leads_register"`
	Promotable bool              `json:"promotable"` // as things stand, it may be named without loss
	Timeline   uint32            `json:"timeline,omitempty"`
	LSN        string            `json:"lsn,omitempty"`      // end of WAL on its disk
	Replayed   string            `json:"replayed,omitempty"` // by a standby
	LagBytes   *int64            `json:"lag_bytes,omitempty"`
	Follows    string            `json:"follows,omitempty"`
	Fenced     bool              `json:"fenced,omitempty"`
	Version    string            `json:"version,omitempty"`
	Alarms     map[string]string `json:"alarms,omitempty"`
}

// Phases are a failover's, in milliseconds since the former primary was last
// heard; what was not seen is absent.
type Phases struct {
	Epoch    uint64    `json:"epoch"`
	From     string    `json:"from"`
	To       string    `json:"to"`
	At       time.Time `json:"at"` // when the epoch was raised
	Detected *float64  `json:"detected_ms,omitempty"`
	Named    *float64  `json:"named_ms,omitempty"`
	Promoted *float64  `json:"promoted_ms,omitempty"`
	Opened   *float64  `json:"opened_ms,omitempty"`
}

// Status is a cluster as one of its nodes sees it.
type Status struct {
	Cluster   string   `json:"cluster"`
	Asked     string   `json:"asked"` // the node that answers
	Known     bool     `json:"known"`
	Epoch     uint64   `json:"epoch"`
	Primary   string   `json:"primary"` // the last one named
	Open      bool     `json:"open"`    // it takes writes
	Phase     string   `json:"phase"`   // of the primary, as it says
	Electing  bool     `json:"electing"`
	Timeline  uint32   `json:"timeline"`
	S         []string `json:"s"` // who may confirm a commit
	K         int      `json:"k"` // how many of them must
	WantK     int      `json:"want_k"`
	Quorum    int      `json:"promotion_quorum"` // how many of S an automatic promotion needs; 0: none is possible
	Mode      string   `json:"mode"`
	Paused    bool     `json:"paused"`
	Degraded  *Alone   `json:"degraded,omitempty"`
	Waiting   []string `json:"waiting"` // what is being waited for, in words
	Members   []Member `json:"members"`
	Failovers []Phases `json:"failovers"`
}

// Alone says since when, and from where on, the primary has been confirming alone.
type Alone struct {
	Since time.Time `json:"since"`
	LSN   string    `json:"lsn"`
}

func lsn(l cluster.LSN) string { return postgres.LSN(l).String() }

// local is what this agent says of itself.
func (a *agent) local() Local {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := Local{Node: a.self, Version: a.o.Version, Since: a.start, Known: a.view.Known, Register: a.view.Register, Leads: a.view.Leads,
		Phase: a.view.Phase, Open: a.view.Open, Promise: a.view.Promise, Postgres: a.pg, Alarms: map[string]string{},
		Failovers: slices.Clone(a.journal.all)}
	if n, ok := a.view.Register.Node(a.self); ok {
		l.Voter = n.Voter
	}
	for k, v := range a.alarms {
		l.Alarms[k] = v
	}
	return l
}

// askWithin bounds what status waits for a member that does not answer.
const askWithin = 700 * time.Millisecond

// status asks every member and puts the answers together.
func (a *agent) status(ctx context.Context) Status {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	answers := make([]*Local, len(a.c.Members))
	errs := make([]error, len(a.c.Members))
	var all sync.WaitGroup
	for i, m := range a.c.Members {
		all.Go(func() {
			var l Local
			if m.Name == a.c.Node {
				l = a.local()
			} else if errs[i] = a.ask.post(ctx, cluster.NodeID(m.Name), pathStatus, struct{}{}, &l); errs[i] != nil {
				return
			}
			answers[i] = &l
		})
	}
	all.Wait()
	return assemble(a.c.Cluster, a.c.Node, a.members(), answers, errs)
}

func (a *agent) members() []Member {
	var out []Member
	for _, m := range a.c.Members {
		x := Member{Node: m.Name, Zone: m.Zone, Address: m.Address, Postgres: m.Postgres, Role: "standby"}
		switch {
		case m.Witness:
			x.Role = "witness"
		case m.Reader:
			x.Role = "reader"
		}
		out = append(out, x)
	}
	return out
}

// assemble is status without asking: the newest register that anybody knows, and
// each member's own word.
func assemble(name, asked string, members []Member, answers []*Local, errs []error) Status {
	s := Status{Cluster: name, Asked: asked, S: []string{}, Waiting: []string{}, Failovers: []Phases{}}
	var r cluster.Register
	for _, l := range answers {
		if l != nil && l.Known && (!s.Known || l.Register.Version > r.Version) {
			r, s.Known = l.Register, true
		}
	}
	s.Epoch, s.Primary, s.Electing, s.Timeline = uint64(r.Epoch), string(r.Primary.Node), s.Known && r.Electing(), uint32(r.Timeline)
	s.K, s.WantK, s.Paused, s.Mode = r.K, r.WantK, r.Paused, "preferred"
	if r.Mode == cluster.Required {
		s.Mode = "required"
	}
	s.Quorum, _ = r.Quorum()
	for _, m := range r.S {
		s.S = append(s.S, string(m.Node))
	}
	if s.Known && len(r.S) == 0 {
		s.Degraded = &Alone{Since: time.Unix(0, int64(r.Degraded.Wall)).UTC(), LSN: lsn(r.Degraded.LSN)}
	}
	var end cluster.LSN
	for _, l := range answers {
		if l != nil && l.Node == r.Primary.Node {
			end, s.Phase, s.Open = l.Postgres.End, l.Phase, l.Open && l.Register.Epoch == r.Epoch
		}
	}
	for i := range members {
		describeMember(&members[i], answers[i], errs[i], r, end)
	}
	s.Members = members
	s.waiting(answers)
	s.Failovers = phases(answers)
	return s
}

func describeMember(m *Member, l *Local, err error, r cluster.Register, end cluster.LSN) {
	n, in := r.Node(cluster.NodeID(m.Node))
	m.Voter, m.Fenced = in && n.Voter != 0, n.Fenced
	if m.Node == string(r.Primary.Node) {
		m.Role = "primary"
	}
	if l == nil {
		m.State, m.Error = "does not answer", shortError(err)
		m.InS = slices.ContainsFunc(r.S, func(x cluster.Member) bool { return string(x.Node) == m.Node })
		return
	}
	m.Answers, m.Leads, m.Version, m.Alarms = true, l.Leads, l.Version, l.Alarms
	p := l.Postgres
	m.InS = r.InS(cluster.Member{Node: cluster.NodeID(m.Node), Incarnation: p.Incarnation}) && p.Exists
	m.State = stateOf(m, l)
	if m.Role == "witness" || !p.Exists {
		return
	}
	if len(p.History) > 0 {
		m.Timeline = uint32(p.History[len(p.History)-1].Timeline)
	}
	m.LSN, m.Follows = lsn(p.End), string(p.Upstream)
	if m.Role != "primary" {
		m.Replayed = lsn(p.Replayed)
		if end != 0 {
			lag := max(int64(end)-int64(p.End), 0)
			m.LagBytes = &lag
		}
	}
	m.Promotable = m.InS && m.Role != "primary" && p.Replayable >= p.End && !n.NoFailover && !n.Fenced && !n.Leaving && len(r.S) > 0
}

func stateOf(m *Member, l *Local) string {
	p := l.Postgres
	switch {
	case m.Role == "witness":
		return "votes"
	case m.Fenced:
		return "fenced"
	case m.Role == "primary" && l.Open:
		return "open"
	case m.Role == "primary" && l.Phase != "off":
		return l.Phase
	case !p.Exists:
		return "no data directory yet"
	case !p.Running:
		return "stopped"
	case p.Primary:
		return "a primary that is not named"
	case p.Upstream != "":
		return "streaming"
	}
	return "not streaming"
}

func shortError(err error) string {
	if err == nil {
		return ""
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// phaseWords say what a primary does on its way to an open door.
var phaseWords = map[string]string{
	"off":                   "has not begun: its Postgres is down, or the register was not read yet",
	"settling":              "finds out whether a write to the register took hold",
	"setting SSN":           "has its Postgres told which standbys commits wait for",
	"starting":              "its Postgres starts",
	"writing the epoch row": "writes the first row of its term",
	"confirming":            "waits for standbys to have the first row of its term on disk",
}

// waiting says what is to happen to a member before it is as it should be.
func (m Member) waiting(s *Status) string {
	switch {
	case m.Fenced:
		return fmt.Sprintf("is fenced: `holdfast unfence %s` lets it come back", m.Node)
	case !m.Answers && m.Node != s.Primary:
		if m.InS {
			return "does not answer; it leaves S when another member confirms commits"
		}
		return "does not answer"
	case m.Role != "standby" && m.Role != "reader" || !m.Answers || m.InS && m.Follows != "":
		return ""
	case m.State == "streaming" && m.Role == "standby" && !m.InS:
		return "streams, and confirms commits once it has caught up"
	case m.State == "streaming":
		return ""
	case m.LSN == "":
		return "has no data directory yet: it copies the primary's"
	case s.Electing:
		return ""
	}
	if m.State == "not streaming" {
		return "runs, but streams from nobody"
	}
	return "does not stream: it is " + m.State
}

// waiting says in words what the cluster waits for.
func (s *Status) waiting(answers []*Local) {
	say := func(format string, a ...any) { s.Waiting = append(s.Waiting, fmt.Sprintf(format, a...)) }
	switch {
	case !s.Known:
		say("nobody who answers has read the register: a majority of the voters is missing")
		return
	case s.Electing:
		say("epoch %d has no primary yet: %d of {%s} are to be recruited", s.Epoch, s.Quorum, strings.Join(s.S, ", "))
	case !s.Open && s.Phase != "":
		say("%s leads, and %s", s.Primary, phaseWords[s.Phase])
	case !s.Open:
		say("the primary %s does not answer", s.Primary)
	}
	if s.Paused {
		say("paused: no election and no degrading until `holdfast resume`")
	}
	for _, m := range s.Members {
		if t := m.waiting(s); t != "" {
			say("%s %s", m.Node, t)
		}
	}
	if s.Degraded != nil {
		say("commits are confirmed by %s alone: no automatic failover until a standby has caught up", s.Primary)
	}
	for _, l := range answers {
		if l == nil {
			continue
		}
		for _, k := range []string{"stalled", "no-promotion", "cannot-lead"} {
			if t, on := l.Alarms[k]; on {
				say("%s: %s", l.Node, t)
			}
		}
	}
}

// phases puts the nodes' records together, newest first.
func phases(answers []*Local) []Phases {
	merged := map[cluster.Epoch]Failover{}
	for _, l := range answers {
		if l == nil {
			continue
		}
		for _, f := range l.Failovers {
			m := merged[f.Epoch]
			m.Epoch = f.Epoch
			if f.From != "" {
				m.From = f.From
			}
			if f.To != "" {
				m.To = f.To
			}
			m.Silent = later(m.Silent, f.Silent)
			m.Began, m.Named = earlier(m.Began, f.Began), earlier(m.Named, f.Named)
			if f.To == l.Node {
				m.Promoted, m.Opened = f.Promoted, f.Opened
			}
			merged[f.Epoch] = m
		}
	}
	out := []Phases{}
	for _, f := range merged {
		since := f.Silent
		if since.IsZero() || since.After(f.Began) {
			since = f.Began
		}
		ms := func(t time.Time) *float64 {
			if t.IsZero() || t.Before(since) {
				return nil
			}
			v := float64(t.Sub(since)) / float64(time.Millisecond)
			return &v
		}
		out = append(out, Phases{Epoch: uint64(f.Epoch), From: string(f.From), To: string(f.To), At: f.Began,
			Detected: ms(f.Began), Named: ms(f.Named), Promoted: ms(f.Promoted), Opened: ms(f.Opened)})
	}
	slices.SortFunc(out, func(x, y Phases) int { return int(y.Epoch) - int(x.Epoch) })
	return out[:min(len(out), 10)]
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
