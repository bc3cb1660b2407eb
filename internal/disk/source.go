package disk

import (
	"context"
	"crypto/tls"
	"path/filepath"
	"strings"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/nbd"
)

// Format is how a disk is kept in a file or on a device.
type Format string

// The formats.
const (
	Raw   Format = "raw"
	QCOW2 Format = "qcow2"
)

// granuleBytes is the unit of Data and Changes: it bounds the number of extents, and no reader gains from smaller ones.
const granuleBytes = 64 << 10

// Source is a disk to read.
type Source interface {
	// Bytes is the disk's size.
	Bytes() int64
	// ReadAt fills p from offset on, or fails.
	ReadAt(ctx context.Context, p []byte, offset int64) error
	// Data has the bytes that may be other than zero, in whole granules of 64 KiB. nil: it is not known where there are none.
	Data(ctx context.Context) (*extent.Set, error)
	// Changes has the bytes that the bitmap has as changed, in whole granules of 64 KiB. nil: no bitmap was asked for.
	Changes(ctx context.Context) (*extent.Set, error)
	// Identity is the same as long as it is the same disk, whatever it holds, as far as can be told:
	//
	//   - of a file ("file:..."), raw or qcow2, device number, inode number and time of creation. A file that was moved within its file system is the same one, a copy
	//     is another, and so is one on a file system that was mounted under another device number (NFS, after a reboot).
	//     A file that was overwritten in place is the same. Backing files of a qcow2 image are part of it, with the time of their last write.
	//   - of a block device ("device:..."), its name in /dev/disk/by-id, or the serial number in sysfs. One without either has the device
	//     number, which another disk may get when this one is gone.
	//   - of an NBD export ("nbd..."), its URI. What the server has there is not known.
	Identity() string
	// Close releases the disk. A qemu-nbd that was started for it has ended then.
	Close() error
}

// SourceOptions say how to read a disk.
type SourceOptions struct {
	// Format of what a path leads to; "": raw. An NBD export has none.
	Format Format
	// Bitmap is the name of QEMU's dirty bitmap that Changes comes from: in a qcow2 image, or on an NBD server (qemu:dirty-bitmap:NAME).
	// Whether it has recorded everything since some point in time is for the caller to know: of an image it must be the image's own and
	// whole, but QEMU's NBD server also offers the bitmaps of backing files, which have nothing of what was written above them.
	Bitmap string
	// Backing are the backing files of a qcow2 image, from the image down. An image that names another one, or one that is not here, is
	// refused: whoever made it could have named any file of this host.
	Backing []BackingFile
	// IgnoreLocks reads a raw disk although a virtual machine writes it, or it is mounted. What is read is of no point in time then,
	// unless the caller knows that the writer stands still and has written everything.
	IgnoreLocks bool
	// TLS is for an NBD server.
	TLS *tls.Config
}

// OpenSource opens the disk that spec names: the path of a file or block device, or an NBD URI.
func OpenSource(ctx context.Context, spec string, o SourceOptions) (Source, error) {
	if IsURI(spec) {
		if len(o.Backing) > 0 || o.IgnoreLocks {
			return nil, errorf(ErrInvalid, "%s: an NBD export has neither backing files nor locks", spec)
		}
		return openNBDSource(ctx, spec, o)
	}
	path, err := located(spec, o.Format)
	switch {
	case err != nil:
		return nil, err
	case o.Format == QCOW2 && o.IgnoreLocks:
		return nil, errorf(ErrInvalid, "disk %s: the locks of a qcow2 image cannot be ignored: a virtual machine that has it open keeps a part of it in memory; read an NBD export of it", spec)
	case o.Format == QCOW2:
		return openQCOW2Source(ctx, path, o)
	case len(o.Backing) > 0:
		return nil, errorf(ErrInvalid, "disk %s: a raw disk has no backing file", spec)
	case o.Bitmap != "":
		return nil, errorf(ErrInvalid, "bitmap %s of %s: a raw disk has no bitmaps; read it from a qcow2 image or an NBD export", o.Bitmap, spec)
	}
	return openFileSource(path, o.IgnoreLocks)
}

// IsURI says whether spec is an NBD URI. A path that looks like one can be written with ./ before it.
func IsURI(spec string) bool {
	scheme, _, ok := strings.Cut(spec, "://")
	return ok && (scheme == "nbd" || scheme == "nbds" || scheme == "nbd+unix" || scheme == "nbds+unix")
}

// located is the absolute path for spec, whose format must be beyond doubt. It is absolute because QEMU's programs
// take what is before a colon for a protocol, and a dash for an option.
func located(spec string, format Format) (string, error) {
	switch {
	case spec == "":
		return "", errorf(ErrInvalid, "no disk is named: give a path or an NBD URI")
	case format != "" && format != Raw && format != QCOW2:
		return "", errorf(ErrInvalid, "disk %s: format %q is none of raw, qcow2", spec, format)
	case format == "" && strings.EqualFold(filepath.Ext(spec), ".qcow2"):
		return "", errorf(ErrInvalid, "disk %s: say whether its format is qcow2 or raw: it is never guessed", spec)
	}
	return filepath.Abs(spec)
}

// uriTarget is the export that a URI names.
func uriTarget(uri string, format Format) (nbd.Target, error) {
	if format != "" && format != Raw {
		return nbd.Target{}, errorf(ErrInvalid, "%s: an NBD export has no format; leave %q out", uri, format)
	}
	t, err := nbd.ParseURI(uri)
	if err != nil {
		return nbd.Target{}, errorf(ErrInvalid, "%w", err)
	}
	return t, nil
}
