// Package dsn writes connection strings for a cluster's members, in the forms
// that drivers read. Passwords never stand in them.
package dsn

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
)

// Host is where one member's Postgres listens.
type Host struct {
	Name    string // of the node
	Address string // host:port
	Reader  bool   // never promoted by itself: named last
	Primary bool   // as far as is known: named first
}

// Options of a connection string.
type Options struct {
	Hosts    []Host
	User     string
	Database string
	SSLMode  string // as libpq has it; empty: require
	// Replica asks for a standby, if there is one that answers, instead of the primary.
	Replica bool
}

// Form is one driver's way to write it.
type Form string

// The forms.
const (
	Libpq   Form = "libpq"
	PGX     Form = "pgx"
	JDBC    Form = "jdbc"
	Psycopg Form = "psycopg"
	Django  Form = "django"
)

// Forms are all of them, in the order in which they are shown.
func Forms() []Form { return []Form{Libpq, PGX, JDBC, Psycopg, Django} }

// Timeouts, in the units that the drivers take.
const (
	connectSeconds = 2    // libpq below 17 takes 1 for 2
	tcpUserMillis  = 1000 // also bounds what a dead host costs when connecting
	idleSeconds    = 5    // keepalives begin
	pgxSeconds     = 1
	socketSeconds  = 30
)

// String writes the connection string of one form.
func String(f Form, o Options) (string, error) {
	if len(o.Hosts) == 0 {
		return "", fmt.Errorf("a connection string needs a member that holds data")
	}
	if o.SSLMode == "" {
		o.SSLMode = "require"
	}
	o.Hosts = slices.Clone(o.Hosts)
	slices.SortStableFunc(o.Hosts, func(a, b Host) int { return a.rank(o.Replica) - b.rank(o.Replica) })
	switch f {
	case Libpq, Psycopg:
		return o.url("postgresql", append(o.attrs(), libpqTimeouts()...)), nil
	case PGX:
		return o.url("postgres", append(o.attrs(), pair{"connect_timeout", fmt.Sprint(pgxSeconds)})), nil
	case JDBC:
		return o.jdbc(), nil
	case Django:
		return o.django()
	}
	return "", fmt.Errorf("no form %q: there are %s", f, names())
}

func names() string {
	var s []string
	for _, f := range Forms() {
		s = append(s, string(f))
	}
	return strings.Join(s, ", ")
}

// rank orders hosts: whoever is likely to be wanted comes first, since a driver
// asks them one after the other.
func (h Host) rank(replica bool) int {
	switch {
	case replica && h.Primary:
		return 3
	case replica && h.Reader:
		return 0
	case !replica && h.Primary:
		return 0
	case !replica && h.Reader:
		return 3
	}
	return 1
}

type pair struct{ key, value string }

// attrs says which of the hosts is wanted, and how.
func (o Options) attrs() []pair {
	want := "read-write"
	if o.Replica {
		want = "prefer-standby"
	}
	return []pair{{"target_session_attrs", want}, {"sslmode", o.SSLMode}}
}

func libpqTimeouts() []pair {
	return []pair{
		{"connect_timeout", fmt.Sprint(connectSeconds)},
		{"tcp_user_timeout", fmt.Sprint(tcpUserMillis)},
		{"keepalives_idle", fmt.Sprint(idleSeconds)},
		{"keepalives_interval", "1"},
		{"keepalives_count", "3"},
	}
}

func query(pairs []pair) string {
	var s []string
	for _, p := range pairs {
		s = append(s, p.key+"="+strings.ReplaceAll(url.QueryEscape(p.value), "+", "%20")) // libpq reads no + for a space
	}
	return strings.Join(s, "&")
}

func (o Options) addresses() string {
	var s []string
	for _, h := range o.Hosts {
		s = append(s, h.Address)
	}
	return strings.Join(s, ",")
}

func (o Options) url(scheme string, pairs []pair) string {
	return scheme + "://" + url.PathEscape(o.User) + "@" + o.addresses() + "/" + url.PathEscape(o.Database) + "?" + query(pairs)
}

func (o Options) jdbc() string {
	want := "primary"
	if o.Replica {
		want = "preferSecondary"
	}
	return "jdbc:postgresql://" + o.addresses() + "/" + url.PathEscape(o.Database) + "?" + query([]pair{
		{"user", o.User}, {"targetServerType", want}, {"sslmode", o.SSLMode}, {"connectTimeout", fmt.Sprint(pgxSeconds)},
		{"hostRecheckSeconds", "1"}, {"socketTimeout", fmt.Sprint(socketSeconds)}, {"tcpKeepAlive", "true"},
	})
}

// django is the entry of DATABASES. Host and port are lists here too.
func (o Options) django() (string, error) {
	var hosts, ports []string
	for _, h := range o.Hosts {
		host, port, err := net.SplitHostPort(h.Address)
		if err != nil {
			return "", fmt.Errorf("address of %s: %w", h.Name, err)
		}
		hosts, ports = append(hosts, host), append(ports, port)
	}
	var b strings.Builder
	line := func(indent int, key, value string) {
		fmt.Fprintf(&b, "%s%s: %s,\n", strings.Repeat(" ", 4*indent), quote(key), value)
	}
	b.WriteString("DATABASES = {\n    \"default\": {\n")
	line(2, "ENGINE", quote("django.db.backends.postgresql"))
	line(2, "NAME", quote(o.Database))
	line(2, "USER", quote(o.User))
	line(2, "PASSWORD", "os.environ[\"PGPASSWORD\"]")
	line(2, "HOST", quote(strings.Join(hosts, ",")))
	line(2, "PORT", quote(strings.Join(ports, ",")))
	line(2, "CONN_MAX_AGE", "600")
	line(2, "CONN_HEALTH_CHECKS", "True")
	b.WriteString("        \"OPTIONS\": {\n")
	for _, p := range append(o.attrs(), libpqTimeouts()...) {
		v := p.value
		if strings.Trim(v, "0123456789") != "" {
			v = quote(v)
		}
		line(3, p.key, v)
	}
	b.WriteString("        },\n    },\n}")
	return b.String(), nil
}

// quote writes a Python string.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteString("\\" + string(r))
		case r < ' ':
			fmt.Fprintf(&b, "\\x%02x", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String() + `"`
}
