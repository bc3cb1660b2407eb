package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// tools maps the machine's tools that the box uses to the Debian packages that contain them.
var tools = map[string]string{
	"/usr/bin/containerd": "containerd", "runc": "runc", "ctr": "containerd", "/usr/lib/cni/bridge": "containernetworking-plugins",
	"/usr/lib/cni/portmap": "containernetworking-plugins", "nft": "nftables", "iptables": "iptables", "conntrack": "conntrack",
	"nsenter": "util-linux", "losetup": "mount", "mkfs.ext4": "e2fsprogs",
	"e2fsck": "e2fsprogs", "resize2fs": "e2fsprogs", "mkfs.xfs": "xfsprogs",
}

// checkMachine reports everything that the machine lacks, at once.
func checkMachine() error {
	var failed error
	if os.Geteuid() != 0 {
		failed = errors.New("the box needs root: namespaces, mounts, a bridge")
	}
	for tool, pkg := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s is missing: install the Debian package %s", tool, pkg))
		}
	}
	return failed
}
