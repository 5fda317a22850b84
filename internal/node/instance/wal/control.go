package wal

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// State is what pg_control says the server was doing.
type State uint32

// The states that are told apart; all others are starting, stopping or recovering.
const (
	ShutDown           State = 1
	ShutDownInRecovery State = 2
	InArchiveRecovery  State = 5
	InProduction       State = 6
)

// Control is the part of pg_control that every supported version has at the
// same place.
type Control struct {
	System     uint64
	State      State
	Checkpoint cluster.LSN
	Redo       cluster.LSN // where a start begins to replay
	Timeline   cluster.Timeline
}

// ParseControl reads the beginning of pg_control.
func ParseControl(b []byte) (Control, error) {
	if len(b) < 56 {
		return Control{}, fmt.Errorf("pg_control has %d bytes only", len(b))
	}
	if v := order.Uint32(b[8:]); v < 1300 || v >= 1900 {
		return Control{}, fmt.Errorf("pg_control is of version %d: want one of PostgreSQL 13 to 18", v)
	}
	c := Control{
		System: order.Uint64(b), State: State(order.Uint32(b[16:])), Checkpoint: cluster.LSN(order.Uint64(b[32:])),
		Redo: cluster.LSN(order.Uint64(b[40:])), Timeline: cluster.Timeline(order.Uint32(b[48:])),
	}
	if c.Timeline == 0 || c.Redo > c.Checkpoint {
		return Control{}, fmt.Errorf("pg_control makes no sense: checkpoint %s, redo %s, timeline %d", Text(c.Checkpoint), Text(c.Redo), c.Timeline)
	}
	return c, nil
}

// ReadControl reads dataDir's pg_control.
func ReadControl(dataDir string) (Control, error) {
	b, err := os.ReadFile(filepath.Join(dataDir, "global", "pg_control"))
	if err != nil {
		return Control{}, fmt.Errorf("read pg_control: %w", err)
	}
	return ParseControl(b)
}

// parseLabel returns where a restored backup begins to replay, and on which timeline.
func parseLabel(b string) (at cluster.LSN, t cluster.Timeline, ok bool) {
	for line := range strings.Lines(b) {
		if rest, found := strings.CutPrefix(line, "START WAL LOCATION: "); found {
			text, _, _ := strings.Cut(rest, " ")
			l, err := ParseLSN(strings.TrimSpace(text))
			if err != nil {
				return 0, 0, false
			}
			at, ok = l, true
		}
		if rest, found := strings.CutPrefix(line, "START TIMELINE: "); found {
			if _, err := fmt.Sscan(rest, &t); err != nil {
				return 0, 0, false
			}
		}
	}
	return at, t, ok && t != 0
}
