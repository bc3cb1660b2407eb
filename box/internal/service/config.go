package service

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/box/internal/atomicfile"
	"github.com/varvebackup/varve/box/internal/node"
)

// containerdConfig is the same on each node: the paths are inside the node.
//
// restrict_oom_score_adj: without CAP_SYS_RESOURCE (common in containers and small VMs) lowering a score fails, and
// with it every pod sandbox.
const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
address = "` + containerdSocket + `"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + PauseImage + `"
restrict_oom_score_adj = true
device_ownership_from_security_context = true
disable_apparmor = true

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"
`

func kubeletConfig(spec node.Spec) ([]byte, error) {
	pki := spec.Dir.PKI()
	name := spec.Layout().Name
	return json.MarshalIndent(object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true},
			"x509":      object{"clientCAFile": filepath.Join(pki, "ca.crt")},
		},
		"authorization":            object{"mode": "Webhook"},
		"tlsCertFile":              filepath.Join(pki, "kubelet-"+name+".crt"),
		"tlsPrivateKeyFile":        filepath.Join(pki, "kubelet-"+name+".key"),
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               "/pods",
		"cgroupsPerQOS":            false, // if true, kubelet wants controllers that small machines do not mount
		"enforceNodeAllocatable":   []string{},
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"clusterDomain":            "cluster.local",
		"clusterDNS":               []string{spec.Plan.DNS().String()},
		"resolvConf":               "/etc/resolv.conf",
		"volumePluginDir":          "/var/lib/kubelet/volumeplugins", // the default is below /usr, which is read-only
		// The machine's disk is shared and may be nearly full. That is no reason to evict a pod or to drop an image
		// that no registry can give back.
		"evictionHard": object{
			"memory.available": "16Mi", "nodefs.available": "1Mi", "nodefs.inodesFree": "16",
			"imagefs.available": "1Mi", "imagefs.inodesFree": "16",
		},
		"imageGCHighThresholdPercent": 100, // never
		"imageMaximumGCAge":           "0s",
		"containerLogMaxSize":         "16Mi",
		"containerLogMaxFiles":        2,
		"maxPods":                     200, // the node's subnet has 253 addresses
		"serializeImagePulls":         false,
		"registerWithTaints":          []object{},
		"shutdownGracePeriod":         "0s",
	}, "", "  ")
}

func proxyConfig(spec node.Spec) ([]byte, error) {
	return json.MarshalIndent(object{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode":             "nftables",
		"clientConnection": object{"kubeconfig": spec.Layout().Conf("proxy.kubeconfig")},
		"clusterCIDR":      spec.Plan.AllPods().String(),
		"detectLocalMode":  "ClusterCIDR",
		// The size of the conntrack table belongs to the machine and cannot be set from a network namespace.
		"conntrack": object{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	}, "", "  ")
}

// coreDNSConfig returns the Corefile. CoreDNS serves the cluster's names at the first node's address, to which the
// Service kube-dns leads. Nothing leads out of the box, so CoreDNS answers that any other name does not exist. It caches
// answers for one second only, because tests make Services and use them at once.
func coreDNSConfig(spec node.Spec) []byte {
	return fmt.Appendf(nil, `cluster.local:53 in-addr.arpa:53 ip6.arpa:53 {
	bind %[1]s
	errors
	cache 1
	kubernetes cluster.local in-addr.arpa ip6.arpa {
		kubeconfig %[2]s
		pods insecure
		ttl 1
	}
}
.:53 {
	bind %[1]s
	errors
	template ANY ANY {
		rcode NXDOMAIN
	}
}
`, spec.Plan.Node(1).Addr(), spec.Dir.Kubeconfig())
}

func cniConfig(spec node.Spec) ([]byte, error) {
	return json.MarshalIndent(object{
		"cniVersion": "1.0.0", "name": "box",
		"plugins": []object{
			{
				"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
				"ipMasq": false, // every pod address is routed in the whole box
				"ipam": object{
					"type":   "host-local",
					"ranges": [][]object{{{"subnet": spec.Plan.Pods(spec.Index).String()}}},
					"routes": []object{{"dst": "0.0.0.0/0"}},
				},
			},
			{"type": "portmap", "capabilities": object{"portMappings": true}},
		},
	}, "", "  ")
}

// writeIfChanged does not touch a file that already contains data: rewriting it costs an fsync.
func writeIfChanged(path string, data []byte, mode os.FileMode) error {
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
		return nil
	}
	return atomicfile.Write(path, data, mode)
}
