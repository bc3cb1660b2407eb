package repository

import (
	"context"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/blob/s3"
)

// storage is how every connection of this process sees its storage: as read-only, where kopia asks. It asks in one place: after reading 16 or
// more contents with manifests it merges them into one, at any time and in any process. Of two that do so at once, one writes what was
// deleted meanwhile, and the other drops the deletion with the contents that it merged: deleted restore points come back, and so do locks and
// leases. Maintenance merges instead, under its lock. Reading then writes nothing, and needs no room on the storage.
type storage struct{ blob.Storage }

func (storage) IsReadOnly() bool { return true }

// kopia opens the storage of a connection by the name of its type. What is registered here takes the place of its own.
func init() {
	blob.AddSupportedStorage("filesystem", filesystem.Options{}, connected(newDirectory))
	blob.AddSupportedStorage("s3", s3.Options{}, connected(newS3))
}

// connected is open for connections.
func connected[T any](open func(context.Context, *T, bool) (blob.Storage, error)) func(context.Context, *T, bool) (blob.Storage, error) {
	return func(ctx context.Context, o *T, create bool) (blob.Storage, error) {
		st, err := open(ctx, o, create)
		if err != nil {
			return nil, err
		}
		return storage{st}, nil
	}
}
