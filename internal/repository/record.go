package repository

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"
	"github.com/kopia/kopia/snapshot"
	"golang.org/x/sync/errgroup"
)

const (
	// recordPrefix and a restore point's ID name the blob that holds its record.
	recordPrefix = "varve.point-"
	// deletingPrefix and a restore point's ID name a blob that exists while the restore point is being deleted. The record goes
	// first, and nobody may take it for missing.
	deletingPrefix = "varve.deleting-"
	// deletingLife is how long such a blob counts. A deletion that takes longer is taken for dead.
	deletingLife = 24 * time.Hour
	// recordKey is the purpose for which the records' key is derived.
	recordKey      = "varve restore point records"
	recordKeyBytes = 32
)

// A record is a copy of a restore point's manifest in a blob of its own. kopia does not notice if an index blob goes missing: the
// restore points in it look as if they had never existed, and maintenance would free their data. A record without a manifest is a
// loss, and nothing is freed as long as there is one.

// putRecord stores the record of a restore point.
func putRecord(ctx context.Context, w repo.DirectRepositoryWriter, id string, m *snapshot.Manifest) error {
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
	options, err := lockOptions(ctx, w.FormatManager())
	if err != nil {
		return err
	}
	name := recordPrefix + id
	if err := w.BlobStorage().PutBlob(ctx, blob.ID(name), blobBytes(aead.Seal(nonce, nonce, data, []byte(name))), options); err != nil {
		return fmt.Errorf("record of restore point %s: %w", id, err)
	}
	return nil
}

