// Package layout defines the paths of all files of a box. They are below one directory, which `box down` removes.
package layout

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
)

// Box is a box's directory: an absolute path.
type Box string

// DefaultDir is the directory of a box unless the user chooses another.
const DefaultDir = "/var/lib/varve-box"

func (b Box) join(elem ...string) string {
	return filepath.Join(append([]string{string(b)}, elem...)...)
}

// State is the record of what was created on the host (bridge, nodes), so that it can be found again.
func (b Box) State() string { return b.join("state.json") }

// Cgroup is the control group of every process of the box. Its name is derived from the directory, so that a process
// in it is known to be this box's, even if everything else that was recorded is lost.
func (b Box) Cgroup() string { return fmt.Sprintf("varve-box-%x", sha256.Sum256([]byte(b)))[:18] }

// Kubeconfig is the administrator's kubeconfig, usable from the host's network namespace.
func (b Box) Kubeconfig() string { return b.join("kubeconfig") }

// PKI is the directory of the certificates and keys.
func (b Box) PKI() string { return b.join("pki") }

// Bin has the box's own copies of its programs, so that rebuilding or cleaning the build directory does not change what runs.
func (b Box) Bin() string { return b.join("bin") }

// Program is the path of one of the programs in Bin.
func (b Box) Program(name string) string { return b.join("bin", name) }

// Images has a copy of every image that was loaded. A node imports them when it is new or has lost its store.
func (b Box) Images() string { return b.join("images") }

// VolumeImage is the sparse file with the file system of the volumes.
func (b Box) VolumeImage() string { return b.join("volumes.xfs") }

// Volumes is where that file system is mounted, on the host and at the same path in every node. It has the volumes of
// each node in a directory of the node's name, and the snapshots.
func (b Box) Volumes() string { return b.join("volumes") }

// SharedName is the directory in Volumes with the volumes that belong to no node, because all may write to them.
const SharedName = "shared"

// SharedVolumes has the volumes that all nodes may write to.
func (b Box) SharedVolumes() string { return filepath.Join(b.Volumes(), SharedName) }

// CRDs has the definitions of the VolumeSnapshot API.
func (b Box) CRDs() string { return b.join("crd") }

// Node returns the layout of node number i, counted from 1.
func (b Box) Node(i int) Node { return Node{Box: b, Name: NodeName(i)} }

// NodeName is the name of node number i, counted from 1: in Kubernetes, as its host name, and as its directory.
func NodeName(i int) string { return fmt.Sprintf("node%d", i) }

// Node is the layout of one node's files.
type Node struct {
	Box  Box
	Name string
}

// Dir is the node's directory.
func (n Node) Dir() string { return n.Box.join(n.Name) }

// Cgroup is the node's part of the box's control group.
func (n Node) Cgroup() string { return n.Box.Cgroup() + "/" + n.Name }

// Root is what the node sees as "/".
func (n Node) Root() string { return filepath.Join(n.Dir(), "rootfs") }

// Spec is the file with the spec that the node was started with.
func (n Node) Spec() string { return filepath.Join(n.Dir(), "spec.json") }

// Status is the file that the node's init writes whenever one of its services starts or ends.
func (n Node) Status() string { return filepath.Join(n.Dir(), "status.json") }

// Log is the log of one of the node's services ("init" is the log of the node's init).
func (n Node) Log(service string) string { return filepath.Join(n.Dir(), "log", service+".log") }

// Conf is a configuration file of one of the node's services.
func (n Node) Conf(name string) string { return filepath.Join(n.Dir(), "conf", name) }

// Volumes has the backing files of the volumes that were provisioned on the node.
func (n Node) Volumes() string { return filepath.Join(n.Box.Volumes(), n.Name) }

// Store has the disk of Varve's store on the node, which sees it at StorePath. It is below Volumes, so that the loop
// devices on it are detached with those of volumes.
func (n Node) Store() string { return filepath.Join(n.Volumes(), "store") }

// StorePath is where a node sees its Store: the default of `varve store`.
const StorePath = "/var/lib/varve-store"

// FormerVolumes is where a box of an earlier version kept the node's volumes, outside of the file system that can share blocks.
func (n Node) FormerVolumes() string { return filepath.Join(n.Dir(), "volumes") }

// Etcd is etcd's data directory, on the first node only.
func (n Node) Etcd() string { return filepath.Join(n.Dir(), "etcd") }
