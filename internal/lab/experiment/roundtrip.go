package experiment

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/holdfast-db/holdfast/internal/config"
	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/setup"
	"github.com/holdfast-db/holdfast/internal/measure"
	"github.com/holdfast-db/holdfast/internal/result"
)

const roundTripSeconds = 5

// roundTrip measures what a round trip from a client's host to the primary costs.
type roundTrip struct{}

func (roundTrip) Name() string { return "round-trip" }
func (roundTrip) About() string {
	return "a TCP round trip and a SELECT 1 from a client's host to the primary"
}
func (roundTrip) NeedsDatabase() bool { return true }

func (roundTrip) Groups(config.Experiment, setup.Kind) []Params { return []Params{{}} }

func (roundTrip) Estimate(spec config.Experiment, _ Params) time.Duration {
	return seconds(2*orDefault(spec.Seconds, roundTripSeconds) + 0.5)
}

func (roundTrip) Run(ctx context.Context, env Env) ([]result.Cell, error) {
	h, err := primary(env)
	if err != nil {
		return nil, err
	}
	ledger, ok := env.System.(setup.Ledger)
	if !ok {
		return nil, fmt.Errorf("setup %s takes no logins", env.Kind.Name)
	}
	echo, stop, err := startEcho(ctx, env, h)
	if err != nil {
		return nil, err
	}
	defer stop()
	secs := orDefault(env.Spec.Seconds, roundTripSeconds)
	login := ledger.Login()
	t := env.System.(setup.Cluster).Targets()[0]
	for _, have := range env.System.(setup.Cluster).Targets() {
		if have.Host == h.Addr() {
			t = have
		}
	}
	cfg, err := json.Marshal(map[string]any{
		"echo": echo, "for_ms": int(secs * 1000),
		"dsn": fmt.Sprintf("host=%s port=%d user=%s password=%s dbname=%s sslmode=disable", t.Host, t.Port, login.User, login.Password, login.Database),
	})
	if err != nil {
		return nil, err
	}
	out, err := env.Client.Run(ctx, place.Cmd{Path: env.Binary, Args: []string{"lab-roundtrip"}, Stdin: bytes.NewReader(cfg)})
	if err != nil {
		return nil, fmt.Errorf("measure round trips from %s: %w", env.Client.Name(), err)
	}
	var rt struct{ TCP, Select1 *measure.RoundTripResult }
	if err := json.Unmarshal(out, &rt); err != nil || rt.TCP == nil || rt.Select1 == nil {
		return nil, fmt.Errorf("read the round trips: %w", errors.Join(err, errors.New("tcp or select1 is missing")))
	}
	return []result.Cell{{
		Params: map[string]any{"seconds": secs},
		Metrics: map[string]float64{
			"tcp_p50_ms": rt.TCP.P50Ms, "tcp_p99_ms": rt.TCP.P99Ms,
			"select1_p50_ms": rt.Select1.P50Ms, "select1_p99_ms": rt.Select1.P99Ms,
		},
		Histogram: rt.Select1.Histogram, Verdict: result.Held,
	}}, nil
}

// startEcho runs the echo peer on h; stop ends it and waits.
func startEcho(ctx context.Context, env Env, h place.Host) (addr string, stop func(), err error) {
	in, hold := io.Pipe()
	said, out := io.Pipe()
	p, err := h.Start(ctx, place.Cmd{
		Path: env.Binary, Args: []string{"lab-roundtrip", "--echo", net.JoinHostPort(h.Addr(), strconv.Itoa(0))},
		Stdin: in, Stdout: out,
	})
	if err != nil {
		return "", nil, fmt.Errorf("start the echo peer on %s: %w", h.Name(), err)
	}
	stop = func() {
		_ = hold.Close()
		_ = said.Close()
		const sigterm = 15
		_ = p.Signal(sigterm)
		_ = p.Wait()
	}
	go func() {
		<-p.Done()
		_ = out.Close()
	}()
	line, err := bufio.NewReader(said).ReadBytes('\n')
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("the echo peer on %s did not start: %w", h.Name(), err)
	}
	var ready struct{ Echo string }
	if err := json.Unmarshal(line, &ready); err != nil {
		stop()
		return "", nil, fmt.Errorf("the echo peer on %s: %w", h.Name(), err)
	}
	return ready.Echo, stop, nil
}
