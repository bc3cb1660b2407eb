package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/durable"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/diskset"
)

// formatBlank makes a file system on a volume that nobody has ever written: the disk has no extent of its head. So it
// formats a clone of a blank volume, and no other clone. A signature proves less, because what it does not know looks
// blank. A file among the driver's own says that a file system is being made: what a crash leaves of one is discarded
// at the next call.
func (d *Driver) formatBlank(ctx context.Context, on diskset.Disk, head disk.Object, device string) error {
	if err := d.discardUnfinished(head, device); err != nil {
		return err
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
	if err := d.noteFormat(string(head.UID)); err != nil {
		return err
	}
	err := d.makeFileSystem(ctx, device)
	if err == nil {
		err = syncDevice(device)
	}
	if err != nil {
		return errors.Join(err, d.discardUnfinished(head, device))
	}
	return d.forgetFormat(string(head.UID))
}

// formatNote returns the file that is there while a volume's file system is being made.
func (d *Driver) formatNote(handle string) string {
	return filepath.Join(filepath.Dir(d.options.Socket()), "formatting", handle)
}

func (d *Driver) noteFormat(handle string) error {
	note := d.formatNote(handle)
	err := os.MkdirAll(filepath.Dir(note), 0o750)
	if err == nil {
		err = durable.Write(note, nil)
	}
	if err == nil {
		err = durable.Sync(filepath.Dir(filepath.Dir(note)))
	}
	if err != nil {
		return fmt.Errorf("note that the volume %s is being formatted: %w", handle, err)
	}
	return nil
}

// forgetFormat comes before the volume is used: what is written from then on is never discarded.
func (d *Driver) forgetFormat(handle string) error {
	note := d.formatNote(handle)
	if _, err := os.Lstat(note); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := durable.Remove(note); err != nil {
		return fmt.Errorf("note that the volume %s is formatted: %w", handle, err)
	}
	return nil
}

// discardUnfinished makes a volume blank if its file system was not finished.
func (d *Driver) discardUnfinished(head disk.Object, device string) error {
	note := d.formatNote(string(head.UID))
	_, err := os.Lstat(note)
	if errors.Is(err, fs.ErrNotExist) {
		return skipMissing(durable.Sync(filepath.Dir(note))) // or a crash could bring a removed note back
	}
	if err == nil {
		d.log.Info("remove a file system that was not finished", "volume", head.UID, "device", device)
		err = discardAll(device, head.Bytes)
	}
	if err != nil {
		return err
	}
	return d.forgetFormat(string(head.UID))
}

// makeFileSystem runs mkfs.ext4.
func (d *Driver) makeFileSystem(ctx context.Context, device string) error {
	// The volume is blank, so the inode tables and the journal need no zeroes.
	err := d.runTool(ctx, 0, device, "mkfs.ext4", "-q", "-m", "0", "-E",
		"nodiscard,lazy_itable_init=1,lazy_journal_init=1")
	if err != nil {
		return fmt.Errorf("make a file system on %s: %w", device, err)
	}
	return nil
}

// runTool runs a program of e2fsprogs on a device: this process's own, or the node's. Exit codes from 0 to highest are
// success.
func (d *Driver) runTool(ctx context.Context, highest int, device, tool string, args ...string) error {
	program, err := exec.LookPath(tool)
	var chroot string
	if err != nil && d.options.HostRoot != "" {
		chroot, program = d.options.HostRoot, filepath.Join("/usr/sbin", tool)
		if _, err = os.Stat(filepath.Join(chroot, program)); err == nil {
			device = filepath.Join("/dev", filepath.Base(device))
		}
	}
	if err != nil {
		return fmt.Errorf("find %s: %w: install e2fsprogs on the node", tool, err)
	}
	cmd := exec.CommandContext(ctx, program, append(args, device)...)
	if chroot != "" {
		cmd.SysProcAttr, cmd.Dir = &syscall.SysProcAttr{Chroot: chroot}, "/"
	}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() && exit.ExitCode() <= highest {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %.500s", tool, err, out)
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
