package maintain

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/repository/storage"
)

// dropDamageRecords removes the blobs that say that packs are damaged which no longer exist. Nobody finds anything in those packs any more.
func dropDamageRecords(ctx context.Context, w repo.DirectRepositoryWriter) error {
	records, err := storage.ListBlobs(ctx, w.BlobReader(), storage.DamagedPrefix)
	if err != nil {
		return err
	}
	for _, r := range records {
		pack := blob.ID(strings.TrimPrefix(string(r.BlobID), storage.DamagedPrefix))
		_, err := w.BlobReader().GetMetadata(ctx, pack)
		if err == nil {
			continue
		}
		if !errors.Is(err, blob.ErrBlobNotFound) {
			return fmt.Errorf("look for blob %s: %w", pack, err)
		}
		if err := w.BlobStorage().DeleteBlob(ctx, r.BlobID); err != nil {
			return fmt.Errorf("remove blob %s: %w", r.BlobID, err)
		}
	}
	return nil
}
