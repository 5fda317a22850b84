package driver

import (
	"encoding/binary"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/holdfast-db/holdfast/internal/lab/driver/frame"
)

const readStatement = "holdfast_read"

// readResult is what came of one read.
type readResult struct {
	answer  uint8 // frame.Fresh, Stale or Failed
	latency time.Duration
	code    string // of a failure
	usable  bool   // the session is
}

// read asks the server for a write that was acked before. One that is not there
// is stale: a former primary that does not know it is one answers like this.
func (s *session) read(id uint64, timeout time.Duration) readResult {
	begun := s.now()
	s.inFlight.Store(int64(begun))
	defer s.inFlight.Store(0)
	_ = s.nc.SetDeadline(time.Now().Add(timeout))
	if s.switched.Load() {
		return readResult{answer: frame.Failed, code: codeSwitched}
	}
	s.fe.SendBind(&pgproto3.Bind{
		PreparedStatement: readStatement, ParameterFormatCodes: []int16{1},
		Parameters: [][]byte{binary.BigEndian.AppendUint64(nil, id)},
	})
	s.fe.SendExecute(&pgproto3.Execute{})
	s.fe.SendSync(&pgproto3.Sync{})
	r := readResult{answer: frame.Stale, usable: true}
	err := s.roundTrip(func(m pgproto3.BackendMessage) {
		if _, ok := m.(*pgproto3.DataRow); ok {
			r.answer = frame.Fresh
		}
	})
	r.latency = s.now() - begun
	if err != nil {
		if s.switched.Load() {
			err = errSwitched
		}
		r.answer, r.code, r.usable = frame.Failed, connectCode(err), false
	}
	return r
}

// turns says which of a writer's turns are for reads: a share of them, evenly.
type turns struct{ share, due float64 }

func (t *turns) read() bool {
	if t.due += t.share; t.due < 1 {
		return false
	}
	t.due--
	return true
}
