package driver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/holdfast-db/holdfast/internal/history"
)

func testConfig(targets ...string) *Config {
	c := &Config{Collector: "/none", Token: token, Targets: targets, User: "holdfast", Password: password, Database: "postgres", Table: "ledger"}
	if err := c.complete(); err != nil {
		panic(err)
	}
	return c
}

func sqlError(severity, code string) *pgproto3.ErrorResponse {
	return &pgproto3.ErrorResponse{Severity: severity, SeverityUnlocalized: severity, Code: code, Message: "as the script says"}
}

func warning(message string) *pgproto3.NoticeResponse {
	return &pgproto3.NoticeResponse{Severity: "WARNING", SeverityUnlocalized: "WARNING", Code: "01000", Message: message}
}

const syncCancel = "canceling wait for synchronous replication due to user request"

var (
	bound = &pgproto3.BindComplete{}
	done  = &pgproto3.CommandComplete{CommandTag: []byte("INSERT 0 1")}
)

// TestScriptedOutcomes: what a server says, message by message, and what is
// made of it.
func TestScriptedOutcomes(t *testing.T) {
	type say = []pgproto3.BackendMessage
	idle, inTx, aborted := ready(), &pgproto3.ReadyForQuery{TxStatus: 'T'}, &pgproto3.ReadyForQuery{TxStatus: 'E'}
	const acked, refused, unknown = history.Acked, history.Refused, history.Unknown
	for _, c := range []struct {
		name    string
		say     say
		close   bool // then close; otherwise stay silent
		outcome history.Outcome
		code    string
		usable  bool
	}{
		{"committed", say{bound, done, idle}, false, acked, "", true},
		{"committed, with other messages", say{&pgproto3.ParameterStatus{Name: "a", Value: "b"}, bound, warning("careful"), done, &pgproto3.NotificationResponse{}, idle}, false, acked, "", true},
		{"wait for replication cancelled", say{bound, done, warning(syncCancel), idle}, false, unknown, "sync-cancelled", true},
		{"wait for replication cancelled, warning first", say{bound, warning(syncCancel), done, idle}, false, unknown, "sync-cancelled", true},
		{"wait cancelled by shutdown", say{bound, done, warning("canceling the wait for synchronous replication and terminating connection due to administrator command")}, true, unknown, "closed", false},
		{"wait cancelled by shutdown, then ready", say{bound, done, warning("canceling the wait for synchronous replication and terminating connection due to administrator command"), idle}, true, unknown, "sync-cancelled", true},
		{"notice with that text", say{bound, done, &pgproto3.NoticeResponse{SeverityUnlocalized: "NOTICE", Message: syncCancel}, idle}, false, acked, "", true},

		{"silence", nil, false, unknown, "timeout", false},
		{"closed at once", nil, true, unknown, "closed", false},
		{"closed after binding", say{bound}, true, unknown, "closed", false},
		{"complete, then closed", say{bound, done}, true, unknown, "closed", false},
		{"complete, then silence", say{bound, done}, false, unknown, "timeout", false},
		{"ready without completion", say{bound, idle}, false, unknown, "protocol", true},
		{"no row inserted", say{bound, &pgproto3.CommandComplete{CommandTag: []byte("INSERT 0 0")}, idle}, false, unknown, "no-row", true},
		{"ready inside a transaction", say{bound, done, inTx}, false, unknown, "protocol", false},
		{"a row out of nowhere", say{bound, &pgproto3.DataRow{}, done, idle}, false, unknown, "protocol", false},
		{"completed twice", say{bound, done, done, idle}, false, unknown, "protocol", false},

		{"constraint", say{bound, sqlError("ERROR", "23514"), idle}, false, refused, "23514", true},
		{"read-only", say{sqlError("ERROR", "25006"), idle}, false, refused, "25006", false},
		{"no such table", say{sqlError("ERROR", "42P01"), idle}, false, refused, "42P01", true},
		{"disk full while inserting", say{bound, sqlError("ERROR", "53100"), idle}, false, refused, "53100", true},
		{"lock timeout", say{bound, sqlError("ERROR", "55P03"), idle}, false, refused, "55P03", true},
		{"statement timeout", say{bound, sqlError("ERROR", "57014"), idle}, false, refused, "57014", true},
		{"raised by a trigger", say{bound, sqlError("ERROR", "P0001"), idle}, false, refused, "P0001", true},
		{"constraint, then closed", say{bound, sqlError("ERROR", "23514")}, true, unknown, "23514", false},
		{"constraint, then silence", say{bound, sqlError("ERROR", "23514")}, false, unknown, "23514", false},
		{"constraint, then an open transaction", say{bound, sqlError("ERROR", "23514"), aborted}, false, unknown, "23514", false},
		{"error, then completion", say{bound, sqlError("ERROR", "23514"), done, idle}, false, unknown, "23514", false},

		{"deferred constraint at commit", say{bound, done, sqlError("ERROR", "23503"), idle}, false, refused, "23503", true},
		{"serialization at commit", say{bound, done, sqlError("ERROR", "40001"), idle}, false, refused, "40001", true},
		{"deadlock at commit", say{bound, done, sqlError("ERROR", "40P01"), idle}, false, refused, "40P01", true},
		{"cancelled at commit", say{bound, done, sqlError("ERROR", "57014"), idle}, false, unknown, "57014", true},
		{"disk full at commit", say{bound, done, sqlError("ERROR", "53100"), idle}, false, unknown, "53100", true},
		{"raised at commit", say{bound, done, sqlError("ERROR", "P0001"), idle}, false, unknown, "P0001", true},
		{"completion unknown at commit", say{bound, done, sqlError("ERROR", "40003"), idle}, false, unknown, "40003", true},

		{"completion unknown", say{bound, sqlError("ERROR", "40003"), idle}, false, unknown, "40003", true},
		{"connection error from a pooler", say{sqlError("ERROR", "08006"), idle}, false, unknown, "08006", true},
		{"I/O error", say{bound, sqlError("ERROR", "58030"), idle}, false, unknown, "58030", true},
		{"internal error", say{bound, sqlError("ERROR", "XX000"), idle}, false, unknown, "XX000", true},
		{"corrupt data", say{bound, sqlError("ERROR", "XX001"), idle}, false, unknown, "XX001", true},
		{"shutdown as an error", say{bound, sqlError("ERROR", "57P01"), idle}, false, unknown, "57P01", true},
		{"a class nobody knows", say{bound, sqlError("ERROR", "ZZ123"), idle}, false, unknown, "ZZ123", true},
		{"no code", say{bound, sqlError("ERROR", ""), idle}, false, unknown, "no-sqlstate", true},
		{"terminated", say{sqlError("FATAL", "57P01")}, true, unknown, "57P01", false},
		{"crash of another backend", say{bound, &pgproto3.NoticeResponse{SeverityUnlocalized: "WARNING", Code: "57P02"}}, true, unknown, "closed", false},
		{"fatal constraint", say{bound, sqlError("FATAL", "23514"), idle}, false, unknown, "23514", false},
		{"panic", say{bound, sqlError("PANIC", "53100")}, true, unknown, "53100", false},
		{"complete, then terminated", say{bound, done, sqlError("FATAL", "57P01")}, true, unknown, "57P01", false},
		{"no severity, as before 9.6", say{bound, &pgproto3.ErrorResponse{Severity: "ERROR", Code: "23514"}, idle}, false, unknown, "23514", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, func(b *pgproto3.Backend, _ *pgproto3.Bind) bool {
				for _, m := range c.say {
					b.Send(m)
				}
				return !c.close
			})
			d := newDialer(testConfig(f.target()))
			s, err := d.dial(within(t, 5*time.Second), 0)
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			r := s.insert(&write{id: 7, writer: 1, payload: []byte{1}}, 200*time.Millisecond)
			if r.outcome != c.outcome || r.code != c.code || r.usable != c.usable {
				t.Errorf("%v %q, usable %v; want %v %q, %v", r.outcome, r.code, r.usable, c.outcome, c.code, c.usable)
			}
			if !r.usable {
				return
			}
			// A session that is said to be usable is.
			if r := s.insert(&write{id: 8, writer: 1}, 200*time.Millisecond); r.outcome != c.outcome {
				t.Errorf("the second write: %v %q", r.outcome, r.code)
			}
		})
	}
}

