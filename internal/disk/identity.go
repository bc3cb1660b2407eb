package disk

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// identity is what Source.Identity returns. certain means that no other disk gets the same name.
type identity struct {
	name    string
	certain bool
}

// identityOf returns the identity of an open file or block device.
func identityOf(f *os.File) (identity, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return identity{}, fmt.Errorf("identify %s: %w", f.Name(), os.NewSyscallError("statx", err))
	}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return deviceIdentity("/", st.Rdev_major, st.Rdev_minor)
	}
	name := fmt.Sprintf("file:%d:%d:%d", st.Dev_major, st.Dev_minor, st.Ino)
	if st.Mask&unix.STATX_BTIME != 0 { // Inode numbers are reused.
		name += fmt.Sprintf(":%d.%09d", st.Btime.Sec, st.Btime.Nsec)
	}
	return identity{name: name, certain: true}, nil
}

// pathIdentity returns the identity of what is at path.
func pathIdentity(path string) (identity, error) {
	f, err := os.Open(path)
	if err != nil {
		return identity{}, err
	}
	id, err := identityOf(f)
	return id, errors.Join(err, f.Close())
}

// deviceIdentity names the block device with this number, on the system whose / is root.
func deviceIdentity(root string, major, minor uint32) (identity, error) {
	number := fmt.Sprintf("%d:%d", major, minor)
	sys, err := filepath.EvalSymlinks(filepath.Join(root, "sys/dev/block", number))
	if errors.Is(err, fs.ErrNotExist) {
		return identity{name: "device:" + number}, nil
	}
	if err != nil {
		return identity{}, err
	}
	name, err := byID(filepath.Join(root, "dev/disk/by-id"), filepath.Base(sys))
	if err != nil {
		return identity{}, err
	}
	if name = cmp.Or(name, sysfsSerial(sys)); name == "" {
		return identity{name: "device:" + number}, nil
	}
	return identity{name: "device:" + name, certain: true}, nil
}

// kinds are the prefixes of names in /dev/disk/by-id, in order of preference: a name that is unique in the world comes
// before one that somebody assigned. Names that come from the content of the disk are left out, because a copy has them
// too.
var kinds = []string{"dm-uuid-", "md-uuid-", "wwn-", "nvme-eui.", "nvme-uuid.", "scsi-", "nvme-", "ata-", "virtio-", "usb-", ""}

// byID returns the best name in dir that leads to the device, or "" if there is none.
func byID(dir, device string) (string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var names []string
	for _, e := range entries { // in order of their names
		if strings.HasPrefix(e.Name(), "lvm-pv-uuid-") {
			continue
		}
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && filepath.Base(to) == device {
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 {
		return "", nil
	}
	return slices.MinFunc(names, func(a, b string) int { return nameRank(a) - nameRank(b) }), nil
}

func nameRank(name string) int {
	return slices.IndexFunc(kinds, func(k string) bool { return strings.HasPrefix(name, k) })
}

// sysfsSerial returns what sysfs says about the device in this directory, or "" if nothing.
func sysfsSerial(sys string) string {
	if part := readSysfs(sys, "partition"); part != "" {
		if disk := sysfsSerial(filepath.Dir(sys)); disk != "" {
			return disk + "-part" + part
		}
		return ""
	}
	for _, file := range []string{"dm/uuid", "wwid", "device/wwid", "device/serial", "serial"} {
		if text := readSysfs(sys, file); text != "" {
			return text
		}
	}
	return ""
}

// readSysfs returns the content of a file in sysfs, or "" if it cannot be read.
func readSysfs(sys, file string) string {
	b, err := os.ReadFile(filepath.Join(sys, file))
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(string(b)), "_")
}
