package endpoint

import (
	"context"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// Volume names the endpoints of a volume.
type Volume struct {
	Name string
	// Map and Data are URLs.
	Map, Data string
	Dialect   Dialect
	// Bytes is the size of the disk. If it is 0, the server's map, its data, or the end of a map that leaves nothing out tell it.
	Bytes int64
	// Tag is the entity tag of the point in time, and Server, which counts where there is no tag, a hash of the server's certificate, both
	// as a Disk of the same point in time has them; "": any.
	Tag, Server string
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
//
// What the map does not mention counts as data, because its content is not known: a server may leave out what has not changed.
func (c *Client) OpenDisk(ctx context.Context, v Volume, identity string) (*Disk, error) {
	var data, changed granules
	var end int64
	stats, err := c.Regions(ctx, MapRequest{URL: v.Map, Dialect: v.Dialect, Clean: true, Bytes: v.Bytes, Tag: v.Tag, Server: v.Server}, func(r export.Region) bool {
		data.add(extent.Extent{Offset: end, Length: r.Offset - end})
		end = r.End()
		if r.Kind != export.Zero {
			data.add(r.Extent)
		}
		if r.Kind != export.Clean {
			changed.add(r.Extent)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	request := DataRequest{URL: v.Data, Dialect: v.Dialect, Tag: stats.Tag, Server: stats.Server}
	if v.Bytes, err = c.checkSize(ctx, v, stats, end, request); err != nil {
		return nil, err
	}
	request.Bytes = v.Bytes
	data.add(extent.Extent{Offset: end, Length: v.Bytes - end})
	maybeData := data.within(v.Bytes)
	d := &Disk{client: c, volume: v, data: request, identity: identity, maybeData: &maybeData}
	if v.Incremental {
		set := changed.within(v.Bytes)
		d.changed = &set
	}
	return d, nil
}

// checkSize returns the size of a disk whose map's last region ends at end.
func (c *Client) checkSize(ctx context.Context, v Volume, stats MapStats, end int64, request DataRequest) (int64, error) {
	told := stats.Bytes
	if told == 0 {
		var err error
		if told, err = c.sizeOf(ctx, request); err != nil {
			return 0, err
		}
	}
	switch {
	case told <= 0:
		return 0, errclass.Errorf(errclass.Invalid, "volume %s: the size of the disk is not known", v.Name)
	case end > told || stats.Complete && end < told:
		return 0, errclass.Errorf(errclass.Corrupt, "volume %s: the map ends at %d, on a disk of %d bytes", v.Name, end, told)
	case v.Bytes > 0 || v.Dialect != KubeVirt:
		return told, nil
	}
	// The map itself may be cut.
	more, err := c.goesOn(ctx, request, told)
	if err == nil && more {
		err = errclass.Errorf(errclass.Corrupt, "volume %s: the map ends at %d, and the disk does not", v.Name, told)
	}
	return told, err
}

// Tag returns the entity tag of the point in time, or "" if the server has none.
func (d *Disk) Tag() string { return d.data.Tag }

// Server returns a hash of the certificate of the server.
func (d *Disk) Server() string { return d.data.Server }

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
