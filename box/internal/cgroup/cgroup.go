// Package cgroup gives each node its own control group, in every hierarchy of a v1 machine or in the one of v2.
//
// A node's init joins the group and then enters a cgroup namespace, so that what the node mounts below /sys/fs/cgroup
// is this group and nothing above it. kubelet and runc believe that they are at the root, and removing the group
// removes every group that they made. Membership also identifies the processes of the box.
package cgroup

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Root is where the host mounts its hierarchies.
const Root = "/sys/fs/cgroup"

// Hierarchy is one mounted tree of control groups.
type Hierarchy struct {
	Mount   string // the mount point on the host, and the path below /sys/fs/cgroup in a node
	Options string // the mount options that identify it; empty for v2
	V2      bool
}

// Hierarchies lists the hierarchies that the host has mounted below Root.
func Hierarchies() ([]Hierarchy, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	defer f.Close() //nolint:errcheck // read only
	var out []Hierarchy
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if h, ok := parseMount(lines.Text()); ok {
			out = append(out, h)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no cgroup hierarchy is mounted below %s", Root)
	}
	return out, nil
}

// parseMount parses one line of /proc/self/mounts.
func parseMount(line string) (Hierarchy, bool) {
	f := strings.Fields(line)
	if len(f) < 4 || (f[1] != Root && !strings.HasPrefix(f[1], Root+"/")) {
		return Hierarchy{}, false
	}
	switch f[2] {
	case "cgroup2":
		return Hierarchy{Mount: f[1], V2: true}, true
	case "cgroup":
		generic := []string{"rw", "ro", "nosuid", "nodev", "noexec", "relatime", "noatime", "seclabel", "xattr", "clone_children"}
		var own []string
		for o := range strings.SplitSeq(f[3], ",") {
			if strings.HasPrefix(o, "name=") {
				own = append(own, "none")
			}
			if !slices.Contains(generic, o) && !strings.HasPrefix(o, "release_agent=") {
				own = append(own, o)
			}
		}
		return Hierarchy{Mount: f[1], Options: strings.Join(own, ",")}, true
	}
	return Hierarchy{}, false
}

// checkName rejects an empty or climbing name, which could only come from a damaged record, to protect the host's groups.
func checkName(name string) error {
	if !fs.ValidPath(name) || name == "." {
		return fmt.Errorf("%q names no cgroup of a box", name)
	}
	return nil
}

// Create makes the group name (a path such as "varve-box0/node1") in every hierarchy, and moves process pid into it.
func Create(name string, pid int) error {
	if err := checkName(name); err != nil {
		return err
	}
	hs, err := Hierarchies()
	if err != nil {
		return err
	}
	for _, h := range hs {
		if err := h.createGroup(name); err != nil {
			return fmt.Errorf("make the cgroup %s in %s: %w", name, h.Mount, err)
		}
		procs := filepath.Join(h.Mount, name, "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("put process %d into the cgroup %s: %w", pid, name, err)
		}
	}
	return nil
}

func (h Hierarchy) createGroup(name string) error {
	dir := h.Mount
	for part := range strings.SplitSeq(name, "/") {
		if h.V2 {
			if err := delegateControllers(dir); err != nil {
				return err
			}
		}
		parent := dir
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		// A new cpuset on v1 is empty, and a process cannot join it.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if h.V2 {
				continue
			}
			if err := inheritCPUSet(filepath.Join(parent, file), filepath.Join(dir, file)); err != nil {
				return err
			}
		}
	}
	return nil
}

func inheritCPUSet(from, to string) error {
	have, err := os.ReadFile(to)
	if errors.Is(err, fs.ErrNotExist) || len(bytes.TrimSpace(have)) > 0 {
		return nil
	}
	if err != nil {
		return err
	}
	want, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, want, 0)
}

// delegateControllers enables every controller of a v2 group for its children.
func delegateControllers(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var on []string
	for c := range strings.FieldsSeq(string(have)) {
		on = append(on, "+"+c)
	}
	if len(on) == 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(strings.Join(on, " ")), 0)
}

