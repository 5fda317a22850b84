package setup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
)

// service is a program that a host's service manager would run.
type service struct {
	name string
	cmd  place.Cmd
}

// restartAfter is how long a service stays away that ended by itself.
const restartAfter = time.Second

// kept is a service that is started again when it ends, as a unit with
// Restart=always is, until it is stopped or its host loses its power.
type kept struct {
	host    place.Host
	service service
	trace   func(string, ...any)
	quit    context.CancelFunc
	done    chan struct{} // closed when it is not started again

	mu   sync.Mutex
	proc place.Process
}

func keep(ctx context.Context, h place.Host, s service, trace func(string, ...any)) (*kept, error) {
	p, err := h.Start(ctx, s.cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s on %s: %w", s.name, h.Name(), err)
	}
	life, quit := context.WithCancel(context.WithoutCancel(ctx))
	k := &kept{host: h, service: s, trace: trace, quit: quit, done: make(chan struct{}), proc: p}
	go k.run(life)
	return k, nil
}

func (k *kept) run(ctx context.Context) {
	defer close(k.done)
	for {
		p := k.process()
		select {
		case <-p.Done():
		case <-ctx.Done():
			return
		}
		err := p.Wait()
		if errors.Is(err, place.ErrNoPower) || ctx.Err() != nil {
			return
		}
		k.trace("%s on %s ended (%v) and is started again in %s", k.service.name, k.host.Name(), err, restartAfter)
		if !k.again(ctx) {
			return
		}
	}
}

// again starts the service once more; it says whether that is still wanted.
func (k *kept) again(ctx context.Context) bool {
	for {
		pause(ctx, restartAfter)
		if ctx.Err() != nil {
			return false
		}
		p, err := k.host.Start(ctx, k.service.cmd)
		switch {
		case err == nil:
			k.mu.Lock()
			k.proc = p
			k.mu.Unlock()
			return true
		case ctx.Err() != nil, errors.Is(err, place.ErrNoPower):
			return false
		}
		k.trace("start %s on %s again: %v", k.service.name, k.host.Name(), err)
	}
}

func (k *kept) process() place.Process {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.proc
}

// release ends the keeping, not the program.
func (k *kept) release() {
	k.quit()
	<-k.done
}

func (k *kept) signal(sig int) error { return k.process().Signal(sig) }

// stop ends the program for good: politely, and when grace is over at once.
func (k *kept) stop(ctx context.Context, grace time.Duration) error {
	k.release()
	const sigterm, sigquit, sigkill = 15, 3, 9
	p := k.process()
	if err := p.Signal(sigterm); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s on %s: %w", k.service.name, k.host.Name(), err)
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-p.Done():
		return nil
	case <-t.C:
	case <-ctx.Done():
	}
	// A program in Go tells its log where it stands.
	err := errors.Join(fmt.Errorf("%s on %s did not end within %s", k.service.name, k.host.Name(), grace), p.Signal(sigquit))
	pause(context.WithoutCancel(ctx), restartAfter)
	select {
	case <-p.Done():
		return err
	default:
		return errors.Join(err, p.Signal(sigkill))
	}
}

// lineWatch passes a log on and remembers when lines came that matter.
type lineWatch struct {
	to      io.Writer
	matters func(line string) bool

	mu   sync.Mutex
	part []byte
	seen []time.Time
}

// seenAtMost bounds what a noisy log can make of it.
const seenAtMost = 10_000

func watchLines(to io.Writer, matters func(string) bool) *lineWatch {
	return &lineWatch{to: to, matters: matters}
}

func (w *lineWatch) Write(p []byte) (int, error) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.part = append(w.part, p...)
	for {
		line, rest, ok := bytes.Cut(w.part, []byte("\n"))
		if !ok {
			break
		}
		if w.matters(string(line)) && len(w.seen) < seenAtMost {
			w.seen = append(w.seen, now)
		}
		w.part = rest
	}
	return w.to.Write(p)
}

// after is the first time after t that such a line came, zero if none did.
func (w *lineWatch) after(t time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.seen {
		if at.After(t) {
			return at
		}
	}
	return time.Time{}
}
