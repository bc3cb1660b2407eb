package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/format"

	"github.com/varvebackup/varve/internal/errclass"
)

// FormatBlobs are kopia's format blobs. The second is absent in a repository without object lock that another program made.
var FormatBlobs = []blob.ID{format.KopiaRepositoryBlobID, format.KopiaBlobCfgBlobID}

// ReadFormat returns the content of the format blobs that exist.
func ReadFormat(ctx context.Context, st blob.Reader) (map[blob.ID][]byte, error) {
	out := map[blob.ID][]byte{}
	for _, id := range FormatBlobs {
		data, err := ReadBlob(ctx, st, id)
		if err != nil {
			return nil, err
		}
		if data != nil {
			out[id] = data
		}
	}
	return out, nil
}

// A repository that was deleted and made again at the same place has other keys. Writing with the old ones makes restore points
// that nobody can read, and indexes that keep everyone else from opening the new repository.

// ErrReplaced is a conflict that waiting does not resolve.
var ErrReplaced = fmt.Errorf("%w: another repository has taken the place of the one that was opened", errclass.Conflict)

// CheckRepository checks that the storage has the repository with this unique ID. It fails with ErrReplaced if the storage has
// another one, with errclass.NotFound if it has none, and with errclass.Corrupt if the format cannot be read.
func CheckRepository(ctx context.Context, st blob.Reader, id []byte) error {
	data, err := ReadBlob(ctx, st, format.KopiaRepositoryBlobID)
	if err != nil {
		return err
	}
	if data == nil {
		return fmt.Errorf("%w: the repository in %s has lost its format, or is not there any more: `varve repo check` tells", errclass.NotFound, Describe(st.ConnectionInfo()))
	}
	now, err := ParseUniqueID(data)
	if err != nil {
		return fmt.Errorf("%w: blob %s of the repository in %s: %w", errclass.Corrupt, format.KopiaRepositoryBlobID, Describe(st.ConnectionInfo()), err)
	}
	if !bytes.Equal(now, id) {
		return fmt.Errorf("%w in %s: open it again", ErrReplaced, Describe(st.ConnectionInfo()))
	}
	return nil
}

// ParseUniqueID returns the repository's unique ID from its format blob.
func ParseUniqueID(data []byte) ([]byte, error) {
	f, err := format.ParseKopiaRepositoryJSON(data)
	if err != nil {
		return nil, err
	}
	if f == nil || len(f.UniqueID) == 0 { // JSON's null gives a nil f.
		return nil, errors.New("it has no unique ID")
	}
	return f.UniqueID, nil
}
