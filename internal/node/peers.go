package node

import (
	"bufio"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// peers carries messages between agents. A message may be lost, and is, rather
// than wait for a connection: what matters is said again.
type peers struct {
	self  cluster.NodeID
	conf  *tls.Config
	log   *slog.Logger
	links map[cluster.NodeID]*link
	tell  func(cluster.Event)
	me    introduction
	twice func(by cluster.NodeID) // a peer hears another agent of our name
	ctx   context.Context
	end   context.CancelFunc
	work  sync.WaitGroup

	mu     sync.Mutex
	open   map[net.Conn]bool
	listen net.Listener
	lives  map[cluster.NodeID]*life // whom messages are taken from
}

type link struct {
	to      cluster.NodeID
	address string
	queue   chan []byte
}

const (
	queued     = 64
	redial     = 100 * time.Millisecond
	writeUntil = time.Second
	readUntil  = 30 * time.Second // heartbeats come far more often
)

func newPeers(self cluster.NodeID, addresses map[cluster.NodeID]string, conf *tls.Config, log *slog.Logger, tell func(cluster.Event)) *peers {
	p := &peers{self: self, conf: conf, log: log, links: map[cluster.NodeID]*link{}, tell: tell, twice: func(cluster.NodeID) {},
		open: map[net.Conn]bool{}, lives: map[cluster.NodeID]*life{}}
	p.ctx, p.end = context.WithCancel(context.Background())
	for id, a := range addresses {
		if id != self {
			p.links[id] = &link{to: id, address: a, queue: make(chan []byte, queued)}
		}
	}
	return p
}

// start sends and receives from here on.
func (p *peers) start(l net.Listener) {
	p.mu.Lock()
	p.listen = l
	p.mu.Unlock()
	for _, k := range p.links {
		p.work.Go(func() { p.run(k) })
	}
	p.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.receive(c) })
		}
	})
}

func (p *peers) send(to cluster.NodeID, m cluster.Message) {
	k := p.links[to]
	if k == nil {
		return
	}
	b, err := encode(m)
	if err != nil {
		p.log.Error("a message cannot be sent", "to", to, "err", err)
		return
	}
	select {
	case k.queue <- b:
	default:
	}
}

// run keeps one connection to a peer, and drops what comes while there is none.
func (p *peers) run(k *link) {
	for p.ctx.Err() == nil {
		c, err := dialTLS(p.ctx, k.address, forMessages, p.conf)
		if err == nil && nodeOf(c.ConnectionState()) != string(k.to) {
			p.log.Error("another node answers at a member's address", "member", k.to, "answers", nodeOf(c.ConnectionState()), "address", k.address)
			_ = c.Close()
			err = context.DeadlineExceeded
		}
		k.drain()
		if err == nil {
			p.log.Debug("connected", "to", k.to)
			p.pump(k, c)
		}
		select {
		case <-p.ctx.Done():
		case <-time.After(redial):
		}
	}
}

func (k *link) drain() {
	for {
		select {
		case <-k.queue:
		default:
			return
		}
	}
}

func (p *peers) pump(k *link, c *tls.Conn) {
	p.hold(c)
	defer p.drop(c)
	gone := make(chan struct{})
	go func() { // the other side writes one thing at most: a read ends when it has gone
		defer close(gone)
		var b [1]byte
		if n, _ := c.Read(b[:]); n == 1 && b[0] == nameTwice {
			p.twice(k.to)
		}
	}()
	hello, err := p.me.encode()
	if err != nil {
		return
	}
	_ = c.SetWriteDeadline(time.Now().Add(writeUntil))
	if _, err := c.Write(hello); err != nil {
		return
	}
	for {
		select {
		case b := <-k.queue:
			_ = c.SetWriteDeadline(time.Now().Add(writeUntil))
			if _, err := c.Write(b); err != nil {
				return
			}
		case <-gone:
			return
		case <-p.ctx.Done():
			return
		}
	}
}

func (p *peers) receive(raw net.Conn) {
	p.hold(raw)
	defer p.drop(raw)
	c := tls.Server(raw, p.conf)
	ctx, cancel := context.WithTimeout(p.ctx, 2*dialWithin)
	err := c.HandshakeContext(ctx)
	cancel()
	if err != nil {
		p.log.Warn("a connection without a valid certificate of this cluster was refused", "from", raw.RemoteAddr(), "err", err)
		return
	}
	from := cluster.NodeID(nodeOf(c.ConnectionState()))
	if p.links[from] == nil {
		p.log.Warn("messages from a node that is no member here", "node", from, "from", raw.RemoteAddr())
		return
	}
	r := bufio.NewReader(c)
	_ = c.SetReadDeadline(time.Now().Add(firstByteWithin))
	who, err := decodeIntroduction(r)
	if err != nil {
		return
	}
	l := p.admit(from, who)
	if l == nil {
		p.log.Error("two agents use one node's name: the one that began later is refused", "node", from, "at", raw.RemoteAddr())
		_ = c.SetWriteDeadline(time.Now().Add(writeUntil))
		_, _ = c.Write([]byte{nameTwice})
		return
	}
	defer p.leave(l)
	for {
		_ = c.SetReadDeadline(time.Now().Add(readUntil))
		m, err := decode(r)
		if err != nil || !p.heard(l) {
			return
		}
		p.tell(cluster.Received{From: from, Message: m})
	}
}

func (p *peers) hold(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[c] = true
	if p.ctx.Err() != nil {
		_ = c.Close()
	}
}

func (p *peers) drop(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	delete(p.open, c)
	p.mu.Unlock()
}

func (p *peers) close() {
	p.end()
	p.mu.Lock()
	if p.listen != nil {
		_ = p.listen.Close()
	}
	for c := range p.open {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.work.Wait()
}
