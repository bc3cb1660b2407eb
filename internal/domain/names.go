package domain

import (
	"crypto/sha256"
	"fmt"
	"net"
	"strings"

	"github.com/google/uuid"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// aliasPrefix marks our aliases; libvirt accepts no other prefix from users. The alias of a disk or an interface is
// the prefix and its name in the instance. That is how libvirt's answers are matched to volumes.
const aliasPrefix = "ua-"

// Name returns the domain's name in libvirt.
func Name(namespace, instance string) string { return namespace + "_" + instance }

// uuidSpace keeps our derived UUIDs apart from all others.
var uuidSpace = uuid.MustParse("d9be8c6c-6a0f-5b0b-9a2f-5c1f5e0b7a11")

// UUID returns the UUID that the firmware reports: firmware.uuid, or one derived from namespace and name.
func UUID(vmi *kubevirtv1.VirtualMachineInstance) string {
	if f := vmi.Spec.Domain.Firmware; f != nil && f.UUID != "" {
		return string(f.UUID)
	}
	return uuid.NewSHA1(uuidSpace, []byte(vmi.Namespace+"/"+vmi.Name)).String()
}

// MAC returns an interface's hardware address in lower case: macAddress, or a locally administered unicast address
// derived from namespace, instance and interface.
func MAC(vmi *kubevirtv1.VirtualMachineInstance, i *kubevirtv1.Interface) string {
	if i.MacAddress != "" {
		return strings.ToLower(i.MacAddress)
	}
	sum := sha256.Sum256([]byte(vmi.Namespace + "/" + vmi.Name + "/" + i.Name))
	return net.HardwareAddr(append([]byte{0x02}, sum[:5]...)).String()
}

// TargetDevices returns the device names (volume -> vda, sda, …) of the disks: in the order of the spec, with one
// sequence of letters for virtio and one for sata and scsi together.
func TargetDevices(disks []kubevirtv1.Disk) map[string]string {
	next := map[string]int{}
	out := make(map[string]string, len(disks))
	for _, d := range disks {
		prefix := "sd"
		if diskBus(d) == "virtio" {
			prefix = "vd"
		}
		out[d.Name] = prefix + diskLetters(next[prefix])
		next[prefix]++
	}
	return out
}

// diskLetters returns the letters of the n-th disk: a … z, aa, ab, …
func diskLetters(n int) string {
	if n < 26 {
		return string(rune('a' + n))
	}
	return diskLetters(n/26-1) + string(rune('a'+n%26))
}

// diskBus returns the bus of a disk: virtio unless the spec says otherwise.
func diskBus(d kubevirtv1.Disk) string {
	if d.Disk == nil || d.Disk.Bus == "" {
		return "virtio"
	}
	return d.Disk.Bus
}

// stripAlias returns the name in the instance behind an alias, or false for an alias that libvirt assigned.
func stripAlias(alias string) (string, bool) { return strings.CutPrefix(alias, aliasPrefix) }

// describeDevice names a volume's device in messages.
func describeDevice(volume, target string) string { return fmt.Sprintf("%s (%s)", volume, target) }
