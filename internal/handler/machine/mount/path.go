package mount

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// ErrUnsafePath says that a path below the pods directory has a symbolic link, leaves the directory, or is not of
// the kind that it must be. An attack by a launcher looks like this. Such a path is never followed.
var ErrUnsafePath = errors.New("path is not safe to follow")

// maxName is the length of the longest file name that Linux accepts, in bytes.
const maxName = 255

// checkElement checks that name is a single path element, so that joining it cannot lead elsewhere.
func checkElement(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > maxName || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%w: %q is not a file name", ErrUnsafePath, name)
	}
	return nil
}

// openBelow opens a path below dir as a handle (O_PATH), without following any symbolic link.
func openBelow(dir int, rel string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	return openHow(dir, rel, &how)
}

// openHow opens a path below dir.
func openHow(dir int, rel string, how *unix.OpenHow) (*os.File, error) {
	for {
		fd, err := unix.Openat2(dir, rel, how)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			// EAGAIN: a rename or mount raced with the lookup (openat2(2)); look again.
			continue
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
			return nil, fmt.Errorf("%w: %s: %w", ErrUnsafePath, rel, err)
		case err != nil:
			return nil, &os.PathError{Op: "openat2", Path: rel, Err: err}
		}
		return os.NewFile(uintptr(fd), rel), nil
	}
}

// openDir is openBelow for a directory.
func openDir(dir *os.File, rel string) (*os.File, error) {
	return openBelow(fdOf(dir), rel, unix.O_DIRECTORY)
}

func fdOf(f *os.File) int { return int(f.Fd()) }

// procPath returns a path to an open file for system calls that take no descriptor. The path is a magic link of
// this process, so nobody else can redirect it.
func procPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(fdOf(f)) }

// joinBelow joins elements relative to the pod's directory, after checking that the pod's UID is a single element.
func joinBelow(pod types.UID, rest ...string) (string, error) {
	if err := checkElement(string(pod)); err != nil {
		return "", fmt.Errorf("pod UID: %w", err)
	}
	return path.Join(append([]string{string(pod)}, rest...)...), nil
}
