package instance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errDown is returned where a running Postgres is needed.
var errDown = errors.New("no Postgres runs")

const connectWithin = time.Second

// connect opens a session of the agent's. Whatever the user has set for roles,
// databases or the server, it writes locally, waits for no standby, and is not
// cut short by anybody's timeouts.
func (i *Instance) connect(ctx context.Context, params ...string) (*pgx.Conn, error) {
	s := i.current()
	if s == nil {
		return nil, errDown
	}
	cfg, err := pgx.ParseConfig("host=/nowhere port=1 sslmode=disable user=" + roleAgent + " dbname=postgres")
	if err != nil {
		return nil, err
	}
	cfg.Fallbacks, cfg.TLSConfig, cfg.Password = nil, nil, ""
	cfg.RuntimeParams = map[string]string{"application_name": "holdfast", "synchronous_commit": "local", "search_path": "pg_catalog",
		"default_transaction_read_only": "off", "statement_timeout": "0", "lock_timeout": "0",
		"idle_in_transaction_session_timeout": "0", "log_min_duration_statement": "-1", "log_statement": "none", "jit": "off"}
	for n := 0; n+1 < len(params); n += 2 {
		cfg.RuntimeParams[params[n]] = params[n+1]
	}
	cfg.ConnectTimeout = connectWithin
	path := socketPath(i.cfg.RunDir, i.cfg.Port)
	if !s.ours {
		path = socketPath(socketOf(i.cfg.DataDir)) // it may not have written that when it was found
	}
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to Postgres: %w", err)
	}
	return c, nil
}

// session runs fn on a fresh connection.
func (i *Instance) session(ctx context.Context, fn func(*pgx.Conn) error) error {
	c, err := i.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(c)
	return fn(c)
}

// closeConn says goodbye, but does not wait for a server that hangs.
func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_ = c.Close(ctx)
}

// poll calls fn every step until it is true or ctx ends.
func poll(ctx context.Context, step time.Duration, fn func() bool) error {
	t := time.NewTicker(step)
	defer t.Stop()
	for !fn() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
		}
	}
	return nil
}

// exec runs one statement on a fresh connection.
func (i *Instance) exec(ctx context.Context, sql string, args ...any) error {
	return i.session(ctx, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql, args...)
		return err
	})
}

func socketPath(dir string, port int) string {
	return filepath.Join(dir, ".s.PGSQL."+strconv.Itoa(port))
}

// starting says whether Postgres answered that it is coming up or going down:
// then it is not for the probe to call it sick.
func (i *Instance) starting(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "57P03"
}
