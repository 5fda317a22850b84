package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-db/holdfast/internal/history"
)

// attempt is a session with a real server, and the next id.
type attempt struct {
	t  *testing.T
	s  *server
	id uint64
}

func (a *attempt) dial() *session {
	a.t.Helper()
	s, err := newDialer(testConfig(a.s.target())).dial(within(a.t, 10*time.Second), 0)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(s.close)
	return s
}

// backend waits until the only other backend with a prepared INSERT waits for
// event, and returns its pid.
func (a *attempt) backend(event string) (pid int) {
	a.t.Helper()
	c, err := a.s.connect()
	if err != nil {
		a.t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	eventually(a.t, 10*time.Second, "a backend in "+event, func() bool {
		err := c.QueryRow(context.Background(), "SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast-driver' AND wait_event = $1", event).Scan(&pid)
		return err == nil
	})
	return pid
}

// TestRealOutcomes provokes each kind of answer from a real server and holds
// the outcome against what is in the table afterwards.
func TestRealOutcomes(t *testing.T) {
	s := newServer(t, nil)
	ledger(s)
	a := &attempt{t: t, s: s}
	const acked, refused, unknown = history.Acked, history.Refused, history.Unknown
	// write sends one INSERT while, where given, meanwhile meddles.
	write1 := func(t *testing.T, se *session, writer uint32, timeout time.Duration, meanwhile func()) result {
		t.Helper()
		a.id++
		got := make(chan result, 1)
		go func() {
			got <- se.insert(&write{id: a.id, writer: writer, retryOf: a.id, payload: []byte("p")}, timeout)
		}()
		if meanwhile != nil {
			meanwhile()
		}
		return <-got
	}
	expect := func(t *testing.T, r result, o history.Outcome, present bool, codes ...string) {
		t.Helper()
		if r.outcome != o || !slices.Contains(codes, r.code) {
			t.Errorf("write %d: %v %q, want %v %q", a.id, r.outcome, r.code, o, codes)
		}
		if got := slices.Contains(s.ids(false), a.id); got != present {
			t.Errorf("write %d: in the table: %v, want %v", a.id, got, present)
		}
	}
	set := func(settings string) {
		for q := range strings.SplitSeq(settings, ";") {
			s.exec("ALTER SYSTEM SET " + q)
		}
		s.exec("SELECT pg_reload_conf()")
	}
	// settled waits until a fresh session sees a setting.
	settled := func(name, value string) {
		t.Helper()
		eventually(t, 10*time.Second, name, func() bool {
			c, err := s.connect()
			if err != nil {
				return false
			}
			defer func() { _ = c.Close(context.Background()) }()
			var v string
			return c.QueryRow(context.Background(), "SELECT current_setting($1)", name).Scan(&v) == nil && v == value
		})
	}

	t.Run("committed", func(t *testing.T) {
		expect(t, write1(t, a.dial(), 1, 5*time.Second, nil), acked, true, "")
	})
	t.Run("constraints", func(t *testing.T) {
		s.exec("ALTER TABLE ledger ADD CHECK (writer <> 13)",
			"ALTER TABLE ledger ADD CONSTRAINT once UNIQUE (retry_of) DEFERRABLE INITIALLY DEFERRED",
			"CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF new.writer = 14 THEN RAISE ''no''; END IF; RETURN new; END'",
			"CREATE CONSTRAINT TRIGGER late AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no()")
		defer s.exec("ALTER TABLE ledger DROP CONSTRAINT once", "DROP TRIGGER late ON ledger")
		se := a.dial()
		expect(t, write1(t, se, 13, 5*time.Second, nil), refused, false, "23514")
		expect(t, write1(t, se, 14, 5*time.Second, nil), unknown, false, "P0001") // raised by the commit
		expect(t, write1(t, se, 1, 5*time.Second, nil), acked, true, "")
		a.id++ // as retry_of, the same twice
		if r := se.insert(&write{id: a.id, retryOf: 1, payload: []byte("p")}, 5*time.Second); r.outcome != refused || r.code != "23505" || !r.usable {
			t.Errorf("a deferred constraint: %+v", r)
		}
		expect(t, write1(t, se, 1, 5*time.Second, nil), acked, true, "")
	})
	t.Run("locked", func(t *testing.T) {
		lock, err := s.connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = lock.Close(context.Background()) }()
		se, other := a.dial(), a.dial() // to prepare the INSERT takes a lock, too
		if _, err := lock.Exec(context.Background(), "BEGIN; LOCK ledger IN SHARE MODE"); err != nil {
			t.Fatal(err)
		}
		expect(t, write1(t, se, 1, 20*time.Second, func() { s.exec(fmt.Sprintf("SELECT pg_cancel_backend(%d)", a.backend("relation"))) }), refused, false, "57014")
		expect(t, write1(t, se, 1, 20*time.Second, func() { s.exec(fmt.Sprintf("SELECT pg_terminate_backend(%d)", a.backend("relation"))) }), unknown, false, "57P01")
		expect(t, write1(t, other, 1, 200*time.Millisecond, nil), unknown, false, "timeout")
	})
	t.Run("read-only", func(t *testing.T) {
		se := a.dial()
		expect(t, write1(t, se, 1, 5*time.Second, nil), acked, true, "")
		set("default_transaction_read_only = on")
		settled("default_transaction_read_only", "on")
		var r result
		eventually(t, 10*time.Second, "the session to be read-only", func() bool { r = write1(t, se, 1, 5*time.Second, nil); return r.outcome != acked })
		expect(t, r, refused, false, "25006")
		if r.usable {
			t.Error("a session that is read-only is still used")
		}
		if _, err := newDialer(testConfig(s.target())).dial(within(t, 5*time.Second), 0); !errors.Is(err, errReadOnly) {
			t.Errorf("dial: %v", err)
		}
		c, err := s.connect()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(context.Background()) }()
		for _, q := range []string{"SET default_transaction_read_only = off", "ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()"} {
			if _, err := c.Exec(context.Background(), q); err != nil {
				t.Fatal(err)
			}
		}
		settled("default_transaction_read_only", "off")
	})
	t.Run("replication", func(t *testing.T) {
		set("synchronous_standby_names = 'nobody'")
		settled("synchronous_standby_names", "nobody")
		// Visible on the server although nothing was replicated: never acked.
		se := a.dial()
		expect(t, write1(t, se, 1, 20*time.Second, func() { s.exec(fmt.Sprintf("SELECT pg_cancel_backend(%d)", a.backend("SyncRep"))) }), unknown, true, "sync-cancelled")
		expect(t, write1(t, se, 1, 20*time.Second, func() { s.exec(fmt.Sprintf("SELECT pg_terminate_backend(%d)", a.backend("SyncRep"))) }), unknown, true, "closed", "sync-cancelled")
		a.id++
		r := a.dial().insert(&write{id: a.id, payload: []byte("p")}, 200*time.Millisecond)
		if r.outcome != unknown || r.code != "timeout" || r.usable || r.latency < 200*time.Millisecond || r.latency > 5*time.Second {
			t.Errorf("a commit that waits: %+v", r)
		}
	})
}

