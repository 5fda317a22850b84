package experiment

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/holdfast-db/holdfast/internal/check"
	"github.com/holdfast-db/holdfast/internal/history"
)

// below is a history without the writes of ids from limit on.
type below struct {
	check.Events
	limit uint64
}

func (b below) Next(e *history.Event) error {
	for {
		if err := b.Events.Next(e); err != nil || e.Kind == history.KindMark || e.ID < b.limit {
			return err
		}
	}
}

// findings are those of the writes of ids below limit, without survivors.
func findings(dir, historyFile string, limit uint64, sustained time.Duration) (*check.Findings, error) {
	h, err := history.Open(filepath.Join(dir, historyFile))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", historyFile, err)
	}
	defer func() { _ = h.Close() }()
	l, err := check.Read(below{h, limit})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", historyFile, err)
	}
	return l.Findings(check.Options{Window: sustained}), nil
}

// window is the time of one strike, from when it was complete until what lasted
// ended (before from: nothing lasts).
type window struct{ from, until time.Duration }

// watched is what the drivers saw of one window.
type watched struct {
	firstAck        time.Duration // of the outside driver: of a write sent from from on, -1 for none before the next window
	outside, beside int           // acks within the window of writes sent in it
}

// watch reads a history for what happened in each of the windows, which are in order.
func watch(dir, historyFile string, windows []window) ([]watched, error) {
	h, err := history.Open(filepath.Join(dir, historyFile))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", historyFile, err)
	}
	defer func() { _ = h.Close() }()
	return look(h, windows)
}

func look(h check.Events, windows []window) ([]watched, error) {
	seen := make([]watched, len(windows))
	for i := range seen {
		seen[i].firstAck = -1
	}
	sent := map[uint64]time.Duration{}
	var e history.Event
	for {
		if err := h.Next(&e); errors.Is(err, io.EOF) {
			return seen, nil
		} else if err != nil {
			return nil, err
		}
		switch e.Kind {
		case history.KindIntent:
			sent[e.ID] = e.At
		case history.KindOutcome:
			at := sent[e.ID]
			delete(sent, e.ID)
			if e.Outcome == history.Acked {
				note(seen, windows, at, &e)
			}
		}
	}
}

// note books one ack of a write that was sent at sent.
func note(seen []watched, windows []window, sent time.Duration, e *history.Event) {
	for i := len(windows) - 1; i >= 0; i-- {
		w := windows[i]
		if sent < w.from {
			continue
		}
		outside := e.ID < besideIDs
		if outside && seen[i].firstAck < 0 {
			seen[i].firstAck = e.At
		}
		if e.At <= w.until && outside {
			seen[i].outside++
		} else if e.At <= w.until {
			seen[i].beside++
		}
		return // a write counts for the latest strike before it
	}
}
