// Package guest builds the guests that virtual machines boot in Varve's tests and demo, from the files in images/guest
// and Debian's packages.
//
// The test guest is a kernel and an initramfs with busybox and the QEMU guest agent. It needs no installation and is
// up in seconds under software emulation. The Debian guest is a whole Debian on a root disk, with an initramfs that
// only finds that disk. Both are cached by the content of their inputs.
package guest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/varvebackup/varve/images/internal/cache"
	"github.com/varvebackup/varve/images/internal/debian"
)

// format is part of every key. Raise it when this package writes something else for the same inputs.
const format = "3"

// Builder builds guests.
type Builder struct {
	Roots  *debian.Builder
	Suite  string
	Source string // The directory images/guest.
}

// Guest is the paths of the parts of a guest. Disk is empty for the test guest.
type Guest struct {
	Kernel, Initrd, Disk string
}

// packageRoot returns the root with everything that goes into an initramfs, unpacked but not installed.
func (b *Builder) packageRoot() debian.Root {
	return debian.Root{
		Suite:       b.Suite,
		Variant:     "extract",
		Packages:    []string{"linux-image-cloud-amd64", "qemu-guest-agent", "e2fsprogs", "busybox-static"},
		Drop:        debian.Docs,
		DropVersion: debian.DocsVersion,
	}
}

// unpackedRoot returns the directory of the unpacked packages and the kernel in it.
func (b *Builder) unpackedRoot(ctx context.Context) (dir string, k kernel, err error) {
	dir, err = b.Roots.Dir(ctx, "guest-packages", b.packageRoot())
	if err != nil {
		return "", kernel{}, err
	}
	k, err = findKernel(dir)
	return dir, k, err
}

// Test returns the test guest.
func (b *Builder) Test(ctx context.Context) (Guest, error) {
	source, err := cache.HashTree(filepath.Join(b.Source, "test"))
	if err != nil {
		return Guest{}, fmt.Errorf("test guest: %w", err)
	}
	key := cache.Key(format, b.Roots.Key(b.packageRoot()), source)
	dir, err := b.Roots.Cache.Dir(ctx, "guest-test", key, func(dir string) error {
		return b.Roots.Log.Step("test guest", func() error { return b.buildTest(ctx, dir) })
	})
	if err != nil {
		return Guest{}, fmt.Errorf("test guest: %w", err)
	}
	return Guest{Kernel: filepath.Join(dir, "vmlinux"), Initrd: filepath.Join(dir, "initrd-test.img")}, nil
}

func (b *Builder) buildTest(ctx context.Context, dir string) error {
	pkgs, k, err := b.unpackedRoot(ctx)
	if err != nil {
		return err
	}
	programs, err := readList(filepath.Join(b.Source, "test", "programs"))
	if err != nil {
		return err
	}
	fs := newInitramfs(pkgs)
	if err := fs.addBusybox(ctx); err != nil {
		return err
	}
	fs.addSymlink("init", "usr/bin/busybox")
	for alias, program := range map[string]string{
		"mkfs.ext4": "mke2fs", "mkfs.ext3": "mke2fs", "mkfs.ext2": "mke2fs", "fsck.ext4": "e2fsck", "e2label": "tune2fs",
	} {
		fs.addSymlink("usr/bin/"+alias, program)
	}
	for _, p := range programs {
		if err := fs.addProgram(p); err != nil {
			return err
		}
	}
	if err := fs.addFile("etc/mke2fs.conf"); err != nil {
		return err
	}
	if err := b.addModules(ctx, fs, k, "test"); err != nil {
		return err
	}
	if err := fs.addTree(filepath.Join(b.Source, "test", "root")); err != nil {
		return err
	}
	if err := fs.writeTo(filepath.Join(dir, "initrd-test.img")); err != nil {
		return err
	}
	unpacked, err := k.unpackImage()
	if err != nil {
		return err
	}
	return writeKernel(filepath.Join(dir, "vmlinux"), unpacked)
}

// addModules adds the modules that images/guest/<name>/modules lists, and their dependencies, to the initramfs.
func (b *Builder) addModules(ctx context.Context, fs *initramfs, k kernel, name string) error {
	wanted, err := readList(filepath.Join(b.Source, name, "modules"))
	if err != nil {
		return err
	}
	modules, err := k.loadModules(ctx, wanted)
	if err != nil {
		return err
	}
	var order strings.Builder
	for _, m := range modules {
		fs.setFile("usr/lib/modules/"+m.name+".ko", 0o644, m.content)
		fmt.Fprintln(&order, m.name+".ko")
	}
	fs.setFile("usr/lib/modules/order", 0o644, []byte(order.String()))
	return nil
}

// readList reads a file with one item per line. Lines that begin with # are comments.
func readList(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var items []string
	scan := bufio.NewScanner(strings.NewReader(string(text)))
	for scan.Scan() {
		if line := strings.TrimSpace(scan.Text()); line != "" && !strings.HasPrefix(line, "#") {
			items = append(items, line)
		}
	}
	return items, nil
}

func writeKernel(path string, content []byte) error {
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return err
	}
	return padChecksum(path)
}
