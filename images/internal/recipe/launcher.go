package recipe

import (
	"strings"

	"github.com/varvebackup/varve/images/internal/debian"
)

// Suite is the Debian release of the launcher's root and of the guests. Debian 12's libvirt does not support <dataStore>.
const Suite = "trixie"

// LauncherRoot returns the root file system under libvirt and QEMU in the launcher pod.
func LauncherRoot() debian.Root {
	return debian.Root{
		Suite:   Suite,
		Variant: "minbase",
		Packages: []string{
			"libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-clients",
			"qemu-system-x86", "qemu-utils", // qemu-utils has qemu-storage-daemon, which creates overlays without truncating.
			"e2fsprogs", "util-linux",
		},
		Drop:        launcherDrops,
		DropVersion: debian.DocsVersion + ".1",
	}
}

// otherMachines are parts of QEMU for machines that the launcher never runs. Each further emulator costs libvirt two
// seconds at its first start, under emulation, to probe its capabilities.
var otherMachines = []string{
	"usr/bin/qemu-system-i386", "usr/bin/qemu-system-x86_64-microvm",
	"usr/share/qemu/skiboot.lid", "usr/share/qemu/openbios-", "usr/share/qemu/u-boot", "usr/share/qemu/hppa-firmware",
	"usr/share/qemu/slof.bin", "usr/share/qemu/s390-ccw.img", "usr/share/qemu/palcode-clipper", "usr/share/qemu/vof.bin",
	"usr/share/qemu/QEMU,", "usr/share/qemu/bamboo.dtb", "usr/share/qemu/canyonlands.dtb", "usr/share/qemu/npcm",
	"usr/share/qemu/linux-user-vdso.tar.gz", "usr/share/qemu/trace-events-all",
}

func launcherDrops(name string) bool {
	for _, prefix := range otherMachines {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return debian.Docs(name)
}
