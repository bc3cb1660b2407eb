package service

import (
	"fmt"
	"path/filepath"

	"github.com/varvebackup/varve/box/internal/csi"
	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/netplan"
	"github.com/varvebackup/varve/box/internal/node"
)

// PauseImage is the image of the process that holds a pod's namespaces. The box builds and imports it itself.
const PauseImage = "box.varvebackup.io/pause:1"

const (
	etcdURL          = "http://127.0.0.1:2379" // on the first node's loopback
	containerdSocket = "/run/containerd/containerd.sock"
)

// Services lists the services of the node of spec, in starting order.
func Services(spec node.Spec) []node.Service {
	api := "tcp:" + apiAddress(spec.Plan)
	l := spec.Layout()
	program := spec.Dir.Program
	var out []node.Service
	if spec.ControlPlane() {
		out = append(out, controlPlane(spec)...)
	}
	out = append(out,
		node.Service{
			Name: "containerd",
			Args: []string{"/usr/bin/containerd", "--config", l.Conf("containerd.toml"), "--log-level", "info"},
		},
		node.Service{
			Name: "kubelet",
			Args: []string{
				program("kubelet"),
				"--config=" + l.Conf("kubelet.json"),
				"--kubeconfig=" + l.Conf("kubelet.kubeconfig"),
				"--hostname-override=" + l.Name,
				"--node-ip=" + spec.Plan.Node(spec.Index).Addr().String(),
			},
			Needs: []string{"unix:" + containerdSocket, api},
		},
		node.Service{
			Name:  "kube-proxy",
			Args:  []string{program("kube-proxy"), "--config=" + l.Conf("proxy.json"), "--hostname-override=" + l.Name},
			Needs: []string{api},
		},
		node.Service{
			Name:  "csi",
			Args:  []string{program("box"), "csi", "--dir=" + string(spec.Dir), "--node=" + l.Name},
			Needs: []string{api},
		},
	)
	if spec.ControlPlane() {
		out = append(out, snapshots(spec)...)
		out = append(out, node.Service{
			Name: "coredns", Args: []string{program("coredns"), "-conf", l.Conf("Corefile")}, Needs: []string{api},
		})
	}
	return out
}

// snapshots lists the services of CSI snapshots. One of each serves the whole box, because every node's driver sees the
// volumes of all nodes.
func snapshots(spec node.Spec) []node.Service {
	program := spec.Dir.Program
	kubeconfig := "--kubeconfig=" + spec.Dir.Kubeconfig()
	api := "tcp:" + apiAddress(spec.Plan)
	return []node.Service{
		{Name: "snapshot-controller", Args: []string{
			program("snapshot-controller"), kubeconfig, "--kube-api-qps=50", "--kube-api-burst=100",
		}, Needs: []string{api}},
		{Name: "csi-snapshotter", Args: []string{
			program("csi-snapshotter"), kubeconfig,
			"--csi-address=" + csi.Socket,
			"--extra-create-metadata",
			"--kube-api-qps=50", "--kube-api-burst=100",
		}, Needs: []string{api, "unix:" + csi.Socket}},
	}
}

func controlPlane(spec node.Spec) []node.Service {
	l := spec.Layout()
	program := spec.Dir.Program
	api := "tcp:" + apiAddress(spec.Plan)
	return []node.Service{
		{Name: "etcd", Args: []string{
			program("etcd"),
			"--name=box",
			"--data-dir=" + l.Etcd(),
			"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
			"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
			"--initial-cluster=box=http://127.0.0.1:2380",
			"--log-level=warn",
			"--auto-compaction-retention=10m",
			"--quota-backend-bytes=2147483648",
			// The box is a test bed: it trades durability across a machine reset for speed on a slow shared disk.
			// Killing processes loses nothing. `box up` detects data that a reset has damaged, and then starts a fresh cluster.
			"--unsafe-no-fsync",
		}},
		{Name: "kube-apiserver", Args: apiServer(spec.Dir, spec.Plan), Needs: []string{"tcp:127.0.0.1:2379"}},
		{Name: "kube-controller-manager", Args: controllerManager(spec.Dir, spec.Plan), Needs: []string{api}},
		{Name: "kube-scheduler", Args: []string{
			program("kube-scheduler"), "--kubeconfig=" + l.Conf("scheduler.kubeconfig"), "--leader-elect=false",
			"--profiling=false",
		}, Needs: []string{api}},
	}
}

func apiServer(box layout.Box, plan netplan.Plan) []string {
	file := func(name string) string { return filepath.Join(box.PKI(), name) }
	return []string{
		box.Program("kube-apiserver"),
		"--etcd-servers=" + etcdURL,
		"--bind-address=0.0.0.0", "--secure-port=6443",
		"--advertise-address=" + plan.Node(1).Addr().String(),
		"--service-cluster-ip-range=" + plan.Services().String(),
		"--tls-cert-file=" + file("apiserver.crt"), "--tls-private-key-file=" + file("apiserver.key"),
		"--client-ca-file=" + file("ca.crt"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + file("service-accounts.pub"),
		"--service-account-signing-key-file=" + file("service-accounts.key"),
		"--kubelet-certificate-authority=" + file("ca.crt"),
		"--kubelet-client-certificate=" + file("apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + file("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + file("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + file("front-proxy.crt"), "--proxy-client-key-file=" + file("front-proxy.key"),
		"--profiling=false",
	}
}

func controllerManager(box layout.Box, plan netplan.Plan) []string {
	file := func(name string) string { return filepath.Join(box.PKI(), name) }
	return []string{
		box.Program("kube-controller-manager"),
		"--kubeconfig=" + box.Node(1).Conf("controller-manager.kubeconfig"),
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + file("service-accounts.key"),
		"--root-ca-file=" + file("ca.crt"),
		"--cluster-signing-cert-file=" + file("ca.crt"), "--cluster-signing-key-file=" + file("ca.key"),
		"--cluster-cidr=" + plan.AllPods().String(),
		"--service-cluster-ip-range=" + plan.Services().String(),
		"--allocate-node-cidrs=false", // the box plans the nodes' subnets itself
		"--flex-volume-plugin-dir=/var/lib/kubelet/volumeplugins",
		"--profiling=false",
	}
}

// Configure writes the configuration files of the node of spec.
func Configure(spec node.Spec) error {
	l := spec.Layout()
	for name, data := range map[string]func() ([]byte, error){
		"containerd.toml": func() ([]byte, error) { return []byte(containerdConfig), nil }, //nolint:unparam // same signature as the others
		"kubelet.json":    func() ([]byte, error) { return kubeletConfig(spec) },
		"proxy.json":      func() ([]byte, error) { return proxyConfig(spec) },
		"Corefile":        func() ([]byte, error) { return coreDNSConfig(spec), nil }, //nolint:unparam // same signature
	} {
		content, err := data()
		if err == nil {
			err = writeIfChanged(l.Conf(name), content, 0o644)
		}
		if err != nil {
			return fmt.Errorf("configure %s: %w", l.Name, err)
		}
	}
	cni, err := cniConfig(spec)
	if err != nil {
		return fmt.Errorf("configure %s: %w", l.Name, err)
	}
	return writeIfChanged(filepath.Join(l.Root(), "etc/cni/net.d/10-box.conflist"), cni, 0o644)
}
