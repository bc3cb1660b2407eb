// Package hostnet creates and removes what the box puts into the host's network namespace: one bridge, its ports, and
// routes over it. The routes and the ports disappear with the bridge and the nodes. Nothing else on the host is changed.
//
// The bridge has the box's directory as its alias (ip link show prints it), so that a bridge of the same name that
// belongs to someone else is never touched.
package hostnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/box/internal/netplan"
)

// MaxBridgeName is the longest bridge name, in bytes. Ports are named after the bridge, and the kernel allows 15.
const MaxBridgeName = 12

// listWhole retries a list while the kernel reports that it changed during the dump, as on a host where links come and go.
func listWhole[T any](list func() ([]T, error)) (all []T, err error) {
	for range 100 {
		all, err = list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, err
}

// Taken returns the networks in which the host has addresses or to which it has routes.
func Taken() ([]netip.Prefix, error) {
	var taken []netip.Prefix
	routes, err := listWhole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list the host's routes: %w", err)
	}
	for _, r := range routes {
		if p, ok := toPrefix(r.Dst); ok {
			taken = append(taken, p)
		}
	}
	addrs, err := listWhole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list the host's addresses: %w", err)
	}
	for _, a := range addrs {
		if p, ok := toPrefix(a.IPNet); ok {
			taken = append(taken, p)
		}
	}
	return taken, nil
}

// EnsureBridge creates the bridge with the plan's address and the routes to pods and Services. owner is the box's directory.
func EnsureBridge(name, owner string, plan netplan.Plan) error {
	if len(name) > MaxBridgeName {
		return fmt.Errorf("the bridge's name %q is longer than %d bytes", name, MaxBridgeName)
	}
	link, err := findLink(name, owner)
	if err != nil {
		return err
	}
	if link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return fmt.Errorf("make the bridge %s: %w", name, err)
		}
		if link, err = netlink.LinkByName(name); err != nil {
			return fmt.Errorf("find the new bridge %s: %w", name, err)
		}
		if err := netlink.LinkSetAlias(link, owner); err != nil {
			return fmt.Errorf("mark the bridge %s: %w", name, errors.Join(err, netlink.LinkDel(link)))
		}
	}
	addr := &netlink.Addr{IPNet: ipNet(plan.Bridge())}
	if err := netlink.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("give the bridge %s its address %s: %w", name, plan.Bridge(), err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set the bridge %s up: %w", name, err)
	}
	for i := 1; i <= netplan.MaxNodes; i++ {
		if err := addRoute(link, plan.Pods(i), plan.Node(i).Addr()); err != nil {
			return err
		}
	}
	// Any node's kube-proxy serves every Service. The first node always exists.
	return addRoute(link, plan.Services(), plan.Node(1).Addr())
}

// RemoveBridge removes the owner's bridge, and with it its address and routes. It does nothing if the bridge of that
// name belongs to someone else: then the owner has none.
func RemoveBridge(name, owner string) error {
	link, err := findLink(name, owner)
	if errors.Is(err, errForeign) || err == nil && link == nil {
		return nil
	}
	if err != nil {
		return err
	}
	if err := removePorts(link); err != nil {
		return err
	}
	if err := removeLink(link); err != nil {
		return fmt.Errorf("remove the bridge %s: %w", name, err)
	}
	return nil
}

// removeLink removes a link that may already be disappearing, such as a port whose node has died.
func removeLink(link netlink.Link) error {
	if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}

// removePorts removes the ports of a bridge. They disappear with the nodes' network namespaces, but the kernel takes its
// time to remove a namespace: a lingering connection can keep it, and the port on the host, for a minute.
func removePorts(bridge netlink.Link) error {
	links, err := listWhole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list the ports of %s: %w", bridge.Attrs().Name, err)
	}
	for _, l := range links {
		if l.Type() != "veth" || l.Attrs().MasterIndex != bridge.Attrs().Index {
			continue
		}
		if err := removeLink(l); err != nil {
			return fmt.Errorf("remove the port %s: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

// Owned returns the name of the owner's bridge, or "" if it has none.
func Owned(owner string) (string, error) {
	links, err := listWhole(netlink.LinkList)
	if err != nil {
		return "", fmt.Errorf("list the host's links: %w", err)
	}
	for _, l := range links {
		if l.Type() == "bridge" && l.Attrs().Alias == owner {
			return l.Attrs().Name, nil
		}
	}
	return "", nil
}

// Plug creates a veth pair between the bridge and the network namespace of process pid, where its end is called eth0.
// It replaces a port that a dead node left behind.
func Plug(bridge, owner string, node, pid int) error {
	master, err := findLink(bridge, owner)
	if err != nil {
		return err
	}
	if master == nil {
		return fmt.Errorf("plug node %d: the bridge %s is gone", node, bridge)
	}
	port := fmt.Sprintf("%s-n%d", bridge, node)
	if old, err := netlink.LinkByName(port); err == nil {
		if err := removeLink(old); err != nil {
			return fmt.Errorf("remove the stale port %s: %w", port, err)
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = port, master.Attrs().Index
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("make the port %s: %w", port, err)
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return fmt.Errorf("set the port %s up: %w", port, err)
	}
	return nil
}

// Inside configures the network of the calling process's namespace as that of node i.
func Inside(plan netplan.Plan, i int) error {
	for name, addr := range map[string]netip.Prefix{"lo": netip.MustParsePrefix("127.0.0.1/8"), "eth0": plan.Node(i)} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s in the node: %w", name, err)
		}
		if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: ipNet(addr)}); err != nil {
			return fmt.Errorf("give %s its address %s: %w", name, addr, err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find eth0 in the node: %w", err)
	}
	for j := 1; j <= netplan.MaxNodes; j++ {
		if j == i {
			continue
		}
		if err := addRoute(eth0, plan.Pods(j), plan.Node(j).Addr()); err != nil {
			return err
		}
	}
	return addRoute(eth0, netip.MustParsePrefix("0.0.0.0/0"), plan.Bridge().Addr())
}

func addRoute(link netlink.Link, to netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(to), Gw: via.AsSlice()}
	if err := netlink.RouteReplace(r); err != nil {
		return fmt.Errorf("route %s via %s: %w", to, via, err)
	}
	return nil
}

// errForeign says that a link belongs to someone else.
var errForeign = errors.New("the link is not this box's")

// findLink returns nil if there is no such link, and an error if there is one that is not the owner's.
func findLink(name, owner string) (netlink.Link, error) {
	if name == "" {
		return nil, nil
	}
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for the bridge %s: %w", name, err)
	}
	if alias := link.Attrs().Alias; alias != owner {
		return nil, fmt.Errorf("%s: %w (its alias is %q, not %q): choose another name with --bridge", name, errForeign, alias, owner)
	}
	return link, nil
}

func toPrefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP.To4())
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a, ones), ok && a.Is4() && ones > 0 && a.As4()[0] != 127
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}
