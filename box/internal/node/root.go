package node

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/box/internal/cgroup"
	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/netplan"
)

// buildRoot creates the node's root directory and moves the calling process into it.
//
// The root is a plain directory of the box (so containerd's overlays are on the machine's own file system). The
// host's programs are bound read-only, and everything that a node writes is private to it. So standard paths such as
// /var/lib/kubelet are the same on each node, and none of them exists on the host.
func buildRoot(spec Spec, hs []cgroup.Hierarchy) error {
	root := spec.Layout().Root()
	// Nothing that is mounted here may reach the host, nor the other way round.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the node's mounts private: %w", err)
	}
	if err := makeSkeleton(root); err != nil {
		return err
	}
	if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind the node's root: %w", err)
	}
	for _, step := range []func() error{
		func() error { return bindPrograms(root) },
		func() error { return makeEtc(root, spec) },
		func() error { return kernelMounts(root) },
		func() error { return cgroup.MountInside(root, hs) },
		func() error { return pinSysctls(root) },
		func() error { return bindBelow(string(spec.Dir), root, 0) },
		func() error { return bindBelow(spec.Dir.Volumes(), root, 0) }, // a bind leaves out the mounts below its source
		func() error { return bindStore(spec.Layout(), root) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	// pivot_root(".", ".") stacks the old root on the new one, and the detach uncovers the new one: pivot_root(2).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot into the node's root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detach the host's root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// Bidirectional and HostToContainer propagation of pods' mounts needs a shared root.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make the node's root shared: %w", err)
	}
	return nil
}

func makeSkeleton(root string) error {
	for dir, mode := range map[string]os.FileMode{
		"usr": 0o755, "etc": 0o755, "root": 0o700, "proc": 0o555, "sys": 0o555, "dev": 0o755, "run": 0o755, "mnt": 0o755,
		"opt/cni/bin": 0o755, "srv": 0o755, "home": 0o755,
		"tmp": 0o1777, "var/tmp": 0o1777, "var/log/pods": 0o755, "var/log/containers": 0o755,
		"var/lib/kubelet": 0o755, "var/lib/containerd": 0o711, "var/cache": 0o755,
	} {
		path := filepath.Join(root, dir)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := unix.Chmod(path, uint32(mode)); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
	}
	// No container runs when a node starts, so all addresses of the pods from its previous run are free.
	if err := os.RemoveAll(filepath.Join(root, "var/lib/cni")); err != nil {
		return err
	}
	return ensureSymlink("/run", filepath.Join(root, "var/run"))
}

// bindPrograms binds /usr read-only and recreates the host's layout of /bin, /lib and the like: links into /usr or directories.
func bindPrograms(root string) error {
	if err := bindBelow("/usr", root, unix.MS_RDONLY); err != nil {
		return err
	}
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		target, err := os.Readlink(name)
		if err == nil {
			if err := ensureSymlink(target, filepath.Join(root, name)); err != nil {
				return err
			}
			continue
		}
		if _, err := os.Stat(name); err == nil {
			if err := bindBelow(name, root, unix.MS_RDONLY); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeEtc gives the node its own /etc: the host's files that programs need, and the node's names.
func makeEtc(root string, spec Spec) error {
	for _, name := range []string{
		"passwd", "group", "nsswitch.conf", "mke2fs.conf", "ethertypes", "protocols", "services", "localtime",
		"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl", "iproute2", "resolv.conf",
	} {
		if err := copyTree(filepath.Join("/etc", name), filepath.Join(root, "etc", name)); err != nil {
			return fmt.Errorf("copy /etc/%s: %w", name, err)
		}
	}
	hosts := "127.0.0.1 localhost\n"
	for i := 1; i <= netplan.MaxNodes; i++ {
		hosts += fmt.Sprintf("%s %s\n", spec.Plan.Node(i).Addr(), layout.NodeName(i))
	}
	name := spec.Layout().Name
	id := fmt.Sprintf("%x", sha256.Sum256([]byte(string(spec.Dir)+"/"+name)))[:32]
	for file, content := range map[string]string{"hosts": hosts, "hostname": name + "\n", "machine-id": id + "\n"} {
		if err := os.WriteFile(filepath.Join(root, "etc", file), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func kernelMounts(root string) error {
	for _, m := range []struct {
		kind, target, data string
		flags              uintptr
	}{
		{"proc", "proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"sysfs", "sys", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC}, // a new mount shows this network namespace
		{"devtmpfs", "dev", "", unix.MS_NOSUID},                               // one for the whole machine: new loop devices appear
		{"devpts", "dev/pts", "newinstance,ptmxmode=0666,mode=0620", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"tmpfs", "dev/shm", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
		{"mqueue", "dev/mqueue", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"tmpfs", "run", "mode=755", unix.MS_NOSUID | unix.MS_NODEV},
	} {
		target := filepath.Join(root, m.target)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount /%s in the node: %w", m.target, err)
		}
	}
	for _, dir := range []string{"run/netns", "run/lock", "run/containerd"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// pinSysctls covers the machine-wide sysctls that kubelet insists on with files that have the expected values.
// kubelet reads them, is satisfied, and does not change the machine's own values.
func pinSysctls(root string) error {
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		target := filepath.Join(root, "proc/sys", name)
		if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		pinned := filepath.Join(root, "run/sysctl", name)
		if err := os.MkdirAll(filepath.Dir(pinned), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(pinned, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(pinned, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("pin the sysctl %s: %w", name, err)
		}
	}
	return nil
}

// bindBelow makes path appear at the same path below root.
func bindBelow(path, root string, flags uintptr) error {
	target := filepath.Join(root, path)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(path, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s into the node: %w", path, err)
	}
	if flags == 0 {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
		return fmt.Errorf("bind %s into the node: %w", path, err)
	}
	return nil
}

// bindStore gives the node a directory on the file system of the volumes, which has reflinks, for Varve's store.
func bindStore(l layout.Node, root string) error {
	target := filepath.Join(root, layout.StorePath)
	for _, dir := range []string{l.Store(), target} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := unix.Mount(l.Store(), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s into the node: %w", l.Store(), err)
	}
	return nil
}

func ensureSymlink(target, path string) error {
	if have, err := os.Readlink(path); err == nil && have == target {
		return nil
	}
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	return os.Symlink(target, path)
}

// copyTree copies a file, or a directory with the files and links in it. It ignores a missing source. The source
// itself may be a link (resolv.conf often is); links inside a directory stay links.
func copyTree(from, to string) error {
	info, err := os.Stat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return copyFile(from, to, info.Mode().Perm())
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		switch d.Type() {
		case fs.ModeDir:
			return os.MkdirAll(target, 0o755)
		case fs.ModeSymlink:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return ensureSymlink(link, target)
		case 0:
			return copyFile(path, target, 0o644)
		}
		return nil
	})
}

func copyFile(from, to string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	return os.WriteFile(to, data, mode)
}
