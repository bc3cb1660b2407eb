package domain

import (
	"strings"

	"libvirt.org/go/libvirtxml"
)

// mappedDisk is a disk of the domain as libvirt's document shows it.
type mappedDisk struct {
	Volume, Target string
	// Tracked says that the disk is a qcow2 overlay, so that it can have bitmaps.
	Tracked bool
	// Node is the index of the overlay's block node, which has the bitmaps. It is 0 while the domain is not running.
	Node uint
}

// diskMap is all disks of a domain, in the order of its document.
type diskMap []mappedDisk

// mapDisks reads the disks from the document. A disk that is not ours has its target as its volume name.
func mapDisks(doc *libvirtxml.Domain) diskMap {
	if doc.Devices == nil {
		return nil
	}
	var out diskMap
	for _, d := range doc.Devices.Disks {
		if d.Target == nil {
			continue
		}
		m := mappedDisk{Volume: d.Target.Dev, Target: d.Target.Dev}
		if d.Alias != nil {
			if name, ours := stripAlias(d.Alias.Name); ours {
				m.Volume = name
			}
		}
		if d.Source != nil {
			m.Tracked, m.Node = d.Source.DataStore != nil, d.Source.Index
		}
		out = append(out, m)
	}
	return out
}

func (m diskMap) volumeOf(target string) string {
	for _, d := range m {
		if d.Target == target {
			return d.Volume
		}
	}
	return target
}

func (m diskMap) findVolume(volume string) (mappedDisk, bool) {
	for _, d := range m {
		if d.Volume == volume {
			return d, true
		}
	}
	return mappedDisk{}, false
}

// channelConnected says whether the guest has opened the agent's channel.
func channelConnected(doc *libvirtxml.Domain) bool {
	if doc.Devices == nil {
		return false
	}
	for _, c := range doc.Devices.Channels {
		if c.Target != nil && c.Target.VirtIO != nil && c.Target.VirtIO.Name == AgentChannel {
			return c.Target.VirtIO.State == "connected"
		}
	}
	return false
}

// interfacesOf returns the domain's own interfaces.
func interfacesOf(doc *libvirtxml.Domain) []Interface {
	if doc.Devices == nil {
		return nil
	}
	var out []Interface
	for _, i := range doc.Devices.Interfaces {
		var found Interface
		if i.MAC != nil {
			found.MAC = strings.ToLower(i.MAC.Address)
		}
		if i.Alias != nil {
			found.Name, _ = stripAlias(i.Alias.Name)
		}
		out = append(out, found)
	}
	return out
}

// mergeInterfaces adds what the agent reports to the domain's interfaces, matched by hardware address. The interfaces
// that only the guest has follow.
func mergeInterfaces(domain, guest []Interface) []Interface {
	out := append([]Interface(nil), domain...)
	for _, g := range guest {
		known := false
		for i := range out {
			if out[i].MAC != "" && out[i].MAC == g.MAC && !out[i].FromAgent {
				out[i].GuestName, out[i].IPs, out[i].FromAgent = g.GuestName, g.IPs, true
				known = true
				break
			}
		}
		if !known {
			out = append(out, g)
		}
	}
	return out
}
