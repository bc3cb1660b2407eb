package repository

import (
	"context"
	"sync"

	"github.com/kopia/kopia/repo/blob"
)

// deletionStorage is the storage of maintenance. kopia hands the packs that nothing refers to through a channel to workers that end with their first
// error, and waits for ever when all of them have: a bucket that refuses deletions would hang maintenance, which keeps its lock. So kopia never hears
// of the first failure. Nothing is deleted after it, and failure tells it in the end. What stays is found again by the next run.
type deletionStorage struct {
	blob.Storage

	mu     sync.Mutex
	failed error
}

// DeleteBlob implements blob.Storage.
func (d *deletionStorage) DeleteBlob(ctx context.Context, id blob.ID) error {
	if d.failure() != nil {
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

// failure is the first error of a deletion.
func (d *deletionStorage) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}
