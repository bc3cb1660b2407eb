package endpoint

import (
	"context"

	"github.com/varvebackup/varve/internal/export/source"
)

// OpenRaw opens a volume that a server has as one file, byte for byte, such as those that KubeVirt exports. There is no
// map, so everything may be data: v.Map, v.Dialect and v.Incremental do not count. The server must answer requests for
// ranges. A file has no entity tag, or one that says little, so the disk is held to the certificate that answers first.
func (c *Client) OpenRaw(ctx context.Context, v Volume, identity string) (*Disk, error) {
	request := DataRequest{URL: v.Data, Server: v.Server}
	told, server, err := c.lookAt(ctx, request)
	if err != nil {
		return nil, err
	}
	request.Bytes, request.Server = told, server
	var nothing source.Map
	described := source.Description{Bytes: told, Identity: identity}
	return &Disk{Disk: nothing.Disk(described, dataReader{c, request}), data: request}, nil
}