// TestUnprivilegedUser: a user who may not set lc_messages is told what to do,
// and one who may can write.
func TestUnprivilegedUser(t *testing.T) {
	s := newServer(t, nil)
	ledger(s)
	s.exec("CREATE ROLE plain LOGIN PASSWORD '"+password+"'", "GRANT INSERT ON ledger TO plain")
	cfg := testConfig(s.target())
	cfg.User = "plain"
	_, err := newDialer(cfg).dial(within(t, 10*time.Second), 0)
	var pe *pgconn.PgError
	if !errors.As(err, &pe) || pe.Code != "42501" || !strings.Contains(describe(err), "GRANT SET ON PARAMETER") {
		t.Fatalf("%v", err)
	}
	if strings.Contains(describe(err)+err.Error(), password) {
		t.Error("the error holds the password")
	}
	c, err := s.connect()
	if err != nil {
		t.Fatal(err)
	}
	var version int
	err = c.QueryRow(context.Background(), "SELECT current_setting('server_version_num')::int", pgx.QueryExecModeSimpleProtocol).Scan(&version)
	_ = c.Close(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if version < 150000 {
		return
	}
	s.exec("GRANT SET ON PARAMETER lc_messages TO plain")
	se, err := newDialer(cfg).dial(within(t, 10*time.Second), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer se.close()
	if r := se.insert(&write{id: 1, payload: []byte("p")}, 5*time.Second); r.outcome != history.Acked {
		t.Errorf("%+v", r)
	}
}
