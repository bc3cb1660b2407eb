package files

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
)

const (
	// stagingPrefix and a restore point's ID are the name of the directory, in the root, in which files are made until they are
	// complete. It is there until everything is.
	stagingPrefix = ".varve-restore-"
	// markerXattr is on the root from the beginning to the end of a restore, with the restore point's ID, if the file system has such
	// attributes. It tells a complete restore from one that has only the root's time of modification left to do.
	markerXattr = "user.varve.restore"
	// bootFile is in the staging directory and has the ID of the kernel's start under which the restore ran.
	bootFile = "boot"
	// partPrefix begins the names of incomplete files, and linkPrefix those of complete ones that have several names.
	partPrefix = "part-"
	linkPrefix = "link-"
	lostFound  = "lost+found"
)

// staging is the directory in which files are made.
type staging struct {
	volume *volume
	name   string
	fd     int
	// doubtful says that the machine may have lost what an earlier attempt has written: it was another one, or has started since.
	doubtful bool
	parts    atomic.Int64
}

// beginStaging makes the directory, or finds that of an interrupted restore of the same restore point. A volume with anything else
// in it is errclass.Conflict.
func beginStaging(v *volume, id string) (*staging, error) {
	s := &staging{volume: v, name: stagingPrefix + id, fd: -1}
	err := v.inDir(rootPath, func(fd int) error { return s.begin(fd, id) })
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *staging) begin(root int, id string) error {
	names, err := readNames(root)
	if err != nil {
		return err
	}
	marked, _ := readGrowing(func(buf []byte) (int, error) { return unix.Fgetxattr(root, markerXattr, buf) })
	continued := string(marked) == id
	var others []string
	for _, n := range names {
		switch {
		case n == s.name:
			continued = true
		case n != lostFound:
			others = append(others, n)
		}
	}
	if len(others) > 0 && !continued {
		return errNotEmpty(others)
	}
	if err := unix.Fsetxattr(root, markerXattr, []byte(id), 0); err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("mark the directory: %w", err)
	}
	if err := openUp(root); err != nil {
		return err
	}
	if err := unix.Mkdirat(root, s.name, 0o700); err != nil && !errors.Is(err, iofs.ErrExist) {
		return fmt.Errorf("make %s: %w", s.name, err)
	}
	if s.fd, err = openBeneath(root, s.name); err != nil {
		return fmt.Errorf("open %s: %w", s.name, err)
	}
	if err := s.compareBoot(continued); err != nil {
		return err
	}
	return s.removeParts()
}

func errNotEmpty(others []string) error {
	for _, n := range others {
		if id, ok := strings.CutPrefix(n, stagingPrefix); ok {
			return fmt.Errorf("%w: the directory has what an interrupted restore of restore point %s has left", errclass.Conflict, id)
		}
	}
	return fmt.Errorf("%w: the directory is not empty: it has %q", errclass.Conflict, others[0])
}

// removeParts removes what is half done, or may be.
func (s *staging) removeParts() error {
	names, err := readNames(s.fd)
	for _, n := range names {
		if strings.HasPrefix(n, partPrefix) || s.doubtful && strings.HasPrefix(n, linkPrefix) {
			err = errors.Join(err, unix.Unlinkat(s.fd, n, 0))
		}
	}
	return err
}

// compareBoot finds out whether what is there can be trusted, and notes this start of the kernel.
func (s *staging) compareBoot(continued bool) error {
	now, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	f, err := unix.Openat(s.fd, bootFile, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(f), bootFile)
	defer file.Close() //nolint:errcheck // Sync says what went wrong
	before := make([]byte, len(now))
	n, _ := file.ReadAt(before, 0)
	s.doubtful = continued && string(before[:n]) != string(now)
	if s.doubtful {
		return nil // It stays so until the restore is complete.
	}
	if _, err := file.WriteAt(now, 0); err != nil {
		return err
	}
	return file.Sync()
}

// newPart returns a new name for an incomplete file.
func (s *staging) newPart() string { return fmt.Sprintf("%s%d", partPrefix, s.parts.Add(1)) }

// remove removes the directory.
func (s *staging) remove() error {
	names, err := readNames(s.fd)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := unix.Unlinkat(s.fd, n, 0); err != nil {
			return fmt.Errorf("remove %s from %s: %w", n, s.name, err)
		}
	}
	return s.volume.inDir(rootPath, func(fd int) error { return unix.Unlinkat(fd, s.name, unix.AT_REMOVEDIR) })
}

func (s *staging) removeMarker(root int) error {
	err := unix.Fremovexattr(root, markerXattr)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}

// Close closes the directory, and leaves it.
func (s *staging) Close() error {
	if s.fd < 0 {
		return nil
	}
	fd := s.fd
	s.fd = -1
	return unix.Close(fd)
}

// sync makes the whole file system durable.
func (v *volume) sync() error {
	if err := unix.Syncfs(int(v.root.Fd())); err != nil {
		return os.NewSyscallError("syncfs", err)
	}
	return nil
}
