package engine

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"
	"github.com/kopia/kopia/snapshot"
	"golang.org/x/sync/errgroup"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/table"
)

const (
	// DeletionLife is how long such a blob counts. A deletion that takes longer is taken for dead.
	DeletionLife = 24 * time.Hour
	// recordKey is the purpose for which the records' key is derived.
	recordKey      = "varve restore point records"
	recordKeyBytes = 32
)

// A record is a copy of a restore point's manifest in a blob of its own. kopia does not notice if an index blob goes missing: the
// restore points in it look as if they had never existed, and maintenance would free their data. A record without a manifest is a
// loss, and nothing is freed as long as there is one.

// PutRecord stores the record of a restore point.
func PutRecord(ctx context.Context, w repo.DirectRepositoryWriter, id string, m *snapshot.Manifest) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	aead, err := recordCipher(w)
	if err != nil {
		return err
	}
	nonce := make([]byte, aead.NonceSize())
	_, _ = rand.Read(nonce) // It never fails.
	options, err := ObjectLockOptions(ctx, w.FormatManager())
	if err != nil {
		return err
	}
	name := storage.RecordPrefix + id
	if err := w.BlobStorage().PutBlob(ctx, blob.ID(name), storage.Bytes(aead.Seal(nonce, nonce, data, []byte(name))), options); err != nil {
		return fmt.Errorf("record of restore point %s: %w", id, err)
	}
	return nil
}

// ReadRecord returns the manifest in a record.
func ReadRecord(ctx context.Context, r repo.DirectRepository, id string) (*snapshot.Manifest, error) {
	name := storage.RecordPrefix + id
	data, err := storage.ReadBlob(ctx, r.BlobReader(), blob.ID(name))
	if err != nil {
		return nil, err
	}
	if data == nil {
		return nil, fmt.Errorf("%w: restore point %s has no record: %w", errclass.Corrupt, id, blob.ErrBlobNotFound)
	}
	aead, err := recordCipher(r)
	if err != nil {
		return nil, err
	}
	n := aead.NonceSize()
	if len(data) < n {
		return nil, fmt.Errorf("%w: the record of restore point %s has %d bytes", errclass.Corrupt, id, len(data))
	}
	plain, err := aead.Open(nil, data[:n], data[n:], []byte(name))
	if err != nil {
		return nil, fmt.Errorf("%w: the record of restore point %s: %w", errclass.Corrupt, id, err)
	}
	m := &snapshot.Manifest{}
	if err := json.Unmarshal(plain, m); err != nil {
		return nil, fmt.Errorf("%w: the record of restore point %s: %w", errclass.Corrupt, id, err)
	}
	return m, nil
}

func recordCipher(r repo.DirectRepository) (cipher.AEAD, error) {
	key, err := r.DeriveKey(recordKey, recordKeyBytes)
	if err != nil {
		return nil, fmt.Errorf("key of the records: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// ObjectLockOptions returns how blobs are locked.
func ObjectLockOptions(ctx context.Context, f *format.Manager) (blob.PutOptions, error) {
	c, err := f.BlobCfgBlob(ctx)
	if err != nil {
		return blob.PutOptions{}, fmt.Errorf("object lock: %w", err)
	}
	return blob.PutOptions{RetentionMode: c.RetentionMode, RetentionPeriod: c.RetentionPeriod}, nil
}

// RemoveRecords removes the records of these restore points.
func RemoveRecords(ctx context.Context, w repo.DirectRepositoryWriter, ids []string) error {
	return RemoveBlobs(ctx, w, storage.RecordPrefix, ids)
}

// RemoveBlobs removes the blobs whose names are prefix and the IDs of these restore points.
func RemoveBlobs(ctx context.Context, w repo.DirectRepositoryWriter, prefix string, ids []string) error {
	return eachInParallel(ctx, ids, func(ctx context.Context, id string) error {
		if err := w.BlobStorage().DeleteBlob(ctx, blob.ID(prefix+id)); err != nil {
			return fmt.Errorf("remove blob %s%s: %w", prefix, id, err)
		}
		return nil
	})
}

// AnnounceDeletion stores the blobs that say that restore points are about to be deleted.
func AnnounceDeletion(ctx context.Context, w repo.DirectRepositoryWriter, ids []string) error {
	return eachInParallel(ctx, ids, func(ctx context.Context, id string) error {
		name := blob.ID(storage.DeletingPrefix + id)
		if err := w.BlobStorage().PutBlob(ctx, name, storage.Bytes(name), blob.PutOptions{}); err != nil {
			return fmt.Errorf("store blob %s: %w", name, err)
		}
		return nil
	})
}

// eachInParallel calls do for each of these restore points, several in parallel.
func eachInParallel(ctx context.Context, ids []string, do func(context.Context, string) error) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(table.DefaultWorkers)
	for _, id := range ids {
		if inner.Err() != nil {
			break
		}
		group.Go(func() error { return do(inner, id) })
	}
	return errors.Join(group.Wait(), ctx.Err())
}

// RecordedPoints returns the IDs of the restore points that have a record.
func (c *Connection) RecordedPoints(ctx context.Context) ([]string, error) {
	blobs, err := storage.ListBlobs(ctx, c.Kopia.BlobReader(), storage.RecordPrefix)
	var out []string
	for _, b := range blobs {
		out = append(out, strings.TrimPrefix(string(b.BlobID), storage.RecordPrefix))
	}
	return out, err
}

// FindLost returns the restore points that have a record and no manifest. known holds all restore points whose manifests can be
// read; the error holds the others.
func (c *Connection) FindLost(ctx context.Context) (lost []string, known []*StoredPoint, err error) {
	records, err := c.RecordedPoints(ctx)
	if err != nil {
		return nil, nil, err
	}
	// Manifests are older than their records. So this later look finds them all, except those that were deleted meanwhile.
	if err := c.Kopia.Refresh(ctx); err != nil {
		return nil, nil, fmt.Errorf("list restore points: %w", err)
	}
	known, bad := c.FindPoints(ctx, nil, "")
	found := make(map[string]bool, len(known))
	for _, s := range known {
		found[s.ID] = true
	}
	for _, id := range records {
		if found[id] {
			continue
		}
		if _, err := c.Kopia.BlobReader().GetMetadata(ctx, blob.ID(storage.RecordPrefix+id)); errors.Is(err, blob.ErrBlobNotFound) {
			continue
		} else if err != nil {
			return nil, nil, fmt.Errorf("record of restore point %s: %w", id, err)
		}
		lost = append(lost, id)
	}
	return lost, known, bad
}

// CheckRecords returns an error that says which records cannot be read.
func (c *Connection) CheckRecords(ctx context.Context) error {
	records, err := c.RecordedPoints(ctx)
	if err != nil {
		return err
	}
	bad := make([]error, len(records))
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(table.DefaultWorkers)
	for i, id := range records {
		group.Go(func() error {
			_, err := ReadRecord(inner, c.Kopia, id)
			switch {
			case err == nil, errors.Is(err, blob.ErrBlobNotFound): // deleted since
				return nil
			case errors.Is(err, errclass.Corrupt):
				bad[i] = err
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return errors.Join(bad...)
}

// LostError returns an error that says which restore points are lost.
func LostError(ids []string) error {
	var all []error
	for _, id := range ids {
		all = append(all, fmt.Errorf("%w: restore point %s was made and no longer has a manifest", errclass.Corrupt, id))
	}
	return errors.Join(all...)
}
