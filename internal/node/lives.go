package node

import (
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// A node's agent may be started on two hosts by mistake, with one certificate.
// Each would speak for the node, and what the core of others hears would be of
// two minds. So messages are taken from one life of a node's agent at a time;
// another one has to wait until that has gone or fallen silent. If it has not,
// the life that began later is told, and ends.

// nameTwice is said on a connection for messages to an agent that is refused.
const nameTwice = 'D'

const (
	lifeSilent = time.Second     // without a word for so long, a life has gone: heartbeats come every 100 ms
	lifeTwice  = 3 * time.Second // for so long beside another one, it is a second agent
)

// life is one that messages are taken from.
type life struct {
	introduction
	conns   int
	heardAt time.Time
	refused bool
}

// admit waits until messages of this life may be taken; nil: never.
func (p *peers) admit(from cluster.NodeID, who introduction) *life {
	began := time.Now()
	for {
		if l, done := p.tryAdmit(from, who, began); done {
			return l
		}
		select {
		case <-p.ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (p *peers) tryAdmit(from cluster.NodeID, who introduction, began time.Time) (*life, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lives[from]
	switch {
	case l != nil && l.Life == who.Life && l.refused:
		return nil, true
	case l != nil && l.Life == who.Life:
		l.conns++
		return l, true
	case l == nil || l.conns == 0 || time.Since(l.heardAt) > lifeSilent:
	case time.Since(began) < lifeTwice:
		return nil, false
	case l.Since <= who.Since:
		return nil, true
	default: // it is the other one that began later
		l.refused = true
	}
	l = &life{introduction: who, conns: 1, heardAt: time.Now()}
	p.lives[from] = l
	return l, true
}

// heard notes a word of a life; false: nothing more is to be taken from it.
func (p *peers) heard(l *life) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.heardAt = time.Now()
	return !l.refused
}

func (p *peers) leave(l *life) {
	p.mu.Lock()
	l.conns--
	p.mu.Unlock()
}
