package local

import (
	"io"
	"os"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
)

// copying connects a program's standard streams to what the caller gave. Files
// are handed over as they are, all else is copied through pipes.
type copying struct {
	streams [3]*os.File // the program's ends
	theirs  []*os.File  // those of them that were opened here
	ours    []*os.File
	inputs  []func()
	outputs []func()
	wg      sync.WaitGroup // of outputs
}

func newCopying(cmd place.Cmd) (*copying, error) {
	c := &copying{}
	if err := c.open(cmd); err != nil {
		c.closeTheirs()
		c.closeOurs()
		return nil, err
	}
	return c, nil
}

func (c *copying) open(cmd place.Cmd) (err error) {
	if c.streams[0], err = c.input(cmd.Stdin); err != nil {
		return err
	}
	if c.streams[1], err = c.output(cmd.Stdout); err != nil {
		return err
	}
	if cmd.Stderr != nil && sameWriter(cmd.Stdout, cmd.Stderr) {
		c.streams[2] = c.streams[1] // one pipe, so that writes do not race
		return nil
	}
	c.streams[2], err = c.output(cmd.Stderr)
	return err
}

// sameWriter compares writers; those of a type that cannot be compared differ.
func sameWriter(a, b io.Writer) bool {
	defer func() { _ = recover() }()
	return a == b
}

func (c *copying) null(flag int) (*os.File, error) {
	f, err := os.OpenFile(os.DevNull, flag, 0)
	if err == nil {
		c.theirs = append(c.theirs, f)
	}
	return f, err
}

func (c *copying) input(r io.Reader) (*os.File, error) {
	if r == nil {
		return c.null(os.O_RDONLY)
	}
	if f, ok := r.(*os.File); ok {
		return f, nil
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.theirs, c.ours = append(c.theirs, pr), append(c.ours, pw)
	c.inputs = append(c.inputs, func() {
		_, _ = io.Copy(pw, r)
		_ = pw.Close()
	})
	return pr, nil
}

func (c *copying) output(w io.Writer) (*os.File, error) {
	if w == nil {
		return c.null(os.O_WRONLY)
	}
	if f, ok := w.(*os.File); ok {
		return f, nil
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.theirs, c.ours = append(c.theirs, pw), append(c.ours, pr)
	c.outputs = append(c.outputs, func() { _, _ = io.Copy(w, pr) })
	return pw, nil
}

func (c *copying) fds() []int {
	return []int{int(c.streams[0].Fd()), int(c.streams[1].Fd()), int(c.streams[2].Fd())}
}

func (c *copying) begin() {
	for _, f := range c.inputs {
		go f()
	}
	for _, f := range c.outputs {
		c.wg.Go(f)
	}
}

// outputGrace is how long output is still read after the program's end, for
// those that left a descendant behind with their output open.
const outputGrace = 500 * time.Millisecond

func (c *copying) finish() {
	read := make(chan struct{})
	go func() {
		c.wg.Wait()
		close(read)
	}()
	select {
	case <-read:
	case <-time.After(outputGrace):
	}
	c.closeOurs()
	<-read
}

func (c *copying) closeTheirs() { closeFiles(c.theirs) }
func (c *copying) closeOurs()   { closeFiles(c.ours) }

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
