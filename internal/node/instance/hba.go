package instance

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// door says whom Postgres lets in.
type door uint8

const (
	doorClosed  door = iota // the agent and replication
	doorReaders             // a standby's: clients too, who can only read
	doorOpen                // a primary's: clients too
)

func (d door) String() string { return [...]string{"closed", "open for readers", "open"}[d] }

// Roles of ours in every cluster.
const (
	roleAgent       = "holdfast"             // superuser, over the local socket only
	roleReplication = "holdfast_replication" // streams, by certificate only
	roleRewind      = "holdfast_rewind"      // reads files for pg_rewind, by certificate only
)

const identMap = "holdfast"

// hbaText is a pg_hba.conf. Our own rules come first and the first match
// decides, so no rule of the user's reaches our roles or replication.
// alone leaves replication out: nobody but the agent gets in.
func hbaText(d door, user []string, alone bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Written by holdfast: changes here are lost. The door is %s.\n", d)
	fmt.Fprintf(&b, "local all %s peer map=%s\n", roleAgent, identMap)
	if !alone {
		fmt.Fprintf(&b, "hostssl replication %s all cert map=%s\n", roleReplication, identMap)
		fmt.Fprintf(&b, "hostssl postgres %s all cert map=%s\n", roleRewind, identMap)
	}
	ours := strings.Join([]string{roleAgent, roleReplication, roleRewind}, ",")
	for _, how := range []string{"local %s %s reject\n", "host %s %s all reject\n"} {
		fmt.Fprintf(&b, how, "replication", "all")
		fmt.Fprintf(&b, how, "all", ours)
	}
	if d == doorClosed {
		b.WriteString("local all all reject\nhost all all all reject\n")
		return b.String()
	}
	for _, line := range user {
		b.WriteString(strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}

// identText maps the operating system's users to the agent's role, and the
// names in our certificates to the roles that they are for.
func (i *Instance) identText() string {
	var b strings.Builder
	b.WriteString("# Written by holdfast: changes here are lost.\n")
	for _, u := range []string{"root", i.user.name} {
		fmt.Fprintf(&b, "%s %q %s\n", identMap, u, roleAgent)
	}
	for _, role := range []string{roleReplication, roleRewind} {
		fmt.Fprintf(&b, "%s /^%s[a-z0-9-]+$ %s\n", identMap, peerPrefix, role)
	}
	return b.String()
}

func (i *Instance) hbaPath() string   { return filepath.Join(i.cfg.RunDir, "pg_hba.conf") }
func (i *Instance) identPath() string { return filepath.Join(i.cfg.RunDir, "pg_ident.conf") }

// doorFound is the door that an earlier life left: what the rules on tmpfs are.
func (i *Instance) doorFound() door {
	text, err := os.ReadFile(i.hbaPath())
	for _, d := range []door{doorOpen, doorReaders} {
		if err == nil && string(text) == hbaText(d, i.cfg.HBA, false) {
			return d
		}
	}
	return doorClosed
}

// CheckHBA returns what is wrong with the user's own pg_hba rules. Name is the rule.
func CheckHBA(rules []string) []Problem {
	var out []Problem
	for _, line := range rules {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		why, fix := "", ""
		switch {
		case strings.HasPrefix(f[0], "include"):
			why, fix = "it includes a file that nobody here can check", "give the rules themselves"
		case !strings.HasPrefix(f[0], "local") && !strings.HasPrefix(f[0], "host"):
			why, fix = "it is no rule of pg_hba.conf", "begin with local, host, hostssl or hostnossl"
		case len(f) < 4:
			why, fix = "it is too short", "give type, database, user, address (not for local) and method"
		case strings.ContainsAny(line, "\n\r"):
			why, fix = "it has more than one line", "give one rule each"
		}
		if m := method(f); why == "" && !slices.Contains(methods, m) {
			why, fix = fmt.Sprintf("%q is no method of authentication", m), "give one of "+strings.Join(methods, ", ")+"; scram-sha-256 is for passwords"
		}
		for _, db := range strings.Split(strings.ToLower(field(f, 1)), ",") {
			if why == "" && strings.Trim(db, `"`) == "replication" && !strings.Contains(db, `"`) {
				why, fix = "replication is let in by certificate only: anything that streams under a member's name would confirm commits",
					"leave it out; a logical subscriber needs a rule for its database, not for replication"
			}
		}
		if why != "" {
			out = append(out, Problem{Name: line, Why: why, Fix: fix})
		}
	}
	return out
}

// methods are those of all supported versions.
var methods = []string{"scram-sha-256", "cert", "reject", "trust", "md5", "password", "peer", "ident", "gss", "sspi", "pam", "ldap", "radius", "bsd", "oauth"}

// method is what stands in a rule's field for it.
func method(f []string) string {
	switch {
	case strings.HasPrefix(f[0], "local"):
		return field(f, 3)
	case len(f) > 5 && net.ParseIP(f[4]) != nil: // the address has a mask of its own
		return field(f, 5)
	}
	return field(f, 4)
}

func field(f []string, n int) string {
	if n < len(f) {
		return f[n]
	}
	return ""
}
