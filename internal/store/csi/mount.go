package csi

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
)

// mountFlags are the options of mount(8) that the kernel takes as flags. All others go to the file system as text.
var mountFlags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
	"strictatime": unix.MS_STRICTATIME, "lazytime": unix.MS_LAZYTIME, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV,
	"noexec": unix.MS_NOEXEC, "sync": unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC,
}

// mountOptions splits options into flags and text. Space that files free goes back to the disk unless nodiscard is set.
func mountOptions(options []string) (flags uintptr, data string) {
	var text []string
	for _, option := range options {
		switch flag, ok := mountFlags[option]; {
		case ok:
			flags |= flag
		case option != "" && option != "rw" && option != "defaults":
			text = append(text, option)
		}
	}
	if !slices.Contains(text, "discard") && !slices.Contains(text, "nodiscard") {
		text = append(text, "discard")
	}
	return flags, strings.Join(text, ",")
}

// findMount returns the last mount at a path, or nil.
func findMount(path string) (*mountinfo.Info, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // nothing is mounted where nothing is
	}
	if err != nil {
		return nil, fmt.Errorf("look for a mount at %s: %w", path, err)
	}
	all, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(resolved))
	if err != nil {
		return nil, fmt.Errorf("look for a mount at %s: %w", path, err)
	}
	if len(all) == 0 {
		return nil, nil //nolint:nilnil // nothing is mounted
	}
	return all[len(all)-1], nil
}

// findDeviceMount returns where the file system of a device is mounted, or nothing. The file of a device that is bound
// somewhere does not count.
func findDeviceMount(device string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return "", fmt.Errorf("identify %s: %w", device, err)
	}
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		found := unix.Mkdev(uint32(m.Major), uint32(m.Minor)) == st.Rdev
		return !found, found
	})
	if err != nil {
		return "", fmt.Errorf("look for a mount of %s: %w", device, err)
	}
	if len(all) == 0 {
		return "", nil
	}
	return all[0].Mountpoint, nil
}

// checkMount returns an error of class Conflict if a mount is not that of a device's file system.
func checkMount(there *mountinfo.Info, device string) error {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return fmt.Errorf("identify %s: %w", device, err)
	}
	if unix.Mkdev(uint32(there.Major), uint32(there.Minor)) != st.Rdev {
		return errclass.Errorf(errclass.Conflict, "%s is mounted at %s, where %s is to be: unmount it", there.Source,
			there.Mountpoint, device)
	}
	return nil
}

// checkBoundDevice returns an error of class Conflict if a file is not the device that is to be bound to it.
func checkBoundDevice(path, device string) error {
	var st, wanted unix.Stat_t
	if err := errors.Join(unix.Stat(path, &st), unix.Stat(device, &wanted)); err != nil {
		return fmt.Errorf("compare %s with %s: %w", path, device, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != wanted.Rdev {
		return errclass.Errorf(errclass.Conflict, "something else than %s is mounted at %s: unmount it", device, path)
	}
	return nil
}

// bindMount shows a file or a directory at another path.
func bindMount(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, target, err)
	}
	return nil
}

// makeReadOnly makes a mount read-only, and leaves others of the file system as they are. The mount's other flags stay.
func makeReadOnly(target string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil {
		return fmt.Errorf("read the options of the mount at %s: %w", target, err)
	}
	const kept = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME | unix.MS_RELATIME
	flags := uintptr(st.Flags)&kept | unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY
	if err := unix.Mount("", target, "", flags, ""); err != nil {
		return fmt.Errorf("make the mount at %s read-only: %w", target, err)
	}
	return nil
}

// unmountAll removes every mount from a path, which need not exist.
func unmountAll(path string) error {
	for {
		there, err := findMount(path)
		if err != nil || there == nil {
			return err
		}
		if err := unix.Unmount(path, 0); err != nil {
			if errors.Is(err, unix.EBUSY) {
				return errclass.Errorf(errclass.Transient, "unmount %s: a program uses it: end it", path)
			}
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}
