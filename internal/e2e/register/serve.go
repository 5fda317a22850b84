// Package register drills internal/quorum as it runs in a cluster: three
// processes on three hosts with disks of their own, mTLS between them, power
// cuts, frozen hosts and busy processors.
package register

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/quorum"
)

// What a Request asks for.
const (
	DoRead    = "read"
	DoPropose = "propose"
	DoStatus  = "status"
)

// Request is one line to a member, in JSON. Whoever holds the process's standard
// input may ask, nobody else.
type Request struct {
	ID       uint64 // not 0; the Answer has it
	Do       string
	Proposal quorum.Proposal
	Within   time.Duration // how long it may take
}

// Answer is one line of a member, in JSON. With ID 0 nobody asked: the member
// tells that it runs, or that it began or ceased to lead.
type Answer struct {
	ID      uint64
	Outcome quorum.Outcome // of a proposal
	Value   quorum.Value   // of a read, or of a proposal's Result
	Status  quorum.Status
	Timers  quorum.Timers // in force; when nobody asked
	Error   string        // empty: done
}

// Serve runs a member until in ends or ctx does.
func Serve(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) error {
	o, err := options(args, errs)
	if err != nil {
		return err
	}
	node, err := quorum.Open(o)
	if err != nil {
		return err
	}
	m := &server{node: node, out: json.NewEncoder(out)}
	ctx, cancel := context.WithCancel(ctx)
	m.say(Answer{Status: node.Status(), Timers: node.Timers()})
	m.work.Go(func() { m.tell(ctx) })
	err = m.answer(ctx, in)
	cancel()
	err = errors.Join(err, node.Close())
	m.work.Wait()
	return err
}

func options(args []string, errs io.Writer) (quorum.Options, error) {
	var o quorum.Options
	f := flag.NewFlagSet("member", flag.ContinueOnError)
	f.SetOutput(errs)
	identity := f.String("identity", "", "the directory with this node's certificate")
	founders := f.String("founders", "", "the voters that begin the cluster: ID=ADDRESS,…; with -fresh")
	f.StringVar(&o.Dir, "dir", "", "the voter's own directory")
	f.StringVar(&o.Address, "address", "", "host:port to listen on")
	f.Uint64Var(&o.ID, "id", 0, "the voter's id")
	f.BoolVar(&o.Fresh, "fresh", false, "begin with nothing")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	id, err := quorum.LoadIdentity(*identity)
	if err != nil {
		return o, err
	}
	if o.TLS, err = id.TLS(); err != nil {
		return o, err
	}
	if *founders != "" {
		if o.Founders, err = parseVoters(*founders); err != nil {
			return o, err
		}
	}
	o.Timers, o.Reserve = quorum.DefaultTimers(), quorum.DefaultReserve
	o.Log = slog.New(slog.NewTextHandler(errs, nil))
	var l net.ListenConfig
	o.Listener, err = l.Listen(context.Background(), "tcp", o.Address)
	return o, err
}

// FormatVoters is the value of -founders.
func FormatVoters(vs []quorum.Voter) string {
	var out []string
	for _, v := range vs {
		out = append(out, fmt.Sprintf("%d=%s", v.ID, v.Address))
	}
	return strings.Join(out, ",")
}

func parseVoters(s string) ([]quorum.Voter, error) {
	var out []quorum.Voter
	for v := range strings.SplitSeq(s, ",") {
		id, address, ok := strings.Cut(v, "=")
		n, err := strconv.ParseUint(id, 10, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("voter %q: want ID=ADDRESS", v)
		}
		out = append(out, quorum.Voter{ID: n, Address: address})
	}
	return out, nil
}

type server struct {
	node *quorum.Node
	work sync.WaitGroup
	mu   sync.Mutex
	out  *json.Encoder
}

func (m *server) say(a Answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.out.Encode(a) // whoever asked may be gone, and then nobody misses it
}

// tell says when the member begins or ceases to lead.
func (m *server) tell(ctx context.Context) {
	for {
		select {
		case <-m.node.Leadership():
			m.say(Answer{Status: m.node.Status()})
		case <-ctx.Done():
			return
		}
	}
}

// answer takes requests until there are no more. Each is answered when it is done.
func (m *server) answer(ctx context.Context, in io.Reader) error {
	lines := make(chan []byte)
	ended := make(chan error, 1)
	go func() {
		s := bufio.NewScanner(in)
		for s.Scan() {
			select {
			case lines <- append([]byte(nil), s.Bytes()...):
			case <-ctx.Done():
			}
		}
		ended <- s.Err()
	}()
	for {
		select {
		case line := <-lines:
			var r Request
			if err := json.Unmarshal(line, &r); err != nil {
				return fmt.Errorf("read a request: %w", err)
			}
			m.work.Go(func() { m.say(m.do(ctx, r)) })
		case err := <-ended:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

func (m *server) do(ctx context.Context, r Request) Answer {
	ctx, cancel := context.WithTimeout(ctx, r.Within)
	defer cancel()
	a := Answer{ID: r.ID}
	var err error
	switch r.Do {
	case DoRead:
		a.Value, err = m.node.Read(ctx)
	case DoPropose:
		res := m.node.Propose(ctx, r.Proposal)
		a.Outcome, a.Value, err = res.Outcome, res.Value, res.Err
	case DoStatus:
	default:
		err = fmt.Errorf("unknown request %q", r.Do)
	}
	a.Status = m.node.Status()
	if err != nil {
		a.Error = err.Error()
	}
	return a
}
