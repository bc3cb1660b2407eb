package exporter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/extent"
)

// diskVolumes offers the disks of a configuration as the volumes of a full backup: their maps say what is allocated, so
// that nobody has to read all of a sparse file.
type diskVolumes struct {
	volumes []podspec.Volume
	// run distinguishes this process from every other one, which may serve other bytes.
	run string
}

func (d *diskVolumes) names() []string {
	var names []string
	for _, v := range d.volumes {
		names = append(names, v.Name)
	}
	return names
}

// Open implements export.Volumes.
func (d *diskVolumes) Open(_ context.Context, name string) (export.Volume, error) {
	i := slices.IndexFunc(d.volumes, func(v podspec.Volume) bool { return v.Name == name })
	if i < 0 {
		return nil, errclass.Errorf(errclass.NotFound, "the export has no disk %s", name)
	}
	f, err := openDisk(d.volumes[i])
	if err != nil {
		return nil, err
	}
	size, err := f.Seek(0, io.SeekEnd) // a device has no size in its metadata
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("size of disk %s: %w", name, err)
	}
	return &diskVolume{
		volume: d.volumes[i], info: export.Info{Name: name, Bytes: size, PointInTime: d.run + "/" + name},
	}, nil
}

// diskVolume is a file or a block device as an export.Volume. Nobody writes to it while the pod exists. Each call opens
// it, because a volume is never closed.
type diskVolume struct {
	volume podspec.Volume
	info   export.Info
}

// Info implements export.Volume.
func (v *diskVolume) Info() export.Info { return v.info }

func (v *diskVolume) open(e extent.Extent) (*os.File, error) {
	if !e.Valid() || e.End() > v.info.Bytes {
		return nil, errclass.Errorf(errclass.Invalid, "disk %s has %d bytes: %v is not in it",
			v.volume.Name, v.info.Bytes, e)
	}
	return openDisk(v.volume)
}

// Regions implements export.Volume. Holes of a file are zero, and everything else is data. A device, and a file system
// that does not tell holes, has data alone.
func (v *diskVolume) Regions(ctx context.Context, e extent.Extent, report func(export.Region) bool) error {
	f, err := v.open(e)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	for at := e.Offset; at < e.End(); {
		if err := ctx.Err(); err != nil {
			return err
		}
		kind, end, err := findRegion(f, at)
		if err != nil {
			return fmt.Errorf("map of disk %s: %w", v.volume.Name, err)
		}
		end = min(end, e.End())
		if !report(export.Region{Extent: extent.Extent{Offset: at, Length: end - at}, Kind: kind}) {
			return nil
		}
		at = end
	}
	return nil
}

// toTheEnd is the end of a region that goes as far as the disk.
const toTheEnd = 1<<63 - 1

// findRegion returns the kind of the region at an offset, and where the region ends.
func findRegion(f *os.File, at int64) (kind export.Kind, end int64, err error) {
	data, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		return export.Zero, toTheEnd, nil // there is a hole up to the end
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return export.Data, toTheEnd, nil
	case err != nil:
		return 0, 0, fmt.Errorf("seek data at %d: %w", at, err)
	case data > at:
		return export.Zero, data, nil
	}
	hole, err := unix.Seek(int(f.Fd()), at, unix.SEEK_HOLE)
	switch {
	case err != nil:
		return 0, 0, fmt.Errorf("seek a hole at %d: %w", at, err)
	case hole <= at:
		return 0, 0, errclass.Errorf(errclass.Corrupt, "data at %d ends at %d", at, hole)
	}
	return export.Data, hole, nil
}

// chunks are the buffers of readers.
var chunks = sync.Pool{New: func() any { return new([export.MaxChunkBytes]byte) }}

// Read implements export.Volume. Everything has changed.
func (v *diskVolume) Read(ctx context.Context, e extent.Extent, _ export.Scope, sink func(export.Chunk) error) error {
	f, err := v.open(e)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	buffer := chunks.Get().(*[export.MaxChunkBytes]byte)
	defer chunks.Put(buffer)
	for at := e.Offset; at < e.End(); {
		if err := ctx.Err(); err != nil {
			return err
		}
		part := buffer[:min(e.End()-at, int64(len(buffer)))]
		if _, err := f.ReadAt(part, at); err != nil {
			return fmt.Errorf("read %d bytes of disk %s at %d: %w", len(part), v.volume.Name, at, err)
		}
		err := sink(export.Chunk{
			Extent: extent.Extent{Offset: at, Length: int64(len(part))}, Data: part, Checksum: export.Checksum(part),
		})
		if err != nil {
			return err
		}
		at += int64(len(part))
	}
	return nil
}
