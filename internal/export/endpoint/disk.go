package endpoint

import (
	"context"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/source"
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
	*source.Disk

	data DataRequest
}

// OpenDisk reads the map of a volume. identity is what Identity returns. The disk does not close the client.
//
// What the map does not mention counts as data, because its content is not known: a server may leave out what has not changed.
func (c *Client) OpenDisk(ctx context.Context, v Volume, identity string) (*Disk, error) {
	var regions source.Map
	var refused error
	stats, err := c.Regions(ctx, MapRequest{URL: v.Map, Dialect: v.Dialect, Clean: true, Bytes: v.Bytes, Tag: v.Tag, Server: v.Server}, func(r export.Region) bool {
		refused = regions.Add(r)
		return refused == nil
	})
	switch {
	case err != nil:
		return nil, err
	case refused != nil:
		return nil, refused
	}
	request := DataRequest{URL: v.Data, Dialect: v.Dialect, Tag: stats.Tag, Server: stats.Server}
	if request.Bytes, err = c.checkSize(ctx, v, stats, regions.End(), request); err != nil {
		return nil, err
	}
	described := source.Description{Bytes: request.Bytes, Incremental: v.Incremental, Identity: identity}
	return &Disk{Disk: regions.Disk(described, dataReader{c, request}), data: request}, nil
}

// dataReader reads the data of a volume.
type dataReader struct {
	client *Client
	data   DataRequest
}

// ReadAt implements source.Reader.
func (r dataReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	return r.client.ReadAt(ctx, r.data, p, offset)
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
