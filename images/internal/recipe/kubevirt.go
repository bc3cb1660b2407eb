package recipe

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/varvebackup/varve/images/internal/debian"
	"github.com/varvebackup/varve/images/internal/layer"
)

// Peer is upstream's KubeVirt, which tests run Varve beside.
type Peer struct {
	Programs string // What test/peers/kubevirt builds: bin, files and version.
	Config   string // A directory whose tree is copied over the root.
}

// kubeVirtKind names KubeVirt's images and their root in the cache.
const kubeVirtKind = "kubevirt"

// controlUser runs the programs that need no rights on a node. Their pods say runAsNonRoot, so it must be a number.
const controlUser = "1001"

// qemuUser runs libvirt and QEMU, and owns libvirt's hook, as in upstream's image.
const qemuUser = 107

// bindLowPorts is the file capability cap_net_bind_service as an extended attribute, permitted and effective: struct
// vfs_cap_data of linux/capability.h, revision 2, with the effective bit and bit 10 of the permitted set.
const bindLowPorts = "\x01\x00\x00\x02" + "\x00\x04\x00\x00" +
	"\x00\x00\x00\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00"

// kubeVirtPrograms lists the images with their users and programs. virt-operator derives the names of the other images
// from its own.
var kubeVirtPrograms = []struct {
	user     string
	programs []string // The first one gives the image its name, and is its entrypoint.
}{
	{controlUser, []string{"virt-operator"}},
	{controlUser, []string{"virt-api"}},
	{controlUser, []string{"virt-controller"}},
	{controlUser, []string{"virt-exportproxy"}},
	{controlUser, []string{"virt-exportserver"}},
	{"", []string{"virt-handler", "virt-chroot"}},
	{"", []string{
		"virt-launcher", "virt-launcher-monitor", "virt-freezer", "virt-probe", "virt-tail", "libvirt-hook-client",
		"container-disk",
	}},
}

// kubeVirtRoot returns the root file system of all KubeVirt's images. virt-launcher and virt-handler need most of it.
// The others share it, so that a node stores one root.
func kubeVirtRoot() debian.Root {
	return debian.Root{
		Suite:   Suite,
		Variant: "minbase",
		Packages: []string{
			"libvirt-daemon", "libvirt-daemon-driver-qemu", "libvirt-daemon-log", "libvirt-clients",
			"qemu-system-x86", "qemu-utils", "swtpm", "swtpm-tools", "passt", "ovmf", "libnbd0", "libnbd-bin",
			"nftables", "procps", "iproute2", "e2fsprogs", "util-linux", "xorriso", "acl", "kmod",
		},
		Drop:        launcherDrops,
		DropVersion: debian.DocsVersion + ".1",
	}
}

// BuildKubeVirt builds all KubeVirt's images into one archive, or finds it in the cache. It returns the path of the
// archive and the references of the images.
func (k *Kitchen) BuildKubeVirt(ctx context.Context) (tar string, refs []string, err error) {
	images, err := k.kubeVirtImages(ctx)
	if err != nil {
		return "", nil, fmt.Errorf("KubeVirt's images: %w", err)
	}
	built, err := k.buildArchive(ctx, kubeVirtKind, images)
	if err != nil {
		return "", nil, fmt.Errorf("KubeVirt's images: %w", err)
	}
	for _, b := range built {
		refs = append(refs, b.Ref)
	}
	return built[0].Tar, refs, nil
}

func (k *Kitchen) kubeVirtImages(ctx context.Context) ([]image, error) {
	version, err := os.ReadFile(filepath.Join(k.KubeVirt.Programs, "version"))
	if err != nil {
		return nil, err
	}
	root := kubeVirtRoot()
	base, err := k.Debian.Tar(ctx, kubeVirtKind+"-root", root)
	if err != nil {
		return nil, err
	}
	config, err := k.kubeVirtConfig()
	if err != nil {
		return nil, err
	}
	var images []image
	for _, p := range kubeVirtPrograms {
		images = append(images, image{
			name:       p.programs[0],
			tag:        strings.TrimSpace(string(version)),
			user:       p.user,
			entrypoint: []string{"/usr/bin/" + p.programs[0]},
			env:        []string{path},
			parts: []part{
				{tar: base, tarKey: k.Debian.Key(root)},
				{entries: config},
				{entries: k.kubeVirtBinaries(p.programs)},
			},
		})
	}
	return images, nil
}

func (k *Kitchen) kubeVirtBinaries(programs []string) []layer.Entry {
	var entries []layer.Entry
	for _, p := range programs {
		e := layer.Entry{Name: "usr/bin/" + p, Mode: 0o755, Path: filepath.Join(k.KubeVirt.Programs, "bin", p)}
		if p == "virt-launcher-monitor" {
			// A user other than root gets only those capabilities of the container that the file has too.
			e.Attributes = map[string]string{"security.capability": bindLowPorts}
		}
		entries = append(entries, e)
	}
	return entries
}

// kubeVirtConfig returns upstream's files of virt-launcher's image, and what makes Debian's libvirt look like
// upstream's.
func (k *Kitchen) kubeVirtConfig() ([]layer.Entry, error) {
	entries, err := treeEntries(k.KubeVirt.Config)
	if err != nil {
		return nil, err
	}
	upstream, err := treeEntries(filepath.Join(k.KubeVirt.Programs, "files"))
	if err != nil {
		return nil, err
	}
	for i := range upstream {
		if strings.HasPrefix(upstream[i].Name, "etc/libvirt/hooks/") {
			upstream[i].Owner = qemuUser
		}
	}
	entries = append(entries, upstream...)
	return append(entries,
		// virt-launcher 1.9 replaces the hook in it, as that user.
		layer.Entry{Name: "etc/libvirt/hooks", Mode: fs.ModeDir | 0o755, Owner: qemuUser},
		// Debian builds one daemon for all drivers. virt-handler looks for a process of this name.
		layer.Entry{Name: "usr/libexec/virtqemud", Mode: fs.ModeSymlink, Link: "../sbin/libvirtd"},
		// virt-handler follows it below /proc/PID/root, where an absolute link leads out of the container.
		layer.Entry{Name: "var/run", Mode: fs.ModeSymlink, Link: "../run"},
	), nil
}