func TestInsertSendsTheRow(t *testing.T) {
	var got [][]byte
	f := newFake(t, func(b *pgproto3.Backend, bind *pgproto3.Bind) bool {
		for _, p := range bind.Parameters {
			got = append(got, bytes.Clone(p))
		}
		return ack(b, bind)
	})
	s, err := newDialer(testConfig(f.target())).dial(within(t, 5*time.Second), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if r := s.insert(&write{id: 1 << 40, retryOf: 99, writer: 3, payload: []byte("xyz")}, time.Second); r.outcome != history.Acked {
		t.Fatalf("%+v", r)
	}
	want := [][]byte{binary.BigEndian.AppendUint64(nil, 1<<40), {0, 0, 0, 3}, binary.BigEndian.AppendUint64(nil, 99), []byte("xyz")}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("parameter %d is %x, want %x", i, got[i], want[i])
		}
	}
	if v, _ := f.startups.Load("lc_messages"); v != "C" {
		t.Errorf("lc_messages is %v", v)
	}
}

// TestInterrupt: a write in flight ends at once when another server is found,
// and so does one that is about to begin.
func TestInterrupt(t *testing.T) {
	arrived := make(chan struct{}, 1)
	f := newFake(t, func(*pgproto3.Backend, *pgproto3.Bind) bool { arrived <- struct{}{}; return true })
	s, err := newDialer(testConfig(f.target())).dial(within(t, 5*time.Second), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	go func() { <-arrived; s.interrupt() }()
	start := time.Now()
	if r := s.insert(&write{id: 1}, 30*time.Second); r.outcome != history.Unknown || r.code != "switched" || r.usable {
		t.Errorf("in flight: %+v", r)
	}
	if r := s.insert(&write{id: 2}, 30*time.Second); r.outcome != history.Refused || r.code != "switched" || r.usable {
		t.Errorf("not sent: %+v", r)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
}

func TestDialSaysWhyNot(t *testing.T) {
	f := newFake(t, nil)
	d := newDialer(testConfig(f.target()))
	dial := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		s, err := d.dial(ctx, 0)
		if err == nil {
			s.close()
		}
		return err
	}
	f.standby.Store(true)
	if err := dial(5 * time.Second); !errors.Is(err, errStandby) {
		t.Errorf("a standby: %v", err)
	}
	f.standby.Store(false)
	f.readOnly.Store(true)
	if err := dial(5 * time.Second); !errors.Is(err, errReadOnly) {
		t.Errorf("a read-only server: %v", err)
	}
	f.readOnly.Store(false)
	f.startup.Store(sqlError("FATAL", "57P03"))
	if err := dial(5 * time.Second); err == nil || connectCode(err) != "57P03" {
		t.Errorf("starting up: %v", err)
	}
	f.silent.Store(true)
	if err := dial(100 * time.Millisecond); err == nil || connectCode(err) != "timeout" {
		t.Errorf("a silent server: %v (%s)", err, connectCode(err))
	}
	f.stop()
	if err := dial(5 * time.Second); err == nil || connectCode(err) != "connection-refused" {
		t.Errorf("no server: %v (%s)", err, connectCode(err))
	}
	eventually(t, 5*time.Second, "every connection to be closed", func() bool { return f.open.Load() == 0 })
}

func TestFill(t *testing.T) {
	a, b := make([]byte, 61), make([]byte, 61)
	fill(a, 1, 2)
	fill(b, 1, 2)
	if !bytes.Equal(a, b) {
		t.Error("the same seed and id make different payloads")
	}
	for _, other := range [][2]uint64{{1, 3}, {2, 2}} {
		if fill(b, other[0], other[1]); bytes.Equal(a, b) {
			t.Errorf("seed %d and id %d make the same payload", other[0], other[1])
		}
	}
	fill(nil, 1, 2)
}
