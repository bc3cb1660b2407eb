package disk

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/varvebackup/varve/internal/extent"
)

// Target is a disk to write.
type Target interface {
	// Bytes is the size of the disk that is written; what is behind it on a larger target stays as it is.
	Bytes() int64
	// WriteAt writes all of p at offset, or fails.
	WriteAt(ctx context.Context, p []byte, offset int64) error
	// Zero makes e read as zeroes. Where it does already, nothing is written; the rest takes no space afterwards where that can be had.
	Zero(ctx context.Context, e extent.Extent) error
	// Sync returns when everything written is on stable storage; on an NBD server that cannot flush, when it has it.
	Sync(ctx context.Context) error
	// Close releases the disk. It is no Sync. A qemu-nbd that was started for it has closed its image and ended then.
	Close() error
}

// TargetOptions say how to write a disk.
type TargetOptions struct {
	// Format of what a path leads to; "": raw. An NBD export has none.
	Format Format
	// Overwrite allows a target that has content, or may have: everything but a file that is new, empty or one hole, and an NBD export that
	// says that it is zero.
	Overwrite bool
	// Larger allows a device or export that is larger than the disk. A raw file that is larger stays so; otherwise it gets the disk's
	// size, as a qcow2 image always does.
	Larger bool
	// DataBytes is how much data will be written, all but holes. A file whose file system has no room for it is refused before anything is
	// made or changed. 0: not known.
	DataBytes int64
	// TLS is for an NBD server.
	TLS *tls.Config
	// Journal makes the restore resumable. nil: it is not.
	Journal *Journal
}

// OpenTarget opens what spec names to write a disk of so many bytes to it: the path of a file or block device, or an NBD URI. A file that is
// not there is created, sparse and for its owner alone. A disk that a guest runs from, or that is mounted, is refused.
func OpenTarget(ctx context.Context, spec string, bytes int64, o TargetOptions) (Target, error) {
	if bytes <= 0 {
		return nil, errorf(ErrInvalid, "target %s: a disk of %d bytes", spec, bytes)
	}
	if IsURI(spec) {
		return openNBDTarget(ctx, spec, bytes, o)
	}
	path, err := located(spec, o.Format)
	if err != nil {
		return nil, err
	}
	info, err := statTarget(path)
	if err == nil && (info == nil || info.Mode().IsRegular()) {
		err = room(path, info, o.DataBytes)
	}
	switch {
	case err != nil:
		return nil, err
	case o.Format == QCOW2:
		return openQCOW2Target(ctx, path, info, bytes, o)
	case info != nil && !info.Mode().IsRegular():
		return openDeviceTarget(path, bytes, o)
	}
	return openFileTarget(path, bytes, o)
}

// statTarget says what is at path; nil if a file can be created there.
func statTarget(path string) (fs.FileInfo, error) {
	info, err := statDisk(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return info, err
	}
	if strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/dev/shm/") {
		return nil, errorf(ErrNotFound, "there is no device %s: check its name; no file is created in /dev", path)
	}
	if link, err := os.Lstat(path); err == nil && link.Mode().Type() == fs.ModeSymlink {
		return nil, errorf(ErrNotFound, "%s is a link to nowhere: remove it or create what it leads to", path)
	}
	return nil, nil //nolint:nilnil // nothing there is no error
}

// fits compares the sizes of a target that has one and of the disk.
func fits(name string, has, bytes int64, larger bool) error {
	switch {
	case has < bytes:
		return errorf(ErrInvalid, "target %s has %d bytes, too few for a disk of %d bytes: choose a larger one", name, has, bytes)
	case has > bytes && !larger:
		return errorf(ErrInvalid, "target %s has %d bytes, more than the disk's %d: allow a larger target, whose rest then stays as it is", name, has, bytes)
	}
	return nil
}

// occupied is the refusal of a target that has content.
func occupied(name, what, journal string) error {
	if journal != "" {
		what += "; " + journal
	}
	return errorf(ErrConflict, "target %s %s: choose another target, or allow to overwrite it", name, what)
}
