// Package local is a place on this machine: each host is a set of namespaces
// with an address of its own on a private network, and a simulated disk.
//
// Everything of the network lives in namespaces without a name, held only by
// descriptors of the lab's process and by the hosts' first processes: when the
// lab's process ends, however it ends, the kernel removes them.
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-db/holdfast/internal/lab/place"
	"github.com/holdfast-db/holdfast/internal/result"
)

// DefaultWorkDir is where backing images go unless Options say otherwise.
const DefaultWorkDir = "/var/tmp/holdfast-lab"

// DefaultSpace is what disks are expected to need, unless Options say otherwise.
const DefaultSpace = 2 << 30

// Options of a local place.
type Options struct {
	Binary  string       // absolute path of the holdfast program, for its hidden commands
	WorkDir string       // where backing images go; DefaultWorkDir if empty
	Space   uint64       // bytes that the disks may need there, for Preflight; DefaultSpace if 0
	Log     *slog.Logger // what happens to hosts; nil to discard

	AttachDelay time.Duration // until a network volume is on another host; DefaultAttachDelay if 0
}

// lab is one local place: a network and its hosts.
type lab struct {
	opts   Options
	log    *slog.Logger
	state  *state
	net    *network
	userID int
	groups []cgroupParent // where programs can be frozen
	memory []string       // where their memory can be bounded

	mu    sync.Mutex // guards what follows, and is never held while a host starts
	hosts []*host    // in order of their numbers, which start at 1
	cuts  map[direction]bool
	ended bool
}

// direction of traffic between two hosts, by their numbers.
type direction struct{ from, to int }

// New makes an empty place after removing what dead labs left behind. Where
// the machine lacks something, the error names it and how to get it.
func New(o Options) (place.Place, error) {
	if o.WorkDir == "" {
		o.WorkDir = DefaultWorkDir
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := checkRoot(); err != nil {
		return nil, err
	}
	if err := checkBinary(o.Binary); err != nil {
		return nil, err
	}
	id, err := freeUserID()
	if err != nil {
		return nil, err
	}
	st, err := newState(o.WorkDir, o.Log)
	if err != nil {
		return nil, err
	}
	nw, err := newNetwork()
	if err != nil {
		return nil, errors.Join(err, st.remove())
	}
	return &lab{
		opts: o, log: o.Log.With("lab", st.id), state: st, net: nw, userID: id,
		groups: cgroupParents(), memory: memoryParents(), cuts: map[direction]bool{},
	}, nil
}

func (l *lab) Facts() place.Facts { return Facts() }

// Facts are those of every local place.
func Facts() place.Facts {
	return place.Facts{
		Name:      "local",
		Simulated: true,
		Evidence:  result.EvidenceSimulatedDisk,
		Notes: []string{
			"Hosts are namespaces of one machine: they share its processors, memory and kernel.",
			"Disks are simulated: what was not flushed when the power is cut is gone, and a flush takes as long as the named disk's.",
			"The network adds no latency of its own: a round trip is this machine's own.",
		},
	}
}

var hostName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,14}$`)

// maxHosts is what the network's addresses allow.
const maxHosts = 254

func (l *lab) Acquire(ctx context.Context, specs []place.HostSpec) ([]place.Host, error) {
	fresh, old, err := l.enlist(specs)
	if err != nil {
		return nil, err
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, h := range fresh {
		g.Go(func() error {
			if err := h.create(gctx); err != nil {
				return fmt.Errorf("host %s: %w", h.spec.Name, err)
			}
			return nil
		})
	}
	for _, h := range old {
		g.Go(func() error { return h.meet(fresh) })
	}
	if err := g.Wait(); err != nil {
		return nil, errors.Join(err, l.dismiss(fresh))
	}
	out := make([]place.Host, len(fresh))
	for i, h := range fresh {
		out[i] = h
	}
	return out, nil
}

// enlist gives new hosts their numbers, so that each knows of all others
// before any of them is up.
func (l *lab) enlist(specs []place.HostSpec) (fresh, old []*host, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return nil, nil, errors.New("acquire hosts: the place was released")
	}
	names := map[string]bool{}
	next := 1
	for _, h := range l.hosts {
		names[h.spec.Name] = true
		next = max(next, h.number+1)
	}
	old = append(old, l.hosts...)
	for _, s := range specs {
		switch {
		case !hostName.MatchString(s.Name):
			return nil, nil, fmt.Errorf("host name %q: want [a-z][a-z0-9-]*, at most 15 bytes", s.Name)
		case names[s.Name] || s.Name == "localhost":
			return nil, nil, fmt.Errorf("host name %q is taken", s.Name)
		case s.Volume != "" && s.Volume != place.HostBound && s.Volume != place.Instance && s.Volume != place.Network:
			return nil, nil, fmt.Errorf("host %s: volume kind %q: a local host has %s, %s or %s", s.Name, s.Volume, place.HostBound, place.Instance, place.Network)
		case next > maxHosts:
			return nil, nil, fmt.Errorf("host %s: the network has addresses for %d hosts", s.Name, maxHosts)
		}
		names[s.Name] = true
		fresh = append(fresh, newHost(l, s, next))
		next++
	}
	l.hosts = append(l.hosts, fresh...)
	return fresh, old, nil
}

// dismiss removes hosts and everything of theirs.
func (l *lab) dismiss(hosts []*host) error {
	errs := make([]error, len(hosts))
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() { errs[i] = h.destroy() })
	}
	wg.Wait()
	gone := map[*host]bool{}
	for _, h := range hosts {
		gone[h] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.hosts[:0:0]
	for _, h := range l.hosts {
		if !gone[h] {
			kept = append(kept, h)
		}
	}
	l.hosts = kept
	for d := range l.cuts {
		for h := range gone {
			if d.from == h.number || d.to == h.number {
				delete(l.cuts, d)
			}
		}
	}
	return errors.Join(errs...)
}

// Release ignores a cancelled ctx: what is there has to go.
func (l *lab) Release(context.Context) error {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return nil
	}
	l.ended = true
	hosts := append([]*host(nil), l.hosts...)
	l.mu.Unlock()
	err := l.dismiss(hosts)
	return errors.Join(err, l.net.close(), l.state.remove())
}

// peers returns the neighbours of a host with the hardware address under which
// it reaches each: nobody's where the direction is cut.
func (l *lab) peers(of *host) []neighbour {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []neighbour
	for _, h := range l.hosts {
		if h != of {
			out = append(out, l.neighbourLocked(of, h))
		}
	}
	return out
}

func (l *lab) neighbourLocked(from, to *host) neighbour {
	n := neighbour{addr: hostIP(to.number), mac: hostMAC(to.number)}
	if l.cuts[direction{from.number, to.number}] {
		n.mac = nobodysMAC(to.number)
	}
	return n
}

// hostsFile is /etc/hosts as every host sees it.
func (l *lab) hostsFile() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost\n")
	for _, h := range l.hosts {
		fmt.Fprintf(&b, "%s %s\n", h.Addr(), h.spec.Name)
	}
	return b.String()
}

func checkBinary(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("path of the holdfast program %q: want an absolute path", path)
	}
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("path of the holdfast program: %w", err)
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o005 != 0o005 {
		return fmt.Errorf("%s must be executable for everybody, as hosts run it as an unprivileged user: chmod 755 %s", path, path)
	}
	return nil
}
