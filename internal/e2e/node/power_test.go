package node

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
)

// TestPrimaryLosesPower cuts the primary's power under load: another leads within
// about a second, nothing acknowledged is lost, and the old one comes back without
// a person.
func TestPrimaryLosesPower(t *testing.T) {
	rounds := 2
	if long() {
		rounds = 30
	}
	if v := os.Getenv("HOLDFAST_ROUNDS"); v != "" {
		rounds, _ = strconv.Atoi(v)
	}
	c := newTrio(t, "local-nvme")
	w := c.write()
	var first, rejoin []time.Duration
	for round := range rounds {
		s := c.await("whole", func(s status) bool { return s.Open && len(s.S) == 2 })
		if _, err := w.firstAfter(time.Now()); err != nil {
			t.Fatal(err)
		}
		old := c.index(s.Primary)
		began, _, err := c.hosts[old].(place.PowerCycler).Off(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a, err := w.firstAfter(time.Now())
		if err != nil {
			s, _ := c.statusOf((old + 1) % 3)
			t.Fatalf("round %d: %v: %+v", round, err, s)
		}
		first = append(first, a.at.Sub(began))
		n := c.await("another leads", func(x status) bool { return x.Open && x.Primary != s.Primary })
		if lost := w.lost(c.index(n.Primary)); len(lost) > 0 {
			t.Fatalf("round %d: %d acknowledged writes are lost, such as %v", round, len(lost), lost[:min(5, len(lost))])
		}
		if err := c.hosts[old].(place.PowerCycler).On(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		on := time.Now()
		c.start(old)
		c.await("the old one is back in S", func(x status) bool { return slices.Contains(x.S, s.Primary) })
		rejoin = append(rejoin, time.Since(on))
		p := n.phases()
		t.Logf("round %d: epoch %d, %s leads: detected %.0f, named %.0f, promoted %.0f, open %.0f ms; first write after %v, back in S after %v", round, n.Epoch, n.Primary,
			p.Detected, p.Named, p.Promoted, p.Opened, first[round].Round(time.Millisecond), rejoin[round].Round(time.Millisecond))
	}
	c.tellLogs()
	w.stop()
	slices.Sort(first)
	slices.Sort(rejoin)
	t.Logf("%d cuts, %d writes acknowledged, 0 lost: first write p50 %v, max %v; back in S p50 %v, max %v", rounds, len(w.acked),
		first[len(first)/2].Round(time.Millisecond), first[len(first)-1].Round(time.Millisecond), rejoin[len(rejoin)/2].Round(time.Millisecond), rejoin[len(rejoin)-1].Round(time.Millisecond))
}

// TestSwitchover hands over under load and loses nothing.
func TestSwitchover(t *testing.T) {
	c := newTrio(t, "local-nvme")
	w := c.write()
	if _, err := w.firstAfter(time.Now()); err != nil {
		t.Fatal(err)
	}
	s := c.await("open", func(s status) bool { return s.Open })
	var began time.Time
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		began = time.Now()
		out, err := c.hosts[1].Run(t.Context(), place.Cmd{Path: "holdfast", Args: []string{"switchover", "--config", c.config(1)}})
		if err == nil {
			break
		}
		// Right after it was formed, no standby may be fit yet; it is refused then, and nothing happens.
		if !bytes.Contains(out, []byte("can be promoted now")) && !bytes.Contains(out, []byte("has not caught up")) || time.Now().After(deadline) {
			t.Fatalf("%v: %s", err, out)
		}
	}
	a, err := w.firstAfter(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	n := c.await("another leads", func(x status) bool { return x.Open && x.Primary != s.Primary })
	if lost := w.lost(c.index(n.Primary)); len(lost) > 0 {
		t.Fatalf("%d acknowledged writes are lost", len(lost))
	}
	gap := w.longestSince(began)
	c.tellLogs()
	t.Logf("switched over in %v; longest gap between acknowledgements %v", a.at.Sub(began).Round(time.Millisecond), gap.Round(time.Millisecond))
}

// TestRestart restarts the primary's Postgres under load, as announced: nobody is
// elected, nothing is lost, and nobody is taken for one whose disk lost something.
func TestRestart(t *testing.T) {
	rounds := 2
	if v := os.Getenv("HOLDFAST_ROUNDS"); v != "" {
		rounds, _ = strconv.Atoi(v)
	}
	c := newTrio(t, "local-nvme")
	w := c.write()
	before := c.await("open", func(s status) bool { return s.Open && len(s.S) == 2 })
	var gaps []time.Duration
	for round := range rounds {
		if _, err := w.firstAfter(time.Now()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if out, err := c.hosts[1].Run(t.Context(), place.Cmd{Path: "holdfast", Args: []string{"restart", "--config", c.config(1)}}); err != nil {
			t.Fatalf("round %d: %v: %s", round, err, out)
		}
		if _, err := w.firstAfter(time.Now()); err != nil {
			t.Fatal(err)
		}
		gaps = append(gaps, w.longestSince(began))
		now := c.await("whole again", func(s status) bool { return s.Open && len(s.S) == 2 })
		if now.Epoch != before.Epoch {
			t.Fatalf("round %d: epoch %d became %d: %+v", round, before.Epoch, now.Epoch, now.Failovers)
		}
	}
	if lost := w.lost(c.index(before.Primary)); len(lost) > 0 {
		t.Fatalf("%d acknowledged writes are lost", len(lost))
	}
	c.tellLogs()
	slices.Sort(gaps)
	t.Logf("%d restarts, epoch %d throughout; longest gap between acknowledgements p50 %v, max %v", rounds, before.Epoch,
		gaps[len(gaps)/2].Round(time.Millisecond), gaps[len(gaps)-1].Round(time.Millisecond))
}
