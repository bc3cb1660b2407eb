// Package netplan divides the box's one IPv4 network between the host, the nodes, the pods and the Services.
//
// A box owns a /16, of which it uses:
//
//	x.y.0.0/24      the bridge: the host is .1, node i is .(10+i)
//	x.y.64.0/18     pods: node i has x.y.(64+i).0/24
//	x.y.128.0/20    Services: the API server is .1, DNS is .10
package netplan

import (
	"errors"
	"fmt"
	"net/netip"
)

// MaxNodes is how many nodes a box can have. The plan has room for more, but tests need only two, and only two are tested.
const MaxNodes = 2

// Plan is a box's /16.
type Plan struct {
	Base netip.Prefix `json:"base"`
}

// New returns the plan for the /16 base.
func New(base netip.Prefix) (Plan, error) {
	if !base.IsValid() || !base.Addr().Is4() || base.Bits() != 16 {
		return Plan{}, fmt.Errorf("the box's subnet must be an IPv4 /16 such as 10.213.0.0/16, not %s", base)
	}
	return Plan{Base: base.Masked()}, nil
}

// Choose returns the first plan that overlaps none of the host's networks.
func Choose(taken []netip.Prefix) (Plan, error) {
	for i := range 150 {
		second := byte(100 + (113+i)%150) // 10.213 to 10.249, then 10.100 to 10.212
		base := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, second, 0, 0}), 16)
		if !overlapsAny(base, taken) {
			return Plan{Base: base}, nil
		}
	}
	return Plan{}, errors.New("no free 10.x.0.0/16 on this host: give one with --subnet")
}

func overlapsAny(p netip.Prefix, taken []netip.Prefix) bool {
	for _, t := range taken {
		if t.Bits() > 0 && p.Overlaps(t) { // the default route covers everything and does not count
			return true
		}
	}
	return false
}

func (p Plan) address(third, fourth byte) netip.Addr {
	a := p.Base.Addr().As4()
	return netip.AddrFrom4([4]byte{a[0], a[1], third, fourth})
}

// Bridge is the host's address, with the prefix length of the bridge's subnet.
func (p Plan) Bridge() netip.Prefix { return netip.PrefixFrom(p.address(0, 1), 24) }

// Node is the address of node i, counted from 1, with the prefix length of the bridge's subnet.
func (p Plan) Node(i int) netip.Prefix { return netip.PrefixFrom(p.address(0, byte(10+i)), 24) }

// Pods is the subnet of the pods of node i, counted from 1.
func (p Plan) Pods(i int) netip.Prefix { return netip.PrefixFrom(p.address(byte(64+i), 0), 24) }

// AllPods covers the pods of all nodes, and nothing else.
func (p Plan) AllPods() netip.Prefix { return netip.PrefixFrom(p.address(64, 0), 18) }

// Services is the range of the ClusterIPs.
func (p Plan) Services() netip.Prefix { return netip.PrefixFrom(p.address(128, 0), 20) }

// APIService is the ClusterIP of the Service "kubernetes": the first address of the range, by Kubernetes' own rule.
func (p Plan) APIService() netip.Addr { return p.address(128, 1) }

// DNS is the ClusterIP of the name server in the pods' configuration.
func (p Plan) DNS() netip.Addr { return p.address(128, 10) }
