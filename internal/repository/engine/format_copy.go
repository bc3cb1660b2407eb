package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"

	"github.com/varvebackup/varve/internal/repository/storage"
)

// formatCopyFile is the content of FormatCopy.
type formatCopyFile struct {
	Blobs map[blob.ID][]byte `json:"blobs"`
	// SHA256 is the hash of the blobs, concatenated in the order of their names.
	SHA256 []byte `json:"sha256"`
}

func sumFormat(blobs map[blob.ID][]byte) []byte {
	h := sha256.New()
	for _, id := range slices.Sorted(maps.Keys(blobs)) {
		_, _ = h.Write(blobs[id])
	}
	return h.Sum(nil)
}

// ReadFormatCopy returns what the copy holds; nil if there is none, or if it is damaged.
func ReadFormatCopy(ctx context.Context, st blob.Reader) (map[blob.ID][]byte, error) {
	data, err := storage.ReadBlob(ctx, st, storage.FormatCopy)
	if err != nil {
		return nil, err
	}
	var f formatCopyFile
	bad := json.Unmarshal(data, &f)
	if bad != nil || !bytes.Equal(f.SHA256, sumFormat(f.Blobs)) {
		return nil, nil //nolint:nilerr // there is no usable copy
	}
	return f.Blobs, nil
}

// StoreFormatCopy stores a copy of the format as it is now.
func StoreFormatCopy(ctx context.Context, st blob.Storage, o blob.PutOptions) error {
	now, err := storage.ReadFormat(ctx, st)
	if err != nil {
		return err
	}
	data, err := json.Marshal(formatCopyFile{Blobs: now, SHA256: sumFormat(now)})
	if err != nil {
		return err
	}
	if err := st.PutBlob(ctx, storage.FormatCopy, storage.Bytes(data), o); err != nil {
		return fmt.Errorf("store a copy of the format: %w", err)
	}
	return nil
}

// restoreFormatFromCopy puts kopia's format blob back if it is missing or cannot be parsed, and the copy opens with the password.
// If the blob can be parsed but the password does not open it, the password may have been changed. That is for Repair.
func restoreFormatFromCopy(ctx context.Context, st blob.Storage, password string) error {
	now, err := storage.ReadFormat(ctx, st)
	if err != nil {
		return err
	}
	if _, err := format.ParseKopiaRepositoryJSON(now[format.KopiaRepositoryBlobID]); err == nil {
		return nil
	}
	saved, err := ReadFormatCopy(ctx, st)
	if err != nil || saved == nil {
		return err
	}
	v := storage.NewView(st, storage.IsIndex, saved)
	r, err := OpenView(ctx, v, &Access{Name: "the copy of the format", Password: password}, nil)
	if err != nil {
		return err
	}
	options, err := ObjectLockOptions(ctx, r.Kopia.FormatManager())
	if err := errors.Join(err, r.Close(ctx)); err != nil {
		return err
	}
	id := format.KopiaRepositoryBlobID
	if err := st.PutBlob(ctx, blob.ID(id), storage.Bytes(saved[blob.ID(id)]), options); err != nil {
		return fmt.Errorf("put %s back from its copy: %w", id, err)
	}
	return nil
}
