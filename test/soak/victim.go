//go:build soak

// Package soak kills components of Varve at random moments while a machine is backed up again and again, and
// compares every restorable point in time.
package soak

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
)

// processes returns the processes of a pod on this machine, by executable name. A process belongs to the pod if its
// /etc/hosts is mounted from the pod's directory under the kubelet's.
func processes(pod types.UID) (map[string][]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	found := map[string][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		mounts, err := os.ReadFile(filepath.Join("/proc", e.Name(), "mountinfo"))
		// The node's own processes see every pod's mounts. The pod's processes see only its own, with the hosts file at /etc/hosts.
		if err != nil || !strings.Contains(string(mounts), "/pods/"+string(pod)+"/etc-hosts /etc/hosts ") {
			continue
		}
		exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err != nil {
			continue
		}
		found[filepath.Base(exe)] = append(found[filepath.Base(exe)], pid)
	}
	return found, nil
}

// shim returns the containerd shim that is the parent of a container's first process.
func shim(pid int) (int, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 2 {
		return 0, fmt.Errorf("process %d: cannot read its parent", pid)
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0, err
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", parent))
	if err != nil {
		return 0, fmt.Errorf("the parent of process %d: %w", pid, err)
	}
	if !strings.HasPrefix(filepath.Base(exe), "containerd-shim") {
		return 0, fmt.Errorf("the parent of process %d is %s, not a shim", pid, exe)
	}
	return parent, nil
}

func kill(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}
