package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-db/holdfast/internal/disk/control"
	"github.com/holdfast-db/holdfast/internal/lab/place/local/guest"
)

// disk is a host's simulated disk: a process outside the host, which outlives
// the host's power.
type disk struct {
	mount   string
	backing string
	control string
	owner   int
	cmd     *exec.Cmd
	life    io.Closer // closed when this process ends: then the disk ends too
	says    *tail
	dead    chan struct{}
}

const (
	diskStartDeadline = 20 * time.Second
	diskOpDeadline    = 20 * time.Second
	defaultCrash      = "lose-all"
)

func startDisk(ctx context.Context, h *host) (_ *disk, err error) {
	dir := filepath.Join(h.lab.state.dir, h.spec.Name)
	d := &disk{
		mount:   filepath.Join(dir, "disk"),
		control: filepath.Join(dir, "control"),
		backing: filepath.Join(h.lab.state.work, h.spec.Name),
		owner:   h.lab.userID,
		says:    &tail{},
		dead:    make(chan struct{}),
	}
	for _, p := range []string{dir, d.mount, d.backing} {
		if err := os.Mkdir(p, 0o755); err != nil {
			return nil, fmt.Errorf("make the disk's directories: %w", err)
		}
	}
	crash := h.spec.Crash
	if crash == "" {
		crash = defaultCrash
	}
	ready, err := d.spawn(h, crash)
	if err == nil {
		err = d.awaitReady(ctx, ready)
	}
	if err == nil {
		err = d.prepare(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, d.destroy())
	}
	return d, nil
}

func (d *disk) spawn(h *host, crash string) (ready io.Reader, err error) {
	d.cmd = exec.CommandContext(context.Background(), h.lab.opts.Binary, "simdisk",
		"--disk", h.spec.Disk, "--crash", crash, "--profile", h.spec.Profile, "--seed", strconv.FormatUint(h.spec.Seed, 10),
		"--control", d.control, "--lifeline", d.backing, d.mount)
	d.cmd.Dir = "/"
	d.cmd.Stderr = d.says
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	life, err := d.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		d.cmd = nil
		return nil, fmt.Errorf("start the disk: %w", err)
	}
	d.life = life
	return out, h.lab.state.record(d.cmd.Process.Pid)
}

// awaitReady waits for the line "ready", then goes on draining the output.
func (d *disk) awaitReady(ctx context.Context, out io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, diskStartDeadline)
	defer cancel()
	ready := make(chan struct{})
	go func() {
		lines := bufio.NewScanner(out)
		seen := false
		for lines.Scan() {
			if !seen && strings.TrimSpace(lines.Text()) == "ready" {
				seen = true
				close(ready)
			}
		}
		_ = d.cmd.Wait()
		close(d.dead)
	}()
	select {
	case <-ready:
		return nil
	case <-d.dead:
		return fmt.Errorf("the disk did not start: %s", d.says)
	case <-ctx.Done():
		return fmt.Errorf("wait for the disk to be mounted: %w (it said: %q)", ctx.Err(), d.says)
	}
}

// prepare makes the data directory if the disk is empty. It must be there
// after any power cut, so it is flushed.
func (d *disk) prepare(ctx context.Context) error {
	// After a failed mount everything would be written into the directory
	// below it, and seem to survive every cut.
	var fs unix.Statfs_t
	if err := unix.Statfs(d.mount, &fs); err != nil {
		return fmt.Errorf("look at the disk's mount: %w", err)
	}
	if fs.Type != unix.FUSE_SUPER_MAGIC {
		return fmt.Errorf("%s is not a mounted disk (file system type %#x)", d.mount, fs.Type)
	}
	data := filepath.Join(d.mount, guest.DataName)
	err := os.Mkdir(data, 0o755)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	if err := os.Chown(data, d.owner, d.owner); err != nil {
		return err
	}
	return d.sync(ctx)
}

// op has the disk do something through its control socket.
func (d *disk) op(ctx context.Context, do func(context.Context, *control.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, diskOpDeadline)
	defer cancel()
	c, err := control.Dial(d.control)
	if err == nil {
		err = do(ctx, c)
	}
	if err == nil {
		return nil
	}
	select {
	case <-d.dead:
		return fmt.Errorf("the disk's process has ended: %w (it said: %q)", err, d.says)
	default:
		return err
	}
}

// cut and wipe take no context: a power cut is not called off half way.
func (d *disk) cut() error {
	return d.op(context.Background(), func(ctx context.Context, c *control.Client) error {
		_, err := c.Cut(ctx)
		return err
	})
}

func (d *disk) wipe() error {
	return d.op(context.Background(), func(ctx context.Context, c *control.Client) error { return c.Wipe(ctx) })
}

func (d *disk) on(ctx context.Context) error {
	err := d.op(ctx, func(ctx context.Context, c *control.Client) error {
		_, err := c.On(ctx)
		return err
	})
	if err != nil {
		return err
	}
	return d.prepare(ctx)
}

func (d *disk) sync(ctx context.Context) error {
	return d.op(ctx, func(ctx context.Context, c *control.Client) error { return c.Sync(ctx) })
}

func (d *disk) set(ctx context.Context, values map[string]string) error {
	return d.op(ctx, func(ctx context.Context, c *control.Client) error { return c.Set(ctx, values) })
}

func (d *disk) stats(ctx context.Context) (stats map[string]float64, err error) {
	err = d.op(ctx, func(ctx context.Context, c *control.Client) error {
		stats, err = c.Stats(ctx)
		return err
	})
	return stats, err
}

// destroy ends the disk's process and removes its directories.
func (d *disk) destroy() error {
	var errs []error
	if d.cmd != nil {
		// A clean stop would write everything back first, for nothing.
		_ = d.life.Close()
		if !d.endsWithin(3 * time.Second) {
			errs = append(errs, d.cmd.Process.Kill())
			if !d.endsWithin(killDeadline) {
				errs = append(errs, errors.New("the disk's process is still there after it was killed"))
			}
		}
	}
	if err := unix.Unmount(d.mount, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		errs = append(errs, fmt.Errorf("unmount %s: %w", d.mount, err))
	}
	if err := errors.Join(errs...); err != nil {
		return err // never delete through a mount that is still there
	}
	return errors.Join(os.RemoveAll(filepath.Dir(d.mount)), os.RemoveAll(d.backing))
}

func (d *disk) endsWithin(t time.Duration) bool {
	select {
	case <-d.dead:
		return true
	case <-time.After(t):
		return false
	}
}
