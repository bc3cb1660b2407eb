package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"

	"github.com/varvebackup/varve/internal/errclass"
)

// guard is how every connection of this process sees its storage. It claims to be read-only where kopia asks. kopia asks in one
// place: after reading 16 or more contents with manifests, it merges them into one, at any time and in any process. If two
// processes do so at once, one writes what was deleted meanwhile, and the other drops the deletion with the contents that it
// merged. Deleted restore points then come back, and so do locks and leases. Maintenance merges instead, under its lock. So
// reading writes nothing, and needs no room on the storage.
//
// The guard puts no index into another repository than the one whose format it read first, because nobody could then open that
// other one. kopia puts indexes at any time.
type guard struct {
	blob.Storage

	// uniqueID is the unique ID of the repository whose format was read first; nil if none was.
	uniqueID atomic.Pointer[[]byte]
}

// NewGuard returns a storage as connections see it.
func NewGuard(st blob.Storage) blob.Storage { return &guard{Storage: st} }

func (*guard) IsReadOnly() bool { return true }

func (s *guard) GetBlob(ctx context.Context, id blob.ID, offset, length int64, out blob.OutputBuffer) error {
	if id != format.KopiaRepositoryBlobID || s.uniqueID.Load() != nil {
		return s.Storage.GetBlob(ctx, id, offset, length, out)
	}
	var data Buffer
	if err := s.Storage.GetBlob(ctx, id, offset, length, &data); err != nil {
		return err
	}
	if unique, err := ParseUniqueID(data.Bytes()); err == nil {
		s.uniqueID.CompareAndSwap(nil, &unique)
	}
	out.Reset()
	if _, err := out.Write(data.Bytes()); err != nil {
		return fmt.Errorf("read blob %s: %w", id, err)
	}
	return nil
}

func (s *guard) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	if first := s.uniqueID.Load(); first != nil && strings.HasPrefix(string(id), IndexPrefix) {
		if err := CheckRepository(ctx, s.Storage, *first); err != nil && !errors.Is(err, errclass.NotFound) && !errors.Is(err, errclass.Corrupt) {
			return err
		}
	}
	return s.Storage.PutBlob(ctx, id, data, o)
}
