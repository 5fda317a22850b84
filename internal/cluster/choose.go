package cluster

import "slices"

type verdict uint8

const (
	tooFew  verdict = iota // not enough recruits
	name                   // member may be promoted
	rename                 // the last named primary may go on
	catchUp                // member would do, once it has fetched from holder
	blocked                // enough recruits, but none may be promoted
)

type choice struct {
	verdict verdict
	member  Member
	fork    LSN
	chain   []Branch // up to the branch that the new timeline leaves
	holder  NodeID
	until   LSN
	why     string
	counted int
	need    int
}

// holder is one report, placed on the register's chain.
type holder struct {
	Report
	pos      Position
	common   int
	diverged bool
	lost     bool // amnesiac
}

// place puts the reports on the chain and finds those whose owners hold less
// than somebody saw of them.
func (m *machine) place(reports []Report, chain []Branch) []holder {
	var out []holder
	for _, r := range reports {
		h := holder{Report: r}
		h.pos, h.common, h.diverged = Locate(chain, r.History, r.End)
		if m.is(ChoiceByReplay) {
			h.pos, h.common, h.diverged = Locate(chain, r.History, r.Replayed)
		}
		if m.is(ChoiceByPromise) {
			h.pos.Epoch = r.Promised
		}
		if m.is(ChoiceByControlFile) {
			for _, b := range chain {
				if b.Timeline == r.ControlTimeline {
					h.pos.Epoch = b.Epoch
				}
			}
		}
		was := sighting(m.seen, r.Member)
		for _, o := range reports {
			if s := sighting(o.Seen, r.Member); was.Timeline < s.Timeline || was.Timeline == s.Timeline && was.LSN < s.LSN {
				was = s
			}
		}
		tl := lastTimeline(r.History)
		h.lost = (tl < was.Timeline || tl == was.Timeline && r.End < was.LSN) && !m.is(AmnesiacCounted)
		if r.Member == m.reg.Primary && outrun(m.seen, m.reg.Timeline, tl, r.End) && !m.is(AmnesiacLeads) {
			h.lost = true // others got from it what it no longer has
		}
		out = append(out, h)
	}
	return out
}

// held is the chain without the branches at its end that no report holds anything
// of: their primary was named, and never confirmed by any of S that answers. With a
// quorum of reports nothing was acknowledged there, and nobody has to fit them.
func (m *machine) held(reports []Report) []Branch {
	n := 0
	for _, r := range reports {
		_, common, _ := Locate(m.reg.Chain, r.History, r.End)
		n = max(n, common)
	}
	return m.reg.Chain[:n]
}

// outrun says whether somebody holds more of timeline tl than its primary, whose
// WAL ends at end of timeline last. All of tl came from that primary.
func outrun(seen []Sighting, tl, last Timeline, end LSN) bool {
	return slices.ContainsFunc(seen, func(s Sighting) bool { return s.Timeline == tl && (last != tl || s.LSN > end) })
}

// counts says whether a report is of a member of S.
func (m *machine) counts(x Member) bool {
	if m.is(IncarnationIgnored) {
		return slices.ContainsFunc(m.reg.S, func(s Member) bool { return s.Node == x.Node })
	}
	return m.reg.InS(x)
}

// choose decides what the reports of the present election allow.
func (m *machine) choose(reports []Report, hint NodeID) choice {
	all := m.place(reports, m.reg.Chain)
	c := choice{why: "too few members of S can be recruited"}
	need, possible := m.reg.Quorum()
	c.need = need
	if m.is(QuorumOffByOne) {
		c.need = max(1, c.need-1)
	}
	for _, h := range all {
		if !m.counts(h.Member) {
			continue
		}
		m.alarmf(AlarmAmnesiac, h.lost, "holds less than it had confirmed, by a lying disk or a restored snapshot: ", string(h.Member.Node))
		if h.lost {
			m.mark(MarkAmnesiac)
		} else if h.common > 0 {
			c.counted++
		}
	}
	if r, ok := m.mayRename(all, hint); ok {
		c.verdict, c.member = rename, r
		return c
	}
	if !possible || c.counted < c.need {
		return c
	}
	chain := m.held(reports)
	members := slices.DeleteFunc(m.place(reports, chain), func(h holder) bool { return !m.counts(h.Member) })
	return m.best(c, chain, members, hint)
}

// mayRename says whether the last named primary is back with all that it
// acknowledged, in the same incarnation: then it may simply go on.
func (m *machine) mayRename(all []holder, hint NodeID) (Member, bool) {
	for _, h := range all {
		if h.Member != m.reg.Primary || h.lost || h.common == 0 || h.diverged {
			continue
		}
		if !h.Able && (!h.Present || m.now-m.elect.since < m.cfg.Timing.Retry) {
			continue
		}
		if hint != "" && m.now-m.elect.since < m.cfg.Timing.Handover {
			continue
		}
		for _, o := range all {
			if h.pos.Less(o.pos) {
				return Member{}, false // it lost WAL that others got from it
			}
		}
		return h.Member, true
	}
	return Member{}, false
}

// best picks among the counted members of S. What anybody of S holds, counted
// or not, the new primary must be able to replay.
func (m *machine) best(c choice, chain []Branch, members []holder, hint NodeID) choice {
	var top holder
	for _, h := range members {
		if m.is(HolderIgnored) && (!h.Qualified || h.Replayable < h.End) {
			continue
		}
		if top.Member.Node == "" || top.pos.Less(h.pos) {
			top = h
		}
	}
	var best holder
	for _, h := range members {
		if h.lost || !h.Qualified || h.diverged || h.common == 0 || h.Replayable < h.pos.LSN {
			continue
		}
		if h.pos.Less(top.pos) && !m.is(PriorityFirst) {
			continue
		}
		if best.Member.Node == "" || better(h, best, hint) {
			best = h
		}
	}
	if best.Member.Node != "" {
		c.verdict, c.member, c.fork, c.chain = name, best.Member, best.pos.LSN, chain[:best.common]
		if m.is(ChoiceByReplay) {
			c.fork = best.End
		}
		return c
	}
	for _, h := range members { // somebody who could replay it, if it had it
		if h.Qualified && !h.lost && !h.diverged && h.common > 0 && h.Replayable >= h.End {
			c.verdict, c.member, c.holder, c.until = catchUp, h.Member, top.Member.Node, top.pos.LSN
			c.why = "the best candidate lacks WAL that " + string(top.Member.Node) + " holds"
			return c
		}
	}
	c.verdict, c.why = blocked, "no recruit can replay all that the recruits hold"
	return c
}

// better breaks ties among candidates that hold the same.
func better(a, b holder, hint NodeID) bool {
	switch {
	case (a.Member.Node == hint) != (b.Member.Node == hint):
		return a.Member.Node == hint
	case a.Unwanted != b.Unwanted:
		return b.Unwanted
	case a.Headroom != b.Headroom:
		return a.Headroom
	case a.Priority != b.Priority:
		return a.Priority > b.Priority
	}
	return compareMembers(a.Member, b.Member) < 0
}
