package driver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/history"
)

// A server that answers but cannot be written to.
var (
	errStandby  = errors.New("it is in recovery")
	errReadOnly = errors.New("its transactions are read-only")
)

const statement = "holdfast_insert"

// dialer opens sessions.
type dialer struct {
	cfg    *Config
	insert string
	read   string // "" when nothing is read
	now    func() time.Duration
}

func newDialer(cfg *Config) *dialer {
	var parts []string
	for p := range strings.SplitSeq(cfg.Table, ".") {
		parts = append(parts, `"`+strings.ReplaceAll(p, `"`, `""`)+`"`)
	}
	start := time.Now()
	table, read := strings.Join(parts, "."), ""
	if cfg.ReadShare > 0 {
		read = "SELECT 1 FROM " + table + " WHERE id = $1"
	}
	return &dialer{
		cfg:    cfg,
		read:   read,
		insert: "INSERT INTO " + table + " (id, writer, retry_of, payload) VALUES ($1, $2, $3, $4)",
		// Never 0, which stands for no write in flight.
		now: func() time.Duration { return time.Since(start) + 1 },
	}
}

// config is the connection's, built from nothing but the driver's own: the
// environment has no say.
func (d *dialer) config(target string) (*pgconn.Config, error) {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %q", port)
	}
	c, err := pgconn.ParseConfig("host=localhost user=x password=x dbname=x sslmode=disable target_session_attrs=any")
	if err != nil {
		return nil, err
	}
	c.Host, c.Port, c.User, c.Password, c.Database = host, uint16(n), d.cfg.User, d.cfg.Password, d.cfg.Database
	c.TLSConfig, c.Fallbacks, c.ValidateConnect, c.AfterConnect, c.ConnectTimeout = nil, nil, nil, nil, 0
	c.RuntimeParams = map[string]string{"lc_messages": "C", "application_name": "holdfast-driver"}
	nd := &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 2},
		Control: func(network, _ string, rc syscall.RawConn) (err error) {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			cerr := rc.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.cfg.WriteTimeoutMs))
			})
			return errors.Join(cerr, err)
		},
	}
	c.DialFunc = nd.DialContext
	return c, nil
}

