package disk

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

// Target is a disk to write.
type Target interface {
	// Bytes is the size of the disk that is written. A larger target keeps what lies behind it.
	Bytes() int64
	// WriteAt writes all of p at offset, or fails.
	WriteAt(ctx context.Context, p []byte, offset int64) error
	// Zero makes e read as zeroes. It writes nothing where e already does, and frees the space of the rest where
	// possible.
	Zero(ctx context.Context, e extent.Extent) error
	// Sync returns when everything written is on stable storage, or, if an NBD server cannot flush, when the server has
	// it.
	Sync(ctx context.Context) error
	// Close releases the disk without a Sync. The qemu-storage-daemon that was started for it has closed its image and
	// ended when Close returns.
	Close() error
}

// TargetOptions say how to write a disk.
type TargetOptions struct {
	// Format is the format of the disk at a path; "" means raw. An NBD export has none.
	Format Format
	// Overwrite allows a target that has content, or may have some: everything but a file that is new, empty or a
	// single hole, and an NBD export that says that it is zero.
	Overwrite bool
	// Larger allows a device or export that is larger than the disk, and lets a larger raw file keep its size. Without
	// it, a raw file gets the disk's size. A qcow2 image always does.
	Larger bool
	// DataBytes is how much data will be written, without holes. A file is refused before anything is created or
	// changed if its file system has no room for that much. 0 means that it is not known.
	DataBytes int64
	// TLS is for an NBD server.
	TLS *tls.Config
	// Layer makes the target a layer over another image; nil: a disk that stands alone.
	Layer *Layer
	// Journal makes the restore resumable. nil means that it is not.
	Journal *Journal
	// Compare lets the target write only blocks that differ from what it has, and counts them. It is not for a qcow2
	// image. nil: everything is written, without reading the target first.
	Compare *Comparison
}

// OpenTarget opens a target for a disk of the given size. spec is the path of a file or block device, or an NBD URI. A
// file that does not exist is created, sparse and accessible to its owner alone. A disk that a guest runs from, or that
// is mounted, is refused.
func OpenTarget(ctx context.Context, spec string, bytes int64, o TargetOptions) (Target, error) {
	if bytes <= 0 {
		return nil, errclass.Errorf(errclass.Invalid, "target %s: a disk of %d bytes", spec, bytes)
	}
	if err := errors.Join(o.Layer.validate(spec, o.Format), o.refuseComparison(spec)); err != nil {
		return nil, err
	}
	t, err := openReadable(ctx, spec, bytes, o)
	if err != nil {
		return nil, err
	}
	if o.Compare != nil {
		return newComparedTarget(t, o.Compare), nil
	}
	return t, nil
}

// openReadable opens a target without a comparison.
func openReadable(ctx context.Context, spec string, bytes int64, o TargetOptions) (readableTarget, error) {
	if IsURI(spec) {
		return openNBDTarget(ctx, spec, bytes, o)
	}
	path, err := absolutePath(spec, o.Format)
	if err != nil {
		return nil, err
	}
	info, err := statTarget(path)
	if err == nil && (info == nil || info.Mode().IsRegular()) {
		err = checkRoom(path, info, o.DataBytes)
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

// statTarget returns the info of what is at path, or nil if a file can be created there.
func statTarget(path string) (fs.FileInfo, error) {
	info, err := statDisk(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return info, err
	}
	if strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/dev/shm/") {
		return nil, errclass.Errorf(ErrNotFound, "there is no device %s: check its name; no file is created in /dev", path)
	}
	if link, err := os.Lstat(path); err == nil && link.Mode().Type() == fs.ModeSymlink {
		return nil, errclass.Errorf(ErrNotFound, "%s is a link to nowhere: remove it or create what it leads to", path)
	}
	return nil, nil //nolint:nilnil // nothing there is no error
}

// checkFits compares the size of a target that cannot change its size with the disk's.
func checkFits(name string, has, bytes int64, larger bool) error {
	switch {
	case has < bytes:
		return errclass.Errorf(errclass.Invalid, "target %s has %d bytes, too few for a disk of %d bytes: choose a larger one", name, has, bytes)
	case has > bytes && !larger:
		return errclass.Errorf(ErrLargerTarget, "target %s has %d bytes, more than the disk's %d: choose another target, or allow a larger target, whose rest stays as it is", name, has, bytes)
	}
	return nil
}

// errOccupied returns the error for a target that has content.
func errOccupied(name, what, journal string) error {
	if journal != "" {
		what += "; " + journal
	}
	return errclass.Errorf(ErrHasContent, "target %s %s: choose another target, or overwrite this one", name, what)
}
