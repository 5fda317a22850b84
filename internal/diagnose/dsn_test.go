package diagnose

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// home gives a test a home directory and an environment of its own.
func home(t *testing.T, env map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, k := range []string{"PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGPASSWORD", "PGSERVICE", "PGSERVICEFILE", "PGPASSFILE", "PGSYSCONFDIR", "PGSSLMODE", "PGAPPNAME", "PGOPTIONS"} {
		t.Setenv(k, "")
		check(t, os.Unsetenv(k))
	}
	t.Setenv("HOME", dir)
	for k, v := range env {
		t.Setenv(k, strings.ReplaceAll(v, "HOME", dir))
	}
	return dir
}

func write2(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	check(t, os.WriteFile(path, []byte(text), mode))
	check(t, os.Chmod(path, mode))
}

// TestDSN: what psql takes leads where psql goes.
func TestDSN(t *testing.T) {
	const service = "[prod]\nhost=db1\nport=5433\nuser=mona\ndbname=app\n"
	for _, c := range []struct {
		name, dsn string
		env       map[string]string
		files     map[string]string
		want      string // host port user database password application
	}{
		{"nothing", "", map[string]string{"PGHOST": "/run/x", "PGUSER": "u", "PGDATABASE": "d"}, nil, "/run/x 5432 u d  holdfast diagnose"},
		{"keywords", "host=h port=6000 user=u dbname=d password='se cret'", nil, nil, "h 6000 u d se cret holdfast diagnose"},
		{"url", "postgresql://u:p%40ss@h:6000/d?application_name=x", nil, nil, "h 6000 u d p@ss x"},
		{"name of a database", "my'db", map[string]string{"PGHOST": "h", "PGUSER": "u"}, nil, "h 5432 u my'db  holdfast diagnose"},
		{"environment below the dsn", "host=h", map[string]string{"PGHOST": "other", "PGPORT": "7", "PGUSER": "u", "PGDATABASE": "d", "PGPASSWORD": "pw"}, nil, "h 7 u d pw holdfast diagnose"},
		{"service", "service=prod", nil, map[string]string{".pg_service.conf": service}, "db1 5433 mona app  holdfast diagnose"},
		{"service of the environment", "", map[string]string{"PGSERVICE": "prod", "PGSERVICEFILE": "HOME/s.conf"}, map[string]string{"s.conf": service}, "db1 5433 mona app  holdfast diagnose"},
		{"service of the system", "service=prod", map[string]string{"PGSYSCONFDIR": "HOME/etc"}, map[string]string{"etc/pg_service.conf": service}, "db1 5433 mona app  holdfast diagnose"},
		{"service that the user's file has not", "postgresql://?service=prod", map[string]string{"PGSYSCONFDIR": "HOME/etc"},
			map[string]string{".pg_service.conf": "[x]\nhost=x\n", "etc/pg_service.conf": service}, "db1 5433 mona app  holdfast diagnose"},
		{"dsn above its service", "service=prod user=other", nil, map[string]string{".pg_service.conf": service}, "db1 5433 other app  holdfast diagnose"},
		{"pgpass", "host=h user=u dbname=d", nil, map[string]string{".pgpass": "h:5432:d:u:fromfile\n"}, "h 5432 u d fromfile holdfast diagnose"},
		{"pgpass of a socket", "host=/run/x user=u dbname=d", nil, map[string]string{".pgpass": "localhost:*:*:u:fromfile\n"}, "/run/x 5432 u d fromfile holdfast diagnose"},
		{"passfile", "host=h user=u dbname=d passfile=HOME/p", nil, map[string]string{"p": "*:*:*:*:there\n"}, "h 5432 u d there holdfast diagnose"},
		{"what is libpq's alone", "host=h user=u dbname=d keepalives_idle=5 gssencmode=disable tcp_user_timeout=1 channel_binding=prefer sslcompression=0 fallback_application_name=f client_encoding=latin1", nil, nil, "h 5432 u d  f"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := home(t, c.env)
			for name, text := range c.files {
				write2(t, filepath.Join(dir, name), text, 0o600)
			}
			cfg, warnings, err := parseDSN(strings.ReplaceAll(c.dsn, "HOME", dir), os.Getenv)
			check(t, err)
			got := strings.Join([]string{cfg.Host, portText(cfg.Port), cfg.User, cfg.Database, cfg.Password, cfg.RuntimeParams["application_name"]}, " ")
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if len(warnings) != 0 {
				t.Errorf("%q", warnings)
			}
			for k := range cfg.RuntimeParams {
				if k != "application_name" && k != "client_encoding" {
					t.Errorf("%s would be sent to the server", k)
				}
			}
		})
	}
}

