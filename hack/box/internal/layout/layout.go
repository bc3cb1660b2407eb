// Package layout says where everything of a box lies. All of it is below one directory, which `box down` removes.
package layout

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
)

// Box is a box's directory: an absolute path.
type Box string

// DefaultDir is the directory of a box that nobody placed elsewhere.
const DefaultDir = "/var/lib/varve-box"

func (b Box) path(elem ...string) string {
	return filepath.Join(append([]string{string(b)}, elem...)...)
}

// State is what was made on the host (bridge, nodes), so that it can be found again.
func (b Box) State() string { return b.path("state.json") }

// Cgroup is the control group that holds every process of the box. The name follows from the directory, so that whoever is in
// it is known to be this box's, even when everything else that was recorded is lost.
func (b Box) Cgroup() string { return fmt.Sprintf("varve-box-%x", sha256.Sum256([]byte(b)))[:18] }

// Kubeconfig is the administrator's, usable from the host's network namespace.
func (b Box) Kubeconfig() string { return b.path("kubeconfig") }

// PKI holds the certificates and keys.
func (b Box) PKI() string { return b.path("pki") }

// Bin holds the box's own copies of its programs, so that a rebuilt or a cleaned build folder does not change what runs.
func (b Box) Bin() string { return b.path("bin") }

// Program is the path of one of the programs in Bin.
func (b Box) Program(name string) string { return b.path("bin", name) }

// Images holds a copy of every image that was loaded: what a node imports when it is new, or when it lost its store.
func (b Box) Images() string { return b.path("images") }

// Node returns the layout of node number i, counted from 1.
func (b Box) Node(i int) Node { return Node{Box: b, Name: NodeName(i)} }

// NodeName is the name of node number i, counted from 1: in Kubernetes, as host name, and as folder.
func NodeName(i int) string { return fmt.Sprintf("node%d", i) }

// Node is where one node's files lie.
type Node struct {
	Box  Box
	Name string
}

// Dir is the node's folder.
func (n Node) Dir() string { return n.Box.path(n.Name) }

// Cgroup is the node's part of the box's control group.
func (n Node) Cgroup() string { return n.Box.Cgroup() + "/" + n.Name }

// Root is what the node sees as "/".
func (n Node) Root() string { return filepath.Join(n.Dir(), "rootfs") }

// Spec is what the node was started with.
func (n Node) Spec() string { return filepath.Join(n.Dir(), "spec.json") }

// Status is written by the node's init whenever one of its services starts or ends.
func (n Node) Status() string { return filepath.Join(n.Dir(), "status.json") }

// Log is the log of one of the node's services ("init" is the node's own).
func (n Node) Log(service string) string { return filepath.Join(n.Dir(), "log", service+".log") }

// Conf is a configuration file of one of the node's services.
func (n Node) Conf(name string) string { return filepath.Join(n.Dir(), "conf", name) }

// Volumes holds the backing files of the volumes that were provisioned on the node.
func (n Node) Volumes() string { return filepath.Join(n.Dir(), "volumes") }

// Etcd is etcd's data; on the first node only.
func (n Node) Etcd() string { return filepath.Join(n.Dir(), "etcd") }
