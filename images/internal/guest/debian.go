package guest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/varvebackup/varve/images/internal/cache"
	"github.com/varvebackup/varve/images/internal/command"
	"github.com/varvebackup/varve/images/internal/debian"
)

// debianDiskBytes is the virtual size of the Debian guest's root disk: 2 GiB.
const debianDiskBytes = 2 << 30

// uuid and hashSeed identify the root's file system. They are fixed, so that builds do not differ.
const (
	uuid     = "76617276-6500-4000-8000-000000000001"
	hashSeed = "76617276-6500-4000-8000-000000000002"
)

// Debian returns the Debian guest.
func (b *Builder) Debian(ctx context.Context) (Guest, error) {
	source, err := cache.HashTree(filepath.Join(b.Source, "debian"))
	if err != nil {
		return Guest{}, fmt.Errorf("Debian guest: %w", err)
	}
	key := cache.Key(format, b.Roots.Key(b.packageRoot()), source)
	dir, err := b.Roots.Cache.Dir(ctx, "guest-debian", key, func(dir string) error {
		return b.Roots.Log.Step("Debian guest", func() error { return b.buildDebian(ctx, dir, source) })
	})
	if err != nil {
		return Guest{}, fmt.Errorf("Debian guest: %w", err)
	}
	return Guest{
		Kernel: filepath.Join(dir, "debian-vmlinuz"),
		Initrd: filepath.Join(dir, "debian-initrd.img"),
		Disk:   filepath.Join(dir, "debian-root.qcow2"),
	}, nil
}

func (b *Builder) buildDebian(ctx context.Context, dir, source string) error {
	pkgs, k, err := b.unpackedRoot(ctx)
	if err != nil {
		return err
	}
	fs := newInitramfs(pkgs)
	if err := fs.addBusybox(ctx); err != nil {
		return err
	}
	if err := b.addModules(ctx, fs, k, "debian"); err != nil {
		return err
	}
	if err := fs.addTree(filepath.Join(b.Source, "debian", "initrd")); err != nil {
		return err
	}
	if err := fs.writeTo(filepath.Join(dir, "debian-initrd.img")); err != nil {
		return err
	}
	image, err := os.ReadFile(k.image)
	if err != nil {
		return err
	}
	if err := writeKernel(filepath.Join(dir, "debian-vmlinuz"), image); err != nil {
		return err
	}
	root, err := b.debianRoot(k, source)
	if err != nil {
		return err
	}
	tar, err := b.Roots.Tar(ctx, "guest-debian", root)
	if err != nil {
		return err
	}
	return b.Roots.Log.Step("root disk of the Debian guest", func() error { return makeDisk(ctx, dir, tar) })
}

// debianRoot returns the root of the Debian guest. source is the hash of everything that customizes it.
func (b *Builder) debianRoot(k kernel, source string) (debian.Root, error) {
	list, err := readList(filepath.Join(b.Source, "debian", "packages"))
	if err != nil {
		return debian.Root{}, err
	}
	base, err := filepath.Abs(filepath.Join(b.Source, "debian"))
	if err != nil {
		return debian.Root{}, err
	}
	modules, err := filepath.Abs(k.modules)
	if err != nil {
		return debian.Root{}, err
	}
	return debian.Root{
		Suite:    b.Suite,
		Variant:  "minbase",
		Packages: list,
		Hooks: []debian.Hook{{
			Command: fmt.Sprintf(`'%s/customize' '%s/root' '%s' "$1"`, base, base, modules),
			Inputs:  cache.Key(source, b.Roots.Key(b.packageRoot())),
		}},
		Drop:        guestDrops,
		DropVersion: debian.DocsVersion + ".1",
	}, nil
}

// guestDrops drops what Docs drops, but keeps etc/hostname, which is this guest's own.
func guestDrops(name string) bool {
	return name != "etc/hostname" && debian.Docs(name)
}

// makeDisk writes debian-root.qcow2 into dir: an ext4 file system without partitions that contains the tar's files.
func makeDisk(ctx context.Context, dir, tar string) error {
	tree, raw := filepath.Join(dir, "tree"), filepath.Join(dir, "debian-root.raw")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	if _, err := command.Run(ctx, nil, "tar", "-x", "--numeric-owner", "--xattrs-include=*", "-C", tree, "-f", tar); err != nil {
		return err
	}
	// With an empty file systemd gives each VM its own identity and does not treat its start as a first boot.
	if err := os.WriteFile(filepath.Join(tree, "etc/machine-id"), nil, 0o444); err != nil {
		return err
	}
	if err := os.WriteFile(raw, nil, 0o644); err != nil {
		return err
	}
	if err := os.Truncate(raw, debianDiskBytes); err != nil {
		return err
	}
	_, err := command.Run(ctx, []string{"E2FSPROGS_FAKE_TIME=1"}, "mke2fs", "-q", "-F", "-t", "ext4", "-L", "root", "-U", uuid,
		"-m", "1", "-E", "root_owner=0:0,lazy_itable_init=0,hash_seed="+hashSeed, "-d", tree, raw)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(tree); err != nil {
		return err
	}
	_, err = command.Run(ctx, nil, "qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", raw, filepath.Join(dir, "debian-root.qcow2"))
	if err != nil {
		return err
	}
	return os.Remove(raw)
}
