// Package control is how a simulated disk is told what to do while it runs:
// newline-delimited JSON over a unix socket, one object per request and one per
// reply.
package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Operations of a Request.
const (
	OpCut   = "cut"   // the power goes: every pending and later call fails with EIO
	OpOn    = "on"    // after a cut: the disk comes back with what it kept
	OpWipe  = "wipe"  // after a cut: nothing is kept
	OpStats = "stats" // the disk's own counters
	OpSet   = "set"   // change settings
	OpSync  = "sync"  // make everything durable
	OpStop  = "stop"  // clean shutdown

	OpDetach = "detach" // unmount; what is durable stays
	OpAttach = "attach" // mount elsewhere, after a delay
)

// Request is one line from the client.
type Request struct {
	Op     string            `json:"op"`
	Values map[string]string `json:"values,omitempty"` // of set; of attach mountpoint and delay_ms
}

// Reply is one line to the client. Error is set if OK is not; the other fields
// as the operation has it.
type Reply struct {
	OK     bool    `json:"ok"`
	Error  string  `json:"error,omitempty"`
	TookMs float64 `json:"took_ms"`
	*Dropped
	Stats map[string]float64 `json:"stats,omitempty"`
}

// Dropped says what a power cut cost, with the reply to on.
type Dropped struct {
	Bytes      int64 `json:"dropped_bytes"`      // written, not durable, not kept
	Operations int64 `json:"dropped_operations"` // on names, sizes and attributes
	Kept       int64 `json:"kept_bytes"`         // not durable, yet kept by the crash policy
}

// maxLine bounds a line either way.
const maxLine = 1 << 20

// decodeRequest reads one request line.
func decodeRequest(line []byte) (Request, error) {
	var r Request
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, fmt.Errorf("request is not as expected: %w", err)
	}
	if d.More() {
		return r, errors.New("request is not as expected: more than one object on a line")
	}
	switch r.Op {
	case OpCut, OpOn, OpWipe, OpStats, OpSync, OpStop, OpDetach:
		if len(r.Values) > 0 {
			return r, fmt.Errorf("request %s takes no values", r.Op)
		}
	case OpSet:
		if len(r.Values) == 0 {
			return r, errors.New("request set needs values")
		}
	case OpAttach:
		if r.Values["mountpoint"] == "" {
			return r, errors.New("request attach needs a mountpoint")
		}
	default:
		return r, fmt.Errorf("unknown request %q", r.Op)
	}
	return r, nil
}
