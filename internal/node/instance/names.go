package instance

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// maxName is the longest that a cluster's and a node's name may be: with a
// 16-digit incarnation, an application_name stays within Postgres's 63 bytes.
const maxName = 22

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)

// checkNames refuses names that could not be told apart once they stand in an
// application_name or a slot's name, where a hyphen becomes an underscore.
func checkNames(clusterName string, node cluster.NodeID) error {
	for what, s := range map[string]string{"cluster": clusterName, "node": string(node)} {
		if !nameForm.MatchString(s) || len(s) > maxName {
			return fmt.Errorf("name of the %s %q: use small letters, digits and hyphens, a letter first, at most %d of them", what, s, maxName)
		}
	}
	return nil
}

func underscored(s string) string { return strings.ReplaceAll(s, "-", "_") }

// MemberName is what a member's stream calls itself (application_name).
func MemberName(clusterName string, m cluster.Member) string {
	return underscored(clusterName) + "_" + SlotName(m)
}

// ParseMember is the reverse of MemberName; ok is false for every other name.
func ParseMember(clusterName, name string) (m cluster.Member, ok bool) {
	rest, ok := strings.CutPrefix(name, underscored(clusterName)+"_")
	if !ok {
		return cluster.Member{}, false
	}
	m, ok = ParseSlot(rest)
	return m, ok && MemberName(clusterName, m) == name
}

// StrangerName is for streams that are no member's: clones, rewinds, archives.
// ParseMember refuses it, and no SSN ever lists it.
func StrangerName(purpose string, node cluster.NodeID) string {
	return "holdfast." + purpose + "." + string(node)
}

// SlotName is cluster.SlotName in the letters that Postgres allows.
func SlotName(m cluster.Member) string { return underscored(cluster.SlotName(m)) }

// ParseSlot is the reverse of SlotName.
func ParseSlot(name string) (m cluster.Member, ok bool) {
	at := strings.LastIndexByte(name, '_')
	if at < 1 {
		return cluster.Member{}, false
	}
	n, err := strconv.ParseUint(name[at+1:], 10, 64)
	node := strings.ReplaceAll(name[:at], "_", "-")
	if err != nil || n == 0 || !nameForm.MatchString(node) {
		return cluster.Member{}, false
	}
	m = cluster.Member{Node: cluster.NodeID(node), Incarnation: cluster.Incarnation(n)}
	return m, SlotName(m) == name
}

// ssnNobody is a name that no member and no tool ever has.
const ssnNobody = "holdfast_nobody"

// ssnText is an SSN as synchronous_standby_names has it.
func ssnText(clusterName string, s cluster.SSN) string {
	if s.K == 0 {
		return ""
	}
	if len(s.Names) == 0 {
		return fmt.Sprintf("ANY %d (%s)", s.K, ssnNobody)
	}
	names := make([]string, len(s.Names))
	for i, m := range s.Names {
		names[i] = `"` + MemberName(clusterName, m) + `"`
	}
	return fmt.Sprintf("ANY %d (%s)", s.K, strings.Join(names, ", "))
}
