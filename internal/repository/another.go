package repository

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/format"
)

// A repository that was deleted and made again at the same place has other keys. Writing with the old ones makes restore points
// that nobody can read, and indexes that keep everyone else from opening the new repository.

// forgetFormat makes a cache's copy of the format so old that the next connection reads the format from the storage. kopia trusts
// the cache for 15 minutes. The files stay, because kopia fails if a file that it has just written is gone, in this process or in
// another one.
func forgetFormat(c *content.CachingOptions) error {
	if c == nil || c.CacheDirectory == "" {
		return nil
	}
	return dateFormat(c.CacheDirectory, time.Unix(0, 0))
}

// dateFormat sets the time of a cache's copy of the format, if there is one.
func dateFormat(cache string, at time.Time) error {
	for _, id := range formatBlobs {
		err := os.Chtimes(filepath.Join(cache, string(id)), at, at)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("date the repository's format in the cache: %w", err)
		}
	}
	return nil
}

// errReplaced is a conflict that waiting does not resolve.
var errReplaced = fmt.Errorf("%w: another repository has taken the place of the one that was opened", ErrConflict)

// notReplaced fails if the storage no longer has the repository that this connection opened.
func (r *Repository) notReplaced(ctx context.Context) error {
	return hasRepository(ctx, r.rep.BlobReader(), r.id)
}

// hasRepository checks that the storage has the repository with this unique ID. It fails with errReplaced if the storage has
// another one, with ErrNotFound if it has none, and with ErrCorrupt if the format cannot be read.
func hasRepository(ctx context.Context, st blob.Reader, id []byte) error {
	data, err := readBlob(ctx, st, format.KopiaRepositoryBlobID)
	if err != nil {
		return err
	}
	if data == nil {
		return fmt.Errorf("%w: the repository in %s has lost its format, or is not there any more: `varve repo check` tells", ErrNotFound, location(st.ConnectionInfo()))
	}
	now, err := uniqueID(data)
	if err != nil {
		return fmt.Errorf("%w: the format of the repository in %s: %w", ErrCorrupt, location(st.ConnectionInfo()), err)
	}
	if !bytes.Equal(now, id) {
		return fmt.Errorf("%w in %s: open it again", errReplaced, location(st.ConnectionInfo()))
	}
	return nil
}

// uniqueID returns the repository's unique ID from its format blob.
func uniqueID(data []byte) ([]byte, error) {
	f, err := format.ParseKopiaRepositoryJSON(data)
	if err != nil {
		return nil, err
	}
	if f == nil || len(f.UniqueID) == 0 { // JSON's null gives a nil f.
		return nil, errors.New("it has no unique ID")
	}
	return f.UniqueID, nil
}
