package mount

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func statx(f *os.File) (unix.Statx_t, error) {
	var s unix.Statx_t
	if err := unix.Statx(fdOf(f), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_TYPE, &s); err != nil {
		return s, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	return s, nil
}

// isMountRoot reports whether the directory is the root of a mount.
func isMountRoot(f *os.File) (bool, error) {
	s, err := statx(f)
	return s.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, err
}

// isTmpfsMount reports whether the directory is the root of a mounted tmpfs.
func isTmpfsMount(f *os.File) (bool, error) {
	mounted, err := isMountRoot(f)
	if err != nil || !mounted {
		return false, err
	}
	var s unix.Statfs_t
	if err := unix.Fstatfs(fdOf(f), &s); err != nil {
		return false, fmt.Errorf("stat the file system of %s: %w", f.Name(), err)
	}
	return s.Type == unix.TMPFS_MAGIC, nil
}

// compareMounts reports whether anything is mounted at target, and whether that is the directory source.
func compareMounts(target, source *os.File) (mounted, same bool, err error) {
	t, err := statx(target)
	if err != nil {
		return false, false, err
	}
	s, err := statx(source)
	if err != nil {
		return false, false, err
	}
	mounted = t.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	same = mounted && t.Ino == s.Ino && t.Dev_major == s.Dev_major && t.Dev_minor == s.Dev_minor
	return mounted, same, nil
}
