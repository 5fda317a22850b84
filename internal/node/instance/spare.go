package instance

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// spare is a session that stands ready for what must be quick: a recruit's
// report, a promotion, the epoch row. A new one costs a fork, and a server that
// has just lost its upstream, or was just promoted, has the disk to itself for
// other things. The write probe, which needs a new one each time, leaves it.
type spare struct {
	mu     sync.Mutex
	conn   *pgx.Conn
	of     *server
	slow   slowView // as Watch saw it last
	slowAt time.Time
}

// know keeps what was looked at slowly, for looks that have no time for it.
func (x *spare) know(w *watcher) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.slow, x.slowAt = w.slow, w.slowAt
}

// take returns the session, if there is one with s.
func (x *spare) take(s *server) *pgx.Conn {
	x.mu.Lock()
	c, of := x.conn, x.of
	x.conn, x.of = nil, nil
	x.mu.Unlock()
	if c == nil || of == s && !c.IsClosed() {
		return c
	}
	closeConn(c)
	return nil
}

// put keeps a session, or ends it: one is enough.
func (x *spare) put(c *pgx.Conn, s *server) {
	x.mu.Lock()
	keep := x.conn == nil && !c.IsClosed()
	if keep {
		x.conn, x.of = c, s
	}
	x.mu.Unlock()
	if !keep {
		closeConn(c)
	}
}

func (x *spare) has(s *server) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.conn != nil && x.of == s && !x.conn.IsClosed()
}

// drop ends it.
func (x *spare) drop() { x.take(nil) }

// ready returns a watcher for one quick look or operation. It has the spare
// session if that still answers, and none otherwise.
func (i *Instance) ready(ctx context.Context) *watcher {
	w := &watcher{}
	s := i.current()
	if s == nil {
		return w
	}
	i.spare.mu.Lock()
	if slow := i.spare.slow; slow.of == s {
		w.slow, w.slowAt = slow, time.Now() // Watch goes on looking
	}
	i.spare.mu.Unlock()
	c := i.spare.take(s)
	if c == nil {
		return w
	}
	ctx, cancel := context.WithTimeout(ctx, spareWithin)
	defer cancel()
	if err := c.Ping(ctx); err != nil {
		closeConn(c)
		return w
	}
	w.conn, w.of = c, s
	return w
}

// spareWithin is how long the spare session may take to answer.
const spareWithin = 100 * time.Millisecond

// giveBack ends a watcher of ready's.
func (i *Instance) giveBack(w *watcher) {
	if w.conn == nil {
		return
	}
	if i.current() != w.of || i.ctx.Err() != nil || w.conn.PgConn().TxStatus() != 'I' {
		w.drop()
		return
	}
	i.spare.put(w.conn, w.of)
	w.conn = nil
}

// quickly is session on the spare one, where there is one.
func (i *Instance) quickly(ctx context.Context, fn func(*pgx.Conn) error) error {
	w := i.ready(ctx)
	defer i.giveBack(w)
	c, err := i.sessionOf(ctx, w)
	if err != nil {
		return err
	}
	return fn(c)
}

// leave makes a new session the spare one, if there is none, or ends it. What it
// will be asked is prepared: then the server's caches know it too.
func (i *Instance) leave(ctx context.Context, c *pgx.Conn, s *server) {
	if i.spare.has(s) || c.IsClosed() {
		closeConn(c)
		return
	}
	i.spare.drop()
	for _, sql := range []string{lookSQL, standbySQL, sendersSQL, rowSQL, flushedSQL} {
		if _, err := c.Prepare(ctx, sql, sql); err != nil {
			break // there is no table of epochs yet
		}
	}
	i.giveBack(&watcher{conn: c, of: s})
}
