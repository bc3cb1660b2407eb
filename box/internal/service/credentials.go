// Package service defines what runs on a node: the programs with their arguments, their configuration files and their
// credentials. The control plane runs on the first node. This package starts nothing.
package service

import (
	"encoding/base64"
	"fmt"
	"net"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/netplan"
	"github.com/varvebackup/varve/box/internal/pki"
)

// APIServer is the URL of the API server, the same from the host, the nodes and the pods.
func APIServer(plan netplan.Plan) string { return "https://" + apiAddress(plan) }

func apiAddress(plan netplan.Plan) string { return plan.Node(1).Addr().String() + ":6443" }

// admins is the group that Kubernetes allows everything, whatever its RBAC objects say.
const admins = "system:masters"

// Credentials creates, or keeps, the certificates of the control plane and of nodes 1 to nodes, and every kubeconfig.
func Credentials(box layout.Box, plan netplan.Plan, nodes int, now time.Time) error {
	dir := box.PKI()
	ca, err := pki.Open(dir, "ca", now)
	if err != nil {
		return err
	}
	if _, _, err := pki.EnsureKey(dir, "service-accounts"); err != nil {
		return err
	}
	front, err := pki.Open(dir, "front-proxy-ca", now) // for extension API servers
	if err != nil {
		return err
	}
	if _, err := front.Ensure("front-proxy", pki.Leaf{CommonName: "front-proxy"}); err != nil {
		return err
	}
	_, err = ca.Ensure("apiserver", pki.Leaf{
		CommonName: "kube-apiserver",
		DNSNames: []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
			"localhost", layout.NodeName(1),
		},
		IPs: []net.IP{plan.Node(1).Addr().AsSlice(), plan.APIService().AsSlice(), net.IPv4(127, 0, 0, 1)},
	})
	if err != nil {
		return err
	}
	if _, err := ca.Ensure("apiserver-kubelet-client", clientLeaf("box:apiserver", admins)); err != nil {
		return err
	}
	first := box.Node(1)
	configs := map[string]pki.Leaf{
		box.Kubeconfig(): clientLeaf("box:admin", admins),
		first.Conf("controller-manager.kubeconfig"): clientLeaf("system:kube-controller-manager"),
		first.Conf("scheduler.kubeconfig"):          clientLeaf("system:kube-scheduler"),
	}
	for i := 1; i <= nodes; i++ {
		n := box.Node(i)
		configs[n.Conf("kubelet.kubeconfig")] = clientLeaf("system:node:"+n.Name, "system:nodes")
		configs[n.Conf("proxy.kubeconfig")] = clientLeaf("system:kube-proxy")
		serving := pki.Leaf{
			CommonName: "system:node:" + n.Name, Organizations: []string{"system:nodes"},
			DNSNames: []string{n.Name}, IPs: []net.IP{plan.Node(i).Addr().AsSlice()},
		}
		if _, err := ca.Ensure("kubelet-"+n.Name, serving); err != nil {
			return err
		}
	}
	for path, leaf := range configs {
		if err := writeKubeconfig(path, ca, leaf, plan); err != nil {
			return err
		}
	}
	return nil
}

func clientLeaf(name string, groups ...string) pki.Leaf {
	return pki.Leaf{CommonName: name, Organizations: groups}
}

// writeKubeconfig writes a self-contained kubeconfig for the user that leaf names.
func writeKubeconfig(path string, ca *pki.Authority, leaf pki.Leaf, plan netplan.Plan) error {
	pair, err := ca.Ensure("client-"+fileName(leaf.CommonName), leaf)
	if err != nil {
		return err
	}
	caPEM, err := ca.CertPEM()
	if err != nil {
		return err
	}
	cert, err := pair.CertPEM()
	if err != nil {
		return err
	}
	key, err := pair.KeyPEM()
	if err != nil {
		return err
	}
	b64 := base64.StdEncoding.EncodeToString
	data, err := yaml.Marshal(object{
		"apiVersion": "v1", "kind": "Config", "current-context": "varve-box",
		"clusters": []object{{"name": "varve-box", "cluster": object{
			"server": APIServer(plan), "certificate-authority-data": b64(caPEM),
		}}},
		"users": []object{{"name": leaf.CommonName, "user": object{
			"client-certificate-data": b64(cert), "client-key-data": b64(key),
		}}},
		"contexts": []object{{"name": "varve-box", "context": object{"cluster": "varve-box", "user": leaf.CommonName}}},
	})
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return writeIfChanged(path, data, 0o600)
}

// fileName converts a user's name to a file name.
func fileName(user string) string {
	out := []byte(user)
	for i, c := range out {
		if c == ':' {
			out[i] = '-'
		}
	}
	return string(out)
}

// object is a JSON object.
type object = map[string]any
