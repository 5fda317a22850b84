package quorumtest

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/quorum"
)

// Nodes is a Cluster of real voters in this process, over TLS on loopback.
type Nodes struct {
	t        testing.TB
	dir      string
	founders []quorum.Voter
	timers   quorum.Timers
	ca       *quorum.Authority
	nodes    []*realNode
}

type realNode struct {
	voter quorum.Voter
	link  *Link
	first net.Listener // until it is started once
	ran   bool
	node  *quorum.Node
}

// NewNodes starts the founders, with these timers.
func NewNodes(t testing.TB, founders, others int, timers quorum.Timers) *Nodes {
	ca, err := quorum.NewAuthority("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c := &Nodes{t: t, dir: t.TempDir(), timers: timers, ca: ca}
	t.Cleanup(func() {
		for i, n := range c.nodes {
			if n.node != nil {
				c.Stop(i)
			} else if n.first != nil {
				_ = n.first.Close()
			}
		}
	})
	for i := range founders + others {
		l, err := listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		n := &realNode{voter: quorum.Voter{ID: uint64(i + 1), Address: l.Addr().String()}, link: NewLink(), first: l}
		c.nodes = append(c.nodes, n)
		if i < founders {
			c.founders = append(c.founders, n.voter)
		}
	}
	for i := range founders {
		c.Start(i)
	}
	return c
}

func listen(address string) (net.Listener, error) {
	var c net.ListenConfig
	return c.Listen(context.Background(), "tcp", address)
}

// Authority admits to this cluster.
func (c *Nodes) Authority() *quorum.Authority { return c.ca }

// Node returns a voter that runs.
func (c *Nodes) Node(i int) *quorum.Node { return c.nodes[i].node }

// Dir returns a voter's directory.
func (c *Nodes) Dir(i int) string {
	return filepath.Join(c.dir, string(rune('a'+i)))
}

// Register implements Cluster.
func (c *Nodes) Register(i int) quorum.Register { return c.nodes[i].node }

// Voter implements Cluster.
func (c *Nodes) Voter(i int) quorum.Voter { return c.nodes[i].voter }

// Cut implements Cluster.
func (c *Nodes) Cut(i int) { c.nodes[i].link.Cut(true) }

// CutAfter cuts a node off when it waits for the answer to so many bytes.
func (c *Nodes) CutAfter(i, bytes int) { c.nodes[i].link.CutAfter(bytes) }

// Drop makes a node that is cut off lose what already reached it, too.
func (c *Nodes) Drop(i int) { c.nodes[i].link.Drop() }

// Heal implements Cluster.
func (c *Nodes) Heal(i int) { c.nodes[i].link.Cut(false) }

// Stop implements Cluster.
func (c *Nodes) Stop(i int) {
	n := c.nodes[i]
	if err := n.node.Close(); err != nil {
		c.t.Errorf("stop node %d: %v", i, err)
	}
	n.node = nil
}

// Start implements Cluster.
func (c *Nodes) Start(i int) {
	n := c.nodes[i]
	l := n.first
	n.first = nil
	if l == nil {
		Until(c.t, "the address is free again", func() (ok bool) {
			var err error
			l, err = listen(n.voter.Address)
			return err == nil
		})
	}
	id, err := c.ca.Issue("node", time.Now(), time.Hour)
	if err != nil {
		c.t.Fatal(err)
	}
	config, err := id.TLS()
	if err != nil {
		c.t.Fatal(err)
	}
	o := quorum.Options{
		Dir: c.Dir(i), ID: n.voter.ID, Address: n.voter.Address, Listener: n.link.Listen(l), Dial: n.link.Dial,
		TLS: config, Timers: c.timers, Flush: time.Microsecond, Reserve: 1 << 20, Fresh: !n.ran,
	}
	if !n.ran && i < len(c.founders) {
		o.Founders = c.founders
	}
	if n.node, err = quorum.Open(o); err != nil {
		c.t.Fatal(err)
	}
	n.ran = true
}
