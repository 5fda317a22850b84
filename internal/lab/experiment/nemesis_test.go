package experiment

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestPlanNemesis: every plan ends in time, never has more than two faults at
// once nor two on one host, and is the same for the same seed.
func TestPlanNemesis(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		length := time.Duration(rapid.IntRange(5, 900).Draw(rt, "seconds")) * time.Second
		heals := time.Duration(rapid.IntRange(1, 45).Draw(rt, "heals")) * time.Second
		hosts := rapid.IntRange(2, 5).Draw(rt, "hosts")
		plan := planNemesis(seed, length, hosts, heals)
		if !slices.Equal(plan, planNemesis(seed, length, hosts, heals)) {
			rt.Fatal("the same seed gives another plan")
		}
		last := time.Duration(0)
		open := map[int]stroke{}
		for _, m := range moments(plan) {
			s := plan[m.stroke]
			if m.at < last || m.at > length {
				rt.Fatalf("%+v comes at %s, after %s of %s", s, m.at, last, length)
			}
			last = m.at
			if !m.begins {
				delete(open, m.stroke)
				continue
			}
			for _, o := range open {
				if o.role == s.role {
					rt.Fatalf("%+v strikes whom %+v has not let go", s, o)
				}
			}
			if s.hold > 0 {
				open[m.stroke] = s
			}
			if len(open) > 2 {
				rt.Fatalf("three at once: %v", open)
			}
			if s.role < 0 || s.role >= hosts || (s.kind == strokePartition) != (s.ways != "") {
				rt.Fatalf("%+v", s)
			}
		}
		if len(open) > 0 {
			rt.Fatalf("not ended: %v", open)
		}
	})
}

// TestPlanNemesisIsVaried: in an hour every kind comes, at the primary and at
// standbys, alone and overlapping, and there are as many faults as a soak needs.
func TestPlanNemesisIsVaried(t *testing.T) {
	kinds, roles, ways, over, n := map[string]int{}, map[int]int{}, map[string]int{}, 0, 0
	for seed := range uint64(12) {
		plan := planNemesis(seed, 5*time.Minute, 3, 2*time.Second)
		for i, s := range plan {
			n++
			kinds[s.kind]++
			roles[s.role]++
			ways[s.ways]++
			if i > 0 && s.at < plan[i-1].end() {
				over++
			}
		}
	}
	if len(kinds) != len(strokeKinds) || len(roles) != 3 || len(ways) != 4 {
		t.Errorf("kinds %v, roles %v, ways %v", kinds, roles, ways)
	}
	if roles[0] < n/3 || roles[0] > 2*n/3 || over < n/20 || n < 300 {
		t.Errorf("%d faults in an hour, %d at the primary, %d overlapping", n, roles[0], over)
	}
}
