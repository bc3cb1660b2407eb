package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/loop"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/reflink"
)

// node is a node with one disk.
type node struct {
	name, dir string
	disk      *reflink.Disk
}

// diskDir is the directory of the disk on its file system. Peers write beside it.
const diskDir = "varve"

// openNode makes an XFS in a sparse file, mounts it by a loop device, and opens a disk on it.
func (b *bench) openNode(ctx context.Context, name string) (*node, error) {
	file, n := filepath.Join(b.work, name+".xfs"), &node{name: name, dir: filepath.Join(b.work, name)}
	// The image, a copy by a peer, and the volumes of the measurement of reads and writes fit in.
	if err := makeSparse(file, max(gib, 8*b.imageBytes())); err != nil {
		return nil, err
	}
	if _, err := runTool(ctx, "mkfs.xfs", "-q", "-K", "-m", "reflink=1", file); err != nil {
		return nil, err
	}
	device, err := b.devices.Attach(ctx, file, workName+"-"+name, loop.SmallSector)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(n.dir, diskDir)
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount(device.Path, n.dir, "xfs", unix.MS_NOATIME, ""); err != nil {
		return nil, fmt.Errorf("mount %s on %s: %w", device.Path, n.dir, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := reflink.Format(dir, n.uuid()); err != nil {
		return nil, err
	}
	n.disk, err = reflink.Open(ctx, dir, reflink.Options{})
	if err != nil {
		return nil, err
	}
	return n, nil
}

func makeSparse(file string, bytes int64) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(bytes), f.Close())
}

func (n *node) uuid() disk.UID { return disk.UID("disk-" + n.name) }

// peerFile is a file that a peer writes.
func (n *node) peerFile(name string) string { return filepath.Join(n.dir, name) }

// settle makes all durable, waits until what was deleted is free, and gives it back, so that each measurement begins in
// the same state.
func (n *node) settle(ctx context.Context) error {
	if err := n.refreeze(); err != nil {
		return err
	}
	_, err := runTool(ctx, "fstrim", n.dir)
	return err
}

// From the kernel's include/uapi/linux/fs.h.
const (
	ioctlFreeze = 0xC0045877 // FIFREEZE
	ioctlThaw   = 0xC0045878 // FITHAW
)

// refreeze freezes the file system and thaws it. XFS frees in the background, and finishes that when it is frozen.
func (n *node) refreeze() error {
	f, err := os.Open(n.dir)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it is a directory
	if err := unix.IoctlSetInt(int(f.Fd()), ioctlFreeze, 0); err != nil {
		return fmt.Errorf("freeze %s: %w", n.dir, err)
	}
	if err := unix.IoctlSetInt(int(f.Fd()), ioctlThaw, 0); err != nil {
		return fmt.Errorf("thaw %s: %w", n.dir, err)
	}
	return nil
}

// sync writes back everything that the file system still has in memory.
func (n *node) sync() error {
	f, err := os.Open(n.dir)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it is a directory
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}

// usedBytes returns how many bytes of the file system are used.
func (n *node) usedBytes(ctx context.Context) (int64, error) {
	if err := n.settle(ctx); err != nil {
		return 0, err
	}
	var s unix.Statfs_t
	if err := unix.Statfs(n.dir, &s); err != nil {
		return 0, os.NewSyscallError("statfs", err)
	}
	return int64(s.Blocks-s.Bfree) * s.Bsize, nil
}

// checkImage returns an error unless the disk has an image with the content's bytes.
func (n *node) checkImage(ctx context.Context, name string, want *content) error {
	objects, err := n.disk.List(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(objects, func(o disk.Object) bool { return o.Name == names.Image(name, name) })
	if i < 0 {
		return fmt.Errorf("the %s disk does not have the image %s", n.name, name)
	}
	if o := objects[i]; o.Bytes != want.bytes || o.Checksum != want.checksum {
		return fmt.Errorf("the image %s on the %s disk is not what the server has: %d bytes, SHA-512 %s", name, n.name,
			o.Bytes, o.Checksum)
	}
	return nil
}

// attached is a head with its loop device.
type attached struct {
	device loop.Device
	lease  disk.Lease
}

// attach attaches a head to a loop device, as the CSI driver does.
func (b *bench) attach(ctx context.Context, n *node, head disk.Name) (*attached, error) {
	lease, err := n.disk.Open(ctx, head)
	if err != nil {
		return nil, err
	}
	device, err := b.devices.Attach(ctx, lease.Path(), string(head), loop.BlockSector)
	if err != nil {
		return nil, errors.Join(err, lease.Close())
	}
	return &attached{device, lease}, nil
}

func (b *bench) detach(ctx context.Context, a *attached) error {
	return errors.Join(b.devices.Detach(ctx, a.device), a.lease.Close())
}

// dropCached drops what the page cache has of a file.
func dropCached(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // opened only for fadvise
	return os.NewSyscallError("fadvise", unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
}
