package dsn

import (
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

var three = []Host{
	{Name: "r", Address: "10.0.0.4:5432", Reader: true},
	{Name: "a", Address: "10.0.0.1:5432"},
	{Name: "b", Address: "[2001:db8::2]:5433", Primary: true},
}

func TestOrder(t *testing.T) {
	for _, c := range []struct {
		form Form
		o    Options
		want string
	}{
		{Libpq, Options{Hosts: three, User: "app", Database: "shop"},
			"postgresql://app@[2001:db8::2]:5433,10.0.0.1:5432,10.0.0.4:5432/shop?target_session_attrs=read-write&sslmode=require&"},
		{Libpq, Options{Hosts: three, User: "app", Database: "shop", Replica: true},
			"postgresql://app@10.0.0.4:5432,10.0.0.1:5432,[2001:db8::2]:5433/shop?target_session_attrs=prefer-standby&sslmode=require&"},
		{PGX, Options{Hosts: three[1:2], User: "a b&c", Database: "x/y", SSLMode: "verify-full"},
			"postgres://a%20b&c@10.0.0.1:5432/x%2Fy?target_session_attrs=read-write&sslmode=verify-full&connect_timeout=1"},
		{JDBC, Options{Hosts: three[1:], User: "a b&c", Database: "shop"},
			"jdbc:postgresql://[2001:db8::2]:5433,10.0.0.1:5432/shop?user=a%20b%26c&targetServerType=primary&"},
		{Django, Options{Hosts: three[1:], User: `a"b`, Database: "shop"}, `"HOST": "2001:db8::2,10.0.0.1",
        "PORT": "5433,5432",`},
	} {
		got, err := String(c.form, c.o)
		if err != nil || !strings.Contains(got, c.want) {
			t.Errorf("%s: %v\n%s\nwant\n%s", c.form, err, got, c.want)
		}
	}
	if _, err := String(Libpq, Options{}); err == nil {
		t.Error("a string without a host")
	}
	if _, err := String("odbc", Options{Hosts: three}); err == nil || !strings.Contains(err.Error(), "jdbc") {
		t.Errorf("an unknown form: %v", err)
	}
}

// TestPGXReads: what is written is what the driver understands, with nothing
// that it would send to the server as a setting.
func TestPGXReads(t *testing.T) {
	s, err := String(PGX, Options{Hosts: three, User: "a b&c", Database: "x/y"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgx.ParseConfig(s)
	if err != nil {
		t.Fatal(err)
	}
	if c.User != "a b&c" || c.Database != "x/y" || c.Host != "2001:db8::2" || c.Port != 5433 || len(c.Fallbacks) != 2 || len(c.RuntimeParams) != 0 {
		t.Errorf("%s is read as user %q, database %q, host %q, %d others, settings %v", s, c.User, c.Database, c.Host, len(c.Fallbacks), c.RuntimeParams)
	}
}

// TestPage: what docs/clients.md shows stands in the programs that TestRetry runs.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	for language, file := range map[string]string{"go": "../../docs/examples/commit/main.go", "python": "../../docs/examples/commit.py"} {
		program, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(page), "```"+language+"\n")
		block, _, ok := strings.Cut(rest, "```")
		if !ok || !strings.Contains(string(program), strings.TrimSpace(block)) {
			t.Errorf("the %s block of the page is not in %s", language, file)
		}
	}
}
