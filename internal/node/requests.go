package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/holdfast-db/holdfast/internal/cluster"
	"github.com/holdfast-db/holdfast/internal/node/instance"
	"github.com/holdfast-db/holdfast/internal/quorum"
)

// Requests that agents make of one another, as HTTP over the cluster's TLS.
const (
	pathFounding   = "/founding"
	pathRead       = "/register/read"
	pathPropose    = "/register/propose"
	pathStatus     = "/status"
	pathAttend     = "/attend"
	pathCommand    = "/command"
	pathCredential = "/credential"
)

// maxBody bounds an answer or a request.
const maxBody = 4 << 20

// founding is what a node says of itself before a cluster is founded.
type founding struct {
	Node    string `json:"node"`
	Voter   uint64 `json:"voter"`   // 0: it has no voter's files
	Last    uint64 `json:"last"`    // the last entry in the voter's log; 1 is the founding itself
	Version uint64 `json:"version"` // of the register, as it knows it; 0: never written
}

// asker makes requests of the other agents.
type asker struct {
	self    cluster.NodeID
	order   []cluster.NodeID // whom to ask first
	clients map[cluster.NodeID]*http.Client
}

func newAsker(self cluster.NodeID, order []cluster.NodeID, addresses map[cluster.NodeID]string, conf *tls.Config) *asker {
	a := &asker{self: self, clients: map[cluster.NodeID]*http.Client{}}
	for _, id := range order {
		if id == self {
			continue
		}
		a.order = append(a.order, id)
		a.clients[id] = &http.Client{Transport: &http.Transport{
			DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				c, err := dialTLS(ctx, addresses[id], forRequests, conf)
				if err != nil {
					return nil, err
				}
				if n := nodeOf(c.ConnectionState()); n != string(id) {
					_ = c.Close()
					return nil, fmt.Errorf("%s answers at the address of %s", n, id)
				}
				return c, nil
			},
			MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute,
		}}
	}
	return a
}

// post sends in and decodes the answer into out.
func (a *asker) post(ctx context.Context, to cluster.NodeID, path string, in, out any) error {
	cl := a.clients[to]
	if cl == nil {
		return fmt.Errorf("%s is no other member", to)
	}
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+string(to)+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := cl.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end, or given up
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", to, resp.Status, bytes.TrimSpace(b))
	}
	return json.Unmarshal(b, out)
}

var errNobody = errors.New("no other member answers")

// read reads the register through a peer, which reads after it was asked.
func (a *asker) read(ctx context.Context) (quorum.Value, error) {
	err := errNobody
	for _, id := range a.order {
		each, cancel := context.WithTimeout(ctx, peerRead)
		var v quorum.Value
		e := a.post(each, id, pathRead, struct{}{}, &v)
		cancel()
		if e == nil {
			return v, nil
		}
		err = e
	}
	return quorum.Value{}, err
}

// peerRead leaves time for the next peer, should the first be gone.
const peerRead = 400 * time.Millisecond

// propose asks one peer only: a second might do what the first already did.
func (a *asker) propose(ctx context.Context, p quorum.Proposal) quorum.Result {
	for _, id := range a.order {
		var v quorum.Value
		each, cancel := context.WithTimeout(ctx, peerRead)
		err := a.post(each, id, pathRead, struct{}{}, &v)
		cancel()
		if err != nil {
			continue
		}
		var r answeredProposal
		if err := a.post(ctx, id, pathPropose, p, &r); err != nil {
			return quorum.Result{Err: err}
		}
		return quorum.Result{Outcome: r.Outcome, Value: r.Value}
	}
	return quorum.Result{Err: errNobody}
}

type answeredProposal struct {
	Outcome quorum.Outcome
	Value   quorum.Value
}

// serve answers the other agents. Whoever asks has shown a certificate of the
// cluster.
func (a *agent) serve() http.Handler {
	mux := http.NewServeMux()
	handle := func(path string, fn func(r *http.Request, body []byte) (any, error)) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
			var out any
			if err == nil {
				out, err = fn(r, body)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(out)
		})
	}
	handle(pathFounding, func(*http.Request, []byte) (any, error) { return a.founding() })
	handle(pathRead, func(r *http.Request, _ []byte) (any, error) {
		n := a.reg.now()
		if n == nil {
			return nil, errors.New("no voter here yet")
		}
		ctx, cancel := context.WithTimeout(r.Context(), a.reg.within)
		defer cancel()
		return n.Read(ctx)
	})
	handle(pathPropose, func(r *http.Request, body []byte) (any, error) {
		var p quorum.Proposal
		if err := json.Unmarshal(body, &p); err != nil {
			return nil, err
		}
		n := a.reg.now()
		if n == nil {
			return nil, errors.New("no voter here yet")
		}
		ctx, cancel := context.WithTimeout(r.Context(), a.reg.within)
		defer cancel()
		res := n.Propose(ctx, p)
		return answeredProposal{res.Outcome, res.Value}, nil
	})
	handle(pathStatus, func(*http.Request, []byte) (any, error) { return a.local(), nil })
	handle(pathAttend, func(*http.Request, []byte) (any, error) {
		if a.inst != nil {
			a.inst.Attend()
		}
		return struct{}{}, nil
	})
	handle(pathCommand, func(r *http.Request, body []byte) (any, error) {
		var c cluster.Command
		if err := json.Unmarshal(body, &c); err != nil {
			return nil, err
		}
		return a.command(r.Context(), c)
	})
	handle(pathCredential, func(r *http.Request, _ []byte) (any, error) {
		if a.inst == nil {
			return nil, errors.New("a witness has no Postgres")
		}
		return a.inst.Issue(cluster.NodeID(nodeOf(*r.TLS)))
	})
	return mux
}

// credential is what this node needs to stream from of: fresh from there, or as
// it was last time if of does not answer now.
func (a *agent) credential(ctx context.Context, of cluster.NodeID) (instance.Credential, error) {
	ctx, cancel := context.WithTimeout(ctx, peerRead)
	defer cancel()
	var c instance.Credential
	err := a.ask.post(ctx, of, pathCredential, struct{}{}, &c)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.credentials[of] = c
		return c, nil
	}
	if c, ok := a.credentials[of]; ok {
		return c, nil
	}
	return c, fmt.Errorf("ask %s for a replication certificate: %w", of, err)
}
