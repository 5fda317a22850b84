package cli

import (
	"context"
	"errors"
)

// Exit codes; of several, broken beats infra.
const (
	exitOK          = 0   // done, and every promise held
	exitUsage       = 1   // wrong usage or config
	exitInfra       = 2   // the lab or the infrastructure failed, verdict unknown
	exitBroken      = 3   // a promise was broken, or a backup failed its proof
	exitRefused     = 4   // a safety check refused
	exitInterrupted = 130 // interrupted, and cleaned up
)

// codedError is an error with its exit code.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// withCode gives err an exit code; nil stays nil.
func withCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return &codedError{code: code, err: err}
}

// infraError marks a failure of the lab or of the machine.
func infraError(err error) error { return withCode(exitInfra, err) }

func exitCode(err error) int {
	var ce *codedError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &ce):
		return ce.code
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	default:
		return exitUsage
	}
}