// dial opens a session that can be written to, or says why there is none.
func (d *dialer) dial(ctx context.Context, target int) (*session, error) {
	cfg, err := d.config(d.cfg.Targets[target])
	if err != nil {
		return nil, err
	}
	pc, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	h, err := pc.Hijack()
	if err != nil {
		_ = pc.Conn().Close()
		return nil, err
	}
	s := newSession(h.Conn, target, d.now)
	unwatch := context.AfterFunc(ctx, func() { _ = s.nc.SetDeadline(time.Unix(1, 0)) })
	err = s.prepare(d.insert, d.read)
	if !unwatch() { // the deadline is or will be in the past
		err = ctx.Err()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// maxAnswer is the longest message of a server, in bytes. Nothing that it has to
// say comes near it; a length that is nonsense must not be allocated.
const maxAnswer = 1 << 20

func newSession(nc net.Conn, target int, now func() time.Duration) *session {
	s := &session{target: target, nc: nc, fe: pgproto3.NewFrontend(nc, nc), now: now}
	s.fe.SetMaxBodyLen(maxAnswer)
	s.bind = pgproto3.Bind{PreparedStatement: statement, ParameterFormatCodes: []int16{1}, Parameters: make([][]byte, 4)}
	return s
}

// prepare makes sure that the server can be written to, and prepares the INSERT
// and, where there is one, the SELECT.
func (s *session) prepare(insert, read string) error {
	var answer [][]byte
	s.fe.SendQuery(&pgproto3.Query{String: "SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::bool"})
	err := s.roundTrip(func(m pgproto3.BackendMessage) {
		if row, ok := m.(*pgproto3.DataRow); ok {
			for _, v := range row.Values {
				answer = append(answer, bytes.Clone(v))
			}
		}
	})
	switch {
	case err != nil:
		return err
	case len(answer) != 2:
		return errors.New("it does not say whether it is in recovery")
	case string(answer[0]) != "f":
		return errStandby
	case string(answer[1]) != "f":
		return errReadOnly
	}
	s.fe.SendParse(&pgproto3.Parse{Name: statement, Query: insert, ParameterOIDs: []uint32{20, 23, 20, 17}}) // int8, int4, int8, bytea
	if read != "" {
		s.fe.SendParse(&pgproto3.Parse{Name: readStatement, Query: read, ParameterOIDs: []uint32{20}})
	}
	s.fe.SendSync(&pgproto3.Sync{})
	return s.roundTrip(func(pgproto3.BackendMessage) {})
}

// roundTrip sends what is queued and hands on what comes back until the server
// is ready; an error that it reports is returned.
func (s *session) roundTrip(each func(pgproto3.BackendMessage)) error {
	if err := s.fe.Flush(); err != nil {
		return err
	}
	var failed error
	for {
		m, err := s.fe.Receive()
		if err != nil {
			return errors.Join(failed, err)
		}
		switch m := m.(type) {
		case *pgproto3.ErrorResponse:
			failed = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.ReadyForQuery:
			return failed
		default:
			each(m)
		}
	}
}

// session is a connection with its INSERT prepared. After authentication it
// speaks the protocol itself, because whether an error came before or after
// CommandComplete decides what it means.
type session struct {
	target   int
	gen      uint64 // of the finder when it was handed out
	nc       net.Conn
	fe       *pgproto3.Frontend
	bind     pgproto3.Bind
	fixed    [20]byte
	now      func() time.Duration
	inFlight atomic.Int64 // since when a write is, by now; 0 for none
	switched atomic.Bool
}

// write is one attempt.
type write struct {
	id, retryOf uint64
	writer      uint32
	payload     []byte
}

// result of an attempt.
type result struct {
	outcome history.Outcome
	code    string
	latency time.Duration
	usable  bool // the session is
}

// insert sends w and waits for its outcome until timeout has passed.
func (s *session) insert(w *write, timeout time.Duration) result {
	begun := s.now()
	s.inFlight.Store(int64(begun))
	defer s.inFlight.Store(0)
	_ = s.nc.SetDeadline(time.Now().Add(timeout))
	if s.switched.Load() { // after the deadline is set, so that interrupt is not undone
		return result{outcome: history.Refused, code: codeSwitched}
	}
	var a answer
	s.exchange(w, &a)
	if a.err != nil && s.switched.Load() {
		a.err = errSwitched
	}
	r := result{latency: s.now() - begun}
	r.outcome, r.code = judge(&a)
	// A server that has become read-only is not the one to write to.
	r.usable = a.err == nil && a.ready && a.code != "25006"
	return r
}

// interrupt ends a write in flight, and every later one, at once.
func (s *session) interrupt() {
	s.switched.Store(true)
	_ = s.nc.SetDeadline(time.Unix(1, 0))
}

// close ends the connection without a word: a server that is asked to cancel
// would turn a commit in doubt into one that looks done.
func (s *session) close() { _ = s.nc.Close() }

func (s *session) exchange(w *write, a *answer) {
	binary.BigEndian.PutUint64(s.fixed[0:], w.id)
	binary.BigEndian.PutUint32(s.fixed[8:], w.writer)
	binary.BigEndian.PutUint64(s.fixed[12:], w.retryOf)
	p := s.bind.Parameters
	p[0], p[1], p[2], p[3] = s.fixed[0:8], s.fixed[8:12], s.fixed[12:20], w.payload
	s.fe.SendBind(&s.bind)
	s.fe.SendExecute(&pgproto3.Execute{})
	s.fe.SendSync(&pgproto3.Sync{})
	if a.err = s.fe.Flush(); a.err != nil {
		return
	}
	for !a.ready && a.err == nil {
		var m pgproto3.BackendMessage
		if m, a.err = s.fe.Receive(); a.err == nil {
			s.take(m, a)
		}
	}
}

func (s *session) take(m pgproto3.BackendMessage, a *answer) {
	switch m := m.(type) {
	case *pgproto3.BindComplete, *pgproto3.ParameterStatus, *pgproto3.NotificationResponse:
	case *pgproto3.NoticeResponse:
		if isSyncCancelled(m.SeverityUnlocalized, m.Message) {
			a.syncCancelled = true
		}
	case *pgproto3.CommandComplete:
		if a.completed || a.failed {
			a.err = errProtocol
		}
		a.completed, a.inserted = true, string(m.CommandTag) == "INSERT 0 1"
	case *pgproto3.ErrorResponse:
		if a.failed {
			return // the first counts
		}
		a.failed, a.severity, a.code = true, m.SeverityUnlocalized, m.Code
		if a.severity != "ERROR" {
			a.err = errProtocol // FATAL or PANIC: nothing more comes
		}
	case *pgproto3.ReadyForQuery:
		if a.ready = m.TxStatus == 'I'; !a.ready {
			a.err = errProtocol
		}
	default:
		a.err = errProtocol
	}
}

// fill makes the payload of a write: the same for the same seed and id.
func fill(b []byte, seed, id uint64) {
	x := seed ^ id*0x9e3779b97f4a7c15
	var word [8]byte
	for i := 0; i < len(b); i += 8 {
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(word[:], z^z>>31)
		copy(b[i:], word[:])
	}
}