// MountInside mounts the caller's groups below root+Root. The caller must already be in its cgroup namespace.
func MountInside(root string, hs []Hierarchy) error {
	base := filepath.Join(root, Root)
	if len(hs) == 1 && hs[0].V2 && hs[0].Mount == Root {
		if err := unix.Mount("cgroup2", base, "cgroup2", 0, ""); err != nil {
			return fmt.Errorf("mount cgroup2 in the node: %w", err)
		}
		return splitInit(base)
	}
	if err := unix.Mount("tmpfs", base, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount %s in the node: %w", base, err)
	}
	for _, h := range hs {
		kind := "cgroup"
		if h.V2 {
			kind = "cgroup2"
		}
		target := filepath.Join(root, h.Mount)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(kind, target, kind, 0, h.Options); err != nil {
			return fmt.Errorf("mount the hierarchy %q in the node: %w", h.Options, err)
		}
	}
	return nil
}

// splitInit obeys v2's rule that a group with controllers for its children has no processes of its own: it moves the
// node's init, the only process so far, into a leaf.
func splitInit(base string) error {
	leaf := filepath.Join(base, "init")
	if err := os.MkdirAll(leaf, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("move the node's init into its leaf cgroup: %w", err)
	}
	return delegateControllers(base)
}

// Members returns the processes in the group name and below it, in any hierarchy.
func Members(name string) ([]int, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	hs, err := Hierarchies()
	if err != nil {
		return nil, err
	}
	seen := map[int]bool{}
	for _, h := range hs {
		err := filepath.WalkDir(filepath.Join(h.Mount, name), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || d.Name() != "cgroup.procs" {
				return skipGone(err)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return skipGone(err)
			}
			for field := range strings.FieldsSeq(string(data)) {
				if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
					seen[pid] = true
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list the members of cgroup %s: %w", name, err)
		}
	}
	pids := make([]int, 0, len(seen))
	for pid := range seen {
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	return pids, nil
}

// Remove ends the processes of the group name, by calling end, and removes the group and everything below it. The
// kernel takes a moment to remove dead processes, and others may have been forked meanwhile, so Remove tries again until ctx ends.
func Remove(ctx context.Context, name string, end func(ctx context.Context, pid int) error) error {
	if err := checkName(name); err != nil {
		return err
	}
	hs, err := Hierarchies()
	if err != nil {
		return err
	}
	for {
		failed := removeGroup(ctx, hs, name, end)
		if failed == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove the cgroup %s: %w%s", name, errors.Join(ctx.Err(), failed), describeProcesses(name))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func removeGroup(ctx context.Context, hs []Hierarchy, name string, end func(ctx context.Context, pid int) error) error {
	if err := Thaw(name); err != nil {
		return err
	}
	pids, err := Members(name)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := end(ctx, pid); err != nil {
			return err
		}
	}
	var failed error
	for _, h := range hs {
		failed = errors.Join(failed, removeTree(filepath.Join(h.Mount, name)))
	}
	return failed
}

// Thaw resumes frozen processes of the group name and below it. On v1 a frozen process does not die, and runc, which
// freezes a container to change its devices, may have been killed halfway.
func Thaw(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	hs, err := Hierarchies()
	if err != nil {
		return err
	}
	for _, h := range hs {
		if err := thawGroup(filepath.Join(h.Mount, name)); err != nil {
			return fmt.Errorf("thaw the cgroup %s: %w", name, err)
		}
	}
	return nil
}

func thawGroup(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() != "freezer.state" {
			return skipGone(err)
		}
		return skipGone(os.WriteFile(path, []byte("THAWED"), 0))
	})
}

// describeProcesses lists the processes that are left in a group, for an error.
func describeProcesses(name string) string {
	var text strings.Builder
	pids, err := Members(name)
	if err != nil {
		return ""
	}
	for _, pid := range pids {
		// There is no status for a process that has ended meanwhile.
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		fmt.Fprintf(&text, "\nit holds the process %.80s", status)
	}
	return text.String()
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return skipGone(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return skipGone(os.Remove(dir))
}

func skipGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
