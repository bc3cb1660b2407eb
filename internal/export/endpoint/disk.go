package endpoint

import (
	"context"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// granuleBytes is the unit of Data and Changes. It bounds the number of extents.
const granuleBytes = 64 << 10

// Volume names the endpoints of a volume.
type Volume struct {
	Name string
	// Map and Data are URLs.
	Map, Data string
	Dialect   Dialect
	// Bytes is the size of the disk. It may be 0 if the server tells it.
	Bytes int64
	// Incremental says that the backup knows what has changed since its base.
	Incremental bool
}

// Disk is a volume that is read at any place and in any order, as disk.Source has it. It may be used by several
// goroutines.
type Disk struct {
	client   *Client
	volume   Volume
	data     DataRequest
	identity string
	// maybeData may be nonzero; changed has changed since the base, or is nil.
	maybeData, changed *extent.Set
}

// OpenDisk reads the map of a volume. identity is what Identity returns. The disk does not close the client.
func (c *Client) OpenDisk(ctx context.Context, v Volume, identity string) (*Disk, error) {
	d := &Disk{client: c, volume: v, identity: identity, maybeData: &extent.Set{}}
	var data, changed []extent.Extent
	stats, err := c.Regions(ctx, MapRequest{URL: v.Map, Dialect: v.Dialect, Clean: true, Bytes: v.Bytes}, func(r export.Region) bool {
		if r.Kind != export.Zero {
			data = append(data, r.Extent)
		}
		if r.Kind != export.Clean {
			changed = append(changed, r.Extent)
		}
		return true
	})
	switch {
	case err != nil:
		return nil, err
	case stats.Bytes <= 0:
		return nil, errclass.Errorf(errclass.Invalid, "volume %s: the size of the disk is not known", v.Name)
	}
	d.volume.Bytes = stats.Bytes
	d.data = DataRequest{URL: v.Data, Dialect: v.Dialect, Tag: stats.Tag}
	*d.maybeData = extent.NewSet(data...).Widen(granuleBytes, stats.Bytes)
	if v.Incremental {
		set := extent.NewSet(changed...).Widen(granuleBytes, stats.Bytes)
		d.changed = &set
	}
	return d, nil
}

// Bytes is the disk's size.
func (d *Disk) Bytes() int64 { return d.volume.Bytes }

// ReadAt fills p from offset on, or fails.
func (d *Disk) ReadAt(ctx context.Context, p []byte, offset int64) error {
	return d.client.ReadAt(ctx, d.data, p, offset)
}

// Data returns the bytes that may be nonzero, in whole granules of 64 KiB.
func (d *Disk) Data(context.Context) (*extent.Set, error) { return d.maybeData, nil }

// Changes returns the bytes that have changed since the base, in whole granules of 64 KiB, or nil for a full backup.
func (d *Disk) Changes(context.Context) (*extent.Set, error) { return d.changed, nil }

// Identity returns what OpenDisk was given.
func (d *Disk) Identity() string { return d.identity }

// Close does nothing.
func (d *Disk) Close() error { return nil }
