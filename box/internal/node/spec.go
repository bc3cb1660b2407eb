// Package node is one node of the box: a process tree in its own mount, PID, network, host name, IPC and cgroup
// namespaces, with its own root directory.
//
// Start clones the node's init. Init waits until the host side has given it a network device and a control group,
// builds the root directory (Enter), and becomes the supervisor of the node's services (Run). When init is killed,
// the kernel kills everything in the node and drops its mounts. Only loop devices and files remain.
package node

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/netplan"
)

// Spec is everything that a node's init needs to know.
type Spec struct {
	Dir   layout.Box   `json:"dir"`
	Index int          `json:"index"` // from 1; the first node also runs the control plane
	Plan  netplan.Plan `json:"plan"`
}

// Layout returns the layout of the node's files.
func (s Spec) Layout() layout.Node { return s.Dir.Node(s.Index) }

// ControlPlane says whether the node runs etcd, the API server, the controllers and the scheduler.
func (s Spec) ControlPlane() bool { return s.Index == 1 }

// LoadSpec reads the spec that Enter wrote.
func LoadSpec(file string) (Spec, error) {
	var s Spec
	data, err := os.ReadFile(file)
	if err != nil {
		return s, fmt.Errorf("read the node's spec: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("read the node's spec %s: %w", file, err)
	}
	return s, nil
}
