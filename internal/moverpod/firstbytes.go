package moverpod

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

// firstBytes is the beginning of a disk. A device has whole sectors, and an image any number of bytes.
type firstBytes struct {
	disk.Source

	bytes int64
}

// openFirstBytes opens the first bytes of the disk at path, which must have that many.
func openFirstBytes(ctx context.Context, path string, o disk.SourceOptions, bytes int64) (disk.Source, error) {
	whole, err := disk.OpenSource(ctx, path, o)
	if err != nil {
		return nil, err
	}
	if has := whole.Bytes(); has < bytes {
		err := errclass.Errorf(errclass.Invalid, "%s has %d bytes, and the image %d", path, has, bytes)
		return nil, errors.Join(err, whole.Close())
	}
	return &firstBytes{whole, bytes}, nil
}

// Bytes implements disk.Source.
func (f *firstBytes) Bytes() int64 { return f.bytes }

// Data implements disk.Source.
func (f *firstBytes) Data(ctx context.Context) (*extent.Set, error) {
	data, err := f.Source.Data(ctx)
	if data == nil || err != nil {
		return data, err
	}
	first := data.Intersect(extent.NewSet(extent.Extent{Length: f.bytes}))
	return &first, nil
}

// hashBuffer is how many bytes of a disk are read at once for its hash.
const hashBuffer = 1 << 20

// checkImage reads the image again, and fails if it does not have its checksum, for example because a bit of the copy on
// the node's disk has changed. It runs before the restore point is visible, so that none holds anything but the image.
func (r *run) checkImage(ctx context.Context, opened disk.Source) error {
	r.Log.Info("all was read: comparing with the checksum of the image", "bytes", opened.Bytes())
	sum, err := hashDisk(ctx, opened)
	if err != nil {
		return fmt.Errorf("read it again for its checksum: %w", err)
	}
	if sum == r.Job.DiskChecksum {
		return nil
	}
	return lasting(errclass.Errorf(errclass.Corrupt,
		"what was read is not the image: its SHA-512 is %s, and that of the image %s", sum, r.Job.DiskChecksum),
		"back up another copy")
}

// hashDisk returns the SHA-512 of a disk, in hexadecimal digits.
func hashDisk(ctx context.Context, d disk.Source) (string, error) {
	hash := sha512.New()
	buffer := make([]byte, min(hashBuffer, d.Bytes()))
	for at := int64(0); at < d.Bytes(); {
		part := buffer[:min(int64(len(buffer)), d.Bytes()-at)]
		if err := d.ReadAt(ctx, part, at); err != nil {
			return "", err
		}
		hash.Write(part)
		at += int64(len(part))
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
