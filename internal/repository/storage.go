package repository

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/blob/s3"
	"github.com/kopia/kopia/repo/format"
)

// storage is how every connection of this process sees its storage. It claims to be read-only where kopia asks. kopia asks in one
// place: after reading 16 or more contents with manifests, it merges them into one, at any time and in any process. If two
// processes do so at once, one writes what was deleted meanwhile, and the other drops the deletion with the contents that it
// merged. Deleted restore points then come back, and so do locks and leases. Maintenance merges instead, under its lock. So
// reading writes nothing, and needs no room on the storage.
//
// storage puts no index into another repository than the one whose format it read first, because nobody could then open that
// other one. kopia puts indexes at any time.
type storage struct {
	blob.Storage

	// id is the unique ID of the repository whose format was read first; nil if none was.
	id atomic.Pointer[[]byte]
}

func (*storage) IsReadOnly() bool { return true }

func (s *storage) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	if id != format.KopiaRepositoryBlobID || s.id.Load() != nil {
		return s.Storage.GetBlob(ctx, id, offset, length, out)
	}
	var data blobBuffer
	if err := s.Storage.GetBlob(ctx, id, offset, length, &data); err != nil {
		return err
	}
	if unique, err := uniqueID(data.Bytes()); err == nil {
		s.id.CompareAndSwap(nil, &unique)
	}
	out.Reset()
	if _, err := out.Write(data.Bytes()); err != nil {
		return fmt.Errorf("read blob %s: %w", id, err)
	}
	return nil
}

func (s *storage) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	if first := s.id.Load(); first != nil && strings.HasPrefix(string(id), indexPrefix) {
		if err := hasRepository(ctx, s.Storage, *first); err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrCorrupt) {
			return err
		}
	}
	return s.Storage.PutBlob(ctx, id, data, o)
}

// kopia opens the storage of a connection by the name of its type. What is registered here replaces kopia's own.
func init() {
	blob.AddSupportedStorage("filesystem", filesystem.Options{}, connected(newDirectory))
	blob.AddSupportedStorage("s3", s3.Options{}, connected(newS3))
}

// connected wraps what open returns, for connections.
func connected[T any](open func(context.Context, *T, bool) (blob.Storage, error)) func(context.Context, *T, bool) (blob.Storage, error) {
	return func(ctx context.Context, o *T, create bool) (blob.Storage, error) {
		st, err := open(ctx, o, create)
		if err != nil {
			return nil, err
		}
		return &storage{Storage: st}, nil
	}
}
