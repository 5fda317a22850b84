package local

import (
	"errors"
	"fmt"
	"net"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The network is a bridge in a namespace of its own. No address of it exists
// in the machine's namespace, so that labs cannot collide with each other or
// with the machine's networks.
type network struct {
	ns     netns.NsHandle
	handle *netlink.Handle
	bridge int
}

// port is a host's link: one end on the bridge, the other within the host.
type port struct {
	network *network
	outer   netlink.Link // on the bridge

	ns    netns.NsHandle
	inner *netlink.Handle
	link  int // the host's end
}

// neighbour is another host, as a host's neighbour table holds it.
type neighbour struct {
	addr net.IP
	mac  net.HardwareAddr
}

func hostIP(n int) net.IP            { return net.IPv4(10, 77, 0, byte(n)).To4() }
func hostMAC(n int) net.HardwareAddr { return net.HardwareAddr{0x02, 'h', 'o', 'l', 'd', byte(n)} }
func nobodysMAC(n int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 'n', 'o', 'n', 'e', byte(n)}
}

func newNetwork() (*network, error) {
	ns, err := newNetNS()
	if err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	n := &network{ns: ns}
	if err := n.makeBridge(); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

// newNetNS makes a network namespace that only the returned descriptor holds.
func newNetNS() (netns.NsHandle, error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return netns.None(), err
	}
	defer func() { _ = home.Close() }()
	ns, err := netns.New()
	if backErr := netns.Set(home); backErr != nil {
		// The thread stays locked, and so dies with this goroutine.
		return netns.None(), errors.Join(err, backErr)
	}
	runtime.UnlockOSThread()
	return ns, err
}

// within calls f on a thread that is in the network namespace ns. Sockets that
// f makes stay there.
func within(ns netns.NsHandle, f func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() { _ = home.Close() }()
	if err := netns.Set(ns); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter a network namespace: %w", err)
	}
	err = f()
	if backErr := netns.Set(home); backErr != nil {
		return errors.Join(err, backErr) // and the thread stays locked, as above
	}
	runtime.UnlockOSThread()
	return err
}

func (n *network) makeBridge() error {
	h, err := netlink.NewHandleAt(n.ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	n.handle = h
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "switch"
	snooping := false
	br := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
	if err := h.LinkAdd(br); err != nil {
		return fmt.Errorf("make a network bridge: %w", err)
	}
	link, err := h.LinkByName(attrs.Name)
	if err != nil {
		return fmt.Errorf("find the network bridge: %w", err)
	}
	n.bridge = link.Attrs().Index
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring the network bridge up: %w", err)
	}
	return nil
}

func (n *network) close() error {
	if n.handle != nil {
		n.handle.Close()
	}
	return n.ns.Close()
}

// attach gives the network namespace of process pid its link, address and
// neighbours. Neighbours are permanent: no address resolution delays a host
// that came back, or tells others at once that one is away.
func (n *network) attach(pid, number, generation int, peers []neighbour) (_ *port, err error) {
	p := &port{network: n, ns: netns.None()}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.remove())
		}
	}()
	if p.ns, err = netns.GetFromPid(pid); err != nil {
		return nil, fmt.Errorf("open the host's network namespace: %w", err)
	}
	if p.inner, err = netlink.NewHandleAt(p.ns, unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("open netlink on the host: %w", err)
	}
	lo, err := p.inner.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("find lo: %w", err)
	}
	if err := p.inner.LinkSetUp(lo); err != nil {
		return nil, fmt.Errorf("bring lo up: %w", err)
	}
	if err := p.plug(number, generation); err != nil {
		return nil, err
	}
	for _, peer := range peers {
		if err := p.setNeighbour(peer); err != nil {
			return nil, err
		}
	}
	// The bridge's side comes up last: only then is the host on the network.
	if err := n.handle.LinkSetUp(p.outer); err != nil {
		return nil, fmt.Errorf("bring the switch's port up: %w", err)
	}
	return p, nil
}

// plug makes the link and configures the host's end.
func (p *port) plug(number, generation int) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("p%dg%d", number, generation)
	attrs.MasterIndex = p.network.bridge
	veth := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         "eth0",
		PeerHardwareAddr: hostMAC(number),
		PeerNamespace:    netlink.NsFd(int(p.ns)),
	}
	if err := p.network.handle.LinkAdd(veth); err != nil {
		return fmt.Errorf("make the host's link: %w", err)
	}
	outer, err := p.network.handle.LinkByName(attrs.Name)
	if err != nil {
		return fmt.Errorf("find the switch's port: %w", err)
	}
	p.outer = outer
	eth, err := p.inner.LinkByName(veth.PeerName)
	if err != nil {
		return fmt.Errorf("find the host's link: %w", err)
	}
	p.link = eth.Attrs().Index
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: hostIP(number), Mask: net.CIDRMask(24, 32)}}
	if err := p.inner.AddrAdd(eth, addr); err != nil {
		return fmt.Errorf("give the host its address: %w", err)
	}
	if err := p.inner.LinkSetUp(eth); err != nil {
		return fmt.Errorf("bring the host's link up: %w", err)
	}
	return nil
}

func (p *port) setNeighbour(n neighbour) error {
	err := p.inner.NeighSet(&netlink.Neigh{
		LinkIndex: p.link, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT,
		IP: n.addr, HardwareAddr: n.mac,
	})
	if err != nil {
		return fmt.Errorf("set the neighbour %s: %w", n.addr, err)
	}
	return nil
}

// down silences the host, from the switch's side.
func (p *port) down() error {
	if err := p.network.handle.LinkSetDown(p.outer); err != nil {
		return fmt.Errorf("cut the host's link: %w", err)
	}
	return nil
}

// remove unplugs the host, at once rather than when its namespace is collected.
func (p *port) remove() error {
	var err error
	if p.outer != nil {
		err = p.network.handle.LinkDel(p.outer)
		if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
			err = nil
		}
		p.outer = nil
	}
	if p.inner != nil {
		p.inner.Close()
		p.inner = nil
	}
	if p.ns.IsOpen() {
		err = errors.Join(err, p.ns.Close())
	}
	return err
}
