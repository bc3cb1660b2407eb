package storage

import (
	"context"
	"errors"

	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/repository/storage/blobhttp"
)

// listAttempts is how often a list that is cut off is asked for.
const listAttempts = 3

// servedStorage is a storage that another process has. Its requests share one connection, a forwarded port, where data that nobody reads holds
// up everything behind it.
type servedStorage struct{ blob.Storage }

// newServed returns the storage of a client.
func newServed(c *blobhttp.Client) blob.Storage {
	return &servedStorage{MarkFull(NewStallDetector(c, StallLimit))}
}

// ListBlobs implements blob.Storage. It calls call when the list is complete, because call may make requests. So it can ask again for a list
// that was cut off.
func (s *servedStorage) ListBlobs(ctx context.Context, prefix blob.ID, call func(blob.Metadata) error) error {
	var all []blob.Metadata
	for attempt := 1; ; attempt++ {
		all = all[:0]
		err := s.Storage.ListBlobs(ctx, prefix, func(m blob.Metadata) error {
			all = append(all, m)
			return nil
		})
		if err == nil {
			break
		}
		if !errors.Is(err, blobhttp.ErrCutOff) || attempt == listAttempts {
			return err
		}
	}
	for _, m := range all {
		if err := call(m); err != nil {
			return err
		}
	}
	return nil
}
