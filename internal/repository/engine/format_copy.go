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
	"k8s.io/utils/clock"

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
		return nil, nil //nolint:nilerr // the copy cannot be used
	}
	return f.Blobs, nil
}

// StoreFormatCopy stores a copy of the format, whose blobs these are.
func StoreFormatCopy(ctx context.Context, st blob.Storage, blobs map[blob.ID][]byte, o blob.PutOptions) error {
	data, err := json.Marshal(formatCopyFile{Blobs: blobs, SHA256: sumFormat(blobs)})
	if err != nil {
		return err
	}
	if err := st.PutBlob(ctx, storage.FormatCopy, storage.Bytes(data), o); err != nil {
		return fmt.Errorf("store a copy of the format: %w", err)
	}
	return nil
}

// FindFormatDamage returns the blobs of the format that are missing or damaged, as their copy has them. now is what the storage has of
// the format, and saved is what the copy has, or nil. Without damage that the copy can mend, the result is empty.
//
// If the password opens only the copy, it was changed after the copy was made: nothing is damaged, and the error is
// ErrPassword. So a readable blob that the password does not open is damaged only if the password opens the other blob.
func FindFormatDamage(ctx context.Context, now, saved map[blob.ID][]byte, password string) (map[blob.ID][]byte, error) {
	const repository, settings = format.KopiaRepositoryBlobID, format.KopiaBlobCfgBlobID
	if len(saved) == 0 {
		return nil, nil
	}
	if err := openFormat(ctx, saved, password); errors.Is(err, format.ErrInvalidPassword) && now[repository] == nil {
		return nil, fmt.Errorf("%w: blob %s is missing, and this password does not open its copy", ErrPassword, repository)
	} else if err != nil {
		return nil, nil //nolint:nilerr // there is no usable copy
	}
	damaged := map[blob.ID][]byte{}
	for id, data := range saved {
		if now[id] == nil {
			damaged[id] = data
		}
	}
	if openFormat(ctx, now, password) == nil {
		return damaged, nil
	}
	alone := openFormat(ctx, map[blob.ID][]byte{repository: now[repository]}, password)
	withSaved := map[blob.ID][]byte{repository: saved[repository], settings: now[settings]}
	opensSettings := now[settings] != nil && openFormat(ctx, withSaved, password) == nil
	if now[repository] != nil && errors.Is(alone, format.ErrInvalidPassword) && !opensSettings {
		return nil, fmt.Errorf("%w: it was changed, and this one opens only the copy of the format from before the change", ErrPassword)
	}
	if alone != nil {
		damaged[repository] = saved[repository]
	}
	if !opensSettings && saved[settings] != nil {
		damaged[settings] = saved[settings]
	}
	return damaged, nil
}

// openFormat says why a password does not open a format; nil if it does. It reads nothing from a storage.
func openFormat(ctx context.Context, blobs map[blob.ID][]byte, password string) error {
	if _, err := storage.ParseUniqueID(blobs[format.KopiaRepositoryBlobID]); err != nil {
		return err
	}
	absent := func(id blob.ID) bool { return blobs[id] == nil }
	_, err := format.NewManager(ctx, storage.NewView(nil, absent, blobs), "", 0, password, clock.RealClock{}.Now)
	return err
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
