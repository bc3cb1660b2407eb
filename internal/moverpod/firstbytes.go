package moverpod

import (
	"context"
	"errors"

	"github.com/varvebackup/varve/internal/disk"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
)

// firstBytes is the beginning of a disk. A device has whole sectors, and an image any number of bytes.
type firstBytes struct {
	disk.Source

	bytes int64
}

// openFirstBytes opens so many first bytes of the disk at path.
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
