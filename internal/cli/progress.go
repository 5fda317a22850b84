package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress writes a line that changes on a terminal, and plain lines elsewhere.
type progress struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	shown    bool
	last     time.Time
}

func newProgress(w io.Writer) *progress { return &progress{w: w, terminal: isTerminal(w)} }

const (
	clearLine   = "\r\x1b[K"
	redrawEvery = 100 * time.Millisecond
	widestLine  = 118
)

// Live replaces the changing line; off a terminal it says nothing.
func (p *progress) Live(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.terminal || (p.shown && time.Since(p.last) < redrawEvery) {
		return
	}
	if r := []rune(text); len(r) > widestLine {
		text = string(r[:widestLine-1]) + "…"
	}
	fmt.Fprint(p.w, clearLine, text)
	p.shown, p.last = true, time.Now()
}

// Step writes a line that stays.
func (p *progress) Step(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	fmt.Fprintln(p.w, text)
}

// done removes the changing line.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

func (p *progress) erase() {
	if p.shown {
		fmt.Fprint(p.w, clearLine)
		p.shown = false
	}
}
