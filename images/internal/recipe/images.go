package recipe

import (
	"context"
	"io/fs"

	"github.com/varvebackup/varve/images/internal/layer"
)

// path is the search path for programs in every image.
const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// varveImage returns the image with only the static binary and a directory for temporary files.
func varveImage(_ context.Context, k *Kitchen) (image, error) { //nolint:unparam // same signature as the other recipes
	return image{
		parts: []part{{entries: []layer.Entry{
			{Name: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
			{Name: "usr/bin/varve", Mode: 0o755, Path: k.Varve},
		}}},
		entrypoint: []string{"/usr/bin/varve"},
		env:        []string{path},
	}, nil
}

// launcherImage returns Debian with libvirt and QEMU, its configuration, and the two binaries, in three layers: from the
// one that changes once in months to the one that changes with every build.
func launcherImage(ctx context.Context, k *Kitchen) (image, error) {
	root := LauncherRoot()
	base, err := k.Debian.Tar(ctx, launcherKind, root)
	if err != nil {
		return image{}, err
	}
	config, err := treeEntries(k.Config)
	if err != nil {
		return image{}, err
	}
	return image{
		parts: []part{
			{tar: base, tarKey: k.Debian.Key(root)},
			{entries: config},
			{entries: []layer.Entry{
				{Name: "usr/bin/varve", Mode: 0o755, Path: k.Varve},
				{Name: "usr/bin/varve-launcher", Mode: 0o755, Path: k.Launcher},
				{Name: "usr/bin/virt-freezer", Mode: fs.ModeSymlink | 0o777, Link: "varve-launcher"},
			}},
		},
		entrypoint: []string{"/usr/bin/varve-launcher"},
		env:        []string{path, "LANG=C.UTF-8"},
	}, nil
}

// launcherKind names the launcher's root in the cache.
const launcherKind = "launcher-root"

// testGuest returns the kernel and initramfs that tests boot. They need no installation and are up in seconds.
func testGuest(ctx context.Context, k *Kitchen) (image, error) {
	g, err := k.Guest.Test(ctx)
	if err != nil {
		return image{}, err
	}
	return image{parts: []part{{entries: []layer.Entry{
		{Name: "boot/vmlinux", Mode: 0o644, Path: g.Kernel},
		{Name: "boot/initrd-test.img", Mode: 0o644, Path: g.Initrd},
	}}}}, nil
}

// debianGuest returns the guest of the demo: kernel, initramfs, and a root disk in the place where KubeVirt's
// container disks have theirs.
func debianGuest(ctx context.Context, k *Kitchen) (image, error) {
	g, err := k.Guest.Debian(ctx)
	if err != nil {
		return image{}, err
	}
	return image{parts: []part{
		{entries: []layer.Entry{
			{Name: "boot/debian-vmlinuz", Mode: 0o644, Path: g.Kernel},
			{Name: "boot/debian-initrd.img", Mode: 0o644, Path: g.Initrd},
		}},
		{entries: []layer.Entry{{Name: "disk/debian-root.qcow2", Mode: 0o644, Path: g.Disk}}},
	}}, nil
}
