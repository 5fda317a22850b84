package setup

import (
	"context"
	"net"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/postgres"
)

// onHost runs an instance's programs on a host of the lab.
type onHost struct{ h place.Host }

func (o onHost) cmd(c postgres.Command) place.Cmd {
	return place.Cmd{Path: c.Path, Args: c.Args, Env: c.Env, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr}
}

func (o onHost) Run(ctx context.Context, c postgres.Command) ([]byte, error) {
	return o.h.Run(ctx, o.cmd(c))
}

func (o onHost) Start(ctx context.Context, c postgres.Command) (postgres.Process, error) {
	return o.h.Start(ctx, o.cmd(c))
}

func (o onHost) WriteFile(ctx context.Context, path string, data []byte, perm uint32) error {
	return o.h.Put(ctx, path, data, perm)
}

func (o onHost) ReadFile(ctx context.Context, path string) ([]byte, error) { return o.h.Get(ctx, path) }

func (o onHost) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return o.h.Dial(ctx, network, addr)
}
