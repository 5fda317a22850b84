package instance

import (
	"context"
	"errors"
	"sync"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// errEnded is why a start, promotion, follow, rewind, reclone or fetch of before
// a StopPostgres does not go on.
var errEnded = errors.New("ended")

// task is one effect under way. Both parts are optional.
type task struct {
	// files runs in the worker: in the order of the effects, complete before the
	// next one's begins. An error answers the effect.
	files func(ctx context.Context) error
	// rest runs in a goroutine of its own after files.
	rest func(ctx context.Context) cluster.Done
	// long tasks (those that a StopPostgres ends) run one at a time, files too.
	long  bool
	id    uint64 // 0: nobody wants an answer
	tell  func(cluster.Event)
	order *order
}

// worker runs tasks. Long ones belong to a generation; stop begins a new one.
type worker struct {
	ctx context.Context
	wg  *sync.WaitGroup

	mu    sync.Mutex
	queue []queued
	wake  chan struct{}
	gen   *generation
	long  chan struct{} // held by the long task that runs
}

type queued struct {
	t   task
	gen *generation
}

// generation is the time between two StopPostgres.
type generation struct {
	n    uint64
	ctx  context.Context
	end  context.CancelCauseFunc
	busy sync.WaitGroup // its long tasks, queued or running
}

func newWorker(ctx context.Context, wg *sync.WaitGroup) *worker {
	w := &worker{ctx: ctx, wg: wg, wake: make(chan struct{}, 1), long: make(chan struct{}, 1)}
	w.gen = w.newGeneration(1)
	wg.Add(1)
	go w.run()
	return w
}

func (w *worker) newGeneration(n uint64) *generation {
	g := &generation{n: n}
	g.ctx, g.end = context.WithCancelCause(w.ctx)
	return g
}

// add queues a task behind all others.
func (w *worker) add(t task) {
	w.mu.Lock()
	if t.long {
		w.gen.busy.Add(1)
	}
	w.queue = append(w.queue, queued{t, w.gen})
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// stop ends the long tasks so far, queued or running, and returns their generation.
func (w *worker) stop() *generation {
	w.mu.Lock()
	old := w.gen
	w.gen = w.newGeneration(old.n + 1)
	w.mu.Unlock()
	old.end(errEnded)
	return old
}

func (w *worker) run() {
	defer w.wg.Done()
	for {
		w.mu.Lock()
		var q queued
		ok := len(w.queue) > 0
		if ok {
			q, w.queue = w.queue[0], w.queue[1:]
		}
		w.mu.Unlock()
		switch {
		case ok:
			w.do(q)
		case w.ctx.Err() != nil:
			return
		default:
			select {
			case <-w.wake:
			case <-w.ctx.Done():
			}
		}
	}
}

// do runs a task's files and begins its rest. A long task first waits for the
// one before it, which the core begins only after a stop has ended that.
func (w *worker) do(q queued) {
	ctx := w.ctx
	if q.t.long {
		ctx = q.gen.ctx
	}
	if !q.t.long {
		if err := w.files(ctx, q.t); err != nil {
			q.t.answer(cluster.Done{Why: err.Error()})
			return
		}
		w.rest(ctx, q.t, nil)
		return
	}
	select {
	case w.long <- struct{}{}:
	case <-ctx.Done():
		q.gen.busy.Done()
		q.t.answer(cluster.Done{Why: context.Cause(ctx).Error()})
		return
	}
	done := func() { <-w.long; q.gen.busy.Done() }
	if err := w.files(ctx, q.t); err != nil {
		done()
		q.t.answer(cluster.Done{Why: err.Error()})
		return
	}
	w.rest(ctx, q.t, done)
}

func (w *worker) files(ctx context.Context, t task) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if t.files == nil {
		return nil
	}
	return t.files(ctx)
}

func (w *worker) rest(ctx context.Context, t task, done func()) {
	if t.rest == nil {
		if done != nil {
			done()
		}
		t.answer(cluster.Done{OK: true})
		return
	}
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		d := t.rest(ctx)
		if !d.OK && ctx.Err() != nil {
			d.Why = context.Cause(ctx).Error()
		}
		if done != nil {
			done()
		}
		t.answer(d)
	}()
}

// answer tells the outcome, if anybody asked for it.
func (t task) answer(d cluster.Done) {
	if t.id == 0 {
		return
	}
	d.ID = t.id
	if d.Postgres == nil || t.order == nil {
		t.tell(d)
		return
	}
	t.order.newer(func() { t.tell(d) })
}

// order keeps a look from being told after the outcome of an operation that ended
// since the look began: a promoted server would be seen as a standby once more.
type order struct {
	mu sync.Mutex
	n  uint64
}

// begin is a ticket for a look.
func (o *order) begin() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n
}

// told runs tell, unless something newer was told since the ticket.
func (o *order) told(ticket uint64, tell func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ticket != o.n {
		return false
	}
	tell()
	return true
}

// newer runs tell, and makes void all tickets so far.
func (o *order) newer(tell func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n++
	tell()
}
