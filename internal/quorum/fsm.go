package quorum

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// machine is the state machine behind the log: the present value, and the
// index of the last write that it contains.
type machine struct {
	mu      sync.Mutex
	value   Value
	index   uint64
	moved   chan struct{} // closed and replaced at every change
	changed chan struct{}
}

func newMachine() *machine {
	return &machine{moved: make(chan struct{}), changed: make(chan struct{}, 1)}
}

// Apply implements raft.FSM; its answer is a Result.
func (m *machine) Apply(l *raft.Log) any {
	var p Proposal
	err := json.Unmarshal(l.Data, &p)
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.movedTo(l.Index)
	if err != nil { // the same bytes at every voter, so the same refusal
		return Result{Outcome: Conflict, Value: m.value, Err: fmt.Errorf("decode entry %d of the register's log: %w", l.Index, err)}
	}
	next, ok := m.value.Apply(p)
	if !ok {
		return Result{Outcome: Conflict, Value: m.value}
	}
	m.value = next
	return Result{Outcome: Applied, Value: next}
}

// movedTo wakes whoever waits; the caller holds mu.
func (m *machine) movedTo(index uint64) {
	m.index = index
	close(m.moved)
	m.moved = make(chan struct{})
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

func (m *machine) now() (Value, uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.value, m.index
}

// at waits until the value contains the write at index.
func (m *machine) at(ctx context.Context, index uint64) (Value, error) {
	for {
		m.mu.Lock()
		v, have, moved := m.value, m.index, m.moved
		m.mu.Unlock()
		if have >= index {
			return v, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return Value{}, fmt.Errorf("wait for entry %d of the register's log: %w", index, ctx.Err())
		}
	}
}

// saved is the form of a snapshot.
type saved struct {
	Format int
	Index  uint64
	Value  Value
}

// Snapshot implements raft.FSM.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	v, index := m.now()
	return saved{Format: 1, Index: index, Value: v}, nil
}

// Restore implements raft.FSM.
func (m *machine) Restore(r io.ReadCloser) error {
	defer r.Close() //nolint:errcheck // only read
	var s saved
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return fmt.Errorf("decode the register's snapshot: %w", err)
	}
	if s.Format != 1 {
		return fmt.Errorf("the register's snapshot has format %d; this program knows format 1: use the version that wrote it, or a newer one", s.Format)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.value = s.Value
	m.movedTo(s.Index)
	return nil
}

// Persist implements raft.FSMSnapshot.
func (s saved) Persist(sink raft.SnapshotSink) error {
	if err := json.NewEncoder(sink).Encode(s); err != nil {
		_ = sink.Cancel()
		return fmt.Errorf("write the register's snapshot: %w", err)
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (saved) Release() {}
