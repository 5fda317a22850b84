package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/lab/place/local/guest"
)

// host is one host, on or off. It implements place.Host, PowerCycler,
// Partitioner, Freezer, Attacher, Wiper, DiskStatser, DiskController and MemoryLimiter.
type host struct {
	lab    *lab
	spec   place.HostSpec
	number int
	disk   *disk // nil without one

	power       sync.Mutex // serialises what changes the machine
	generation  int
	memoryLimit int64 // bytes, 0 for none

	mu      sync.Mutex
	machine *machine // nil while off
}

func newHost(l *lab, s place.HostSpec, number int) *host {
	if s.Volume == "" {
		s.Volume = place.HostBound
	}
	return &host{lab: l, spec: s, number: number}
}

func (h *host) Name() string   { return h.spec.Name }
func (h *host) Addr() string   { return hostIP(h.number).String() }
func (h *host) RunDir() string { return guest.RunDir }
func (h *host) User() string   { return guest.User }

func (h *host) DataDir() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.spec.Disk == "" {
		return ""
	}
	return guest.DataDir
}

// create makes the host's disk and powers it on for the first time.
func (h *host) create(ctx context.Context) error {
	h.power.Lock()
	defer h.power.Unlock()
	if h.spec.Disk != "" {
		d, err := startDisk(ctx, h)
		if err != nil {
			return err
		}
		h.disk = d
	}
	return h.boot(ctx)
}

// destroy ends the host for good.
func (h *host) destroy() error {
	h.power.Lock()
	defer h.power.Unlock()
	var errs []error
	m := h.unplug()
	if m != nil {
		errs = append(errs, m.silence())
		if h.disk != nil {
			_ = h.disk.cut() // or programs would end only when their flushes have
		}
		if err := m.end(); err != nil && h.disk == nil {
			errs = append(errs, err)
		} else if err != nil {
			// A disk that hangs holds programs that use it, until it is gone.
			errs = append(errs, h.disk.destroy(), m.end())
			h.disk = nil
		}
	}
	if h.disk != nil {
		errs = append(errs, h.disk.destroy())
		h.disk = nil
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove host %s: %w", h.spec.Name, err)
	}
	return nil
}

// unplug takes the running machine, so that nothing new is started on it.
func (h *host) unplug() *machine {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.machine
	h.machine = nil
	return m
}

// running returns the machine, or an error that wraps place.ErrNoPower.
func (h *host) running() (*machine, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.machine == nil {
		return nil, fmt.Errorf("host %s: %w", h.spec.Name, place.ErrNoPower)
	}
	return h.machine, nil
}

func (h *host) boot(ctx context.Context) error {
	h.generation++
	m, err := bootMachine(ctx, h)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.machine = m
	h.mu.Unlock()
	return nil
}

func (h *host) Powered() bool {
	_, err := h.running()
	return err == nil
}

func (h *host) Off(ctx context.Context) (began, confirmed time.Time, err error) {
	h.power.Lock()
	defer h.power.Unlock()
	m := h.unplug()
	if m == nil {
		return began, confirmed, fmt.Errorf("cut the power of host %s: %w", h.spec.Name, place.ErrNoPower)
	}
	// From here on there is no way back: a cancelled ctx must not leave a host
	// that is half off.
	err = m.silence()
	began = time.Now()
	if h.disk != nil {
		err = errors.Join(err, h.disk.cut())
	}
	err = errors.Join(err, m.end())
	if h.disk != nil && h.spec.Volume == place.Instance {
		err = errors.Join(err, h.disk.wipe())
	}
	confirmed = time.Now()
	if err != nil {
		return began, confirmed, fmt.Errorf("cut the power of host %s: %w", h.spec.Name, err)
	}
	h.lab.log.Debug("power off", "host", h.spec.Name, "took", confirmed.Sub(began))
	return began, confirmed, nil
}

