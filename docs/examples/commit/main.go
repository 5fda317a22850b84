// Deposits of one unit each, every one kept exactly once whatever fails on the
// way: go run ./docs/examples/commit DSN COUNT prints "kept KEY" for each, when
// it is sure.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func main() {
	count, err := strconv.Atoi(os.Args[2])
	if err == nil {
		err = deposits(context.Background(), os.Args[1], count)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func deposits(ctx context.Context, dsn string, count int) error {
	s, err := newStore(dsn)
	if err != nil {
		return err
	}
	defer s.drop()
	for i := range count {
		key := fmt.Sprintf("deposit-%d", i) // drawn once for each piece of work, before the first attempt
		err := s.once(ctx, key, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE account SET balance = balance + 1")
			return err
		})
		if err != nil {
			return err
		}
		fmt.Println("kept", key)
	}
	return nil
}

// store is one connection, made anew whenever it breaks.
type store struct {
	config    *pgx.ConnConfig
	conn      *pgx.Conn
	cancelled bool // the last commit's wait for a standby was cancelled
}

func newStore(dsn string) (*store, error) {
	c, err := pgx.ParseConfig(dsn)
	s := &store{config: c}
	if err == nil {
		c.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			// It has no code of its own; the server's lc_messages is C.
			s.cancelled = s.cancelled || strings.HasPrefix(n.Message, "canceling wait for synchronous replication")
		}
	}
	return s, err
}

// once does work in a transaction of its own, exactly once for each key, and
// returns when that is certain.
func (s *store) once(ctx context.Context, key string, work func(pgx.Tx) error) error {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := s.attempt(ctx, key, work)
		if err == nil || final(err) || ctx.Err() != nil {
			return err
		}
		s.drop()
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

var errCancelled = errors.New("the commit's wait for a standby was cancelled")

func (s *store) attempt(ctx context.Context, key string, work func(pgx.Tx) error) (err error) {
	if s.conn == nil {
		if s.conn, err = pgx.ConnectConfig(ctx, s.config); err != nil {
			return err
		}
	}
	s.cancelled = false
	tx, err := s.conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after a commit there is nothing to roll back
	// It writes also when the key is there already: only a commit that writes
	// waits for a standby, and so proves that everything before it is kept.
	var tries int
	err = tx.QueryRow(ctx, "INSERT INTO done (key, tries) VALUES ($1, 1) ON CONFLICT (key) DO UPDATE SET tries = done.tries + 1 RETURNING tries", key).Scan(&tries)
	if err == nil && tries == 1 {
		err = work(tx)
	}
	if err == nil {
		err = tx.Commit(ctx)
	}
	if err == nil && s.cancelled {
		err = errCancelled
	}
	return err
}

// final says that trying again would end alike: the data, the statement, the
// password or the database's name is wrong. 28000 is not: it is what a member
// answers while its door is closed.
func final(err error) bool {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return false
	}
	class := e.Code[:2]
	return class == "22" || class == "23" || class == "42" || e.Code == "28P01" || e.Code == "3D000"
}

func (s *store) drop() {
	if s.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.conn.Close(ctx)
		s.conn = nil
	}
}