func portText(p uint16) string {
	_, port, _ := net.SplitHostPort((&net.TCPAddr{Port: int(p)}).String())
	return port
}

// TestLoosePassfile: psql ignores a password file that others may read, and says so.
func TestLoosePassfile(t *testing.T) {
	dir := home(t, nil)
	write2(t, filepath.Join(dir, ".pgpass"), "h:5432:d:u:geheimnis\n", 0o644)
	for _, dsn := range []string{"host=h user=u dbname=d", "postgres://u@h/d", "postgres://u@h/d?sslmode=disable"} {
		cfg, warnings, err := parseDSN(dsn, os.Getenv)
		check(t, err)
		if cfg.Password != "" || len(warnings) != 1 || !strings.Contains(warnings[0], "chmod 0600") || strings.Contains(warnings[0], "geheimnis") {
			t.Errorf("%s: %q %q", dsn, cfg.Password, warnings)
		}
	}
	cfg, warnings, err := parseDSN("host=h user=u dbname=d password=own", os.Getenv)
	if err != nil || cfg.Password != "own" || len(warnings) != 0 {
		t.Errorf("%v %q %q", err, cfg.Password, warnings)
	}
}

func TestHostaddr(t *testing.T) {
	home(t, nil)
	cfg, _, err := parseDSN("host=db1 hostaddr=10.0.0.7 user=u", os.Getenv)
	check(t, err)
	addrs, err := cfg.LookupFunc(context.Background(), "db1")
	if err != nil || len(addrs) != 1 || addrs[0] != "10.0.0.7" || cfg.Host != "db1" {
		t.Errorf("%v %v %s", addrs, err, cfg.Host)
	}
}

// TestNoPasswordInErrors: however a DSN is broken, its password is not shown.
func TestNoPasswordInErrors(t *testing.T) {
	home(t, map[string]string{"PGUSER": "u"})
	for _, dsn := range []string{
		"postgres://mona:geheimnis@h:port/d", "postgres://mona:geheimnis@h:99999999/d", "postgres://mona:geheim%zznis@h/d", "postgres://mona:gehe:imnis@h/d?sslmode=sometimes",
		"host=h password=geheimnis port=x", "host=h password='geheimnis sslmode=", "host=h password='geheimnis", "password=geheimnis sslmode=nope", "postgres://mona:geheimnis@[::1/d",
		"host=h user=u password = geheimnis connect_timeout=never", "service=nowhere password=geheimnis", "host=a,b port=1,2,3 password=geheimnis",
		"postgres://h/d?password=geheimnis&sslmode=nope", "postgres://h/d?sslpassword=geheimnis&port=x",
	} {
		cfg, _, err := parseDSN(dsn, os.Getenv)
		if err == nil {
			if strings.Contains(address(cfg), "nis") {
				t.Errorf("%s: %s", dsn, address(cfg))
			}
			continue
		}
		if strings.Contains(err.Error(), "geheim") || strings.Contains(err.Error(), "imnis") {
			t.Errorf("%s: %v", dsn, err)
		}
	}
}

func FuzzDSN(f *testing.F) {
	for _, dsn := range []string{"", "mydb", "host=h password='x y'", "postgres://u:p@h:1/d?sslmode=disable", "service=x", "postgres://u:geheimnis@h:x/"} {
		f.Add(dsn)
	}
	f.Fuzz(func(t *testing.T, text string) {
		const secret = "Zq8vGeheim"
		for _, dsn := range []string{"host=h " + text + " password=" + secret, "postgres://mona:" + secret + "@h/" + text} {
			if _, _, err := parseDSN(dsn, func(string) string { return "" }); err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%q: %v", dsn, err)
			}
		}
	})
}

func mustConfig(t *testing.T, dsn string) *pgx.ConnConfig {
	t.Helper()
	cfg, _, err := parseDSN(dsn, os.Getenv)
	check(t, err)
	return cfg
}
