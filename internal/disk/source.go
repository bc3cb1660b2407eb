package disk

import (
	"context"
	"crypto/tls"
	"path/filepath"
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
)

// Format is the format of a disk in a file or on a device.
type Format string

// The formats.
const (
	Raw   Format = "raw"
	QCOW2 Format = "qcow2"
)

// granuleBytes is the unit of Data and Changes. It bounds the number of extents; no reader gains from smaller ones.
const granuleBytes = 64 << 10

// Source is a disk to read.
type Source interface {
	// Bytes is the disk's size.
	Bytes() int64
	// ReadAt fills p from offset on, or fails.
	ReadAt(ctx context.Context, p []byte, offset int64) error
	// Data returns the bytes that may be nonzero, in whole granules of 64 KiB, or nil if that is not known.
	Data(ctx context.Context) (*extent.Set, error)
	// Changes returns the bytes that the bitmap marks as changed, in whole granules of 64 KiB, or nil if no bitmap was
	// asked for.
	Changes(ctx context.Context) (*extent.Set, error)
	// Identity stays the same as long as it is the same disk, whatever the disk holds, as far as can be told:
	//
	//   - A file ("file:..."), raw or qcow2, has its device number, inode number and creation time. A file that was moved
	//     within its file system is the same. A copy is another one, and so is a file on a file system that was mounted
	//     under another device number (NFS, after a reboot). A file that was overwritten in place is the same. The backing
	//     files of a qcow2 image are part of its identity, with the time of their last write.
	//   - A block device ("device:...") has its name in /dev/disk/by-id, or the serial number in sysfs. One without either
	//     has its device number, which another disk may get when this one is gone.
	//   - An NBD export ("nbd...") has its URI. What the server serves there is not known.
	Identity() string
	// Close releases the disk. The qemu-storage-daemon that was started for it has ended when Close returns.
	Close() error
}

// SourceOptions say how to read a disk.
type SourceOptions struct {
	// Format is the format of the disk at a path; "" means raw. An NBD export has none.
	Format Format
	// Bitmap is the name of the QEMU dirty bitmap that Changes comes from: in a qcow2 image, or on an NBD server
	// (qemu:dirty-bitmap:NAME). Only the caller can know whether it has recorded everything since some point in time. A
	// bitmap in an image must be consistent, enabled, and the image's own. QEMU's NBD server, however, also offers the
	// bitmaps of backing files, which have nothing of what was written above them.
	Bitmap string
	// Backing lists the backing files of a qcow2 image, from the image down. An image that names another backing file,
	// or one that is not listed here, is refused: whoever made it could have named any file of this host.
	Backing []BackingFile
	// IgnoreLocks reads a raw disk even while a virtual machine writes it, or while it is mounted. What is read then
	// belongs to no point in time, unless the caller knows that the writer is paused and has written everything.
	IgnoreLocks bool
	// TLS is for an NBD server.
	TLS *tls.Config
}

// OpenSource opens the disk that spec names: the path of a file or block device, or an NBD URI.
func OpenSource(ctx context.Context, spec string, o SourceOptions) (Source, error) {
	if IsURI(spec) {
		if len(o.Backing) > 0 || o.IgnoreLocks {
			return nil, errclass.Errorf(ErrArgument, "%s: an NBD export has neither backing files nor locks", spec)
		}
		return openNBDSource(ctx, spec, o)
	}
	path, err := absolutePath(spec, o.Format)
	switch {
	case err != nil:
		return nil, err
	case o.Format == QCOW2 && o.IgnoreLocks:
		return nil, errclass.Errorf(ErrArgument, "disk %s: the locks of a qcow2 image cannot be ignored: a virtual machine that has it open keeps a part of it in memory; read an NBD export of it", spec)
	case o.Format == QCOW2:
		return openQCOW2Source(ctx, path, o)
	case len(o.Backing) > 0:
		return nil, errclass.Errorf(ErrArgument, "disk %s: a raw disk has no backing file", spec)
	case o.Bitmap != "":
		return nil, errclass.Errorf(ErrArgument, "bitmap %s of %s: a raw disk has no bitmaps; read it from a qcow2 image or an NBD export", o.Bitmap, spec)
	}
	return openFileSource(path, o.IgnoreLocks)
}

// IsURI reports whether spec is an NBD URI. A path that looks like one can be written with ./ before it.
func IsURI(spec string) bool {
	scheme, _, ok := strings.Cut(spec, "://")
	return ok && (scheme == "nbd" || scheme == "nbds" || scheme == "nbd+unix" || scheme == "nbds+unix")
}

// absolutePath returns the absolute path for spec, and refuses a spec whose format is in doubt. The path is absolute because
// QEMU's programs take what precedes a colon for a protocol, and a dash for an option.
func absolutePath(spec string, format Format) (string, error) {
	switch {
	case spec == "":
		return "", errclass.Errorf(ErrArgument, "no disk is named: give a path or an NBD URI")
	case format != "" && format != Raw && format != QCOW2:
		return "", errclass.Errorf(ErrArgument, "disk %s: format %q is none of raw, qcow2", spec, format)
	case format == "" && strings.EqualFold(filepath.Ext(spec), ".qcow2"):
		return "", errclass.Errorf(ErrArgument, "disk %s: say whether its format is qcow2 or raw: it is never guessed", spec)
	}
	return filepath.Abs(spec)
}

// uriTarget returns the export that a URI names.
func uriTarget(uri string, format Format) (nbd.Target, error) {
	if format != "" && format != Raw {
		return nbd.Target{}, errclass.Errorf(ErrArgument, "%s: an NBD export has no format: omit %q", uri, format)
	}
	t, err := nbd.ParseURI(uri)
	if err != nil {
		return nbd.Target{}, errclass.Errorf(ErrArgument, "%w", err)
	}
	return t, nil
}
