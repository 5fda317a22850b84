package instance

import (
	"context"
	"sync"
)

// fence separates what was begun before a recruit's cut from what comes after:
// a Follow or FetchWAL of before must not hand out a credential again.
type fence struct {
	mu  sync.Mutex
	ctx context.Context
	end context.CancelCauseFunc
}

// raise ends what was begun before. When it returns, nothing of before writes any more.
func (f *fence) raise(parent context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end != nil {
		f.end(errEnded)
	}
	f.ctx, f.end = context.WithCancelCause(parent)
}

// pass is for one operation: its context ends with both.
func (f *fence) pass(parent context.Context) pass {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end == nil {
		f.ctx, f.end = context.WithCancelCause(parent)
	}
	return pass{f, f.ctx}
}

// pass is what one operation may do, until the fence is raised.
type pass struct {
	f   *fence
	ctx context.Context
}

// join returns a context that ends with ctx or with the pass.
func (p pass) join(ctx context.Context) (context.Context, context.CancelFunc) {
	out, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(p.ctx, func() { end(context.Cause(p.ctx)) })
	return out, func() { stop(); end(nil) }
}

// do runs fn unless the fence was raised; it cannot be raised meanwhile.
func (p pass) do(fn func() error) error {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	return fn()
}
