// Package xfs is the file system that has the box's volumes: XFS in a sparse file, on a loop device, mounted on the host.
//
// Files on XFS can share blocks (reflinks), which ext4, the usual file system of a machine, cannot do: a snapshot is a
// clone of a volume's file, and takes neither time nor space. The mount has discard, so that what is freed in the file
// system returns to the machine. The sparse file is named only when it is complete, and the loop device is recognised by its
// file, so that Ensure and Remove can run over whatever an interrupted run, or a reset of the machine, has left.
package xfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/box/internal/loop"
)

const (
	// The sparse file is as large as the file system that it lies on: more than that cannot be stored. On a small one
	// it is larger, because XFS wants room for its structures.
	leastBytes = 16 << 30
	mostBytes  = 8 << 40 // ext4's files end at 16 TiB
	logSize    = "64m"   // the smallest that mkfs.xfs makes: it is the part of the file that is not sparse
	unmountGap = 50 * time.Millisecond
)

// ErrDamaged says that the kernel cannot read the file system.
var ErrDamaged = errors.New("the file system of the volumes is damaged")

// Ensure makes the file system in the file image unless it exists, and mounts it at target unless it is mounted there.
func Ensure(ctx context.Context, image, target string) error {
	mounted, err := countMounts(image, target)
	if err != nil || mounted > 0 {
		return err
	}
	if taken, err := mountinfo.Mounted(target); err != nil && !errors.Is(err, fs.ErrNotExist) || taken {
		return errors.Join(err, fmt.Errorf("something else is mounted at %s: unmount it", target))
	}
	if _, err := os.Stat(image); errors.Is(err, fs.ErrNotExist) {
		err = makeImage(ctx, image)
		if err != nil {
			return err
		}
	}
	if err := os.MkdirAll(target, 0o700); err != nil {
		return fmt.Errorf("mount %s: %w", image, err)
	}
	dev, err := loop.Attach(image)
	if err != nil {
		return err
	}
	err = unix.Mount(dev.Path, target, "xfs", unix.MS_NOATIME, "discard")
	if err == nil {
		return nil
	}
	return errors.Join(explainMount(err, image, target), dev.Detach())
}

// explainMount says what a failure of mount(2) means here.
func explainMount(err error, image, target string) error {
	switch {
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("this kernel has no XFS, which the volumes need for snapshots: load its module (modprobe xfs), or boot a kernel that has it: %w", err)
	// EINVAL: no superblock; EUCLEAN: bad structures or a bad log; EIO: the file is too short.
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EUCLEAN), errors.Is(err, unix.EIO):
		return fmt.Errorf("%w: mount %s at %s: %w", ErrDamaged, image, target, err)
	}
	return fmt.Errorf("mount %s at %s: %w", image, target, err)
}

// Remove unmounts the file system and detaches its loop device. The file stays. It waits until the volumes on it are no
// longer in use: the kernel finishes the detach of a volume's loop device after the call that asks for it.
func Remove(ctx context.Context, image, target string) error {
	for {
		mounted, err := countMounts(image, target)
		if err != nil {
			return err
		}
		if mounted == 0 {
			break
		}
		err = unix.Unmount(target, 0)
		if err == nil {
			continue
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("unmount %s: %w", target, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("unmount %s: %w (a process on this machine works in it, or a loop device uses a file in it)", target, err)
		case <-time.After(unmountGap):
		}
	}
	dev, err := loop.Find(image)
	if errors.Is(err, loop.ErrNotAttached) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return dev.Detach()
}

// countMounts says how many times the file system in image is mounted at target.
func countMounts(image, target string) (int, error) {
	dev, err := loop.Find(image)
	if errors.Is(err, loop.ErrNotAttached) || errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var st unix.Stat_t
	if err := unix.Stat(dev.Path, &st); err != nil {
		return 0, fmt.Errorf("look at %s: %w", dev.Path, err)
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		ours := m.Mountpoint == target && m.Major == int(unix.Major(st.Rdev)) && m.Minor == int(unix.Minor(st.Rdev))
		return !ours, false
	})
	if err != nil {
		return 0, fmt.Errorf("look for the mount at %s: %w", target, err)
	}
	return len(mounts), nil
}

// makeImage makes a sparse file with an empty XFS. It replaces what an interrupted run has left.
func makeImage(ctx context.Context, image string) error {
	dir := filepath.Dir(image)
	remains, err := filepath.Glob(filepath.Join(dir, "."+filepath.Base(image)+".*"))
	if err != nil {
		return err
	}
	for _, r := range remains {
		if err := os.Remove(r); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("make %s: %w", image, err)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("make %s: %w", image, err)
	}
	f, err := os.CreateTemp(dir, "."+filepath.Base(image)+".")
	if err != nil {
		return fmt.Errorf("make %s: %w", image, err)
	}
	bytes := min(max(int64(st.Blocks)*st.Bsize, leastBytes), mostBytes)
	if err := errors.Join(f.Truncate(bytes), f.Close()); err != nil {
		return fmt.Errorf("make %s: %w", image, errors.Join(err, os.Remove(f.Name())))
	}
	out, err := exec.CommandContext(ctx, "mkfs.xfs", "-q", "-f", "-K", "-m", "reflink=1", "-l", "size="+logSize, f.Name()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make %s: mkfs.xfs: %w: %s", image, errors.Join(err, os.Remove(f.Name())), out)
	}
	if err := os.Rename(f.Name(), image); err != nil {
		return fmt.Errorf("make %s: %w", image, err)
	}
	return nil
}
