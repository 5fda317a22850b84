// Command holdfast measures, runs and proves Postgres on local disks.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/holdfast-db/holdfast/internal/cli"
)

// version is set by the linker.
var version = "dev"

func main() {
	// A reader that goes away must not end a run half-way: writes to it fail, and
	// the run goes on.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := cli.Run(ctx, cli.Env{
		Args:    os.Args[1:],
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Getenv:  os.Getenv,
		Version: version,
		Root:    os.Geteuid() == 0,
	})
	stop()
	os.Exit(code)
}
