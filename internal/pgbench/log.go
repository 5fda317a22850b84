package pgbench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// Entry is one line of a per-transaction log:
//
//	client_id transaction_no time script_no time_epoch time_us [schedule_lag] [retries]
//
// (PostgreSQL documentation, pgbench, "Per-Transaction Logging"). In place of
// time stands "skipped" for one that a rate limit left out, or "failed",
// "serialization" or "deadlock".
type Entry struct {
	Client    int64
	EndUs     int64 // end, µs since the epoch by the wall clock
	LatencyUs int64 // since the scheduled start with a rate, else since the start
	LagUs     int64 // of it, waiting for a free client; 0 without a rate
	Kind      Kind
}

// Kind of a log line.
type Kind uint8

// Kinds of log lines.
const (
	Done Kind = iota
	Failed
	Skipped
)

// errLogLine is a line that is not one of a per-transaction log.
var errLogLine = errors.New("not a line of pgbench -l")

// ParseLog calls add for each line of a log. rate says that pgbench ran with a
// rate and the line holds the schedule lag. A last line without its newline is
// what a killed pgbench left: it is not used, and truncated is true. Anything
// else that does not parse is an error with its line number.
func ParseLog(r io.Reader, rate bool, add func(Entry)) (truncated bool, err error) {
	br := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := br.ReadSlice('\n')
		switch {
		case errors.Is(err, io.EOF):
			return len(line) > 0, nil
		case err != nil: // bufio.ErrBufferFull: no log line is 4 KiB long
			return false, fmt.Errorf("read line %d of a pgbench log: %w", n, err)
		}
		e, err := parseEntry(line[:len(line)-1], rate)
		if err != nil {
			return false, fmt.Errorf("line %d of a pgbench log: %w: %.80q", n, err, line)
		}
		add(e)
	}
}

func parseEntry(line []byte, rate bool) (Entry, error) {
	var f [8][]byte
	n := 0
	for field := range bytes.FieldsSeq(line) {
		if n == len(f) {
			return Entry{}, errLogLine
		}
		f[n] = field
		n++
	}
	if n < 6 || (rate && n < 7) {
		return Entry{}, errLogLine
	}
	var e Entry
	switch string(f[2]) {
	case "skipped":
		e.Kind = Skipped
	case "failed", "serialization", "deadlock":
		e.Kind = Failed
	}
	var num [8]int64
	for i := range n {
		if i == 2 && e.Kind != Done || e.Kind == Skipped && i > 5 {
			continue // the lag of a skipped transaction can have a fraction
		}
		v, err := strconv.ParseInt(string(f[i]), 10, 64)
		if err != nil || v < 0 {
			return Entry{}, errLogLine
		}
		num[i] = v
	}
	if num[4] > math.MaxInt64/2_000_000 || num[5] >= 1_000_000 || num[2] > maxUs {
		return Entry{}, errLogLine
	}
	e.Client, e.LatencyUs, e.EndUs = num[0], num[2], num[4]*1_000_000+num[5]
	if rate && e.Kind == Done {
		e.LagUs = min(num[6], e.LatencyUs)
	}
	return e, nil
}
