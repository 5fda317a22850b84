package node

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// maxMessage bounds what a peer can make us hold.
const maxMessage = 1 << 20

// envelope is a message on its way: a JSON object after its length in four bytes,
// big endian.
type envelope struct {
	Kind string          `json:"kind"`
	Body json.RawMessage `json:"body"`
}

// kinds makes an empty message of each kind that travels.
var kinds = map[string]func() cluster.Message{
	"heartbeat":  func() cluster.Message { return &cluster.Heartbeat{} },
	"recruit":    func() cluster.Message { return &cluster.Recruit{} },
	"report":     func() cluster.Message { return &cluster.Report{} },
	"catch-up":   func() cluster.Message { return &cluster.CatchUp{} },
	"handover":   func() cluster.Message { return &cluster.Handover{} },
	"ask":        func() cluster.Message { return &cluster.Ask{} },
	"hello":      func() cluster.Message { return &cluster.Hello{} },
	"remember":   func() cluster.Message { return &cluster.Remember{} },
	"join-voter": func() cluster.Message { return &cluster.JoinVoter{} },
}

func kindOf(m cluster.Message) string {
	switch m.(type) {
	case cluster.Heartbeat:
		return "heartbeat"
	case cluster.Recruit:
		return "recruit"
	case cluster.Report:
		return "report"
	case cluster.CatchUp:
		return "catch-up"
	case cluster.Handover:
		return "handover"
	case cluster.Ask:
		return "ask"
	case cluster.Hello:
		return "hello"
	case cluster.Remember:
		return "remember"
	case cluster.JoinVoter:
		return "join-voter"
	}
	return ""
}

// value takes the pointer off that decoding needs.
func value(m cluster.Message) cluster.Message {
	switch x := m.(type) {
	case *cluster.Heartbeat:
		return *x
	case *cluster.Recruit:
		return *x
	case *cluster.Report:
		return *x
	case *cluster.CatchUp:
		return *x
	case *cluster.Handover:
		return *x
	case *cluster.Ask:
		return *x
	case *cluster.Hello:
		return *x
	case *cluster.Remember:
		return *x
	case *cluster.JoinVoter:
		return *x
	}
	return m
}

// encode frames one message.
func encode(m cluster.Message) ([]byte, error) {
	kind := kindOf(m)
	if kind == "" {
		return nil, fmt.Errorf("a message of type %T does not travel", m)
	}
	body, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode a message: %w", err)
	}
	b, err := json.Marshal(envelope{kind, body})
	if err != nil {
		return nil, fmt.Errorf("encode a message: %w", err)
	}
	if len(b) > maxMessage {
		return nil, fmt.Errorf("a %s of %d bytes is too long", kind, len(b))
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...), nil
}

// introduction is the first thing that an agent says on a connection for messages.
type introduction struct {
	Life  uint64 `json:"life"`  // of the agent
	Since int64  `json:"since"` // when that life began, in nanoseconds since 1970 by its clock
}

const introductionKind = "introduction"

func (i introduction) encode() ([]byte, error) {
	body, err := json.Marshal(i)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(envelope{introductionKind, body})
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...), err
}

func decodeIntroduction(r io.Reader) (i introduction, err error) {
	e, err := open(r)
	if err == nil && e.Kind != introductionKind {
		err = fmt.Errorf("a %s where an introduction was due", e.Kind)
	}
	if err == nil {
		err = json.Unmarshal(e.Body, &i)
	}
	return i, err
}

// open reads one envelope.
func open(r io.Reader) (e envelope, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return e, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 || n > maxMessage {
		return e, fmt.Errorf("a message of %d bytes: the bound is %d", n, maxMessage)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return e, fmt.Errorf("read a message: %w", err)
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("read a message: %w", err)
	}
	return e, nil
}

// decode reads one message; io.EOF at the end between two.
func decode(r io.Reader) (cluster.Message, error) {
	e, err := open(r)
	if err != nil {
		return nil, err
	}
	mk := kinds[e.Kind]
	if mk == nil {
		return nil, fmt.Errorf("a message of unknown kind %q", e.Kind)
	}
	m := mk()
	if err := json.Unmarshal(e.Body, m); err != nil {
		return nil, fmt.Errorf("read a %s: %w", e.Kind, err)
	}
	return value(m), nil
}
