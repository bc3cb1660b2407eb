package maintain

import (
	"bytes"
	"context"
	"fmt"
	"maps"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/format"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// updateFormatCopy brings the copy up to date, because the password may have been changed. It does not copy a format that does not
// open the repository, or that has lost a blob: the copy is then the only one of that blob, and warn is told so.
func updateFormatCopy(ctx context.Context, w repo.DirectRepositoryWriter, password string, warn func(error)) error {
	now, err := storage.ReadFormat(ctx, w.BlobReader())
	if err != nil {
		return err
	}
	was, err := engine.ReadFormatCopy(ctx, w.BlobReader())
	if err != nil || maps.EqualFunc(now, was, bytes.Equal) {
		return err
	}
	for _, id := range storage.FormatBlobs {
		if was[id] != nil && now[id] == nil {
			warn(fmt.Errorf("blob %s is missing, and its copy is kept: `varve repo repair` puts it back", id))
			return nil
		}
	}
	m, err := format.NewManager(ctx, w.BlobStorage(), "", 0, password, w.Time)
	if err != nil {
		return fmt.Errorf("%w: the format blobs are not what they were: %w", errclass.Corrupt, err)
	}
	options, err := engine.ObjectLockOptions(ctx, m)
	if err != nil {
		return err
	}
	return engine.StoreFormatCopy(ctx, w.BlobStorage(), now, options)
}
