package local

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
)

// DefaultAttachDelay is about what a cloud takes to give a volume to another
// server, unless Options say otherwise.
const DefaultAttachDelay = 5 * time.Second

// Attach implements place.Attacher. The disk's process and its mount stay where
// they are, outside both hosts; the host that has it binds it when it boots.
func (h *host) Attach(ctx context.Context, from place.Host) error {
	f, ok := from.(*host)
	if !ok || f.lab != h.lab || f == h {
		return fmt.Errorf("attach a volume to host %s: %s is no other host of the same place", h.spec.Name, from.Name())
	}
	what := fmt.Sprintf("attach the volume of host %s to host %s", f.spec.Name, h.spec.Name)
	first, second := h, f
	if f.number < h.number {
		first, second = f, h
	}
	first.power.Lock()
	defer first.power.Unlock()
	second.power.Lock()
	defer second.power.Unlock()
	switch {
	case f.disk == nil || f.volume() != place.Network:
		return fmt.Errorf("%s: it has no network volume", what)
	case f.Powered():
		return fmt.Errorf("%s: host %s is on and writes to it; power it off first", what, f.spec.Name)
	case h.disk != nil:
		return fmt.Errorf("%s: host %s has a disk", what, h.spec.Name)
	case h.Powered():
		return fmt.Errorf("%s: host %s is on; power it off first", what, h.spec.Name)
	}
	delay := h.lab.opts.AttachDelay
	if delay == 0 {
		delay = DefaultAttachDelay
	}
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
	h.setDisk(f.disk, f.spec.Disk, place.Network)
	f.setDisk(nil, "", place.Network)
	h.lab.log.Debug("volume attached", "from", f.spec.Name, "to", h.spec.Name)
	return nil
}

// setDisk changes what disk the host has; power is held.
func (h *host) setDisk(d *disk, kind string, v place.VolumeKind) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.disk, h.spec.Disk, h.spec.Volume = d, kind, v
}

func (h *host) volume() place.VolumeKind {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.spec.Volume
}

var errNetworkVolume = errors.New("a network volume does not go with its host")
