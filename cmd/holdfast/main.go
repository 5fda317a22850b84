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
