package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// AdminSocket is where an agent with this runtime directory is asked by people on
// its host: HTTP over a unix socket that only the agent's user may open.
func AdminSocket(run string) string { return filepath.Join(run, "admin.sock") }

// Reply is an agent's answer to a person's command.
type Reply struct {
	OK           bool                  `json:"ok"`
	Text         string                `json:"text"`
	Announcement *cluster.Announcement `json:"announcement,omitempty"`
}

// answerWithin bounds how long a person waits for the core.
const answerWithin = 30 * time.Second

// checkpointWithin bounds the checkpoint before a switchover: without it the
// switchover only takes longer.
const checkpointWithin = 15 * time.Second

// attendWithin is how long a switchover waits for standbys to hear of it.
const attendWithin = 100 * time.Millisecond

// listenAdmin opens the admin socket.
func (a *agent) listenAdmin() (func(), error) {
	if err := os.MkdirAll(a.c.Run, 0o755); err != nil {
		return nil, fmt.Errorf("make the runtime directory: %w", err)
	}
	path := AdminSocket(a.c.Run)
	d := net.Dialer{Timeout: time.Second}
	if c, err := d.DialContext(a.ctx, "unix", path); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("%w: another agent runs with the runtime directory %s", ErrRefused, a.c.Run)
	}
	_ = os.Remove(path)
	var lc net.ListenConfig
	l, err := lc.Listen(a.ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for people: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("close the admin socket to others: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) { reply(w, a.status(r.Context()), nil) })
	mux.HandleFunc("POST /command", func(w http.ResponseWriter, r *http.Request) {
		var c cluster.Command
		b, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
		if err == nil {
			err = json.Unmarshal(b, &c)
		}
		var out any
		if err == nil {
			out, err = a.command(r.Context(), c)
		}
		reply(w, out, err)
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: firstByteWithin}
	a.work.Go(func() { _ = s.Serve(l) })
	return func() { _ = s.Close() }, nil
}

func reply(w http.ResponseWriter, out any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}

// command takes a person's request to whoever can carry it out, and waits for the
// answer.
func (a *agent) command(ctx context.Context, c cluster.Command) (Reply, error) {
	if !c.Forwarded {
		if to := a.whoCan(ctx, c); to != "" && to != a.self {
			c.Forwarded = true
			var r Reply
			err := a.ask.post(ctx, to, pathCommand, c, &r)
			return r, err
		}
	}
	got := make(chan cluster.Answer, 1)
	a.mu.Lock()
	a.orders++
	c.ID = a.life<<20 | a.orders&(1<<20-1)
	a.answers[c.ID] = got
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.answers, c.ID)
		a.mu.Unlock()
	}()
	c.Forwarded = true // it is where it can be carried out
	if a.inst != nil && (c.Kind == cluster.Switchover || c.Kind == cluster.Restart) {
		a.makeReady(ctx)
	}
	a.tell(c)
	select {
	case x := <-got:
		return Reply{x.OK, x.Text, x.Announcement}, nil
	case <-ctx.Done():
		return Reply{}, context.Cause(ctx)
	case <-time.After(answerWithin):
		return Reply{}, errors.New("no answer yet: the request may still be carried out; see `holdfast status`")
	}
}

// makeReady does what makes a switchover shorter, and may fail: a checkpoint, so
// that the one behind the closed door has less to write, and standbys that look
// more often than at rest.
func (a *agent) makeReady(ctx context.Context) {
	early, cancel := context.WithTimeout(ctx, checkpointWithin)
	defer cancel()
	if err := a.inst.Checkpoint(early); err != nil {
		a.log.Info("no checkpoint before the door closes", "err", err)
	}
	soon, cancel := context.WithTimeout(ctx, attendWithin)
	defer cancel()
	var all sync.WaitGroup
	for _, id := range a.ask.order {
		all.Go(func() {
			var none struct{}
			if err := a.ask.post(soon, id, pathAttend, struct{}{}, &none); err != nil {
				a.log.Debug("a standby was not asked to attend", "node", id, "err", err)
			}
		})
	}
	all.Wait()
}

// whoCan is the node that a request is for; empty: any.
func (a *agent) whoCan(ctx context.Context, c cluster.Command) cluster.NodeID {
	switch c.Kind {
	case cluster.Switchover, cluster.Restart:
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.view.Register.Primary.Node
	case cluster.FailoverAllowDataLoss:
		for _, m := range a.status(ctx).Members {
			if m.Leads {
				return cluster.NodeID(m.Node)
			}
		}
	}
	return ""
}

func (a *agent) answer(x cluster.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.answers[x.ID]; c != nil {
		select {
		case c <- x:
		default:
		}
	}
}
