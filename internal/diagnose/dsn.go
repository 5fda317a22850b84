package diagnose

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrDSN marks an error in what was given to connect with.
var ErrDSN = errors.New("the connection settings are not usable")

// applicationName is what others see of us in pg_stat_activity.
const applicationName = "holdfast diagnose"

// libpqOnly are parameters that libpq keeps to itself; pgx would send them to
// the server, which would refuse the login.
var libpqOnly = []string{
	"keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout", "gssencmode", "gsslib", "gssdelegation",
	"sslcompression", "sslcrl", "sslcrldir", "ssl_min_protocol_version", "ssl_max_protocol_version", "requirepeer", "load_balance_hosts",
	"replication", "fallback_application_name", "hostaddr", "sslkeylogfile", "scram_client_key", "scram_server_key",
}

// parseDSN reads a DSN as psql does: a URL, keywords and values, the bare name
// of a database, or nothing; services, environment and .pgpass are looked up.
// warnings are for the user. No error shows a password.
func parseDSN(dsn string, getenv func(string) string) (cfg *pgx.ConnConfig, warnings []string, err error) {
	if dsn != "" && !strings.Contains(dsn, "=") && !isURL(dsn) {
		dsn = "dbname='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(dsn) + "'"
	}
	cfg, used, err := parseWithServices(dsn, getenv)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s", ErrDSN, redact(err.Error(), dsn))
	}
	if file := loosePassfile(dsn, getenv); file != "" {
		strict, err := pgx.ParseConfig(withKey(used, "passfile", os.DevNull))
		if err == nil && strict.Password != cfg.Password {
			cfg = strict
			warnings = append(warnings, fmt.Sprintf("the password file %s is readable by others and was ignored, as psql does: chmod 0600 it", file))
		}
	}
	if addr := cfg.RuntimeParams["hostaddr"]; addr != "" {
		cfg.LookupFunc = func(context.Context, string) ([]string, error) { return strings.Split(addr, ","), nil }
	}
	name := cfg.RuntimeParams["fallback_application_name"]
	for _, k := range libpqOnly {
		delete(cfg.RuntimeParams, k)
	}
	if cfg.RuntimeParams["application_name"] == "" {
		if name == "" {
			name = applicationName
		}
		cfg.RuntimeParams["application_name"] = name
	}
	cfg.RuntimeParams["client_encoding"] = "UTF8" // the simple protocol of pgx needs it, whatever the database's is
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = 10 * time.Second
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	return cfg, warnings, nil
}

func isURL(dsn string) bool {
	return strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://")
}

// parseWithServices also looks where libpq looks for a service that the
// user's own file has not; used is the DSN that led to the config.
func parseWithServices(dsn string, getenv func(string) string) (cfg *pgx.ConnConfig, used string, err error) {
	cfg, err = pgx.ParseConfig(dsn)
	if err == nil || !strings.Contains(err.Error(), "service") {
		return cfg, dsn, err
	}
	dirs := []string{"/etc/postgresql-common", "/etc/sysconfig/pgsql", "/usr/local/etc", "/etc"}
	if dir := getenv("PGSYSCONFDIR"); dir != "" {
		dirs = []string{dir}
	}
	for _, dir := range dirs {
		file := filepath.Join(dir, "pg_service.conf")
		if _, serr := os.Stat(file); serr != nil {
			continue
		}
		used = withKey(dsn, "servicefile", file)
		if found, ferr := pgx.ParseConfig(used); ferr == nil {
			return found, used, nil
		}
	}
	return nil, dsn, err
}

// withKey sets one more parameter of a DSN.
func withKey(dsn, key, value string) string {
	if !isURL(dsn) {
		return strings.TrimSpace(dsn + " " + key + "='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'")
	}
	sep := "?"
	if strings.Contains(dsn, "?") {
		sep = "&"
	}
	return dsn + sep + key + "=" + strings.ReplaceAll(strings.ReplaceAll(value, "%", "%25"), "&", "%26")
}

var passfileKey = regexp.MustCompile(`(?:^|[\s?&])passfile\s*=\s*(?:'([^']*)'|([^\s&]*))`)

// loosePassfile is the password file in use when others may read it, which
// makes psql ignore it; "" otherwise.
func loosePassfile(dsn string, getenv func(string) string) string {
	file := getenv("PGPASSFILE")
	if file == "" {
		if home, err := os.UserHomeDir(); err == nil {
			file = filepath.Join(home, ".pgpass")
		}
	}
	if m := passfileKey.FindStringSubmatch(dsn); m != nil {
		file = m[1] + m[2]
	}
	st, err := os.Stat(file)
	if err != nil || st.Mode().Perm()&0o077 == 0 {
		return ""
	}
	return file
}

var passwordInURL = regexp.MustCompile(`://[^@/\s]*@`)
var passwordKey = regexp.MustCompile(`(?i)((?:ssl)?password)\s*=\s*('(?:[^'\\]|\\.)*'?|[^\s&]*)`)

// redact takes everything that may be a password out of an error: pgx promises
// its best for well-formed strings only.
func redact(text, dsn string) string {
	if dsn != "" {
		text = strings.ReplaceAll(text, dsn, "…")
	}
	text = passwordInURL.ReplaceAllString(text, "://…@")
	text = passwordKey.ReplaceAllString(text, "$1=…")
	// A URL that does not parse is quoted in pieces: leave out what was quoted.
	if _, after, ok := strings.Cut(dsn, "://"); ok {
		if userinfo, _, ok := cutLast(after, "@"); ok {
			for _, piece := range strings.FieldsFunc(userinfo, func(r rune) bool { return r == ':' || r == '@' || r == '/' }) {
				if len(piece) >= 3 {
					text = strings.ReplaceAll(text, piece, "…")
				}
			}
		}
	}
	return text
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// address is where a config leads, without a password.
func address(cfg *pgx.ConnConfig) string {
	if strings.HasPrefix(cfg.Host, "/") {
		return fmt.Sprintf("%s (port %d)", cfg.Host, cfg.Port)
	}
	if strings.Contains(cfg.Host, ":") {
		return fmt.Sprintf("[%s]:%d", cfg.Host, cfg.Port)
	}
	return fmt.Sprintf("%s:%d", cfg.Host, cfg.Port)
}
