package instance

import (
	"sync"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// whole turns positions up to which WAL is flushed into positions up to which
// whole records are. A server flushes and sends up to where a record ends, or
// up to a page's border, which may lie within a record. If the rest of that is
// never written, nobody will ever hold the record, and whoever was seen at the
// border would pass for one whose disk lost something.
type whole struct {
	mu      sync.Mutex
	of      *server
	flushed cluster.LSN
	senders map[cluster.Member]cluster.LSN
}

// end returns the primary's end, and puts right the flush positions of its
// standbys: one at a page's border counts as what it was before. The end was
// asked for before the standbys were, so what they hold is part of it.
func (x *whole) end(s *server, flushed cluster.LSN, senders []cluster.Sender) cluster.LSN {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.of != s {
		x.of, x.flushed, x.senders = s, 0, map[cluster.Member]cluster.LSN{}
	}
	if flushed%pageSize != 0 || x.flushed == 0 {
		x.flushed = flushed
	}
	end := x.flushed
	for n := range senders {
		w := &senders[n]
		if !w.Named {
			continue
		}
		if w.Flush%pageSize != 0 {
			x.senders[w.Member] = w.Flush
		}
		w.Flush = x.senders[w.Member]
		end = max(end, w.Flush)
	}
	return end
}