func (h *host) On(ctx context.Context) error {
	h.power.Lock()
	defer h.power.Unlock()
	if h.Powered() {
		return fmt.Errorf("power on host %s: it is on already", h.spec.Name)
	}
	began := time.Now()
	if h.disk != nil {
		if err := h.disk.on(ctx); err != nil {
			return fmt.Errorf("power on host %s: %w", h.spec.Name, err)
		}
	}
	if err := h.boot(ctx); err != nil {
		return fmt.Errorf("power on host %s: %w", h.spec.Name, err)
	}
	h.lab.log.Debug("power on", "host", h.spec.Name, "took", time.Since(began))
	return nil
}

func (h *host) Wipe(context.Context) error {
	h.power.Lock()
	defer h.power.Unlock()
	switch {
	case h.Powered():
		return fmt.Errorf("wipe the disk of host %s: it is on; power it off first", h.spec.Name)
	case h.disk == nil:
		return fmt.Errorf("wipe the disk of host %s: it has none", h.spec.Name)
	case h.spec.Volume == place.Network:
		return fmt.Errorf("wipe the disk of host %s: %w", h.spec.Name, errNetworkVolume)
	}
	if err := h.disk.wipe(); err != nil {
		return fmt.Errorf("wipe the disk of host %s: %w", h.spec.Name, err)
	}
	return nil
}

func (h *host) DiskStats(ctx context.Context) (stats map[string]float64, err error) {
	err = h.withDisk("read the counters of", func(d *disk) error {
		stats, err = d.stats(ctx)
		return err
	})
	return stats, err
}

func (h *host) SetDisk(ctx context.Context, values map[string]string) error {
	return h.withDisk("change", func(d *disk) error { return d.set(ctx, values) })
}

func (h *host) SyncDisk(ctx context.Context) error {
	return h.withDisk("flush", func(d *disk) error { return d.sync(ctx) })
}

func (h *host) withDisk(what string, do func(*disk) error) error {
	h.power.Lock()
	d := h.disk
	h.power.Unlock()
	err := errors.New("it has none")
	if d != nil {
		err = do(d)
	}
	if err != nil {
		return fmt.Errorf("%s the disk of host %s: %w", what, h.spec.Name, err)
	}
	return nil
}

// Cut and Heal change the network, not the host: they hold whether it is on or
// off, and over a power cycle of either end.
func (h *host) Cut(_ context.Context, peer place.Host) error  { return h.partition(peer, true) }
func (h *host) Heal(_ context.Context, peer place.Host) error { return h.partition(peer, false) }

func (h *host) partition(peer place.Host, cut bool) error {
	to, ok := peer.(*host)
	if !ok || to.lab != h.lab || to == h {
		return fmt.Errorf("cut host %s off: %s is no other host of the same place", h.spec.Name, peer.Name())
	}
	// No boot in between: it would apply the old state of the network.
	h.power.Lock()
	defer h.power.Unlock()
	h.lab.mu.Lock()
	d := direction{h.number, to.number}
	if cut {
		h.lab.cuts[d] = true
	} else {
		delete(h.lab.cuts, d)
	}
	n := h.lab.neighbourLocked(h, to)
	h.lab.mu.Unlock()
	m, err := h.running()
	if err != nil {
		return nil // applied when it boots
	}
	if err := m.port.setNeighbour(n); err != nil {
		return fmt.Errorf("traffic from host %s to %s: %w", h.spec.Name, to.spec.Name, err)
	}
	return nil
}

// meet tells a running host of others that came later.
func (h *host) meet(fresh []*host) error {
	h.power.Lock()
	defer h.power.Unlock()
	m, err := h.running()
	if err != nil {
		return nil // told when it boots
	}
	for _, other := range fresh {
		h.lab.mu.Lock()
		n := h.lab.neighbourLocked(h, other)
		h.lab.mu.Unlock()
		if err := m.port.setNeighbour(n); err != nil {
			return fmt.Errorf("host %s: %w", h.spec.Name, err)
		}
	}
	hosts := fmt.Sprintf("/proc/self/fd/%d/etc/hosts", m.root)
	if err := os.WriteFile(hosts, []byte(h.lab.hostsFile()), 0o644); err != nil {
		return fmt.Errorf("host %s: %w", h.spec.Name, err)
	}
	return nil
}
