package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/measure"
)

// roundTripConfig comes on stdin, not on the command line: it may hold a
// password. Echo and DSN are measured where given.
type roundTripConfig struct {
	Echo  string `json:"echo"`   // address of a peer that runs lab-roundtrip --echo
	DSN   string `json:"dsn"`    // a Postgres
	ForMs int    `json:"for_ms"` // time for each; 1000 if 0
	Count int    `json:"count"`  // most round trips for each; no bound if 0
}

type roundTripOutput struct {
	TCP     *measure.RoundTripResult `json:"tcp,omitempty"`
	Select1 *measure.RoundTripResult `json:"select1,omitempty"`
}

func newLabRoundTripCmd(env Env) *cobra.Command {
	var echo string
	cmd := &cobra.Command{
		Use:     "lab-roundtrip",
		Short:   "Measure round trips from a host of the lab",
		Hidden:  true,
		Example: `  echo '{"echo":"10.1.2.3:7000","dsn":"host=10.1.2.3 user=postgres","for_ms":1000}' | holdfast lab-roundtrip`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if echo != "" {
				return serveEcho(cmd.Context(), env, echo)
			}
			return roundTrips(cmd.Context(), env)
		},
	}
	cmd.Flags().StringVar(&echo, "echo", "", "serve the echo peer at this address until stdin closes")
	return cmd
}

// serveEcho writes {"echo":"ADDR"} once it listens, so that port 0 can be asked for.
func serveEcho(ctx context.Context, env Env, addr string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return infraError(fmt.Errorf("listen for round trips: %w", err))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the process at the latest: a read of stdin cannot be cancelled
		_, _ = io.Copy(io.Discard, env.Stdin)
		cancel()
	}()
	if err := json.NewEncoder(env.Stdout).Encode(map[string]string{"echo": l.Addr().String()}); err != nil {
		_ = l.Close()
		return infraError(err)
	}
	return infraError(measure.ServeEcho(ctx, l))
}

func roundTrips(ctx context.Context, env Env) error {
	var cfg roundTripConfig
	dec := json.NewDecoder(env.Stdin)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&cfg); err != nil {
		return withCode(exitUsage, fmt.Errorf("read the config from stdin: %w", err))
	}
	if cfg.Echo == "" && cfg.DSN == "" || cfg.ForMs < 0 || cfg.Count < 0 {
		return withCode(exitUsage, errors.New(`nothing to measure: give "echo", "dsn" or both, and no negative bounds`))
	}
	opts := measure.RoundTripOptions{For: time.Duration(cfg.ForMs) * time.Millisecond, Count: cfg.Count}
	var out roundTripOutput
	if cfg.Echo != "" {
		d := net.Dialer{Timeout: 5 * time.Second}
		r, err := measure.RoundTrip(ctx, func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", cfg.Echo) }, opts)
		if err != nil {
			return infraError(err)
		}
		out.TCP = &r
	}
	if cfg.DSN != "" {
		pg, err := pgconn.ParseConfig(cfg.DSN)
		if err != nil {
			return withCode(exitUsage, fmt.Errorf("read the dsn: %w", err))
		}
		if pg.ConnectTimeout == 0 {
			pg.ConnectTimeout = 5 * time.Second
		}
		r, err := measure.SelectOne(ctx, pg, opts)
		if err != nil {
			return infraError(err)
		}
		out.Select1 = &r
	}
	return infraError(json.NewEncoder(env.Stdout).Encode(out))
}
