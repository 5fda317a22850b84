package instance

import (
	"testing"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

func TestNames(t *testing.T) {
	for _, m := range []cluster.Member{{Node: "a", Incarnation: 1}, {Node: "db-1", Incarnation: 1<<53 - 1}, {Node: "db-1-2", Incarnation: 7}} {
		name := MemberName("main-east", m)
		if got, ok := ParseMember("main-east", name); !ok || got != m {
			t.Errorf("%s is %v, %v; want %v", name, got, ok, m)
		}
		if got, ok := ParseSlot(SlotName(m)); !ok || got != m {
			t.Errorf("%s is %v, %v; want %v", SlotName(m), got, ok, m)
		}
	}
	for _, name := range []string{"", "walreceiver", "main_a_0", "main_a_01", "main_a_", "main__1", "main_A_1", "other_a_1", "main_a_1_", "main_a-b_1",
		"main_a_99999999999999999999", ssnNobody, StrangerName("clone", "a")} {
		if m, ok := ParseMember("main", name); ok {
			t.Errorf("%q is taken for %v", name, m)
		}
	}
	long := cluster.NodeID("abcdefghij-klmnopqrstu")
	if err := checkNames(string(long), long); err != nil {
		t.Error(err)
	}
	if n := len(MemberName(string(long), cluster.Member{Node: long, Incarnation: 1<<53 - 1})); n > 63 {
		t.Errorf("a name of %d bytes", n)
	}
	for _, bad := range []cluster.NodeID{"", "A", "a_b", "1a", "a.b", long + "v"} {
		if checkNames("main", bad) == nil {
			t.Errorf("%q is taken for a name", bad)
		}
	}
}

func TestSSNText(t *testing.T) {
	for _, c := range []struct {
		ssn  cluster.SSN
		want string
	}{
		{cluster.SSN{}, ""},
		{cluster.SSN{K: 1}, "ANY 1 (holdfast_nobody)"},
		{cluster.SSN{K: 2, Names: []cluster.Member{{Node: "b", Incarnation: 2}, {Node: "c-d", Incarnation: 3}}}, `ANY 2 ("main_b_2", "main_c_d_3")`},
	} {
		if got := ssnText("main", c.ssn); got != c.want {
			t.Errorf("%v is %s, want %s", c.ssn, got, c.want)
		}
	}
}
