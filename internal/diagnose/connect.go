package diagnose

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// queryDeadline is how long an answer is waited for before the server counts as hanging.
const queryDeadline = 5 * time.Second

// identity tells one run of one server from another.
type identity struct {
	pid       int
	pooler    bool
	major     int
	version   string
	recovery  bool
	started   time.Time  // of the postmaster
	worker    *time.Time // of its checkpointer, which a crash restarts; nil where it may not be seen
	system    string     // system identifier; "" where it may not be read
	timeline  string
	addr      string // the server's own, "" on a socket
	user, db  string
	allStats  bool
	directory string // "" without pg_read_all_settings
}

const identityQuery = `SELECT pg_backend_pid(), current_setting('server_version_num')::int, current_setting('server_version'),
 pg_is_in_recovery(), pg_postmaster_start_time(), coalesce(host(inet_server_addr()), ''), current_user::text, current_database()::text,
 pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
 CASE WHEN pg_has_role(current_user, 'pg_read_all_settings', 'USAGE') THEN current_setting('data_directory') ELSE '' END,
 (SELECT min(backend_start) FROM pg_catalog.pg_stat_get_activity(NULL) WHERE backend_type = 'checkpointer')`

const systemQuery = `SELECT s.system_identifier::text, c.timeline_id::text FROM pg_control_system() s, pg_control_checkpoint() c`

// session is our one connection. Every statement is a transaction of its own:
// inside one, the statistics would stand still.
type session struct {
	conn     *pgx.Conn
	id       identity
	deadline time.Duration // of one statement
	xacts    int           // statements sent, each a transaction
	spent    time.Duration
}

// open connects, finds out to whom, and makes the session harmless where that
// is possible: through a pooler, settings would stay with the server's session.
func open(ctx context.Context, cfg *pgx.ConnConfig, deadline time.Duration) (*session, error) {
	conn, err := pgx.ConnectConfig(ctx, cfg.Copy())
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, deadline: deadline}
	if err := s.identify(ctx); err != nil {
		s.close()
		return nil, err
	}
	if s.id.pooler {
		return s, nil
	}
	for _, sql := range []string{
		"SET default_transaction_read_only = on", "SET statement_timeout = '10s'", "SET lock_timeout = '1s'", "SET jit = off",
		"SET max_parallel_workers_per_gather = 0",
	} {
		if err := s.exec(ctx, sql); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

func (s *session) identify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.deadline)
	defer cancel()
	var num int
	i := &s.id
	begin := time.Now()
	err := s.conn.QueryRow(ctx, identityQuery).Scan(&i.pid, &num, &i.version, &i.recovery, &i.started, &i.addr, &i.user, &i.db, &i.allStats, &i.directory, &i.worker)
	if err != nil {
		return err
	}
	s.count(begin)
	i.major = num / 10000
	i.version, _, _ = strings.Cut(i.version, " ")
	// A pooler makes up the process id that it sends at login.
	i.pooler = uint32(i.pid) != s.conn.PgConn().PID()
	begin = time.Now()
	if err := s.conn.QueryRow(ctx, systemQuery).Scan(&i.system, &i.timeline); err != nil {
		var pe *pgconn.PgError
		if !errors.As(err, &pe) {
			return err
		}
	}
	s.count(begin)
	return nil
}

func (s *session) count(begin time.Time) {
	s.xacts++
	s.spent += time.Since(begin)
}

func (s *session) exec(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, s.deadline)
	defer cancel()
	defer s.count(time.Now())
	_, err := s.conn.Exec(ctx, sql)
	return err
}

// close says goodbye, but does not wait for a server that hangs.
func (s *session) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	_ = s.conn.Close(ctx)
}

// ConnectError is a login that did not come about, in words for a user.
type ConnectError struct {
	Address string
	What    string // "refuses", "unreachable", "hangs", "starting", "not postgres"
	text    string
	err     error
}

