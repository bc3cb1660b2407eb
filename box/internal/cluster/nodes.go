package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/varvebackup/varve/box/internal/cgroup"
	"github.com/varvebackup/varve/box/internal/hostnet"
	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/loop"
	"github.com/varvebackup/varve/box/internal/node"
	"github.com/varvebackup/varve/box/internal/proc"
)

// stopLimit bounds the wait for killed processes and their control groups to disappear. A process in the middle of
// slow disk writes ends only when these do.
const stopLimit = 60 * time.Second

// startNode starts node i, which must not be running, and records its identity before it can do anything.
func (s *State) startNode(ctx context.Context, dir layout.Box, i int) error {
	l := dir.Node(i)
	rebooted := false
	if boot, err := proc.BootID(); err != nil {
		return err
	} else if old := s.Nodes[i-1].Init.Boot; old != "" {
		rebooted = old != boot
	}
	if rebooted {
		// Image layers are unpacked without fsync, so some of their files may be empty after a reset. Images come
		// back from the box's own copies.
		if err := errors.Join(dropKubeletState(l), forgetContainerd(l)); err != nil {
			return err
		}
	}
	if err := os.Remove(l.Status()); err != nil && !isMissing(err) {
		return fmt.Errorf("start %s: %w", l.Name, err)
	}
	_, err := node.Start(ctx, s.nodeSpec(dir, i), func(id proc.ID) error {
		s.Nodes[i-1] = NodeState{Init: id, Started: time.Now().UTC()}
		return errors.Join(
			s.saveState(dir),
			cgroup.Create(l.Cgroup(), id.PID),
			hostnet.Plug(s.Bridge, string(dir), i, id.PID),
		)
	})
	return err
}

// dropKubeletState removes kubelet's checkpoints of resource assignments. After a reset one may be half-written, and
// kubelet refuses to start with it. No pod of that boot is left, so they mean nothing.
func dropKubeletState(l layout.Node) error {
	stale, err := filepath.Glob(filepath.Join(l.Root(), "var/lib/kubelet/*_state"))
	if err != nil {
		return err
	}
	for _, f := range stale {
		if err := os.Remove(f); err != nil && !isMissing(err) {
			return fmt.Errorf("drop kubelet's checkpoint: %w", err)
		}
	}
	return nil
}

// forgetContainerd removes the node's store of images and containers.
func forgetContainerd(l layout.Node) error {
	if err := os.RemoveAll(filepath.Join(l.Root(), "var/lib/containerd")); err != nil {
		return fmt.Errorf("remove the image store of %s: %w", l.Name, err)
	}
	return nil
}

// stopNode removes everything of node i that exists outside its directory: processes, control groups, loop devices.
// Its mounts and its network device disappear with its processes.
func (s *State) stopNode(ctx context.Context, dir layout.Box, i int) error {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	if err := cgroup.Thaw(dir.Node(i).Cgroup()); err != nil {
		return fmt.Errorf("stop %s: %w", layout.NodeName(i), err)
	}
	if i <= len(s.Nodes) {
		if err := s.Nodes[i-1].Init.Kill(ctx); err != nil {
			return fmt.Errorf("stop %s: %w", layout.NodeName(i), err)
		}
	}
	// Killing init took everything with it, unless others killed it and its namespace is still draining.
	if err := cgroup.Remove(ctx, dir.Node(i).Cgroup(), killProcess); err != nil {
		return fmt.Errorf("stop %s: %w", layout.NodeName(i), err)
	}
	if err := loop.DetachTree(dir.Node(i).Volumes()); err != nil {
		return fmt.Errorf("stop %s: %w", layout.NodeName(i), err)
	}
	return nil
}

// killProcess ends a process that may have ended already.
func killProcess(ctx context.Context, pid int) error {
	id, err := proc.Of(pid)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return id.Kill(ctx)
}

// serviceStatus returns the last status that the node's init wrote about its services.
func serviceStatus(l layout.Node) (map[string]node.ServiceStatus, error) {
	data, err := os.ReadFile(l.Status())
	if err != nil {
		return nil, fmt.Errorf("read the status of %s: %w", l.Name, err)
	}
	out := map[string]node.ServiceStatus{}
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, fmt.Errorf("read the status of %s: %w", l.Name, err)
	}
	return out, nil
}

// isCrashing says whether a service exits soon after each start, which for a store means that its data is damaged. A
// service that others kill says nothing about its data.
func isCrashing(s node.ServiceStatus) bool {
	return s.Restarts >= 3 && s.LastLife < 10*time.Second && !s.Killed
}
