package experiment

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// The kinds of faults that a nemesis draws from.
const (
	strokePower     = "power"         // a host loses its power and gets it back
	strokeFreeze    = "freeze"        // every program of a host stops and goes on
	strokeAgent     = "agent-freeze"  // its agent alone does
	strokeAgentKill = "agent-kill"    // the agent dies; a service manager starts it again
	strokeServer    = "postgres-kill" // the server's postmaster dies
	strokePartition = "partition"     // a host is cut off from the others of the setup
	strokeHang      = "disk-hang"     // a host's disk answers nothing
	strokeSwitch    = "switchover"    // the setup is asked for another primary
)

// strokeKinds with how often each is drawn. A loss of power is what most setups
// are made for, so it comes most often.
var strokeKinds = []struct {
	kind   string
	weight int
	lasts  bool
}{
	{strokePower, 5, true}, {strokeFreeze, 3, true}, {strokeAgent, 1, true}, {strokeAgentKill, 2, false},
	{strokeServer, 3, false}, {strokePartition, 4, true}, {strokeHang, 1, true}, {strokeSwitch, 1, false},
}

// stroke is one fault of a nemesis.
type stroke struct {
	kind string
	at   time.Duration // from the beginning
	hold time.Duration // 0 for what does not last
	role int           // whom: 0 the primary, else a standby, as they are then
	ways string        // of a partition
}

func (s stroke) end() time.Duration { return s.at + s.hold }

const (
	shortestHold = 200 * time.Millisecond
	firstStroke  = time.Second
	overlapping  = 0.25 // of strokes begin while another one lasts
	atPrimary    = 0.5  // of strokes are at the primary
)

// planNemesis draws faults for a time of length, on a setup of so many hosts that
// needs up to heals to fail over. At most two last at a time, and never on one
// host; after both the setup is left alone for a while. It is a function of
// its arguments alone.
func planNemesis(seed uint64, length time.Duration, hosts int, heals time.Duration) []stroke {
	rnd := rand.New(rand.NewPCG(seed, 0x6e656d65736973))
	longest := min(length/4, max(2*time.Second, heals*3/2))
	var plan []stroke
	at := firstStroke
	for {
		s := draw(rnd, hosts, longest)
		s.at = at
		if s.end() > length {
			return plan
		}
		plan = append(plan, s)
		last := s.end()
		if s.hold > 0 && rnd.Float64() < overlapping {
			o := draw(rnd, hosts, longest)
			o.at = s.at + time.Duration(rnd.Float64()*float64(s.hold))
			if o.role == s.role {
				o.role = (o.role + 1) % hosts
			}
			if o.end() <= length {
				plan = append(plan, o)
				last = max(last, o.end())
			}
		}
		at = last + 500*time.Millisecond + time.Duration((0.2+1.3*rnd.Float64())*float64(heals))
	}
}

func draw(rnd *rand.Rand, hosts int, longest time.Duration) stroke {
	sum := 0
	for _, k := range strokeKinds {
		sum += k.weight
	}
	n := rnd.IntN(sum)
	i := 0
	for n >= strokeKinds[i].weight {
		n -= strokeKinds[i].weight
		i++
	}
	s := stroke{kind: strokeKinds[i].kind}
	if strokeKinds[i].lasts {
		// As many short ones as long ones: each factor is as likely as any other.
		span := math.Log(max(1, float64(longest)/float64(shortestHold)))
		s.hold = time.Duration(float64(shortestHold) * math.Exp(rnd.Float64()*span)).Round(time.Millisecond)
	}
	if hosts > 1 && rnd.Float64() >= atPrimary {
		s.role = 1 + rnd.IntN(hosts-1)
	}
	if s.kind == strokePartition {
		s.ways = []string{bothWays, fromPrimary, toPrimary}[rnd.IntN(3)]
	}
	return s
}

// moment is the beginning or the end of a stroke.
type moment struct {
	at     time.Duration
	stroke int
	begins bool
}

// moments are those of a plan, in order.
func moments(plan []stroke) []moment {
	var ms []moment
	for i, s := range plan {
		ms = append(ms, moment{s.at, i, true})
		if s.hold > 0 {
			ms = append(ms, moment{s.end(), i, false})
		}
	}
	slices.SortStableFunc(ms, func(a, b moment) int { return int(a.at - b.at) })
	return ms
}