func (e *ConnectError) Error() string { return e.text }
func (e *ConnectError) Unwrap() error { return e.err }

// connectError puts an error of a connect into words, with what to do next.
func connectError(cfg *pgx.ConnConfig, err error) *ConnectError {
	what, say := explain(cfg, err)
	addr := address(cfg)
	return &ConnectError{Address: addr, What: what, text: fmt.Sprintf("connect to %s as %s: %s", addr, cfg.User, say), err: err}
}

func explain(cfg *pgx.ConnConfig, err error) (what, say string) {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return explainRefusal(cfg, pe)
	}
	var parse *pgconn.ParseConfigError
	switch {
	case errors.As(err, &parse):
		return "refuses", redact(err.Error(), "")
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		return "unreachable", "nobody listens there: is the server up, and are host and port right?"
	case isTimeout(err):
		return "hangs", "no answer in time: the server hangs, or the network to it is cut"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "unreachable", "there is no route to that host"
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return "unreachable", fmt.Sprintf("the name %q does not resolve", dns.Name)
	}
	return "unreachable", lastLine(redact(err.Error(), ""))
}

func explainRefusal(cfg *pgx.ConnConfig, pe *pgconn.PgError) (what, say string) {
	said := fmt.Sprintf("the server says %q", redact(pe.Message, ""))
	switch {
	case cfg.Database == "pgbouncer" && (pe.Code == "08P01" || strings.HasPrefix(pe.Code, "0A")):
		return "not postgres", "that is pgbouncer's own console: name a database behind it"
	case pe.Code == "28000" && strings.Contains(pe.Message, "pg_hba.conf"):
		return "refuses", said + ": pg_hba.conf has no rule that lets this user in from here"
	case pe.Code == "28000" && strings.Contains(pe.Message, "not permitted to log in"):
		return "refuses", said + ": ALTER ROLE … LOGIN, or name another user"
	case pe.Code == "28000" && strings.Contains(pe.Message, "does not exist"):
		return "refuses", said + ": name a role that exists (user=…)"
	case pe.Code == "28P01" || pe.Code == "28000":
		hint := "is the password right (PGPASSWORD, ~/.pgpass or the DSN)?"
		if cfg.Password == "" {
			hint = "give a password by PGPASSWORD or ~/.pgpass, or look at pg_hba.conf"
		}
		return "refuses", said + ": " + hint
	case pe.Code == "53300":
		return "refuses", said + ": all connections are taken; a role with pg_use_reserved_connections (16) or a superuser has some kept for it"
	case pe.Code == "57P03":
		return "starting", said + ": it is starting, stopping or recovering; try again shortly"
	case pe.Code == "3D000":
		return "refuses", said + ": name a database that exists, for instance postgres"
	case strings.Contains(pe.Message, "server login") || strings.Contains(pe.Message, "cannot connect to server") || strings.Contains(pe.Message, "query_wait_timeout"):
		return "unreachable", said + ": the pooler is there, but the server behind it is not"
	case pe.Code == "08P01" && strings.Contains(pe.Message, "unsupported startup parameter"):
		return "refuses", said + ": a pooler stands in between and does not pass it on; leave it out of the DSN"
	}
	return "refuses", said + " (SQLSTATE " + pe.Code + ")"
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &ne) && ne.Timeout()
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = strings.TrimSpace(s[i+1:])
	}
	return s
}

func (i identity) server(cfg *pgx.ConnConfig) Server {
	role := "primary"
	if i.recovery {
		role = "standby"
	}
	return Server{Address: address(cfg), Database: i.db, User: i.user, Version: i.version, Major: i.major, Role: role, Pooler: i.pooler}
}

func (i identity) String() string {
	return "PostgreSQL " + i.version + " since " + i.started.UTC().Format(time.RFC3339) + ", timeline " + i.timeline + ", pid " + strconv.Itoa(i.pid)
}
