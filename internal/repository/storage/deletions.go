package storage

import (
	"context"
	"sync"

	"github.com/kopia/kopia/repo/blob"
)

// QuietDeletions is the storage of maintenance. kopia passes the packs that nothing refers to through a channel to workers that
// end with their first error, and waits forever once all of them have ended. A bucket that refuses deletions would therefore hang
// maintenance, which would keep its lock. So kopia never hears of the first failure: nothing is deleted after it, and failure
// reports it in the end. The next run finds what is left.
type QuietDeletions struct {
	blob.Storage

	mu     sync.Mutex
	failed error
}

// NewQuietDeletions returns a storage that tells kopia of no failed deletion.
func NewQuietDeletions(st blob.Storage) *QuietDeletions { return &QuietDeletions{Storage: st} }

// DeleteBlob implements blob.Storage.
func (d *QuietDeletions) DeleteBlob(ctx context.Context, id blob.ID) error {
	if d.Failure() != nil {
		return nil
	}
	if err := d.Storage.DeleteBlob(ctx, id); err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.failed == nil {
			d.failed = err
		}
	}
	return nil
}

// Failure returns the first error of a deletion.
func (d *QuietDeletions) Failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}
