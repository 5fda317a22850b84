package driver

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/holdfast-db/holdfast/internal/history"
)

// canned is a server that has said everything already.
type canned struct{ io.Reader }

func (canned) Write(b []byte) (int, error)      { return len(b), nil }
func (canned) Close() error                     { return nil }
func (canned) LocalAddr() net.Addr              { return nil }
func (canned) RemoteAddr() net.Addr             { return nil }
func (canned) SetDeadline(time.Time) error      { return nil }
func (canned) SetReadDeadline(time.Time) error  { return nil }
func (canned) SetWriteDeadline(time.Time) error { return nil }

func encode(f *testing.F, ms ...pgproto3.BackendMessage) []byte {
	var b []byte
	for _, m := range ms {
		var err error
		if b, err = m.Encode(b); err != nil {
			f.Fatal(err)
		}
	}
	return b
}

// mayAck reads the messages up to the first ReadyForQuery on its own: an ack
// takes one completion of one row, no error, and the end of the transaction.
func mayAck(b []byte) bool {
	completed := false
	for len(b) >= 5 {
		n := int64(int32(binary.BigEndian.Uint32(b[1:]))) + 1
		if n < 5 || n > int64(len(b)) {
			return false
		}
		body := b[5:n]
		switch b[0] {
		case 'E':
			return false
		case 'C':
			if completed || string(body) != "INSERT 0 1\x00" {
				return false
			}
			completed = true
		case 'Z':
			return completed && string(body) == "I"
		}
		b = b[n:]
	}
	return false
}

// FuzzAnswer: whatever a server says to an INSERT, the driver neither crashes
// nor takes it for an acknowledgement or a refusal that it is not.
func FuzzAnswer(f *testing.F) {
	bound, done := &pgproto3.BindComplete{}, &pgproto3.CommandComplete{CommandTag: []byte("INSERT 0 1")}
	idle, inTx := &pgproto3.ReadyForQuery{TxStatus: 'I'}, &pgproto3.ReadyForQuery{TxStatus: 'T'}
	f.Add(encode(f, bound, done, idle))
	f.Add(encode(f, bound, done, inTx))
	f.Add(encode(f, bound, done, done, idle))
	f.Add(encode(f, bound, sqlError("ERROR", "23514"), idle))
	f.Add(encode(f, bound, done, sqlError("ERROR", "40001"), idle))
	f.Add(encode(f, bound, sqlError("FATAL", "57P01")))
	f.Add(encode(f, bound, warning("canceling wait for synchronous replication due to user request"), done, idle))
	f.Add(encode(f, &pgproto3.ParameterStatus{Name: "a", Value: "b"}, &pgproto3.NotificationResponse{PID: 1, Channel: "c", Payload: "d"}, bound, done, idle))
	f.Add(encode(f, &pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("a")}}}, &pgproto3.DataRow{Values: [][]byte{nil, {1}}}))
	f.Add([]byte("C\x7f\xff\xff\xffINSERT"))
	f.Fuzz(func(t *testing.T, said []byte) {
		s := newSession(canned{bytes.NewReader(said)}, 0, func() time.Duration { return 1 })
		r := s.insert(&write{id: 1, payload: []byte("p")}, time.Second)
		switch r.outcome {
		case history.Acked:
			if !mayAck(said) || r.code != "" {
				t.Fatalf("%q is taken for an ack (%q)", said, r.code)
			}
		case history.Refused:
			if !bytes.Contains(said, []byte("ERROR")) || r.code == "" {
				t.Fatalf("%q is taken for a refusal (%q)", said, r.code)
			}
		case history.Unknown:
			if r.code == "" {
				t.Fatalf("%q is unknown, without a reason", said)
			}
		default:
			t.Fatalf("%q has outcome %d", said, r.outcome)
		}
	})
}

// FuzzRead: the same of a read. An answer is fresh only with a row.
func FuzzRead(f *testing.F) {
	f.Add(encode(f, &pgproto3.BindComplete{}, &pgproto3.DataRow{Values: [][]byte{{'1'}}}, &pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")}, &pgproto3.ReadyForQuery{TxStatus: 'I'}))
	f.Add(encode(f, &pgproto3.BindComplete{}, &pgproto3.CommandComplete{CommandTag: []byte("SELECT 0")}, &pgproto3.ReadyForQuery{TxStatus: 'I'}))
	f.Add(encode(f, sqlError("ERROR", "57014"), &pgproto3.ReadyForQuery{TxStatus: 'I'}))
	f.Fuzz(func(t *testing.T, said []byte) {
		s := newSession(canned{bytes.NewReader(said)}, 0, func() time.Duration { return 1 })
		r := s.read(1, time.Second)
		if r.answer < 1 || r.answer > 3 || r.usable != (r.answer != 3) {
			t.Fatalf("%q: %+v", said, r)
		}
		if r.answer == 1 && !bytes.ContainsRune(said, 'D') {
			t.Fatalf("%q is taken for a row", said)
		}
	})
}

// FuzzConfig: what is accepted can be run.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"collector":"/c","token":"t","targets":["10.0.0.1:5432"],"user":"u","database":"d","table":"t"}`))
	f.Add([]byte(`{"collector":"c:1","token":"t","targets":["[::1]:1","h:2"],"user":"u","password":"p","database":"d","table":"s.t","writers":9999,"rate":1e6,"read_share":0.9,"payload_bytes":1048576,"seed":18446744073709551615,"id_base":4611686018427387904,"confirm_intents":true,"duration_ms":1}`))
	f.Add([]byte(`{"rate":-1}`))
	f.Add([]byte(`{"targets":[""],"unknown":1}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := ReadConfig(bytes.NewReader(in))
		if (c == nil) == (err == nil) {
			t.Fatalf("%q: %+v, %v", in, c, err)
		}
		if err != nil {
			return
		}
		again := *c
		if err := again.complete(); err != nil || len(again.Targets) == 0 || again.Writers < 1 || again.IDBase < 1 {
			t.Fatalf("%+v: %v", again, err)
		}
		newDialer(c)
	})
}
