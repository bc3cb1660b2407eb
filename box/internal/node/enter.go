package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/box/internal/atomicfile"
	"github.com/varvebackup/varve/box/internal/cgroup"
	"github.com/varvebackup/varve/box/internal/hostnet"
)

// Enter is the first stage of a node's init. It builds the node around itself and then executes the supervisor, which
// keeps its process ID, 1. It returns only on failure.
func Enter() error {
	// unshare(CLONE_NEWCGROUP) is per thread. execve makes this thread the whole process.
	runtime.LockOSThread()
	data, err := io.ReadAll(os.NewFile(goFD, "spec"))
	if err != nil {
		return fmt.Errorf("wait for the node's spec: %w", err)
	}
	if len(data) == 0 {
		return errors.New("whoever started this node ended before it was equipped")
	}
	var spec Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return fmt.Errorf("read the node's spec: %w", err)
	}
	l := spec.Layout()
	if err := atomicfile.WriteJSON(l.Spec(), spec, 0o644); err != nil {
		return err
	}
	hierarchies, err := cgroup.Hierarchies()
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("enter a cgroup namespace: %w", err)
	}
	if err := unix.Sethostname([]byte(l.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := hostnet.Inside(spec.Plan, spec.Index); err != nil {
		return err
	}
	if err := buildRoot(spec, hierarchies); err != nil {
		return err
	}
	if err := setSysctls(); err != nil {
		return err
	}
	self := spec.Dir.Program("box")
	if err := unix.Exec(self, []string{self, "node-run", l.Spec()}, os.Environ()); err != nil {
		return fmt.Errorf("execute the supervisor: %w", err)
	}
	return nil
}

// setSysctls sets the sysctls of the network namespace. br_netfilter's is absent if the host has not loaded the module.
func setSysctls() error {
	for name, value := range map[string]string{
		"net/ipv4/ip_forward":                "1",
		"net/bridge/bridge-nf-call-iptables": "1", // without it a pod cannot reach a Service whose endpoint is on its own node
	} {
		err := os.WriteFile("/proc/sys/"+name, []byte(value), 0)
		if err != nil && (!errors.Is(err, os.ErrNotExist) || name == "net/ipv4/ip_forward") {
			return fmt.Errorf("set the sysctl %s: %w", name, err)
		}
	}
	return nil
}
