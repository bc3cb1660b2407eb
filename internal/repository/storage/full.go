package storage

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/kopia/kopia/repo/blob"
	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/errclass"
)

// fullCodes are the codes with which S3 servers refuse an object because of space or a quota, some of them with status 403.
var fullCodes = []string{
	"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded",
	"NoSpaceLeftOnDevice", "InsufficientCapacity",
}

// fullMarker is a storage whose errors are ErrFull if it takes no more data. An error number alone does not say what is full: it may come
// from the target of a restore, or from the cache.
type fullMarker struct{ blob.Storage }

// MarkFull returns a storage whose errors are ErrFull if it takes no more data.
func MarkFull(st blob.Storage) blob.Storage { return &fullMarker{st} }

func (s *fullMarker) PutBlob(ctx context.Context, id blob.ID, data blob.Bytes, o blob.PutOptions) error {
	return markFull(s.Storage.PutBlob(ctx, id, data, o))
}

// DeleteBlob implements blob.Storage. A file system that never writes in place needs room for a deletion, too.
func (s *fullMarker) DeleteBlob(ctx context.Context, id blob.ID) error {
	return markFull(s.Storage.DeleteBlob(ctx, id))
}

func (s *fullMarker) ExtendBlobRetention(ctx context.Context, id blob.ID, o blob.ExtendOptions) error {
	return markFull(s.Storage.ExtendBlobRetention(ctx, id, o))
}

// markFull makes an error of a storage ErrFull if it means that the storage takes no more data. The text stays the same.
func markFull(err error) error {
	if errors.Is(err, ErrFull) || !errclass.IsFull(err) && !refusedAsFull(err) {
		return err
	}
	return errclass.Errorf(ErrFull, "%w", err)
}

// refusedAsFull reports whether an S3 server refuses a request because of space or a quota.
func refusedAsFull(err error) bool {
	var answer minio.ErrorResponse
	return errors.As(err, &answer) && (answer.StatusCode == http.StatusInsufficientStorage ||
		slices.Contains(fullCodes, answer.Code))
}