// readRecord returns the manifest in a record.
func readRecord(ctx context.Context, r repo.DirectRepository, id string) (*snapshot.Manifest, error) {
	name := recordPrefix + id
	data, err := readBlob(ctx, r.BlobReader(), blob.ID(name))
	if err != nil {
		return nil, err
	}
	if data == nil {
		return nil, fmt.Errorf("%w: restore point %s has no record: %w", ErrCorrupt, id, blob.ErrBlobNotFound)
	}
	aead, err := recordCipher(r)
	if err != nil {
		return nil, err
	}
	n := aead.NonceSize()
	if len(data) < n {
		return nil, fmt.Errorf("%w: the record of restore point %s has %d bytes", ErrCorrupt, id, len(data))
	}
	plain, err := aead.Open(nil, data[:n], data[n:], []byte(name))
	if err != nil {
		return nil, fmt.Errorf("%w: the record of restore point %s: %w", ErrCorrupt, id, err)
	}
	m := &snapshot.Manifest{}
	if err := json.Unmarshal(plain, m); err != nil {
		return nil, fmt.Errorf("%w: the record of restore point %s: %w", ErrCorrupt, id, err)
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

// lockOptions returns how blobs are locked.
func lockOptions(ctx context.Context, f *format.Manager) (blob.PutOptions, error) {
	c, err := f.BlobCfgBlob(ctx)
	if err != nil {
		return blob.PutOptions{}, fmt.Errorf("object lock: %w", err)
	}
	return blob.PutOptions{RetentionMode: c.RetentionMode, RetentionPeriod: c.RetentionPeriod}, nil
}

func removeRecords(ctx context.Context, w repo.DirectRepositoryWriter, ids []string) error {
	return removeBlobs(ctx, w, recordPrefix, ids)
}

// removeBlobs removes the blobs whose names are prefix and the IDs of these restore points.
func removeBlobs(ctx context.Context, w repo.DirectRepositoryWriter, prefix string, ids []string) error {
	return sideBySide(ctx, ids, func(ctx context.Context, id string) error {
		if err := w.BlobStorage().DeleteBlob(ctx, blob.ID(prefix+id)); err != nil {
			return fmt.Errorf("remove blob %s%s: %w", prefix, id, err)
		}
		return nil
	})
}

// announce stores the blobs that say that restore points are about to be deleted.
func announce(ctx context.Context, w repo.DirectRepositoryWriter, ids []string) error {
	return sideBySide(ctx, ids, func(ctx context.Context, id string) error {
		name := blob.ID(deletingPrefix + id)
		if err := w.BlobStorage().PutBlob(ctx, name, blobBytes(name), blob.PutOptions{}); err != nil {
			return fmt.Errorf("store blob %s: %w", name, err)
		}
		return nil
	})
}

// sideBySide calls do for each of these restore points, several in parallel.
func sideBySide(ctx context.Context, ids []string, do func(context.Context, string) error) error {
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(DefaultWorkers)
	for _, id := range ids {
		if inner.Err() != nil {
			break
		}
		group.Go(func() error { return do(inner, id) })
	}
	return errors.Join(group.Wait(), ctx.Err())
}

// deleting returns the restore points that somebody is deleting. It removes what is left of deletions that died.
func deleting(ctx context.Context, w repo.DirectRepositoryWriter) (map[string]bool, error) {
	blobs, err := listBlobs(ctx, w.BlobReader(), deletingPrefix)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, b := range blobs {
		id := strings.TrimPrefix(string(b.BlobID), deletingPrefix)
		if w.Time().Sub(b.Timestamp) < deletingLife {
			out[id] = true
		} else if err := removeBlobs(ctx, w, deletingPrefix, []string{id}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// recorded returns the IDs of the restore points that have a record.
func (r *Repository) recorded(ctx context.Context) ([]string, error) {
	blobs, err := listBlobs(ctx, r.rep.BlobReader(), recordPrefix)
	var out []string
	for _, b := range blobs {
		out = append(out, strings.TrimPrefix(string(b.BlobID), recordPrefix))
	}
	return out, err
}

// lost returns the restore points that have a record and no manifest. known holds all restore points whose manifests can be read;
// the error holds the others.
func (r *Repository) lost(ctx context.Context) (lost []string, known []*stored, err error) {
	records, err := r.recorded(ctx)
	if err != nil {
		return nil, nil, err
	}
	// Manifests are older than their records. So this later look finds them all, except those that were deleted meanwhile.
	if err := r.rep.Refresh(ctx); err != nil {
		return nil, nil, fmt.Errorf("list restore points: %w", err)
	}
	known, bad := r.snapshots(ctx, nil, "")
	found := make(map[string]bool, len(known))
	for _, s := range known {
		found[s.id] = true
	}
	for _, id := range records {
		if found[id] {
			continue
		}
		if _, err := r.rep.BlobReader().GetMetadata(ctx, blob.ID(recordPrefix+id)); errors.Is(err, blob.ErrBlobNotFound) {
			continue
		} else if err != nil {
			return nil, nil, fmt.Errorf("record of restore point %s: %w", id, err)
		}
		lost = append(lost, id)
	}
	return lost, known, bad
}

// badRecords returns an error that says which records cannot be read.
func (r *Repository) badRecords(ctx context.Context) error {
	records, err := r.recorded(ctx)
	if err != nil {
		return err
	}
	bad := make([]error, len(records))
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(DefaultWorkers)
	for i, id := range records {
		group.Go(func() error {
			_, err := readRecord(inner, r.rep, id)
			switch {
			case err == nil, errors.Is(err, blob.ErrBlobNotFound): // deleted since
				return nil
			case errors.Is(err, ErrCorrupt):
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

// lostError returns an error that says which restore points are lost.
func lostError(ids []string) error {
	var all []error
	for _, id := range ids {
		all = append(all, fmt.Errorf("%w: restore point %s was made and has no manifest any more", ErrCorrupt, id))
	}
	return errors.Join(all...)
}

// keepRecords makes sure that every restore point has a record. If a restore point is lost, it fails with ErrCorrupt, because
// nothing may be freed then.
func (r *Repository) keepRecords(ctx context.Context, w repo.DirectRepositoryWriter) error {
	lost, known, err := r.lost(ctx)
	if err := errors.Join(err, lostError(lost)); err != nil {
		return err
	}
	records, err := r.recorded(ctx)
	if err != nil {
		return err
	}
	slices.Sort(records)
	// A deletion is announced before the record goes.
	going, err := deleting(ctx, w)
	if err != nil {
		return err
	}
	for _, s := range known {
		if _, recorded := slices.BinarySearch(records, s.id); recorded || going[s.id] {
			continue
		}
		if err := keepRecord(ctx, w, s); err != nil {
			return err
		}
	}
	return nil
}

// keepRecord stores the record of a restore point that has none, unless it has been deleted meanwhile.
func keepRecord(ctx context.Context, w repo.DirectRepositoryWriter, s *stored) error {
	if there, err := isThere(ctx, w, s.id); err != nil || !there {
		return err
	}
	if err := putRecord(ctx, w, s.id, s.manifest); err != nil {
		return err
	}
	if there, err := isThere(ctx, w, s.id); err != nil || there {
		return err
	}
	return removeRecords(ctx, w, []string{s.id})
}

// isThere says whether a restore point has a manifest now.
func isThere(ctx context.Context, w repo.DirectRepositoryWriter, id string) (bool, error) {
	if err := w.Refresh(ctx); err != nil {
		return false, err
	}
	found, err := find(ctx, w, nil, id)
	return len(found) > 0, err
}

// extendLocks extends the locks of records and of the format's copy, as kopia's maintenance does for its own blobs.
func extendLocks(ctx context.Context, w repo.DirectRepositoryWriter) error {
	c, err := w.FormatManager().BlobCfgBlob(ctx)
	if err != nil || !c.IsRetentionEnabled() {
		return err
	}
	for _, prefix := range []blob.ID{recordPrefix, formatCopy} {
		blobs, err := listBlobs(ctx, w.BlobReader(), prefix)
		if err != nil {
			return err
		}
		for _, b := range blobs {
			err := w.BlobStorage().ExtendBlobRetention(ctx, b.BlobID, blob.ExtendOptions{RetentionMode: c.RetentionMode, RetentionPeriod: c.RetentionPeriod})
			if err != nil && !errors.Is(err, blob.ErrBlobNotFound) {
				return fmt.Errorf("extend the lock of %s: %w", b.BlobID, err)
			}
		}
	}
	return nil
}
