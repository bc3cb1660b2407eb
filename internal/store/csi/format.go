package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
)

// formatBlank makes a file system on a volume that nobody has ever written: the disk has no extent of its head, and the
// volume is no clone. A signature proves less, because what it does not know looks blank.
func (d *Driver) formatBlank(ctx context.Context, on diskset.Disk, head disk.Object, device string) error {
	if head.Parent != "" {
		return nil
	}
	if err := syncDevice(device); err != nil {
		return err
	}
	for _, err := range on.Changed(ctx, head.Name, "") {
		if err != nil {
			return fmt.Errorf("look whether the volume is blank: %w", err)
		}
		return nil // it has data
	}
	d.log.Info("make a file system", "volume", head.UID, "device", device)
	err := d.makeFileSystem(ctx, device)
	if err == nil {
		return syncDevice(device)
	}
	// Half a file system would look like data at the next call.
	return errors.Join(err, discardAll(device, head.Bytes))
}

// makeFileSystem runs mkfs.ext4: this process's own, or the node's.
func (d *Driver) makeFileSystem(ctx context.Context, device string) error {
	// The volume is blank, so the inode tables and the journal need no zeroes.
	args := []string{"-q", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"}
	program, err := exec.LookPath("mkfs.ext4")
	var chroot string
	if err != nil && d.options.HostRoot != "" {
		chroot, program = d.options.HostRoot, "/usr/sbin/mkfs.ext4"
		if _, err = os.Stat(filepath.Join(chroot, program)); err == nil {
			device = filepath.Join("/dev", filepath.Base(device))
		}
	}
	if err != nil {
		return fmt.Errorf("find mkfs.ext4: %w: install e2fsprogs on the node", err)
	}
	cmd := exec.CommandContext(ctx, program, append(args, device)...)
	if chroot != "" {
		cmd.SysProcAttr, cmd.Dir = &syscall.SysProcAttr{Chroot: chroot}, "/"
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make a file system on %s: %w: %.500s", device, err, out)
	}
	return nil
}

// syncDevice writes what is cached for a device to its file.
func syncDevice(device string) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// discardAll makes a device blank.
func discardAll(device string, bytes int64) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, bytes)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("remove half a file system from %s: %w", device, err)
	}
	return nil
}
