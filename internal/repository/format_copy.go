package repository

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"
)

// formatCopy is a blob with a copy of formatBlobs. Nothing can be read without those, and kopia has only one of each.
const formatCopy blob.ID = "varve.format"

// formatBlobs are kopia's format blobs. The second is absent in a repository without object lock that another program made.
var formatBlobs = []blob.ID{format.KopiaRepositoryBlobID, format.KopiaBlobCfgBlobID}

// formatCopyFile is the content of formatCopy.
type formatCopyFile struct {
	Blobs map[blob.ID][]byte `json:"blobs"`
	// SHA256 is the hash of the blobs, concatenated in the order of their names.
	SHA256 []byte `json:"sha256"`
}

func formatSum(blobs map[blob.ID][]byte) []byte {
	h := sha256.New()
	for _, id := range slices.Sorted(maps.Keys(blobs)) {
		_, _ = h.Write(blobs[id])
	}
	return h.Sum(nil)
}

func readFormat(ctx context.Context, st blob.Reader) (map[blob.ID][]byte, error) {
	out := map[blob.ID][]byte{}
	for _, id := range formatBlobs {
		data, err := readBlob(ctx, st, id)
		if err != nil {
			return nil, err
		}
		if data != nil {
			out[id] = data
		}
	}
	return out, nil
}

// readFormatCopy returns what the copy holds; nil if there is none, or if it is damaged.
func readFormatCopy(ctx context.Context, st blob.Reader) (map[blob.ID][]byte, error) {
	data, err := readBlob(ctx, st, formatCopy)
	if err != nil {
		return nil, err
	}
	var f formatCopyFile
	bad := json.Unmarshal(data, &f)
	if bad != nil || !bytes.Equal(f.SHA256, formatSum(f.Blobs)) {
		return nil, nil //nolint:nilerr // there is no usable copy
	}
	return f.Blobs, nil
}

// keepFormat brings the copy up to date, because the password may have been changed. It does not copy a format that does not open
// the repository.
func keepFormat(ctx context.Context, w repo.DirectRepositoryWriter, password string) error {
	now, err := readFormat(ctx, w.BlobReader())
	if err != nil {
		return err
	}
	was, err := readFormatCopy(ctx, w.BlobReader())
	if err != nil || maps.EqualFunc(now, was, bytes.Equal) {
		return err
	}
	m, err := format.NewManager(ctx, w.BlobStorage(), "", 0, password, w.Time)
	if err != nil {
		return fmt.Errorf("%w: the format blobs are not what they were: %w", ErrCorrupt, err)
	}
	options, err := lockOptions(ctx, m)
	if err != nil {
		return err
	}
	return copyFormat(ctx, w.BlobStorage(), options)
}

// copyFormat stores a copy of the format as it is now.
func copyFormat(ctx context.Context, st blob.Storage, o blob.PutOptions) error {
	now, err := readFormat(ctx, st)
	if err != nil {
		return err
	}
	data, err := json.Marshal(formatCopyFile{Blobs: now, SHA256: formatSum(now)})
	if err != nil {
		return err
	}
	if err := st.PutBlob(ctx, formatCopy, blobBytes(data), o); err != nil {
		return fmt.Errorf("store a copy of the format: %w", err)
	}
	return nil
}

// restoreFormat puts kopia's format blob back if it is missing or cannot be parsed, and the copy opens with the password. If the
// blob can be parsed but the password does not open it, the password may have been changed. That is for Repair.
func restoreFormat(ctx context.Context, st blob.Storage, password string) error {
	now, err := readFormat(ctx, st)
	if err != nil {
		return err
	}
	if _, err := format.ParseKopiaRepositoryJSON(now[format.KopiaRepositoryBlobID]); err == nil {
		return nil
	}
	saved, err := readFormatCopy(ctx, st)
	if err != nil || saved == nil {
		return err
	}
	v := &view{Storage: st, hidden: isIndex, replaced: saved}
	r, err := v.connect(ctx, repo.ClientOptions{}, "the copy of the format", password, nil)
	if err != nil {
		return err
	}
	options, err := lockOptions(ctx, r.rep.FormatManager())
	if err := errors.Join(err, r.Close(ctx)); err != nil {
		return err
	}
	id := format.KopiaRepositoryBlobID
	if err := st.PutBlob(ctx, blob.ID(id), blobBytes(saved[blob.ID(id)]), options); err != nil {
		return fmt.Errorf("put %s back from its copy: %w", id, err)
	}
	return nil
}
