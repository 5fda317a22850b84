package node

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/quorum"
)

type host struct {
	*peers
	mux     *mux
	got     chan cluster.Event
	refused atomic.Bool
}

func identities(t *testing.T, ca *quorum.Authority, name string) *tls.Config {
	t.Helper()
	id, err := ca.Issue(name, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c, err := id.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func authority(t *testing.T) *quorum.Authority {
	t.Helper()
	ca, err := quorum.NewAuthority("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// startHost runs the messages' end of a node, called name, with the certificate given.
func startHost(t *testing.T, name cluster.NodeID, conf *tls.Config, l net.Listener, addresses map[cluster.NodeID]string) *host {
	t.Helper()
	h := &host{got: make(chan cluster.Event, 100), mux: newMux(l)}
	h.peers = newPeers(name, addresses, conf, slog.New(slog.DiscardHandler), func(e cluster.Event) {
		select {
		case h.got <- e:
		default:
		}
	})
	lives++
	h.me = introduction{Life: lives, Since: int64(lives)}
	h.twice = func(cluster.NodeID) { h.refused.Store(true) }
	h.start(h.mux.lend(forMessages))
	t.Cleanup(h.stop)
	return h
}

// lives numbers the hosts of all tests, in the order of their start.
var lives uint64

func (h *host) stop() {
	h.close()
	_ = h.mux.Close()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// sendUntil says it again, as agents do, until it arrives or time is up.
func sendUntil(from *host, to cluster.NodeID, at *host, within time.Duration) bool {
	deadline := time.After(within)
	for {
		from.send(to, cluster.Hello{Voter: 7})
		select {
		case <-at.got:
			return true
		case <-deadline:
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestPeers(t *testing.T) {
	ca := authority(t)
	la, lb := listen(t), listen(t)
	addresses := map[cluster.NodeID]string{"a": la.Addr().String(), "b": lb.Addr().String()}
	a := startHost(t, "a", identities(t, ca, "a"), la, addresses)
	b := startHost(t, "b", identities(t, ca, "b"), lb, addresses)
	if !sendUntil(a, "b", b, 5*time.Second) {
		t.Fatal("nothing arrives")
	}
	a.send("b", cluster.Handover{Epoch: 5, Target: "b"})
	deadline := time.After(5 * time.Second)
	for {
		select {
		case e := <-b.got:
			r := e.(cluster.Received)
			if h, ok := r.Message.(cluster.Handover); ok {
				if r.From != "a" || h.Epoch != 5 {
					t.Fatalf("arrived as %#v", r)
				}
				return
			}
		case <-deadline:
			t.Fatal("the handover does not arrive")
		}
	}
}

// TestPeersRefuse: who has no certificate of the cluster, or one of another node
// than the one whose address it has, gets nothing and is heard by nobody.
func TestPeersRefuse(t *testing.T) {
	ca := authority(t)
	for name, conf := range map[string]*tls.Config{
		"another authority": identities(t, authority(t), "b"),
		"no member":         identities(t, ca, "x"),
	} {
		t.Run(name, func(t *testing.T) {
			la, lb := listen(t), listen(t)
			addresses := map[cluster.NodeID]string{"a": la.Addr().String(), "b": lb.Addr().String()}
			a := startHost(t, "a", identities(t, ca, "a"), la, addresses)
			b := startHost(t, "b", conf, lb, addresses)
			if sendUntil(b, "a", a, 500*time.Millisecond) {
				t.Error("a hears it")
			}
			if sendUntil(a, "b", b, 500*time.Millisecond) {
				t.Error("it hears a")
			}
		})
	}
}

// TestMuxForeign: what does not speak this protocol is closed, and does not keep
// others out.
func TestMuxForeign(t *testing.T) {
	l := listen(t)
	m := newMux(l)
	t.Cleanup(func() { _ = m.Close() })
	for _, first := range []string{"GET / HTTP/1.1\r\n\r\n", "\x00", "h"} {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(first)); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(3 * firstByteWithin))
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("after %q: read %d bytes, %v; want an end", first, n, err)
		} else if os.IsTimeout(err) {
			t.Errorf("after %q: the connection is kept", first)
		}
		_ = c.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	go func() {
		if c, err := dial(ctx, l.Addr().String(), forMessages); err == nil {
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	if _, err := m.kinds[forMessages].Accept(); err != nil {
		t.Fatal(err)
	}
}

// TestNameTwice: of two agents with one name, the one that began later is heard by
// nobody and told so; one that comes after the first has gone is heard at once.
func TestNameTwice(t *testing.T) {
	ca := authority(t)
	la, lb, lc := listen(t), listen(t), listen(t)
	addresses := map[cluster.NodeID]string{"a": la.Addr().String(), "b": lb.Addr().String()}
	b := startHost(t, "b", identities(t, ca, "b"), lb, addresses)
	first := startHost(t, "a", identities(t, ca, "a"), la, addresses)
	if !sendUntil(first, "b", b, 5*time.Second) {
		t.Fatal("nothing arrives")
	}
	second := startHost(t, "a", identities(t, ca, "a"), lc, addresses)
	for end := time.Now().Add(2*lifeTwice + 5*time.Second); !second.refused.Load(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the second one is not refused")
		}
		first.send("b", cluster.Hello{Voter: 1})
		second.send("b", cluster.Hello{Voter: 2})
	}
	for len(b.got) > 0 {
		if r := (<-b.got).(cluster.Received); r.Message == (cluster.Hello{Voter: 2}) {
			t.Error("the second one was heard")
		}
	}
	if first.refused.Load() || !sendUntil(first, "b", b, 5*time.Second) {
		t.Error("the first one is no longer heard")
	}
	second.stop()
	first.stop()
	for len(b.got) > 0 {
		<-b.got
	}
	third := startHost(t, "a", identities(t, ca, "a"), listen(t), addresses)
	if began := time.Now(); !sendUntil(third, "b", b, 5*time.Second) || time.Since(began) > lifeTwice {
		t.Errorf("after the first has gone, another one is heard after %v", time.Since(began))
	}
}

// TestLivesByAge: which of two is refused does not depend on who was heard first.
func TestLivesByAge(t *testing.T) {
	p := newPeers("b", nil, nil, nil, nil)
	older, later := introduction{Life: 7, Since: 1}, introduction{Life: 8, Since: 2}
	l := p.admit("a", later)
	if l == nil {
		t.Fatal("the only one is refused")
	}
	long := time.Now().Add(-2 * lifeTwice)
	p.heard(l)
	if _, done := p.tryAdmit("a", older, time.Now()); done {
		t.Error("another one is heard at once, beside the first")
	}
	p.heard(l)
	o, done := p.tryAdmit("a", older, long)
	if !done || o == nil || o.Life != older.Life {
		t.Fatalf("the older one is not taken: %+v, %v", o, done)
	}
	if p.heard(l) {
		t.Error("the later one is still heard")
	}
	if x, done := p.tryAdmit("a", later, long); !done || x != nil {
		t.Error("the later one comes back")
	}
}
