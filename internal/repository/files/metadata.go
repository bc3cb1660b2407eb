package files

import (
	"fmt"
	iofs "io/fs"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/kopia/kopia/snapshot"
	"golang.org/x/sys/unix"
)

// metadata is what a file has beside its content.
type metadata struct {
	symlink  bool
	uid, gid int
	mode     uint32
	mtime    unix.Timespec
	xattrs   map[string][]byte
}

// metadataOf returns what is known of a file. e is nil for a special file.
func metadataOf(e *snapshot.DirEntry, a *record) metadata {
	if s := a.Special; s != nil {
		return metadata{uid: int(s.UID), gid: int(s.GID), mode: s.Mode & 0o7777, mtime: unix.Timespec{Sec: s.Mtime[0], Nsec: s.Mtime[1]}, xattrs: a.Xattrs}
	}
	m := metadata{
		symlink: e.Type == snapshot.EntryTypeSymlink, uid: int(e.UserID), gid: int(e.GroupID), mode: kernelMode(iofs.FileMode(e.Permissions)),
		mtime: timespec(e.ModTime.ToTime()), xattrs: a.Xattrs,
	}
	if a.Mtime != nil {
		m.mtime = unix.Timespec{Sec: a.Mtime[0], Nsec: a.Mtime[1]}
	}
	return m
}

func timespec(t time.Time) unix.Timespec {
	return unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}

func baseOf(p string) string { return path.Base(p) }

// setMetadata gives what is called name in an open directory its owner, permissions, attributes and time of modification. The order
// matters: a new owner takes away bits and capabilities, and a list of access rights has its own permissions.
func setMetadata(fd int, name string, m metadata) error {
	if err := unix.Fchownat(fd, name, m.uid, m.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set the owner to %d:%d: %w", m.uid, m.gid, err)
	}
	if !m.symlink {
		if err := unix.Fchmodat(fd, name, m.mode, 0); err != nil {
			return fmt.Errorf("set the permissions to %o: %w", m.mode, err)
		}
	}
	at := procPath(fd, name)
	for _, encoded := range slices.Sorted(maps.Keys(m.xattrs)) {
		x, err := unescape(encoded)
		if err == nil {
			err = unix.Lsetxattr(at, x, m.xattrs[encoded], 0)
		}
		if err != nil {
			return fmt.Errorf("set extended attribute %s: %w", encoded, err)
		}
	}
	return setTime(fd, name, m.mtime)
}

// setTime sets the time of modification, and leaves that of access.
func setTime(fd int, name string, mtime unix.Timespec) error {
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, mtime}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd, name), times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set the time of modification: %w", err)
	}
	return nil
}
