package files

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
)

// maxStepBytes is the longest path that is handed to the kernel at once. It takes 4096 bytes, with the zero at the end.
const maxStepBytes = 4000

// volume is a directory whose content is read or written. Paths in it are not encoded, and relative to it.
type volume struct {
	root *os.File
}

func openVolume(dir string) (*volume, error) {
	f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	return &volume{root: f}, nil
}

func (v *volume) Close() error { return v.root.Close() }

// openDir opens a directory. It follows no symbolic link and enters no other mount.
func (v *volume) openDir(path string) (int, error) {
	at, steps := int(v.root.Fd()), splitPath(path)
	for i, step := range steps {
		next, err := openBeneath(at, step)
		if i > 0 {
			_ = unix.Close(at)
		}
		if errors.Is(err, unix.EXDEV) {
			err = fmt.Errorf("%w: another file system is mounted there", errclass.Invalid)
		}
		if err != nil {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		at = next
	}
	return at, nil
}

func openBeneath(at int, path string) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	for {
		fd, err := unix.Openat2(at, path, &how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// splitPath cuts a path into pieces that the kernel takes.
func splitPath(path string) (steps []string) {
	for len(path) > maxStepBytes {
		end := strings.LastIndexByte(path[:maxStepBytes], '/')
		if end <= 0 {
			break // No name is that long; the kernel says so.
		}
		steps = append(steps, path[:end])
		path = path[end+1:]
	}
	return append(steps, path)
}

// inDir calls do with the open directory.
func (v *volume) inDir(path string, do func(fd int) error) error {
	fd, err := v.openDir(path)
	if err != nil {
		return err
	}
	return errors.Join(do(fd), unix.Close(fd))
}

// readNames returns the names in an open directory, in any order.
func readNames(fd int) ([]string, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(own), "directory")
	defer f.Close() //nolint:errcheck // it only reads
	if _, err := f.Seek(0, 0); err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	return names, err
}

// lstat returns the status of a name in an open directory.
func lstat(fd int, name string) (st unix.Stat_t, err error) {
	for {
		if err = unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); !errors.Is(err, unix.EINTR) {
			return st, err
		}
	}
}

// procPath names what is called name in an open directory, for system calls that take no directory.
func procPath(fd int, name string) string {
	return "/proc/self/fd/" + strconv.Itoa(fd) + "/" + name
}

// openFile opens a regular file for reading. It leaves the time of access alone if it may.
func (v *volume) openFile(dir, name string) (f *os.File, err error) {
	err = v.inDir(dir, func(fd int) error {
		const flags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK
		file, err := unix.Openat(fd, name, flags|unix.O_NOATIME, 0)
		if errors.Is(err, unix.EPERM) {
			file, err = unix.Openat(fd, name, flags, 0)
		}
		if err != nil {
			return &fs.PathError{Op: "open", Path: joinPath(dir, name), Err: err}
		}
		f = os.NewFile(uintptr(file), joinPath(dir, name))
		return nil
	})
	return f, err
}

// readLink returns what a symbolic link points to.
func readLink(fd int, name string) (string, error) {
	for size := 256; ; size *= 2 {
		buf := make([]byte, size)
		n, err := unix.Readlinkat(fd, name, buf)
		if err != nil || n < size {
			return string(buf[:max(n, 0)]), err
		}
	}
}

// keptXattr says whether an extended attribute belongs to the content of a volume. The label of SELinux belongs to the node: the
// kubelet sets it when it mounts a volume.
func keptXattr(name string) bool {
	return name != "security.selinux" && name != markerXattr
}

// readXattrs returns the extended attributes that are kept, by encoded name; nil if there are none.
func readXattrs(fd int, name string) (map[string][]byte, error) {
	path := procPath(fd, name)
	names, err := readGrowing(func(buf []byte) (int, error) { return unix.Llistxattr(path, buf) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list extended attributes: %w", err)
	}
	var out map[string][]byte
	for n := range bytes.SplitSeq(names, []byte{0}) {
		if len(n) == 0 || !keptXattr(string(n)) {
			continue
		}
		value, err := readGrowing(func(buf []byte) (int, error) { return unix.Lgetxattr(path, string(n), buf) })
		if errors.Is(err, unix.ENODATA) {
			continue // The list has names that this process may not read: those of trusted.
		}
		if err != nil {
			return nil, fmt.Errorf("read extended attribute %s: %w", n, err)
		}
		if out == nil {
			out = map[string][]byte{}
		}
		out[EncodeName(string(n))] = value
	}
	return out, nil
}

// readGrowing calls read with a buffer that is large enough.
func readGrowing(read func([]byte) (int, error)) ([]byte, error) {
	n, err := read(nil)
	for err == nil && n > 0 {
		buf := make([]byte, n)
		n, err = read(buf)
		if err == nil {
			return buf[:n], nil
		}
		if errors.Is(err, unix.ERANGE) {
			n, err = read(nil)
		}
	}
	return nil, err
}

// fileMode returns the mode of the kernel as Go has it.
func fileMode(mode uint32) fs.FileMode {
	out := fs.FileMode(mode & 0o777)
	for bit, m := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky} {
		if mode&bit != 0 {
			out |= m
		}
	}
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		out |= fs.ModeDir
	case unix.S_IFLNK:
		out |= fs.ModeSymlink
	}
	return out
}

// kernelMode returns the permissions of a mode as the kernel has them.
func kernelMode(mode fs.FileMode) uint32 {
	out := uint32(mode.Perm())
	for bit, m := range map[uint32]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky} {
		if mode&m != 0 {
			out |= bit
		}
	}
	return out
}

// The times that nanoseconds since 1970 in 64 bits can express.
var (
	earliest = time.Unix(0, -1<<63)
	latest   = time.Unix(0, 1<<63-1)
)

// kopiaTime returns a time as kopia can express it. exact is false if that is another time.
func kopiaTime(ts unix.Timespec) (t time.Time, exact bool) {
	t = time.Unix(ts.Sec, ts.Nsec)
	switch {
	case t.Before(earliest):
		return earliest, false
	case t.After(latest):
		return latest, false
	}
	return t, true
}
