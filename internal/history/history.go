// Package history is the record of every write that was attempted and what
// became of it. The collector alone writes it; see DESIGN.md for the format.
package history

import "time"

// Outcome of a write as its client saw it.
type Outcome uint8

const (
	// Unfinished is an intent without an outcome; it is judged as Unknown.
	Unfinished Outcome = iota
	// Acked: the commit came back without a warning and the collector has the frame.
	Acked
	// Refused: a definite error before COMMIT was sent, or one that rules it out.
	Refused
	// Unknown: the outcome cannot be known to the client.
	Unknown
)

func (o Outcome) String() string {
	switch o {
	case Acked:
		return "acked"
	case Refused:
		return "refused"
	default:
		return "unknown"
	}
}

// Kind of an event.
type Kind uint8

const (
	// KindIntent: the write with this id is about to be sent.
	KindIntent Kind = 1
	// KindOutcome: what became of it.
	KindOutcome Kind = 2
	// KindMark: something that happened beside the writes ("cut began", ...).
	KindMark Kind = 3
)

// Event is one entry. At is the collector's monotonic clock since the history
// was created: no other clock appears in a history.
type Event struct {
	Kind    Kind
	At      time.Duration
	ID      uint64        // of the write; ids are never reused
	RetryOf uint64        // intent: the id that this one retries, 0 for none
	Writer  uint32        // intent: which writer of the driver
	Outcome Outcome       // outcome
	Latency time.Duration // outcome: the driver's service time, from send to answer
	Code    string        // outcome: SQLSTATE or error class, "" for acked
	Text    string        // mark: what happened
}

// Marks that the checker knows by their text; any other text is for people.
const (
	// MarkFault: something was first done to the system (standbys cut off, say).
	// What came before it is the baseline.
	MarkFault = "fault began"
	// MarkCut: the power cut (or whatever the fault is) began; the zero of every
	// time in the findings.
	MarkCut = "cut began"
	// MarkDead: nothing of the host whose power was cut can act any more. Only a
	// write sent after it was certainly not answered by that host: the frames of
	// one from just before the cut may have been stamped late.
	MarkDead = "cut confirmed"
	// MarkIncomplete: a driver that does not wait for its intents to be confirmed
	// vanished, so an intent may have been lost on the way and a row without one
	// proves nothing.
	MarkIncomplete = "intents may be missing"
)
